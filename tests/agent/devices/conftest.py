"""A tree like /sys with AMD cards in it, and stand-ins for the vendors' C libraries."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from floatscope._devices._lines import NoDevices, Sample, decode_line
from floatscope._devices._sysfs import SysfsCards

SOURCES = Path(__file__).parents[1] / "fake_smi"
GIB = 1 << 30


class FakeSys:
    """A tree below ``root`` as the amdgpu driver lays it out; values may change while somebody reads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "class/drm").mkdir(parents=True)
        # Every machine has some of these; none is a card.
        (root / "class/drm/version").write_text("drm 1.1.0\n")

    def card(self, number: int, address: str, *, vendor: str = "0x1002") -> Path:
        """A card with the files and values of an MI300X; returns its device folder."""
        device = self.root / "devices/pci0000:00" / address
        sensors = device / f"hwmon/hwmon{number + 3}"
        sensors.mkdir(parents=True)
        card = device / f"drm/card{number}"
        card.mkdir(parents=True)
        (card / "device").symlink_to("../..")
        # Relative, as the kernel has it: it leads to the same card where the tree is mounted.
        (self.root / f"class/drm/card{number}").symlink_to(f"../../devices/pci0000:00/{address}/drm/card{number}")
        # A connector of the card must not be taken for another card.
        (self.root / f"class/drm/card{number}-DP-1").mkdir()
        self.write(
            device,
            vendor=vendor,
            product_name="AMD Instinct MI300X OAM",
            mem_info_vram_total=192 * GIB,
            mem_info_vram_used=40 * GIB,
            gpu_busy_percent=87,
            mem_busy_percent=55,
            current_link_width=16,
            max_link_width=16,
            current_link_speed="32.0 GT/s PCIe",
            max_link_speed="32.0 GT/s PCIe",
            pcie_replay_count=3,
        )
        for name in ("power", "ras"):
            (device / name).mkdir()
        self.write(device / "power", runtime_status="active")
        # One block a file, as the driver has them.
        for block, uncorrected, corrected in (("umc", 0, 7), ("gfx", 0, 0), ("xgmi_wafl", 0, 1)):
            self.write(device / "ras", **{f"{block}_err_count": f"ue: {uncorrected}\nce: {corrected}"})
        self.write(
            sensors,
            power1_input=512_000_000,
            freq1_input=2_100_000_000,
            freq1_label="sclk",
            freq2_input=1_300_000_000,
            freq2_label="mclk",
            temp2_input=61_000,
            temp2_label="junction",
            temp3_input=52_000,
            temp3_label="mem",
        )
        return device

    @staticmethod
    def write(folder: Path, **values: object) -> None:
        """Write files; None removes one."""
        for name, value in values.items():
            if value is None:
                (folder / name).unlink()
            else:
                (folder / name).write_text(f"{value}\n")

    def metrics(self, device: Path, *fields: tuple[int, str, int], revision: int, size: int) -> None:
        """The binary ``gpu_metrics`` of a card: all ones but for the header and the ``fields`` (offset, format,
        value)."""
        data = bytearray(b"\xff" * size)
        struct.pack_into("<HBB", data, 0, size, 1, revision)
        for offset, code, value in fields:
            struct.pack_into(f"<{code}", data, offset, value)
        (device / "gpu_metrics").write_bytes(data)

    def node(self, number: int, address: str, *, xgmi: int) -> None:
        """What the compute driver shows of a card: joined to ``xgmi`` others."""
        node = self.root / f"class/kfd/kfd/topology/nodes/{number}"
        domain, bus, rest = address.split(":")
        location = int(bus, 16) << 8 | int(rest.partition(".")[0], 16) << 3
        (node / "io_links").mkdir(parents=True)
        self.write(node, properties=f"simd_count 304\nlocation_id {location}\ndomain {int(domain, 16)}")
        for link in range(xgmi + 1):
            (node / f"io_links/{link}").mkdir()
            # The first goes to a processor, by PCI Express.
            self.write(node / f"io_links/{link}", properties=f"type {11 if link else 2}\nnode_to {link}")

    def driver_is_live(self) -> None:
        (self.root / "module/amdgpu").mkdir(parents=True)
        (self.root / "module/amdgpu/initstate").write_text("live\n")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no driver that hangs: only tests that say so give up on a file."""
    defaults = SysfsCards.__init__.__defaults__
    assert defaults is not None
    monkeypatch.setattr(SysfsCards.__init__, "__defaults__", (60.0, *defaults[1:]))


@pytest.fixture
def fake_sys(tmp_path: Path) -> FakeSys:
    return FakeSys(tmp_path / "sys")


def _library(gcc: str, source: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([gcc, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", target, SOURCES / source], check=True)
    return target


@pytest.fixture(scope="session")
def rocm_path(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Path:
    """A folder for ROCM_PATH with the stand-in of AMD SMI in it."""
    root = tmp_path_factory.mktemp("rocm")
    _library(program("gcc"), "fake_amd_smi.c", root / "lib/libamd_smi.so")
    return root


@pytest.fixture(scope="session")
def nvml_path(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Path:
    """A folder for LD_LIBRARY_PATH with the stand-in of NVML in it."""
    root = tmp_path_factory.mktemp("nvml")
    _library(program("gcc"), "fake_nvml.c", root / "libnvidia-ml.so.1")
    return root


class RunningSidecar:
    """``python -m floatscope._devices`` with a pipe on either side."""

    def __init__(self, root: Path, environment: dict[str, str], options: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "floatscope._devices", f"--sysfs={root}", "--period=0.02", "--timeout=60", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "ROCM_PATH": "/nonexistent", **environment},
        )

    def line(self) -> Sample | NoDevices:
        assert self.process.stdout is not None
        return decode_line(self.process.stdout.readline())

    def until(self, wanted: Callable[[Sample], bool], within_s: float = 60.0) -> Sample:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            line = self.line()
            assert isinstance(line, Sample), line
            if wanted(line):
                return line
        raise AssertionError("no such sample came in time")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            assert self.process.wait(60) == 0
        finally:
            self.process.kill()
            self.process.stdout.close()


@pytest.fixture
def sidecar(fake_sys: FakeSys) -> Iterator[Callable[..., RunningSidecar]]:
    running: list[RunningSidecar] = []

    def start(*options: str, **environment: str) -> RunningSidecar:
        running.append(RunningSidecar(fake_sys.root, environment, options))
        return running[-1]

    yield start
    for each in running:
        each.close()


@pytest.fixture
def until() -> Callable[..., None]:
    def wait(condition: Callable[[], object], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.005)

    return wait
