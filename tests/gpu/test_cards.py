"""What the sidecar reads of a real NVIDIA card is what torch and the driver's own tool say of it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from floatscope import wire
from floatscope._devices import LocalDevices

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available() or torch.version.hip is not None, reason="needs an NVIDIA card"),
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="nvidia-smi is not installed"),
]

GIB = 2**30


@pytest.fixture
def devices() -> Iterator[LocalDevices]:
    devices = LocalDevices(period_s=0.2)
    devices.start()
    yield devices
    devices.close()


def reading(
    devices: LocalDevices, wanted: Callable[[wire.Device], bool], meanwhile: Callable[[], None] = lambda: None
) -> wire.Device:
    """The first of this process's card that is as wanted; ``meanwhile`` is called until then."""
    seen = []
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for device in devices.poll():
            seen.append(device)
            if device.allocated_bytes is not None and wanted(device):
                return device
        meanwhile()
        time.sleep(0.001)
    raise AssertionError(f"none of {seen[-3:]}; {devices.reason}")


def pci() -> str:
    """Of the card that torch calls 0 here."""
    properties: Any = torch.cuda.get_device_properties(0)  # torch's stubs lack the three
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def tool(*fields: str) -> list[str]:
    """By nvidia-smi, of that card."""
    command = ["nvidia-smi", f"--id={pci()}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [value.strip() for value in answer.split(",")]


def test_memory_is_what_torch_holds(devices: LocalDevices) -> None:
    held = [torch.ones(GIB // 4, device="cuda")]
    torch.cuda.synchronize()
    first = reading(devices, lambda device: (device.allocated_bytes or 0) >= GIB)
    properties = torch.cuda.get_device_properties(0)
    assert first.backend == "nvml+torch"
    assert first.name == properties.name
    assert first.pci == pci()
    # The driver keeps some of the card for itself, which torch does not count.
    assert first.vram_total_bytes == pytest.approx(properties.total_memory, rel=0.02)

    held += [torch.ones(GIB // 4, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_allocated()
    free, total = torch.cuda.mem_get_info()
    later = reading(devices, lambda device: device.allocated_bytes == allocated)
    # The sample of the driver may be older than that of the allocator.
    later = reading(devices, lambda device: (device.vram_used_bytes or 0) - (first.vram_used_bytes or 0) > 7 * GIB)
    assert (later.vram_used_bytes or 0) - (first.vram_used_bytes or 0) == pytest.approx(8 * GIB, rel=0.02)
    assert later.vram_used_bytes == pytest.approx(total - free, rel=0.02, abs=GIB)
    assert later.reserved_bytes == torch.cuda.memory_reserved()
    assert len(held) == 9


def test_a_card_at_work(devices: LocalDevices) -> None:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def work() -> None:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()

    device = reading(devices, lambda device: (device.busy_percent or 0) >= 90, work)
    memory_clock, power_limit, celsius = tool("clocks.current.memory", "power.limit", "temperature.gpu")
    assert device.memory_clock_mhz == float(memory_clock)
    assert 50 < (device.power_watts or 0) < 1.1 * float(power_limit)
    assert device.temperature_celsius == pytest.approx(float(celsius), abs=15)
    assert (device.core_clock_mhz or 0) > 300


def test_its_link_and_errors(devices: LocalDevices) -> None:
    held = torch.ones(GIB // 4, device="cuda")
    device = reading(devices, lambda device: device.pcie_max_width is not None)
    speeds = {"1": 2.5, "2": 5.0, "3": 8.0, "4": 16.0, "5": 32.0, "6": 64.0}
    width, widest, fastest, corrected, uncorrected = tool(
        "pcie.link.width.current",
        "pcie.link.width.max",
        "pcie.link.gen.max",
        "ecc.errors.corrected.volatile.total",
        "ecc.errors.uncorrected.volatile.total",
    )
    assert device.pcie_width == count(width)
    assert device.pcie_max_width == count(widest)
    assert device.pcie_max_speed_gts == speeds.get(fastest)
    # An idle link is slower than it could be.
    assert (device.pcie_speed_gts or 0) <= (device.pcie_max_speed_gts or 0)
    assert (device.ecc_corrected, device.ecc_uncorrected) == (count(corrected), count(uncorrected))
    assert held.numel()


def count(said: str) -> int | None:
    """None for "[N/A]"."""
    return int(said) if said.isdigit() else None
