"""Folders that look like the root of a machine with AMD cards."""

from __future__ import annotations

import os
from pathlib import Path

from floatscope._doctor._examine import examine
from floatscope._doctor._look import look
from floatscope._doctor._machine import Machine, Torch
from floatscope._doctor._verdict import Verdict

GIB = 1 << 30
NODE = {"simd_count": 1216, "domain": 0, "hive_id": 77, "capability": 1 << 26, "gfx_target_version": 90402}
ROCM_TORCH = Torch(version="2.10.0+rocm7.2.4", hip="7.2.53211", devices=2, chips=("gfx942:sramecc+:xnack-",) * 2)


def write(folder: Path, **values: object) -> None:
    """Files of one line each; None removes one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        if value is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(f"{value}\n")


class FakeMachine:
    """``root`` as the kernel lays it out: two MI300X joined by XGMI, a live driver, a user in the right group.

    Whatever a test does to it is a mistake that was planted.
    """

    def __init__(self, root: Path, cards: int = 2, **node: object) -> None:
        self.root = root
        self.environment: dict[str, str] = {}
        self.torch: Torch | None = ROCM_TORCH
        self.site: list[Path] = []
        self.groups: tuple[int, ...] = (os.getgid(),)
        self.user = 1000
        write(root / "sys/module/amdgpu", initstate="live", version="6.12.12")
        write(root / "opt/rocm/.info", version="7.2.4-98")
        write(root / "proc", cmdline="BOOT_IMAGE=/vmlinuz iommu=pt")
        self.limits()
        write(root / "opt/rocm/lib", **{"librccl.so.1": "", "librccl.so.1.0.70204": "", "libMIOpen.so.1.0.70204": ""})
        (root / "dev/dri").mkdir(parents=True)
        (root / "dev/shm").mkdir()
        self.device_file("kfd")
        for number in range(cards):
            self.card(number, **node)
            self.device_file(f"dri/renderD{128 + number}")

    def limits(self, locked: str = "unlimited", files: str = "1048576") -> None:
        """/proc/self/limits, in the kernel's columns."""
        rows = (("Max open files", files, "files"), ("Max locked memory", locked, "bytes"))
        table = "\n".join(f"{name:<26}{soft:<21}{'unlimited':<21}{unit:<10}" for name, soft, unit in rows)
        write(self.root / "proc/self", limits=table)

    def device_file(self, name: str, mode: int = 0o660) -> None:
        path = self.root / "dev" / name
        path.touch()
        path.chmod(mode)

    def address(self, number: int) -> str:
        return f"0000:{5 + 32 * number:02x}:00.0"

    def device(self, number: int) -> Path:
        return self.root / "sys/devices/pci0000:00/0000:00:01.1" / self.address(number)

    def card(self, number: int, **node: object) -> None:
        device = self.device(number)
        link = {"current_link_width": 16, "max_link_width": 16}
        speed = {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
        write(device.parent, **link, **speed)
        write(
            device,
            vendor="0x1002",
            product_name="AMD Instinct MI300X OAM",
            mem_info_vram_total=192 * GIB,
            mem_info_vis_vram_total=192 * GIB,
            current_compute_partition="SPX",
            current_memory_partition="NPS1",
            gpu_busy_percent=0,
            **{"class": "0x120000"},
            **link,
            **speed,
        )
        for folder, name, target in (
            ("class/drm", f"card{number}", device / f"drm/card{number}"),
            ("bus/pci/devices", self.address(number), device),
        ):
            target.mkdir(parents=True, exist_ok=True)
            place = self.root / "sys" / folder
            place.mkdir(parents=True, exist_ok=True)
            (place / name).symlink_to(target)
        (device / f"drm/card{number}/device").symlink_to("../..")
        topology = self.node(number + 1, location_id=(5 + 32 * number) << 8, **node)
        write(topology / "io_links/0", properties="type 11\nnode_to 9")
        write(topology / "io_links/1", properties="type 2\nnode_to 0")

    def node(self, number: int, **values: object) -> Path:
        folder = self.root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        properties = {**NODE, **values}
        write(folder, properties="\n".join(f"{name} {value}" for name, value in properties.items()))
        return folder

    def look(self) -> Machine:
        return look(
            environment=self.environment,
            root=self.root,
            torch=self.torch,
            site=self.site,
            identity=(self.user, self.groups),
        )

    def verdicts(self) -> list[Verdict]:
        return examine(self.look())

    def bad(self) -> list[Verdict]:
        """Those that are not ok."""
        return [verdict for verdict in self.verdicts() if verdict.status != "ok"]

    def only(self) -> Verdict:
        """The one that is not ok."""
        (verdict,) = self.bad()
        return verdict
