"""Outputs that are closed, full or know few letters: what a command answers there, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def doctor(folder: Path, streams: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``floatscope doctor`` on a file with a mistake in letters beyond ASCII; without a torch to be imported."""
    (folder / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    (folder / "train.yaml").write_text("output_dir: out\nper_device_train_batch_size: 1\nlearning_r\u00e4te: 1\n")
    line = ["sh", "-c", f'"$@" {streams}', "sh", sys.executable, "-m", "floatscope", "doctor", "train.yaml"]
    return subprocess.run(
        line, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False
    )


def test_letters_that_an_output_cannot_show_are_escaped(tmp_path: Path) -> None:
    done = doctor(tmp_path, "", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (1, "")
    assert "learning_r\\xe4te" in done.stdout


@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_an_output_that_is_closed_loses_the_answer_and_not_the_status(tmp_path: Path, streams: str) -> None:
    done = doctor(tmp_path, streams)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_an_output_that_is_full_is_said(tmp_path: Path) -> None:
    done = doctor(tmp_path, ">/dev/full")
    assert (done.returncode, done.stderr) == (2, "floatscope: cannot write the answer: No space left on device\n")
