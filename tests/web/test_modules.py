"""The page's own unit tests, run by Node."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path


def test_modules_of_the_page(root: Path, program: Callable[[str], str]) -> None:
    tests = sorted(str(path) for path in (root / "tests" / "web").glob("*.test.mjs"))
    assert tests
    result = subprocess.run([program("node"), "--test", *tests], capture_output=True, text=True, check=False, cwd=root)
    assert result.returncode == 0, result.stdout
