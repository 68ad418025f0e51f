"""Machines whose files and variables were written to break their reader, and odd ones that have nothing wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from floatscope._doctor._verdict import as_json, table
from tests.agent.doctor.machines import ROCM_TORCH, FakeMachine, write

GARBAGE = ("9" * 5000, "0x10", "\u0663", "nan", "1e999", "-1", "\0" * 4096, "\x1b[2J" * 999, "x" * 100_000, "1,2,3")


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_files_of_garbage_are_no_verdict(machine: FakeMachine, garbage: str) -> None:
    """But for what says that the driver lives, and that a card is a card."""
    device = machine.device(0)
    for file in [*device.iterdir(), *device.parent.iterdir(), machine.root / "opt/rocm/.info/version"]:
        if file.is_file() and file.name not in ("vendor", "class"):
            file.write_text(garbage)
    nodes = machine.root / "sys/class/kfd/kfd/topology/nodes/1"
    (nodes / "io_links/0/properties").write_text(f"type {garbage}")
    keys = ("simd_count", "location_id", "domain", "gfx_target_version", "capability", "hive_id")
    (nodes / "properties").write_text("\n".join(f"{key} {garbage}" for key in keys))
    write(machine.root / "proc", cmdline=garbage)
    (machine.root / "proc/self/limits").write_text(f"Max open files            {garbage}  {garbage} files\n")
    verdicts = machine.verdicts()
    # The version of ROCm and the kernel's options have no form that could be known.
    assert [v.item for v in verdicts if v.status != "ok" and v.item not in ("rocm", "iommu")] == []
    assert all(line.isprintable() for line in table(verdicts).split("\n"))
    assert all("xNone" not in verdict["value"] for verdict in as_json(verdicts))


@pytest.mark.parametrize("name", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
@pytest.mark.parametrize("mask", ["9" * 5000, "NoDevFiles", "\u0663", ",,,", "-" * 100, "0x0"])
def test_a_mask_of_garbage_hides_everything(machine: FakeMachine, name: str, mask: str) -> None:
    machine.environment = {name: mask}
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=0, chips=())
    verdict = machine.only()
    assert (verdict.item, verdict.status) == (name, "wrong")
    assert "hides all 2 cards" in verdict.why


@pytest.mark.parametrize("mask", ["0,,1", "0,x,1", "0,1 2"])
def test_a_list_that_ends_early_is_said(machine: FakeMachine, mask: str) -> None:
    machine.environment = {"HIP_VISIBLE_DEVICES": mask}
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=1, chips=("gfx942",))
    verdict = machine.only()
    assert (verdict.item, verdict.status) == ("HIP_VISIBLE_DEVICES", "wrong")
    assert "1 card(s) are left" in verdict.why
    machine.environment = {"HIP_VISIBLE_DEVICES": "0,1,"}
    machine.torch = ROCM_TORCH
    assert machine.bad() == []


def test_a_file_without_an_end_is_read_in_part(machine: FakeMachine) -> None:
    for name in ("opt/rocm/.info/version", "sys/module/amdgpu/version"):
        (machine.root / name).unlink()
        (machine.root / name).symlink_to("/dev/zero")
    assert machine.look().rocm is not None


def test_links_in_a_circle_are_no_card(machine: FakeMachine) -> None:
    (machine.root / "sys/class/drm/card7").symlink_to("card7")
    assert len(machine.look().cards) == 2


def test_two_cards_at_one_address_are_one(machine: FakeMachine) -> None:
    (machine.root / "sys/class/drm/card9").symlink_to(machine.root / "sys/class/drm/card0")
    assert len(machine.look().cards) == 2
    assert machine.bad() == []


@pytest.mark.parametrize("hidden", ["nodes", "files"])
def test_a_container_that_was_given_one_of_eight_cards(tmp_path: Path, hidden: str) -> None:
    """Kubernetes has the kernel hide the compute nodes of the others; without a cgroup only files are missing."""
    machine = FakeMachine(tmp_path / "root", cards=8)
    (machine.root / ".dockerenv").touch()
    for number in range(1, 8):
        if hidden == "nodes":
            write(machine.root / f"sys/class/kfd/kfd/topology/nodes/{number + 1}", properties="")
        (machine.root / f"dev/dri/renderD{128 + number}").unlink()
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=1, chips=("gfx942",))
    assert machine.look().dies == 1
    assert machine.bad() == []
    machine.environment = {"HIP_VISIBLE_DEVICES": "1"}
    assert "card 1 does not exist" in next(v.why for v in machine.bad() if v.item == "HIP_VISIBLE_DEVICES")


def test_an_apu_has_nothing_wrong(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path / "root", cards=1, gfx_target_version=110003, capability=0, hive_id=0)
    device = machine.device(0)
    gone = ("gpu_busy_percent", "current_compute_partition", "current_memory_partition", "mem_info_vram_total")
    write(device, **dict.fromkeys(gone), current_link_speed="2.5 GT/s PCIe")
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=1, chips=("gfx1103",))
    assert machine.bad() == []
