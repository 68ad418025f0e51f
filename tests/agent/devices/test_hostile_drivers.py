"""Drivers that answer with garbage, and cards that come, go and sleep."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from floatscope import wire
from floatscope._devices import _sampler
from floatscope._devices._figures import number, percent, readable, whole
from floatscope._devices._gpu_metrics import Metrics, figures_between
from floatscope._devices._lines import NoDevices, Sample
from floatscope._devices._rocm import PyrsmiCards
from floatscope._devices._sampler import Sampler
from floatscope._devices._sysfs import SysfsCards
from floatscope._devices._sysfs_slow import SlowFigures
from tests.agent.devices.conftest import FakeSys, RunningSidecar

StartSidecar = Callable[..., RunningSidecar]

ADDRESS = "0000:05:00.0"
GARBAGE = (
    *("", "\0", "N/A", "-1", "65535", "4294967295", "18446744073709551615", "9" * 400, "9" * 4095, "0x10", "1e999"),
    *("nan", "inf", "12 W", "\x1b[2J", "é" * 2000, "\n" * 4095),
)
FIGURES = {
    "": ("mem_info_vram_used", "mem_info_vram_total", "gpu_busy_percent", "mem_busy_percent", "pcie_replay_count",
         "current_link_width", "max_link_width", "current_link_speed", "max_link_speed", "gpu_metrics", "product_name"),
    "hwmon/hwmon3": ("power1_input", "freq1_input", "freq2_input", "temp2_input", "temp2_label"),
    "ras": ("umc_err_count",),
    "power": ("runtime_status",),
}  # fmt: skip


@pytest.mark.parametrize("garbage", [*GARBAGE, 1 << 63, 10**400, float("nan"), float("inf"), -(10**400), True, b"5"])
def test_garbage_is_no_figure(garbage: object) -> None:
    assert (number(garbage), whole(garbage), percent(garbage)) == (None, None, None)


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_a_card_that_answers_garbage_has_its_address_and_the_others_their_figures(
    fake_sys: FakeSys, garbage: str
) -> None:
    first, _ = (fake_sys.card(number, f"0000:{5 + number:02x}:00.0") for number in range(2))
    for folder, names in FIGURES.items():
        for name in names:
            (first / folder / name).write_bytes(garbage.encode())
    one, other = SysfsCards(fake_sys.root).read()
    figures = {name for name in wire.Device.__struct_fields__ if getattr(one, name) is not None}
    # Of errors, the other blocks of the chip tell nothing without this one.
    assert figures - {"name"} == {"time_ns", "backend", "index", "pci"}
    assert (other.busy_percent, other.power_watts) == (87.0, 512.0)
    # Whatever it is, it can be sent: MessagePack ends at 64 bits.
    msgspec.msgpack.encode((one, other))


def test_a_name_is_one_short_line(fake_sys: FakeSys) -> None:
    for place in range(64):
        fake_sys.write(fake_sys.card(place, f"0000:{place:02x}:00.0"), product_name="\x1b]0;\0" * 800)
    readings = SysfsCards(fake_sys.root).read()
    assert [reading.index for reading in readings] == list(range(64))
    assert {len(reading.name or "") for reading in readings} == {128}
    assert all((reading.name or "").isprintable() for reading in readings)
    assert (readable("a\nb\u202e\ud800"), readable(" \0 "), readable(None)) == ("ab", None, None)


def test_links_that_lead_in_a_circle_are_no_card(fake_sys: FakeSys) -> None:
    fake_sys.card(0, ADDRESS)
    (fake_sys.root / "class/drm/card1").symlink_to("card1")
    (fake_sys.root / "class/drm/card2").symlink_to("card3")
    (fake_sys.root / "class/drm/card3").symlink_to("card2")
    assert [reading.pci for reading in SysfsCards(fake_sys.root).read()] == [ADDRESS]


def test_a_card_that_the_kernel_has_switched_off_is_left_asleep(fake_sys: FakeSys) -> None:
    device = fake_sys.card(0, ADDRESS)
    cards = SysfsCards(fake_sys.root)
    awake = cards.read()[0]
    fake_sys.write(device / "power", runtime_status="suspended")
    [asleep] = cards.read()
    assert asleep == wire.Device(
        time_ns=asleep.time_ns,
        backend="sysfs",
        index=0,
        pci=ADDRESS,
        name=awake.name,
        vram_total_bytes=awake.vram_total_bytes,
    )
    fake_sys.write(device / "power", runtime_status="active")
    assert cards.read()[0].busy_percent == 87.0


def test_errors_are_counted_only_over_the_same_blocks(fake_sys: FakeSys) -> None:
    """A driver that starts makes the files one by one: old errors must not look like new ones."""
    device = fake_sys.card(0, ADDRESS)
    fake_sys.write(device / "ras", umc_err_count="ue: 5\nce: 7")
    slow = SlowFigures(str(fake_sys.root), str(device))

    def errors() -> tuple[object, object]:
        figures = slow.links_and_errors()
        return figures["ecc_corrected"], figures["ecc_uncorrected"]

    assert errors() == (8, 5)
    fake_sys.write(device / "ras", umc_err_count=None)
    assert errors() == (None, None)
    fake_sys.write(device / "ras", umc_err_count="ue: 5\nce: 7")
    assert errors() == (None, None)
    assert errors() == (8, 5)


def _metrics(size: int, length: int, revision: int = 8, layout: int = 1, fill: bytes = b"\0") -> bytes:
    return struct.pack("<HBB", size, layout, revision) + fill * (length - 4)


@pytest.mark.parametrize("data", [
    _metrics(0, 400), _metrics(3, 400), _metrics(40, 400), _metrics(0xFFFF, 400), _metrics(401, 400),
    _metrics(400, 400, revision=255), _metrics(400, 400, layout=255), b"\xff" * 4096, b"", b"\x04", b"\x04\x00\x01\x08",
])  # fmt: skip
def test_a_header_that_does_not_fit_its_file_tells_nothing(data: bytes) -> None:
    assert Metrics.of(data) == Metrics()


def test_every_length_and_revision_is_read_without_harm() -> None:
    for revision in range(256):
        for length in (4, 8, 60, 111, 112, 119, 120, 150, 263, 264, 304, 4096):
            for fill in (b"\0", b"\x7f", b"\xff"):
                metrics = Metrics.of(_metrics(length, length, revision, fill=fill))
                figures_between(Metrics(), metrics, 0.0)
                figures_between(metrics, metrics, 1e-9)


def test_a_link_that_comes_up_brings_no_traffic_of_its_past() -> None:
    down = Metrics(xgmi_bytes=(1000, None, 3000))
    assert figures_between(down, Metrics(xgmi_bytes=(1500, 10**15, 3000)), 1.0)["xgmi_bytes_per_s"] == 500.0
    assert figures_between(down, Metrics(xgmi_bytes=(500, None, 9000)), 1.0)["xgmi_bytes_per_s"] is None


def test_partitions_at_one_address_are_one_card(fake_sys: FakeSys, monkeypatch: pytest.MonkeyPatch) -> None:
    class Partitions:
        def __init__(self, root: Path) -> None:
            pass

        def read(self) -> list[wire.Device]:
            return [
                wire.Device(time_ns=1, backend="pyrsmi", index=index, pci=ADDRESS, busy_percent=float(index))
                for index in range(8)
            ]

    fake_sys.card(0, ADDRESS)
    monkeypatch.setattr(_sampler, "PyrsmiCards", Partitions)
    [reading] = Sampler(fake_sys.root, 5.0).read()
    assert (reading.index, reading.busy_percent, reading.backend) == (0, 0.0, "pyrsmi+sysfs")


def test_a_library_that_raises_leaves_the_kernels_files(fake_sys: FakeSys, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(PyrsmiCards):
        def __init__(self, root: Path) -> None:
            self._count = 1

        def _read_card(self, index: int) -> wire.Device:
            raise KeyError(index)

    fake_sys.card(0, ADDRESS)
    monkeypatch.setattr(_sampler, "PyrsmiCards", Lost)
    assert [reading.backend for reading in Sampler(fake_sys.root, 5.0).read()] == ["sysfs"]


def test_nvidia_cards_beside_one_that_is_lost(sidecar: StartSidecar, nvml_path: Path) -> None:
    sample = sidecar(LD_LIBRARY_PATH=str(nvml_path), FAKE_NVML_LOST="start").line()
    assert isinstance(sample, Sample)
    assert [reading.pci for reading in sample.devices] == ["0001:af:00.0"]


def test_an_nvidia_card_that_hangs_holds_up_no_other_and_comes_back(
    sidecar: StartSidecar, nvml_path: Path, tmp_path: Path
) -> None:
    hangs = tmp_path / "hangs"
    places = {"LD_LIBRARY_PATH": str(nvml_path), "FAKE_NVML_HANGS": str(hangs)}
    running = sidecar("--timeout=2", "--period=0.05", **places)
    running.until(lambda sample: len(sample.devices) == 2)
    hangs.touch()
    for _ in range(3):
        left = running.until(lambda sample: len(sample.devices) == 1).devices
        assert [(one.index, one.pci) for one in left] == [(1, "0001:af:00.0")]
    hangs.unlink()
    back = running.until(lambda sample: len(sample.devices) == 2).devices
    assert [(one.index, one.power_watts) for one in back] == [(0, 412.5), (1, None)]


def test_nvidia_cards_that_all_hang_are_given_up(sidecar: StartSidecar, nvml_path: Path, tmp_path: Path) -> None:
    (tmp_path / "hangs").touch()
    places = {"LD_LIBRARY_PATH": str(nvml_path), "FAKE_NVML_HANGS": str(tmp_path / "hangs"), "FAKE_NVML_CARDS": "1"}
    line = sidecar("--timeout=2", **places).line()
    assert isinstance(line, NoDevices)
    assert "nvml: no answer within 4 s" in line.reason


def test_an_nvidia_card_that_is_lost_stays_the_same(sidecar: StartSidecar, nvml_path: Path, tmp_path: Path) -> None:
    running = sidecar(LD_LIBRARY_PATH=str(nvml_path), FAKE_NVML_LOST=str(tmp_path / "lost"))
    running.until(lambda sample: sample.devices[0].power_watts == 412.5)
    (tmp_path / "lost").touch()
    lost = running.until(lambda sample: sample.devices[0].power_watts is None).devices
    assert [(one.index, one.pci, one.name) for one in lost] == [
        (0, "0000:3b:00.0", "NVIDIA H200"),
        (1, "0001:af:00.0", "NVIDIA H200"),
    ]
    assert lost[0].vram_used_bytes is None
    assert lost[1].vram_used_bytes is not None
