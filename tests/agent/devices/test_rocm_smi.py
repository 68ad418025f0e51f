"""Debian's librocm_smi64 alone, with our machine for /sys."""

from __future__ import annotations

import ctypes.util
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from floatscope import wire
from floatscope._devices._figures import Unavailable
from floatscope._devices._rocm_smi import RocmSmiCards
from tests.agent.devices.machine import KINDS, Machine, as_sys
from tests.needs import needs

if TYPE_CHECKING:
    from tests.agent.devices.conftest import FakeSys

READ = """
import os, sys
from pathlib import Path
import msgspec
from floatscope._devices._rocm_smi import RocmSmiCards
out = os.dup(1)
os.dup2(2, 1)  # the library prints
os.write(out, msgspec.json.encode(RocmSmiCards(Path("/sys")).read()))
"""

POLL = """
import sys, time
import msgspec
from floatscope._devices import LocalDevices
devices = LocalDevices(allocator=list)
devices.start()
while not (read := devices.poll()) and devices.reason is None:
    time.sleep(0.01)
devices.close()
sys.stdout.buffer.write(msgspec.json.encode(read))
"""


@pytest.fixture
def machine(fake_sys: FakeSys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    needs(ctypes.util.find_library("rocm_smi64"), "ROCm SMI (librocm-smi64-1)")
    monkeypatch.setenv("ROCM_PATH", "/nonexistent")
    return Machine(fake_sys, tmp_path / "cards")


def test_every_figure_but_clocks_and_the_power_of_mi300(machine: Machine, fake_sys: FakeSys) -> None:
    machine.set(busy=44, watts=250, used_gib=3, celsius=40, lost=(3, 9))
    done = subprocess.run(as_sys(fake_sys.root, [sys.executable, "-c", READ]), capture_output=True, check=True)
    read = msgspec.json.decode(done.stdout, type=list[wire.Device])
    for place, (one, kind) in enumerate(zip(read, KINDS, strict=True)):
        told = {name: getattr(one, name) for name in machine.expected(place)}
        # It asks for the average, and MI300 tells the present power.
        power = machine.expected(place)["power_watts"] if kind.power == "power1_average" else None
        # Clocks come from the kernel's files.
        clocks = dict.fromkeys(("core_clock_mhz", "memory_clock_mhz"))
        assert told == machine.expected(place) | {"power_watts": power} | clocks
        assert (one.backend, one.index) == ("rocm-smi", place)


def test_a_tree_elsewhere_is_not_what_it_reads(fake_sys: FakeSys) -> None:
    with pytest.raises(Unavailable, match=f"rocm-smi: reads /sys and not {fake_sys.root}"):
        RocmSmiCards(fake_sys.root)


@pytest.mark.parametrize("state", ["coming", None])
def test_no_driver_no_library(machine: Machine, fake_sys: FakeSys, state: str | None) -> None:
    fake_sys.write(fake_sys.root / "module/amdgpu", initstate=state)
    done = subprocess.run(
        as_sys(fake_sys.root, [sys.executable, "-c", READ]), capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1].endswith("Unavailable: rocm-smi: the amdgpu driver is not loaded")


def test_a_library_that_cannot_start_says_so(machine: Machine, fake_sys: FakeSys) -> None:
    for label in fake_sys.root.glob("devices/*/*/hwmon/*/in0_label"):
        label.unlink()
    done = subprocess.run(
        as_sys(fake_sys.root, [sys.executable, "-c", READ]), capture_output=True, text=True, check=False
    )
    assert "Unavailable: rocm-smi: " in done.stderr.splitlines()[-1]
    assert done.stderr.rstrip().endswith("(8)")


def test_a_library_that_ends_its_process_leaves_the_kernels_files(machine: Machine, fake_sys: FakeSys) -> None:
    """Debian's build has assertions. This one wants a folder that is not there."""
    for links in fake_sys.root.glob("class/kfd/kfd/topology/nodes/*/io_links"):
        links.rmdir()
    alone = subprocess.run(as_sys(fake_sys.root, [sys.executable, "-c", READ]), capture_output=True, check=False)
    assert alone.returncode == -signal.SIGABRT
    done = subprocess.run(as_sys(fake_sys.root, [sys.executable, "-c", POLL]), capture_output=True, check=True)
    read = msgspec.json.decode(done.stdout, type=list[wire.Device])
    assert [(one.backend, one.pci) for one in read] == [("sysfs", machine.address(n)) for n in range(len(KINDS))]
