"""Processor time of the sidecar that reads the cards: 8 of MI300X kind, once a second, for a minute each.

The kernel's files are a folder like /sys on the disk, so what a driver does inside a read is not in the figures.
AMD SMI is the stand-in of the tests, through pyrsmi; ROCm SMI is the installed library; sysfs is read beside each.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

from tests.agent.devices.conftest import FakeSys
from tests.agent.devices.machine import KINDS, Machine, apart
from tests.bench.spread import spread

_CARDS = 8
_SECONDS = 60
_SETTLED_S = 5
_CPUCLOCK_SCHED = 2  # linux/posix-timers_types.h
_SOURCE = Path(__file__).parents[1] / "agent/fake_smi/fake_amd_smi.c"


def _processor_s(pid: int) -> float:
    """User and system time of all threads, those that ended included, to the nanosecond: clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)


def _shares(command: list[str], environment: dict[str, str], backend: str) -> list[float]:
    """Per cent of one core, from each reading to the next."""
    shares = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}
    ) as sidecar:
        assert sidecar.stdout is not None
        for _ in range(_SETTLED_S):
            sidecar.stdout.readline()
        before = time.monotonic(), _processor_s(sidecar.pid)
        for _ in range(_SECONDS):
            line = sidecar.stdout.readline()
            assert line.count(b'"backend":"%s"' % backend.encode()) == _CARDS, line
            now = time.monotonic(), _processor_s(sidecar.pid)
            shares.append(100 * (now[1] - before[1]) / (now[0] - before[0]))
            before = now
        sidecar.kill()
    return shares


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(system := FakeSys(Path(folder) / "sys"), Path(folder) / "cards", KINDS[:_CARDS])
        read = [sys.executable, "-P", "-m", "floatscope._devices"]
        of_tree = [*read, f"--sysfs={system.root}"]
        ways = {"sysfs": (of_tree, {"ROCM_PATH": "/nonexistent"})}
        if (gcc := shutil.which("gcc")) is None:
            print("  AMD SMI: not measured, there is no gcc for the stand-in")
        else:
            library = Path(folder) / "rocm/lib/libamd_smi.so"
            library.parent.mkdir(parents=True)
            subprocess.run([gcc, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
            given = {"ROCM_PATH": str(Path(folder) / "rocm"), "FAKE_SMI_CARDS": str(machine.cards)}
            ways["pyrsmi+sysfs"] = of_tree, given
        begin, why = apart(system.root)
        if why or ctypes.util.find_library("rocm_smi64") is None:
            print(f"  ROCm SMI: not measured, {why or 'it is not installed'}")
        else:
            ways["rocm-smi+sysfs"] = [*begin, *read], {"ROCM_PATH": "/nonexistent"}
        for backend, (command, environment) in ways.items():
            shares = _shares(command, environment, backend)
            print(
                f"  {backend}: mean {mean(shares):.3f}, {spread(shares, '% of one core', 3)} readings of {_CARDS} cards"
            )


if __name__ == "__main__":
    main()
