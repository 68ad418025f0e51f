"""Where the spool is, and how it is switched off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import floatscope
from floatscope._config import Config, configured
from floatscope._sender import Sender


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FLOATSCOPE_DIR": "/d", "XDG_STATE_HOME": "/s"}, "/d"),
        ({"XDG_STATE_HOME": "/s"}, "/s/floatscope/spool"),
        ({"XDG_STATE_HOME": "relative"}, "~/.local/state/floatscope/spool"),
        ({}, "~/.local/state/floatscope/spool"),
    ],
)
def test_where_the_spool_is(environment: dict[str, str], expected: str) -> None:
    assert configured(None, {}, environment).spool_dir == expected
    assert configured(None, {"spool_dir": "/mine"}, environment).spool_dir == "/mine"


def test_a_cap_must_make_sense() -> None:
    with pytest.raises(ValueError, match="spool_bytes"):
        Config(spool_bytes=-1)


@pytest.mark.parametrize("spool_bytes", [0, 1 << 20])
def test_watch_spools_unless_told_not_to(tmp_path: Path, spool_bytes: int, until: Callable[..., None]) -> None:
    model = torch.nn.Linear(2, 2)
    folder = tmp_path / "spool"
    scope = floatscope.watch(
        model, server="http://127.0.0.1:9", run="r", spool_dir=str(folder), spool_bytes=spool_bytes
    )
    scope.step(loss=1.0)
    sender = scope._sink
    assert isinstance(sender, Sender)
    until(lambda: sender._spooler is None or sender._spooler.kept)
    sender.finish("finished")
    sender._finished_at = 0.0  # nobody is there to wait for
    for thread in (*sender._threads, *sender._spool_threads):
        thread.join(0.5)
    scope.close()
    assert folder.exists() == bool(spool_bytes)
    assert not sender.stats().spool_off


def test_a_training_may_change_its_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(2, 2)
    scope = floatscope.watch(model, server="http://127.0.0.1:9", run="r", spool_dir="here")
    sender = scope._sink
    assert isinstance(sender, Sender)
    assert sender._spooler is not None
    assert sender._spooler.place.directory == tmp_path / "here"
    sender.abandon()
    scope.close()
