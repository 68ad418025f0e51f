"""The verdicts that a run carries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from floatscope._doctor._attached import verdicts_of_this_process
from floatscope._selftest._history import Entry, History


def test_what_goes_with_a_run_says_what_the_doctor_would(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HIP_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("FLOATSCOPE_DIR", str(tmp_path))
    History(tmp_path / "selftest.jsonl").add(Entry(time="1", stack="torch 1.0", chips=(), lines=()))
    verdicts = {verdict["item"]: verdict for verdict in verdicts_of_this_process()}
    assert verdicts["HIP_LAUNCH_BLOCKING"]["status"] == "warning"
    assert verdicts["selftest"]["fix"] == "floatscope selftest"
    assert all(set(verdict) == {"item", "status", "value", "why", "fix"} for verdict in verdicts.values())


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys; from floatscope._doctor._attached import verdicts_of_this_process as judge; judge();"
        "print({'torch', 'pyrsmi', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_training_without_a_context_does_not_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched() -> None:
        raise AssertionError("the driver was asked")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    for name in ("is_available", "device_count", "get_device_properties", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, touched)
    assert verdicts_of_this_process()
