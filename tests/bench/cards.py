"""Processor time of the sidecar that reads the cards: 8 of MI300X kind, once a second, for a minute each.

The kernel's files are a folder like /sys on the disk, so what a driver does inside a read is not in the figures. With
AMD SMI means the stand-in of the tests, through pyrsmi, and the files beside it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

from tests.agent.devices.conftest import FakeSys
from tests.bench.spread import spread

_CARDS = 8
_SECONDS = 60
_SETTLED_S = 5
_CPUCLOCK_SCHED = 2  # linux/posix-timers_types.h
_SOURCE = Path(__file__).parents[1] / "agent/fake_smi/fake_amd_smi.c"


def _processor_s(pid: int) -> float:
    """User and system time of all threads, those that ended included, to the nanosecond: clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)


def _shares(root: Path, environment: dict[str, str]) -> list[float]:
    """Per cent of one core, from each reading to the next."""
    command = [sys.executable, "-P", "-m", "floatscope._devices", f"--sysfs={root}", "--period=1"]
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
            assert line.count(b'"pci"') == _CARDS, line
            now = time.monotonic(), _processor_s(sidecar.pid)
            shares.append(100 * (now[1] - before[1]) / (now[0] - before[0]))
            before = now
        sidecar.kill()
    return shares


def _tell(what: str, shares: list[float]) -> None:
    print(f"{what}: mean {mean(shares):.3f}, {spread(shares, '% of one core', 3)} readings of {_CARDS} cards")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        system = FakeSys(Path(folder) / "sys")
        system.driver_is_live()
        lines = []
        for number in range(_CARDS):
            bus = f"{5 + 16 * number:02x}"
            system.card(number, f"0000:{bus}:00.0")
            lines.append(f"0 {bus} 0 0  87 55  40000000000 192000000000  512 -1  MI300X")
        (Path(folder) / "cards").write_text("\n".join(lines) + "\n")
        _tell("sysfs", _shares(system.root, {"ROCM_PATH": "/nonexistent"}))
        if (gcc := shutil.which("gcc")) is None:
            print("AMD SMI: not measured, there is no gcc for the stand-in")
            return
        library = Path(folder) / "rocm/lib/libamd_smi.so"
        library.parent.mkdir(parents=True)
        subprocess.run([gcc, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
        given = {"ROCM_PATH": str(Path(folder) / "rocm"), "FAKE_SMI_CARDS": str(Path(folder) / "cards")}
        _tell("AMD SMI and sysfs", _shares(system.root, given))


if __name__ == "__main__":
    main()
