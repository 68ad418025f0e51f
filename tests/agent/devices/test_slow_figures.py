"""Clocks, links, errors and throttling: their units, what cannot be had, and who is asked when."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from floatscope import wire
from floatscope._devices._figures import carry, fill
from floatscope._devices._gpu_metrics import Metrics, figures_between
from floatscope._devices._lines import Sample
from floatscope._devices._sysfs import SysfsCards
from floatscope._devices._turns import Turns
from tests.agent.devices.machine import LINK_AND_ERRORS

if TYPE_CHECKING:
    from tests.agent.devices.conftest import FakeSys, RunningSidecar

    StartSidecar = Callable[..., RunningSidecar]

ADDRESS = "0000:05:00.0"
V16 = {"cycles": 32, "prochot": 36, "ppt": 40, "socket": 44, "vr": 48, "hbm": 52}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def slow(reading: wire.Device) -> dict[str, object]:
    """What is read seldom of a card, and was."""
    return {name: value for name in wire.READ_SELDOM if (value := getattr(reading, name)) is not None}


def test_clocks_come_with_every_reading_and_the_rest_once_a_minute(fake_sys: FakeSys, clock: Clock) -> None:
    device = fake_sys.card(0, ADDRESS)
    cards = SysfsCards(fake_sys.root, clock=clock)
    [first] = cards.read()
    assert first.core_clock_mhz == pytest.approx(2100.0)
    assert first.memory_clock_mhz == pytest.approx(1300.0)
    assert slow(first) == LINK_AND_ERRORS
    fake_sys.write(device / "ras", umc_err_count="ue: 1\nce: 7\nde: 4")
    clock.now += 59
    [between] = cards.read()
    assert between.core_clock_mhz == pytest.approx(2100.0)
    assert slow(between) == {}
    clock.now += 1
    [later] = cards.read()
    assert slow(later) == {**LINK_AND_ERRORS, "ecc_uncorrected": 1}


def test_one_card_a_reading(fake_sys: FakeSys, clock: Clock) -> None:
    for place in range(3):
        fake_sys.card(place, f"0000:{place + 5:02x}:00.0")
    cards = SysfsCards(fake_sys.root, clock=clock)
    told = []
    for _ in range(5):
        told.append([one.index for one in cards.read() if slow(one)])
        clock.now += 1
    assert told == [[0], [1], [2], [], []]


def test_whose_turn_it_is(clock: Clock) -> None:
    turns = Turns(10.0, clock)
    assert turns.take([]) is None
    assert [turns.take("ab"), turns.take("ab"), turns.take("ab")] == ["a", "b", None]
    clock.now += 9.9
    assert turns.take("abc") == "c"
    assert turns.take("abc") is None
    clock.now += 0.1
    # One that has gone takes nobody's turn.
    assert turns.take("bc") == "b"


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ({"current_link_width": 255}, "pcie_width"),
        ({"current_link_width": 0xFFFF}, "pcie_width"),
        ({"current_link_width": 0}, "pcie_width"),
        ({"current_link_width": "N/A"}, "pcie_width"),
        ({"current_link_width": None}, "pcie_width"),
        ({"max_link_width": 255}, "pcie_max_width"),
        ({"current_link_speed": "Unknown"}, "pcie_speed_gts"),
        ({"current_link_speed": "65535 GT/s"}, "pcie_speed_gts"),
        ({"max_link_speed": "-1"}, "pcie_max_speed_gts"),
        ({"pcie_replay_count": -1}, "pcie_replays"),
        ({"pcie_replay_count": None}, "pcie_replays"),
    ],
)
def test_what_cannot_be_had_is_missing(fake_sys: FakeSys, files: dict[str, object], missing: str) -> None:
    fake_sys.write(fake_sys.card(0, ADDRESS), **files)
    [reading] = SysfsCards(fake_sys.root).read()
    assert slow(reading) == {name: value for name, value in LINK_AND_ERRORS.items() if name != missing}


@pytest.mark.parametrize("answer", ["Query currently inaccessible", "", "ue: 0", "ue: -1\nce: 0", "N/A"])
def test_errors_are_all_there_or_none(fake_sys: FakeSys, answer: str) -> None:
    device = fake_sys.card(0, ADDRESS)
    fake_sys.write(device / "ras", gfx_err_count=answer)
    [reading] = SysfsCards(fake_sys.root).read()
    assert (reading.ecc_corrected, reading.ecc_uncorrected, reading.pcie_width) == (None, None, 16)


def test_a_card_without_ras_has_no_errors_to_count(fake_sys: FakeSys) -> None:
    device = fake_sys.card(0, ADDRESS)
    for file in (device / "ras").iterdir():
        file.unlink()
    [reading] = SysfsCards(fake_sys.root).read()
    assert (reading.ecc_corrected, reading.ecc_uncorrected) == (None, None)


def test_the_narrowest_link_on_the_way_counts(fake_sys: FakeSys) -> None:
    bridge = fake_sys.root / "devices/pci0000:00/0000:01:00.0"
    bridge.mkdir(parents=True)
    fake_sys.write(
        bridge, current_link_width=8, max_link_width=16, current_link_speed="16.0 GT/s", max_link_speed="32.0 GT/s"
    )
    fake_sys.card(0, f"0000:01:00.0/{ADDRESS}")
    [reading] = SysfsCards(fake_sys.root).read()
    assert (reading.pci, reading.pcie_width, reading.pcie_max_width) == (ADDRESS, 8, 16)
    assert (reading.pcie_speed_gts, reading.pcie_max_speed_gts) == (16.0, 32.0)


def test_links_by_xgmi_are_those_of_the_card(fake_sys: FakeSys) -> None:
    fake_sys.card(0, ADDRESS)
    fake_sys.node(0, "0000:00:00.0", xgmi=0)
    fake_sys.node(1, "0001:05:00.0", xgmi=2)
    fake_sys.node(2, ADDRESS, xgmi=7)
    [reading] = SysfsCards(fake_sys.root).read()
    assert reading.xgmi_links == 7


def test_a_sleeping_card_is_let_alone(fake_sys: FakeSys, clock: Clock) -> None:
    device = fake_sys.card(0, ADDRESS)
    fake_sys.metrics(device, (112, "Q", 1 << 32), revision=3, size=120)
    fake_sys.write(device / "power", runtime_status="suspended")
    cards = SysfsCards(fake_sys.root, clock=clock)
    assert slow(cards.read()[0]) == {}
    fake_sys.write(device / "power", runtime_status="active")
    clock.now += 60
    assert slow(cards.read()[0]) == {**LINK_AND_ERRORS, **_throttle(0.0, 100.0, 0.0)}


def test_errors_that_take_long_come_with_a_later_reading(fake_sys: FakeSys, clock: Clock) -> None:
    device = fake_sys.card(0, ADDRESS)
    file = device / "ras/umc_err_count"
    file.unlink()
    os.mkfifo(file)  # opening it waits until somebody writes
    cards = SysfsCards(fake_sys.root, 0.1, clock)
    [silent] = cards.read()
    assert (silent.pci, silent.power_watts) == (ADDRESS, None)
    (thread,) = cards._stuck.values()
    file.write_text("ue: 3\nce: 20\n")
    thread.join(60)
    assert not thread.is_alive()
    cards._timeout_s = 60.0
    [reading] = cards.read()
    assert slow(reading) == {**LINK_AND_ERRORS, "ecc_corrected": 21, "ecc_uncorrected": 3}
    [after] = cards.read()
    assert slow(after) == {}


def _throttle(power: float, thermal: float, brake: float) -> dict[str, float]:
    names = ("throttle_power_percent", "throttle_thermal_percent", "throttle_brake_percent")
    return dict(zip(names, (power, thermal, brake), strict=True))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (0, (0.0, 0.0, 0.0)),
        (1 << 0, (100.0, 0.0, 0.0)),  # PPT0
        (1 << 22, (100.0, 0.0, 0.0)),  # EDC_GFX
        (1 << 36, (0.0, 100.0, 0.0)),  # TEMP_HOTSPOT
        (1 << 45, (0.0, 100.0, 0.0)),  # VRHOT1
        (1 << 47, (0.0, 0.0, 100.0)),  # PROCHOT_GFX
        (1 << 57, (0.0, 0.0, 0.0)),  # FIT
        (1 << 1 | 1 << 34 | 1 << 46, (100.0, 100.0, 100.0)),
    ],
)
def test_the_state_of_an_mi200(fake_sys: FakeSys, status: int, expected: tuple[float, float, float]) -> None:
    device = fake_sys.card(0, ADDRESS)
    fake_sys.metrics(device, (112, "Q", status), revision=3, size=120)
    [reading] = SysfsCards(fake_sys.root).read()
    assert slow(reading) == {**LINK_AND_ERRORS, **_throttle(*expected)}


def test_a_card_that_does_nothing_is_not_asked_what_slows_it(fake_sys: FakeSys) -> None:
    device = fake_sys.card(0, ADDRESS)
    fake_sys.metrics(device, (112, "Q", 1), revision=3, size=120)
    fake_sys.write(device, gpu_busy_percent=0)
    [reading] = SysfsCards(fake_sys.root).read()
    assert slow(reading) == LINK_AND_ERRORS


@pytest.mark.parametrize(("revision", "shift", "size"), [(6, 0, 1664), (7, 8, 2208), (8, 8, 3840)])
def test_an_mi300_tells_how_long_each_limit_held(
    fake_sys: FakeSys, clock: Clock, revision: int, shift: int, size: int
) -> None:
    device = fake_sys.card(0, ADDRESS)

    def write(**counts: int) -> None:
        fields = [(V16[name] + shift, "I", count) for name, count in counts.items()]
        fake_sys.metrics(device, *fields, (128 + shift, "Q", traffic), revision=revision, size=size)

    cards = SysfsCards(fake_sys.root, clock=clock)
    traffic = 5_000_000
    # The counters are near the end of their 32 bits.
    write(cycles=0xFFFFFF00, prochot=0, ppt=0xFFFFFFF0, socket=70, vr=0, hbm=10)
    assert slow(cards.read()[0]) == LINK_AND_ERRORS
    clock.now += 10
    traffic += 30_000_000
    write(cycles=9744, prochot=100, ppt=8984, socket=1070, vr=2, hbm=2010)
    assert slow(cards.read()[0]) == {**_throttle(90.0, 20.0, 1.0), "xgmi_bytes_per_s": pytest.approx(3e9)}
    # A driver that was loaded again counts from 0.
    clock.now += 10
    traffic = 4
    write(cycles=500, prochot=0, ppt=0, socket=0, vr=0, hbm=0)
    assert slow(cards.read()[0]) == {}
    clock.now += 10
    write(cycles=1500, prochot=0, ppt=0, socket=0, vr=500, hbm=0)
    assert slow(cards.read()[0]) == {**_throttle(0.0, 50.0, 0.0), "xgmi_bytes_per_s": 0.0}


@pytest.mark.parametrize(("revision", "read_at", "written_at"), [(4, 104, 168), (5, 176, 240)])
def test_traffic_over_xgmi_of_older_firmware(
    fake_sys: FakeSys, clock: Clock, revision: int, read_at: int, written_at: int
) -> None:
    device = fake_sys.card(0, ADDRESS)
    cards = SysfsCards(fake_sys.root, clock=clock)
    for links in (0, 1000):
        fields = [(at + 8 * link, "Q", links) for at in (read_at, written_at) for link in range(7)]
        fake_sys.metrics(device, *fields, revision=revision, size=400)
        [reading] = cards.read()
        clock.now += 10
    assert slow(reading) == {"xgmi_bytes_per_s": pytest.approx(14 * 1000 * 1000 / 10)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x78\x00",
        b"\x78\x00\x02\x03" + bytes(116),  # an APU's
        b"\x78\x00\x01\x09" + bytes(116),  # a layout to come
        b"\x78\x00\x01\x03" + b"\xff" * 116,  # nothing reported
        b"\x78\x00\x01\x03" + bytes(100),  # cut off
        b"\x80\x06\x01\x06" + b"\xff" * 1660,
    ],
)
def test_metrics_that_say_nothing(data: bytes) -> None:
    assert Metrics.of(data) == Metrics()
    assert set(figures_between(Metrics.of(data), Metrics.of(data), 10.0).values()) == {None}


def test_nvml_tells_the_same(sidecar: StartSidecar, nvml_path: Path) -> None:
    running = sidecar(LD_LIBRARY_PATH=str(nvml_path))
    first = running.line()
    assert isinstance(first, Sample)
    one, other = first.devices
    assert (one.core_clock_mhz, one.memory_clock_mhz) == (1965.0, 3201.0)
    assert slow(one) == {
        "pcie_width": 8,
        "pcie_speed_gts": 16.0,
        "pcie_max_width": 16,
        "pcie_max_speed_gts": 32.0,
        "pcie_replays": 12,
        "ecc_corrected": 5,
        "ecc_uncorrected": 2,
        **_throttle(100.0, 0.0, 100.0),
    }
    assert slow(other) == {}
    second = running.line()
    assert isinstance(second, Sample)
    one, other = second.devices
    assert slow(one) == {}
    assert slow(other) == {"pcie_max_width": 16, "pcie_max_speed_gts": 32.0, "pcie_replays": 12}


def test_what_is_read_seldom_names_no_other_backend() -> None:
    whole = wire.Device(time_ns=1, backend="smi", index=0, pci=ADDRESS)
    other = wire.Device(time_ns=1, backend="sysfs", index=0, pci=ADDRESS, pcie_width=16)
    filled = fill(whole, other)
    assert (filled.backend, filled.pcie_width) == ("smi", 16)


def test_a_reading_that_nobody_fetched_in_time_leaves_what_is_read_seldom() -> None:
    passed = wire.Device(time_ns=1, backend="a", index=0, pci=ADDRESS, ecc_uncorrected=0, pcie_width=16, power_watts=9)
    newest = wire.Device(time_ns=2, backend="a", index=0, pci=ADDRESS, pcie_width=8)
    other = wire.Device(time_ns=2, backend="a", index=0, pci="0000:06:00.0")
    assert carry([passed], [newest, other]) == (
        wire.Device(time_ns=2, backend="a", index=0, pci=ADDRESS, pcie_width=8, ecc_uncorrected=0),
        other,
    )


def test_figures_of_other_versions_are_harmless() -> None:
    old = {"time_ns": 1, "backend": "a", "index": 0, "power_watts": 9.0}
    [newer, older] = wire.decode_body(_block([{**old, "ecc_uncorrected": 2, "nvlink_lanes": 18}, old])).devices
    assert (newer.ecc_uncorrected, newer.power_watts) == (2, 9.0)
    assert (older.ecc_uncorrected, older.core_clock_mhz) == (None, None)


def _block(devices: list[dict[str, object]]) -> wire.Block:
    body = msgspec.msgpack.encode({"devices": devices})
    return wire.Block(seq=1, crc=zlib.crc32(body), body=body)
