"""A function is called after a module was imported, and nothing else of importing changes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from floatscope._attach.imports import AfterImport
from floatscope._guard import Guard


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AfterImport]:
    (tmp_path / "awaited").mkdir()
    (tmp_path / "awaited" / "__init__.py").write_text("value = 1\n")
    (tmp_path / "awaited" / "inner.py").write_text("import awaited\nvalue = awaited.value + 1\n")
    (tmp_path / "broken.py").write_text("import sys\nif not hasattr(sys, 'mended'): raise RuntimeError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    waiting = AfterImport()
    waiting.install()
    yield waiting
    waiting.remove()
    for name in ("awaited", "awaited.inner", "broken"):
        sys.modules.pop(name, None)


def test_modules_are_whole_when_their_import_is_told(imports: AfterImport) -> None:
    told: list[tuple[str, int]] = []
    for name in ("awaited", "awaited.inner"):
        imports.call(name, lambda module: told.append((module.__name__, module.value)))
    importlib.import_module("awaited.inner")
    assert told == [("awaited", 1), ("awaited.inner", 2)]
    loader = sys.modules["awaited"].__loader__
    assert type(loader).__name__ == "SourceFileLoader"
    assert not [name for name in vars(loader) if name == "exec_module"]
    importlib.reload(sys.modules["awaited"])
    assert len(told) == 2


def test_asking_for_a_spec_is_no_import(imports: AfterImport) -> None:
    told: list[ModuleType] = []
    imports.call("awaited", told.append)
    assert importlib.util.find_spec("awaited") is not None
    assert importlib.util.find_spec("awaited_but_absent") is None
    assert not told
    importlib.import_module("awaited")
    assert told == [sys.modules["awaited"]]


def test_what_is_imported_already_is_told_at_once(imports: AfterImport) -> None:
    told: list[ModuleType] = []
    imports.call("json", told.append)
    assert told == [sys.modules["json"]]


def test_an_import_that_fails_is_told_when_it_succeeds(imports: AfterImport, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ModuleType] = []
    imports.call("broken", told.append)
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module("broken")
    assert not told
    monkeypatch.setattr(sys, "mended", True, raising=False)
    importlib.import_module("broken")
    assert len(told) == 1


def test_what_a_callback_raises_is_kept_from_the_program(
    imports: AfterImport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Guard, "reraise", False)

    def fail(module: ModuleType) -> None:
        raise ValueError("ours")

    imports.call("awaited", fail)
    assert importlib.import_module("awaited").value == 1
    assert "attaching to awaited" in caplog.text


def test_nothing_is_left(imports: AfterImport) -> None:
    imports.remove()
    assert imports not in sys.meta_path
