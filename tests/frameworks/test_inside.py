"""Runs the tests of the callbacks in an environment that has the frameworks; each file is one training process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
FILES = ("accelerate_tracker.py", "lightning_callback.py", "transformers_callback.py")
DEADLINE_S = 900.0


@pytest.mark.parametrize("file", FILES)
def test_the_callback_does_what_it_says(frameworks: Path, variables: dict[str, str], file: str) -> None:
    # Without the project's settings: warnings of frameworks are theirs.
    options = ["-q", "-c", "/dev/null", "--rootdir", str(ROOT), "--import-mode=importlib", "-p", "no:cacheprovider"]
    command = [str(frameworks), "-m", "pytest", *options, str(ROOT / "tests" / "frameworks" / "inside" / file)]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
