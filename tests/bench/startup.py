"""What Floatscope costs a Python process that never trains: the .pth that each one reads, and ``import floatscope``.

The .pth is read as ``site`` reads it, again and again in one process; and processes with and without it take turns, in
an environment of their own. Imports are timed inside new processes. Figures of processes are processor time: on a
machine that does other work as well, the clock would tell more of that.
"""

from __future__ import annotations

import os
import resource
import site
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from tests.bench.spread import spread

_AGENT = Path(__file__).parents[2] / "agent"
_PTH = _AGENT / "floatscope.pth"
_TIMES = 1000
_PAIRS = 40
_IMPORT = "import time; t = time.process_time(); import {}; print(1e3 * (time.process_time() - t))"


def _reading() -> list[float]:
    """Microseconds of one reading, as ``site`` does it."""
    measured = []
    for _ in range(_TIMES):
        begun = time.perf_counter()
        site.addpackage(str(_PTH.parent), _PTH.name, set())
        measured.append(1e6 * (time.perf_counter() - begun))
    return measured


def _starting(python: Path, pth: Path, environment: dict[str, str]) -> list[float]:
    """Milliseconds that the .pth adds to the whole life of a process that does nothing, one figure for each pair."""
    added = []
    for number in range(_PAIRS):
        taken = {}
        # Who goes second finds other caches than who goes first.
        for there in (True, False) if number % 2 else (False, True):
            if there:
                pth.write_text(_PTH.read_text())
            else:
                pth.unlink(missing_ok=True)
            begun = _processor_s()
            subprocess.run([python, "-c", "pass"], env=environment, check=True)
            taken[there] = _processor_s() - begun
        added.append(1e3 * (taken[True] - taken[False]))
    return added


def _processor_s() -> float:
    """Of all processes that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _importing(name: str, environment: dict[str, str]) -> list[float]:
    """Milliseconds of an import in a new process."""
    command = [sys.executable, "-c", _IMPORT.format(name)]
    answers = [subprocess.run(command, env=environment, check=True, capture_output=True) for _ in range(_PAIRS)]
    return [float(answer.stdout) for answer in answers]


def main() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLOATSCOPE_", "PYTHON"))}
    os.environ.pop("FLOATSCOPE_ATTACH", None)
    print(f"  reading the .pth: {spread(_reading(), 'us')}")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False, symlinks=True)
        (packages,) = (Path(folder) / "lib").glob("python*/site-packages")
        added = _starting(Path(folder) / "bin" / "python", packages / "floatscope.pth", environment)
    print(f"  python -c pass with it, and without: {spread(added, 'ms more')}")
    with_agent = {**environment, "PYTHONPATH": str(_AGENT)}
    print(f"  import floatscope: {spread(_importing('floatscope', with_agent), 'ms')}")
    print(f"  import floatscope._attach.startup: {spread(_importing('floatscope._attach.startup', with_agent), 'ms')}")
