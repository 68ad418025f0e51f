"""What each source of readings says, from real files and real C libraries."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from floatscope import wire
from floatscope._devices._figures import Unavailable, fill, number, pci_address, percent
from floatscope._devices._lines import NoDevices, Sample
from floatscope._devices._sampler import in_time
from floatscope._devices._sysfs import SysfsCards
from tests.agent.devices.machine import LINK_AND_ERRORS

if TYPE_CHECKING:
    from tests.agent.devices.conftest import FakeSys, RunningSidecar

    StartSidecar = Callable[..., RunningSidecar]

GIB = 1 << 30

FIGURES: dict[str, Any] = {
    "vram_used_bytes": 40 * GIB,
    "vram_total_bytes": 192 * GIB,
    "busy_percent": 87.0,
    "memory_busy_percent": 55.0,
    "power_watts": 512.0,
    "temperature_celsius": 61.0,
    "core_clock_mhz": 2100.0,
    "memory_clock_mhz": 1300.0,
    **LINK_AND_ERRORS,
}
"""What sysfs tells of a card of ``fake_sys``."""


@pytest.mark.parametrize(
    "answer", [-1, 0xFFFF, 0xFFFFFFFF, 2**64 - 1, 65535.0, "N/A", "", "-1", None, float("nan"), True]
)
def test_not_available_is_none(answer: object) -> None:
    assert number(answer) is None


def test_zero_is_a_figure_and_a_share_ends_at_100() -> None:
    assert number(0) == 0
    assert number("512000000", 1e-6) == pytest.approx(512.0)
    assert (percent(0), percent("100"), percent(101)) == (0.0, 100.0, None)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("10000:05:00.1", "10000:05:00.1"),
        ("0:5:0", "0000:05:00.0"),
        ("card0", None),
        ("", None),
    ],
)
def test_addresses_have_one_spelling(text: str, address: str | None) -> None:
    assert pci_address(text) == address


def test_fill_names_both_backends_only_when_it_filled() -> None:
    full = wire.Device(time_ns=1, backend="a", index=0, pci="0000:05:00.0", power_watts=0.0)
    assert fill(full, wire.Device(time_ns=2, backend="b", index=1, power_watts=5.0)) == full
    other = wire.Device(time_ns=2, backend="b", index=1, power_watts=5.0, temperature_celsius=40.0)
    filled = fill(full, other)
    assert (filled.backend, filled.index, filled.power_watts, filled.temperature_celsius) == ("a+b", 0, 0.0, 40.0)


def test_sysfs_reads_every_figure_in_its_unit(fake_sys: FakeSys) -> None:
    fake_sys.card(1, "0000:25:00.0")
    fake_sys.card(0, "0000:05:00.0")
    fake_sys.card(2, "0000:07:00.0", vendor="0x8086")
    first, second = SysfsCards(fake_sys.root).read()
    assert first == wire.Device(
        time_ns=first.time_ns,
        backend="sysfs",
        index=0,
        pci="0000:05:00.0",
        name="AMD Instinct MI300X OAM",
        **FIGURES,
    )
    assert second.pci == "0000:25:00.0"


def test_sysfs_missing_is_none_and_never_zero(fake_sys: FakeSys) -> None:
    device = fake_sys.card(0, "0000:05:00.0")
    sensors = device / "hwmon/hwmon3"
    fake_sys.write(device, gpu_busy_percent=None, mem_busy_percent="", mem_info_vram_used="N/A")
    fake_sys.write(sensors, power1_input=None, temp2_input=None, freq1_input=-1, freq2_input=None)
    # What a suspended card answers: reading fails though the file is there.
    (device / "product_name").unlink()
    (device / "product_name").mkdir()
    cards = SysfsCards(fake_sys.root)
    cards.read()
    [reading] = cards.read()
    assert reading == wire.Device(
        time_ns=reading.time_ns, backend="sysfs", index=0, pci="0000:05:00.0", vram_total_bytes=192 * GIB
    )


def test_sysfs_average_power_and_edge_temperature_of_older_cards(fake_sys: FakeSys) -> None:
    device = fake_sys.card(0, "0000:05:00.0")
    fake_sys.write(device / "hwmon/hwmon3", power1_input=None, power1_average=280_000_000)
    fake_sys.write(device / "hwmon/hwmon3", temp2_label="edge", temp2_input=47_000)
    [reading] = SysfsCards(fake_sys.root).read()
    assert reading.power_watts == pytest.approx(280.0)
    assert reading.temperature_celsius == pytest.approx(47.0)


def test_sysfs_asks_again_for_what_was_not_to_be_had(fake_sys: FakeSys) -> None:
    device = fake_sys.card(0, "0000:05:00.0")
    fake_sys.write(device, product_name="", mem_info_vram_total="N/A")
    fake_sys.write(device / "hwmon/hwmon3", temp1_label="edge", temp1_input=47_000, temp2_input="N/A")
    cards = SysfsCards(fake_sys.root)
    [reading] = cards.read()
    assert (reading.name, reading.vram_total_bytes, reading.temperature_celsius) == (None, None, 47.0)
    fake_sys.write(device, product_name="MI300X", mem_info_vram_total=GIB)
    fake_sys.write(device / "hwmon/hwmon3", temp2_input=61_000)
    [reading] = cards.read()
    assert (reading.name, reading.vram_total_bytes, reading.temperature_celsius) == ("MI300X", GIB, 61.0)


def test_sysfs_follows_a_driver_that_was_loaded_again(fake_sys: FakeSys) -> None:
    first = fake_sys.card(0, "0000:05:00.0")
    cards = SysfsCards(fake_sys.root)
    assert [one.name for one in cards.read()] == ["AMD Instinct MI300X OAM"]
    # The sensors have a new number, and the card's number went to another card.
    (first / "hwmon/hwmon3").rename(first / "hwmon/hwmon9")
    fake_sys.write(first / "hwmon/hwmon9", temp2_input=33_000)
    assert [one.temperature_celsius for one in cards.read()] == [33.0]
    (fake_sys.root / "class/drm/card0").unlink()
    second = fake_sys.card(1, "0000:25:00.0")
    (fake_sys.root / "class/drm/card1").rename(fake_sys.root / "class/drm/card0")
    fake_sys.write(second, product_name="another")
    assert [(one.pci, one.name) for one in cards.read()] == [("0000:25:00.0", "another")]


def test_sysfs_without_a_card_says_so(fake_sys: FakeSys) -> None:
    with pytest.raises(Unavailable, match="no AMD card below"):
        SysfsCards(fake_sys.root)


def test_pyrsmi_finds_the_cards_and_sysfs_fills_the_rest(
    fake_sys: FakeSys, sidecar: StartSidecar, rocm_path: Path, tmp_path: Path
) -> None:
    fake_sys.driver_is_live()
    fake_sys.card(0, "0000:05:00.0")
    fake_sys.card(1, "0001:c5:00.0")
    cards = tmp_path / "cards"
    # In another order than sysfs, with figures of its own, the second one lacking most of them.
    cards.write_text(
        f"1 c5 0 0  11 22  {7 * GIB} {191 * GIB}  333 -1  Instinct B\n0 5 0 0  -1 -1  -1 -1  -1 -1  Instinct A\n"
    )
    running = sidecar(ROCM_PATH=str(rocm_path), FAKE_SMI_CARDS=str(cards))
    sample = running.line()
    assert isinstance(sample, Sample)
    first, second = sample.devices
    assert first == wire.Device(
        time_ns=first.time_ns,
        backend="pyrsmi+sysfs",
        index=0,
        pci="0001:c5:00.0",
        name="Instinct B",
        vram_used_bytes=7 * GIB,
        vram_total_bytes=191 * GIB,
        busy_percent=11.0,
        memory_busy_percent=22.0,
        power_watts=333.0,
        temperature_celsius=61.0,
        core_clock_mhz=2100.0,
        memory_clock_mhz=1300.0,
    )
    assert second == wire.Device(
        time_ns=second.time_ns,
        backend="pyrsmi+sysfs",
        index=1,
        pci="0000:05:00.0",
        name="Instinct A",
        **FIGURES,
    )
    cards.write_text(cards.read_text().replace("11 22", "99 22"))
    running.until(lambda sample: sample.devices[0].busy_percent == 99.0)


def test_unpatched_pyrsmi_finds_no_card(rocm_path: Path, tmp_path: Path) -> None:
    """Why the argument types are declared; once pyrsmi does it itself, this fails and the declaration can go."""
    cards = tmp_path / "cards"
    cards.write_text("0 5 0 0  1 1  1 1  1 1  A\n")
    code = (
        "from pyrsmi import rocml; rocml._driver_initialized = lambda: True;"
        "rocml._init_processor_handles_by_type = lambda: False;"
        "rocml.smi_initialize(); print(rocml.smi_get_device_count())"
    )
    environment = {"ROCM_PATH": str(rocm_path), "FAKE_SMI_CARDS": str(cards)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_sysfs_alone_when_pyrsmi_cannot_start(fake_sys: FakeSys, sidecar: StartSidecar) -> None:
    device = fake_sys.card(0, "0000:05:00.0")
    running = sidecar()
    sample = running.line()
    assert isinstance(sample, Sample)
    assert sample.devices[0].backend == "sysfs"
    fake_sys.write(device, gpu_busy_percent=3)
    running.until(lambda sample: sample.devices[0].busy_percent == 3.0)


def test_sysfs_alone_when_pyrsmi_hangs(
    fake_sys: FakeSys, sidecar: StartSidecar, rocm_path: Path, tmp_path: Path
) -> None:
    fake_sys.driver_is_live()
    fake_sys.card(0, "0000:05:00.0")
    cards = tmp_path / "cards"
    cards.write_text("0 5 0 0  1 1  1 1  1 1  A\n")
    running = sidecar("--timeout=0.3", ROCM_PATH=str(rocm_path), FAKE_SMI_CARDS=str(cards), FAKE_SMI_HANG="1")
    sample = running.line()
    assert isinstance(sample, Sample)
    assert [reading.backend for reading in sample.devices] == ["sysfs"]


def test_nvml_with_a_card_that_supports_little(sidecar: StartSidecar, nvml_path: Path) -> None:
    sample = sidecar(LD_LIBRARY_PATH=str(nvml_path)).line()
    assert isinstance(sample, Sample)
    first, second = sample.devices
    first = msgspec.structs.replace(first, **dict.fromkeys(wire.READ_SELDOM))
    assert first == wire.Device(
        time_ns=first.time_ns,
        backend="nvml",
        index=0,
        pci="0000:3b:00.0",
        name="NVIDIA H200",
        vram_used_bytes=5 * GIB,
        vram_total_bytes=150 * GIB,
        busy_percent=0.0,
        memory_busy_percent=12.0,
        power_watts=412.5,
        temperature_celsius=44.0,
        core_clock_mhz=1965.0,
        memory_clock_mhz=3201.0,
    )
    assert second.pci == "0001:af:00.0"
    assert (second.busy_percent, second.power_watts, second.vram_used_bytes) == (None, None, 5 * GIB)


def test_no_card_at_all_says_why_and_ends(sidecar: StartSidecar, nvml_path: Path) -> None:
    running = sidecar(LD_LIBRARY_PATH=str(nvml_path), FAKE_NVML_DRIVER="none")
    line = running.line()
    assert isinstance(line, NoDevices)
    assert "AMD SMI library (libamd_smi.so) not found" in line.reason
    assert "sysfs: no AMD card below" in line.reason
    assert "nvml: Driver Not Loaded" in line.reason
    assert running.process.wait(20) == 0


def test_cards_that_stay_away_end_the_readings(fake_sys: FakeSys) -> None:
    now = [0.0]
    fake_sys.card(0, "0000:05:00.0")
    cards = SysfsCards(fake_sys.root, clock=lambda: now[0], patience_s=5.0)
    link = fake_sys.root / "class/drm/card0"
    target = link.readlink()
    for _ in range(3):
        assert len(cards.read()) == 1
        link.unlink()
        now[0] += 5.0
        assert cards.read() == []
        link.symlink_to(target)
    assert len(cards.read()) == 1
    link.unlink()
    now[0] += 5.1
    with pytest.raises(Unavailable, match="have gone"):
        cards.read()


def test_the_only_card_goes_away_and_comes_back_under_another_number(fake_sys: FakeSys, sidecar: StartSidecar) -> None:
    device = fake_sys.card(1, "0000:05:00.0")
    running = sidecar()
    [before] = running.until(lambda sample: True).devices
    (fake_sys.root / "class/drm/card1").unlink()
    running.until(lambda sample: sample.devices == ())
    (device / "drm/card1").rename(device / "drm/card128")
    (fake_sys.root / "class/drm/card128").symlink_to("../../devices/pci0000:00/0000:05:00.0/drm/card128")
    [after] = running.until(lambda sample: sample.devices != ()).devices
    assert (after.index, after.pci, after.backend) == (before.index, before.pci, before.backend)


def test_a_call_that_hangs_is_left_behind() -> None:
    release = threading.Event()
    with pytest.raises(Unavailable, match=r"driver: no answer within 0\.01 s"):
        in_time(release.wait, 0.01, "driver")
    release.set()
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 // 0, 5.0, "driver")


def test_a_card_that_hangs_keeps_its_place_and_the_others_go_on(fake_sys: FakeSys, sidecar: StartSidecar) -> None:
    folders = [fake_sys.card(place, f"0000:{place + 5:02x}:00.0") for place in range(3)]
    running = sidecar("--timeout=1")
    running.line()
    file = folders[1] / "mem_info_vram_used"
    file.unlink()
    os.mkfifo(file)  # opening it waits until somebody writes
    hung = running.until(lambda sample: sample.devices[1].vram_total_bytes is None)
    assert [(one.index, one.pci) for one in hung.devices] == [
        (0, "0000:05:00.0"),
        (1, "0000:06:00.0"),
        (2, "0000:07:00.0"),
    ]
    assert hung.devices[1].power_watts is None
    fake_sys.write(folders[2], gpu_busy_percent=4)
    running.until(lambda sample: sample.devices[2].busy_percent == 4.0 and sample.devices[1].busy_percent is None)
    file.open("w").close()
    file.unlink()
    fake_sys.write(folders[1], mem_info_vram_used=5)
    running.until(lambda sample: sample.devices[1].vram_used_bytes == 5)


def test_a_card_that_comes_and_hangs_holds_up_no_other(fake_sys: FakeSys, sidecar: StartSidecar) -> None:
    fake_sys.card(0, "0000:05:00.0")
    second = fake_sys.root / "class/drm/card1"
    device = fake_sys.card(1, "0000:06:00.0")
    # Before anybody looks: one that is seen whole is known from then on.
    second.unlink()
    (device / "vendor").unlink()
    os.mkfifo(device / "vendor")
    running = sidecar("--timeout=1")
    running.line()
    second.symlink_to("../../devices/pci0000:00/0000:06:00.0/drm/card1")
    fake_sys.write(fake_sys.root / "devices/pci0000:00/0000:05:00.0", gpu_busy_percent=4)
    running.until(lambda sample: [one.busy_percent for one in sample.devices] == [4.0])
    with (device / "vendor").open("w") as file:
        file.write("0x1002\n")
    running.until(lambda sample: [one.pci for one in sample.devices] == ["0000:05:00.0", "0000:06:00.0"])


def test_all_cards_hang(fake_sys: FakeSys) -> None:
    files = [fake_sys.card(place, f"0000:{place + 5:02x}:00.0") / "mem_info_vram_used" for place in range(8)]
    for file in files:
        file.unlink()
        os.mkfifo(file)
    cards = SysfsCards(fake_sys.root, 0.1)
    for _ in range(8):
        readings = cards.read()
        assert [one.power_watts for one in readings] == [None] * 8
    while threads := [thread for thread in cards._stuck.values() if thread.is_alive()]:
        for file in files:
            with contextlib.suppress(OSError):  # nobody reads that one now
                os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        threads[0].join(0.01)


def test_a_card_that_vanishes_leaves_the_numbers_of_the_others(fake_sys: FakeSys, sidecar: StartSidecar) -> None:
    for place in range(3):
        fake_sys.card(place, f"0000:{place + 5:02x}:00.0")
    running = sidecar()
    running.line()
    (fake_sys.root / "class/drm/card0").unlink()
    left = running.until(lambda sample: len(sample.devices) == 2)
    assert [(one.index, one.pci) for one in left.devices] == [(1, "0000:06:00.0"), (2, "0000:07:00.0")]
