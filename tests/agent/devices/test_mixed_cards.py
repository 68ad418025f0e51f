"""A machine with every kind of card, read by the sidecar while its figures change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from floatscope._devices._lines import Sample

if TYPE_CHECKING:
    from tests.agent.devices.conftest import FakeSys, RunningSidecar

GIB = 1 << 30
KINDS = [("AMD Instinct MI300X OAM", 192)] * 8 + [("AMD Instinct MI250", 64)] * 4 + [("AMD Radeon RX 7900 XTX", 24)]
APU = ("AMD Radeon Graphics", 0)
"""Its memory is the host's; the one below has no carve-out, busy share or power to tell."""


def _address(place: int) -> str:
    return f"0000:{5 + 16 * place:02x}:00.0"


def _machine(fake_sys: FakeSys) -> list[Path]:
    """8 MI300X, 2 MI250 (each die is a device), an RX 7900 and an APU."""
    fake_sys.driver_is_live()
    folders = []
    for place, (name, gib) in enumerate([*KINDS, APU]):
        device = fake_sys.card(place, _address(place))
        fake_sys.write(device, product_name=name, mem_info_vram_total=gib * GIB, mem_info_vram_used=place * GIB)
        folders.append(device)
    sensors = folders[-1] / f"hwmon/hwmon{len(KINDS) + 3}"
    fake_sys.write(folders[-1], mem_info_vram_used=None, gpu_busy_percent=None)
    fake_sys.write(sensors, power1_input=None, temp2_label="edge", temp2_input=47_000)
    return folders


def _smi_lines(busy: int, watts: int) -> str:
    lines = [
        f"0 {5 + 16 * place:x} 0 0  {busy} 55  {place * GIB} {gib * GIB}  {watts} -1  {name}"
        for place, (name, gib) in enumerate(KINDS)
    ]
    return "\n".join([*lines, f"0 {5 + 16 * len(KINDS):x} 0 0  -1 -1  -1 -1  -1 -1  {APU[0]}"]) + "\n"


@pytest.mark.parametrize("smi", [False, True], ids=["sysfs", "amd-smi"])
def test_every_kind_of_card_and_what_changes(
    fake_sys: FakeSys,
    sidecar: Callable[..., RunningSidecar],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    smi: bool,
) -> None:
    folders = _machine(fake_sys)
    listed = tmp_path / "cards"
    environment = {}
    if smi:
        listed.write_text(_smi_lines(87, 512))
        environment = {"ROCM_PATH": str(request.getfixturevalue("rocm_path")), "FAKE_SMI_CARDS": str(listed)}
    running = sidecar(**environment)
    sample = running.line()
    assert isinstance(sample, Sample)
    *cards, apu = sample.devices
    assert [(one.pci, one.name, one.vram_used_bytes, one.vram_total_bytes) for one in cards] == [
        (_address(place), name, place * GIB, gib * GIB) for place, (name, gib) in enumerate(KINDS)
    ]
    assert {(one.busy_percent, one.power_watts, one.temperature_celsius) for one in cards} == {(87.0, 512.0, 61.0)}
    assert (apu.pci, apu.name, apu.temperature_celsius) == (_address(len(KINDS)), APU[0], 47.0)
    assert (apu.vram_used_bytes, apu.vram_total_bytes, apu.busy_percent, apu.power_watts) == (None,) * 4

    # One card loses its figures, in each way that drivers have; the others change.
    for place, folder in enumerate(folders[:-1]):
        sensors = folder / f"hwmon/hwmon{place + 3}"
        if place == 3:
            fake_sys.write(folder, gpu_busy_percent=0xFFFF, mem_info_vram_used="N/A")
            fake_sys.write(sensors, power1_input=-1, temp2_input="N/A")
        else:
            fake_sys.write(folder, gpu_busy_percent=12)
            fake_sys.write(sensors, power1_input=300_000_000)
    if smi:
        lines = _smi_lines(12, 300).splitlines()
        lines[3] = f"0 {5 + 16 * 3:x} 0 0  -1 -1  -1 -1  -1 -1  {KINDS[3][0]}"
        listed.write_text("\n".join(lines) + "\n")
    changed = running.until(
        lambda now: now.devices[12].power_watts == 300.0 and now.devices[3].temperature_celsius is None
    )
    lost = changed.devices[3]
    assert (lost.busy_percent, lost.vram_used_bytes, lost.power_watts) == (None, None, None)
    assert lost.pci == _address(3)
    assert {one.busy_percent for one in changed.devices[:13] if one is not lost} == {12.0}
