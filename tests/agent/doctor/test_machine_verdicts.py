"""Mistakes planted in a machine, one a test: the doctor names each and its fix, and nothing else."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from pathlib import Path

import pytest

from floatscope._doctor._examine import examine
from floatscope._doctor._look import look_in_time
from floatscope._doctor._machine import Machine, Torch
from tests.agent.doctor.machines import ROCM_TORCH, FakeMachine, write


def test_a_clean_machine_has_nothing_wrong(machine: FakeMachine) -> None:
    assert machine.bad() == []
    found = {verdict.item: verdict.value for verdict in machine.verdicts()}
    assert found["driver"] == "amdgpu 6.12.12"
    assert found["cards"] == "kernel 2, torch 2"
    assert found["fp8 gfx942"] == "e4m3fnuz (max 240), e5m2fnuz (max 57344)"
    assert found["xgmi"] == "2 cards in 1 hive(s)"
    assert found["pcie 0000:05:00.0"] == "x16, 32 GT/s"


def test_a_machine_without_cards_is_fine() -> None:
    assert [verdict.item for verdict in examine(Machine(torch=Torch(version="2.13.0+cpu", devices=0)))] == ["torch"]


def test_facts_of_a_machine(machine: FakeMachine) -> None:
    seen = machine.look()
    first = seen.cards[0]
    assert (first.pci, first.gfx, first.vram_bytes, first.nodes) == ("0000:05:00.0", "gfx942", 192 << 30, 1)
    assert (first.xgmi_peers, first.hive, first.ecc) == (1, 77, True)
    assert [link.address for link in first.links] == ["0000:05:00.0", "0000:00:01.1"]
    assert (seen.pci_cards, seen.rocm, seen.container) == (2, "7.2.4", None)
    assert seen.stack == "driver 6.12.12, rocm 7.2.4, torch 2.10.0+rocm7.2.4, hip 7.2.53211"


def test_no_driver(machine: FakeMachine) -> None:
    shutil.rmtree(machine.root / "sys/module/amdgpu")
    shutil.rmtree(machine.root / "sys/class")
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=0, chips=())
    verdict = machine.only()
    assert (verdict.item, verdict.status, verdict.value) == ("driver", "wrong", "no amdgpu module")
    assert "2 AMD card(s)" in verdict.why
    assert "amdgpu-dkms" in verdict.fix


def test_a_rocm_torch_where_no_card_is(tmp_path: Path) -> None:
    (verdict,) = [v for v in examine(Machine(torch=dataclasses.replace(ROCM_TORCH, devices=0))) if v.status != "ok"]
    assert verdict.item == "driver"
    assert "neither the driver nor an AMD card" in verdict.why


def test_a_dead_driver(machine: FakeMachine) -> None:
    write(machine.root / "sys/module/amdgpu", initstate="going")
    verdict = machine.only()
    assert (verdict.item, verdict.value) == ("driver", "amdgpu is 'going'")
    assert "dmesg" in verdict.fix


def test_a_card_that_vanished(machine: FakeMachine) -> None:
    (machine.root / "sys/class/drm/card1").unlink()
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=1)
    verdict = machine.only()
    assert (verdict.item, verdict.value) == ("cards.kernel", "1 of 2")
    assert "cold restart" in verdict.fix


def test_no_permission(machine: FakeMachine) -> None:
    machine.groups = (4242,)
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=0, chips=())
    found = {verdict.item: verdict for verdict in machine.bad()}
    assert set(found) == {"/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129", "cards.torch"}
    assert "usermod -aG" in found["/dev/kfd"].fix


def test_no_permission_in_a_container_is_mended_by_number(machine: FakeMachine) -> None:
    (machine.root / ".dockerenv").touch()
    machine.groups = (4242,)
    group = (machine.root / "dev/kfd").stat().st_gid
    kfd = next(verdict for verdict in machine.bad() if verdict.item == "/dev/kfd")
    assert f"--group-add {group}" in kfd.fix


def test_root_may_open_everything(machine: FakeMachine) -> None:
    machine.user, machine.groups = 0, ()
    assert machine.bad() == []


def test_a_container_without_kfd(machine: FakeMachine) -> None:
    write(machine.root / "run", **{".containerenv": ""})
    (machine.root / "dev/kfd").unlink()
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=0, chips=())
    found = {verdict.item: verdict for verdict in machine.bad() if verdict.item != "/dev/shm"}
    assert set(found) == {"/dev/kfd", "cards.torch"}
    assert "--device /dev/kfd" in found["/dev/kfd"].fix


def test_a_container_with_little_shared_memory(machine: FakeMachine) -> None:
    (machine.root / ".dockerenv").touch()
    seen = dataclasses.replace(machine.look(), shm_bytes=64 << 20)
    (verdict,) = [verdict for verdict in examine(seen) if verdict.status != "ok"]
    assert (verdict.item, verdict.value) == ("/dev/shm", "64 MiB")
    assert "--ipc=host" in verdict.fix


@pytest.mark.parametrize(
    ("torch", "value"),
    [
        (Torch(version="2.10.0+cu128", cuda="12.8", devices=0), "built for CUDA 12.8"),
        (Torch(version="2.10.0+cpu", devices=0), "built for the CPU only"),
    ],
    ids=["cuda", "cpu"],
)
def test_a_torch_that_cannot_use_the_cards(machine: FakeMachine, torch: Torch, value: str) -> None:
    machine.torch = torch
    verdict = machine.only()
    assert (verdict.item, verdict.status) == ("torch", "wrong")
    assert value in verdict.value
    assert verdict.fix.endswith("https://download.pytorch.org/whl/rocm7.2")


def test_hip_versions_apart(machine: FakeMachine) -> None:
    write(machine.root / "opt/rocm/.info", version="6.3.1-1")
    verdict = machine.only()
    assert verdict.item == "rocm"
    assert "HIP 7.2.53211" in verdict.value
    assert "6.3.1" in verdict.value


@pytest.mark.parametrize("package", ["flash_attn", "bitsandbytes"])
def test_an_extension_built_for_cuda(machine: FakeMachine, tmp_path: Path, package: str) -> None:
    write(tmp_path / "site" / package, **{"lib_cuda.so": "ELF libcudart.so.12"})
    machine.site = [tmp_path / "site"]
    verdict = machine.only()
    assert (verdict.item, verdict.value) == (package.replace("_", "-"), "compiled for CUDA")
    # The ROCm build keeps "cuda" in its names and links AMD's library.
    write(tmp_path / "site" / package, **{"lib_cuda.so": "ELF libamdhip64.so.7"})
    assert machine.bad() == []


def test_packages_that_break_a_rocm_torch(machine: FakeMachine, tmp_path: Path) -> None:
    for name in ("amdsmi-7.0.2", "nvidia_ml_py-13.615"):
        (tmp_path / f"site/{name}.dist-info").mkdir(parents=True)
    machine.site = [tmp_path / "site"]
    assert [(v.item, v.value) for v in machine.bad()] == [("amdsmi", "7.0.2"), ("nvidia-ml-py", "13.615")]


@pytest.mark.parametrize(
    ("masks", "item", "text"),
    [
        ({"HIP_VISIBLE_DEVICES": ""}, "HIP_VISIBLE_DEVICES", "hides all 2 cards"),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, "ROCR_VISIBLE_DEVICES", "hides all 2 cards"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, "CUDA_VISIBLE_DEVICES", "card 7 does not exist"),
        ({"HIP_VISIBLE_DEVICES": "0,0"}, "HIP_VISIBLE_DEVICES", "named twice"),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, "masks", "is none of them"),
        ({"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1"}, "masks", "that ROCR has left"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES", "they differ"),
    ],
)
def test_masks_that_contradict(machine: FakeMachine, masks: dict[str, str], item: str, text: str) -> None:
    machine.environment = masks
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=None)
    verdict = machine.only()
    assert verdict.item == item
    assert text in verdict.why
    assert verdict.fix


def test_a_mask_explains_fewer_cards(machine: FakeMachine) -> None:
    machine.environment = {"HIP_VISIBLE_DEVICES": "1"}
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=1)
    assert machine.bad() == []


def test_torch_sees_fewer_cards_than_are_left(machine: FakeMachine) -> None:
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=1)
    assert (machine.only().item, machine.only().value) == ("cards.torch", "1 of 2")


@pytest.mark.parametrize(
    ("version", "status", "text"),
    [
        ("11.0.0", "wrong", "code for gfx1100"),
        ("9.0.10", "wrong", "code for gfx90a"),
        ("gfx942", "wrong", "three numbers"),
        ("9.4.2", "ok", ""),
    ],
)
def test_hsa_override(machine: FakeMachine, version: str, status: str, text: str) -> None:
    machine.environment = {"HSA_OVERRIDE_GFX_VERSION": version}
    verdict = next(v for v in machine.verdicts() if v.item == "HSA_OVERRIDE_GFX_VERSION")
    assert verdict.status == status
    assert text in verdict.why


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HIP_LAUNCH_BLOCKING", "1"),
        ("HCCL_HOME", "/opt/hccl"),
        ("PYTORCH_TUNABLEOP_ENABLED", "1"),
        ("NCCL_P2P_DISABLE", "1"),
        ("HSA_XNACK", "1"),
    ],
)
def test_a_variable_that_was_left_on(machine: FakeMachine, name: str, value: str) -> None:
    machine.environment = {name: value}
    assert machine.only().item == name
    assert f"unset {name}" in machine.only().fix or "TUNING=0" in machine.only().fix


def test_alternate_fp16_on_mi200(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path / "root", gfx_target_version=90010)
    machine.environment = {"ROCBLAS_INTERNAL_FP16_ALT_IMPL": "0"}
    machine.torch = dataclasses.replace(ROCM_TORCH, chips=("gfx90a:sramecc+:xnack-",) * 2)
    assert "6.1e-5" in machine.only().why
    assert next(v for v in machine.verdicts() if v.item == "fp8 gfx90a").value.startswith("none in hardware")


def test_iommu_that_translates(machine: FakeMachine) -> None:
    write(machine.root / "proc", cmdline="quiet")
    assert machine.only().item == "iommu"


def test_a_narrow_link(machine: FakeMachine) -> None:
    write(machine.device(1), current_link_width=8)
    verdict = machine.only()
    assert (verdict.item, verdict.value) == ("pcie 0000:25:00.0", "x8 of x16 at 0000:25:00.0")


def test_a_slow_bridge_and_a_card_that_saves_power(machine: FakeMachine, tmp_path: Path) -> None:
    write(machine.device(0).parent, current_link_speed="16.0 GT/s PCIe")
    assert {v.value for v in machine.bad()} == {"16 of 32 GT/s at 0000:00:01.1"}
    desktop = FakeMachine(tmp_path / "desktop", cards=1, gfx_target_version=110000, hive_id=0)
    desktop.torch = dataclasses.replace(ROCM_TORCH, devices=1, chips=("gfx1100",))
    write(desktop.device(0), current_link_speed="2.5 GT/s PCIe")
    assert desktop.bad() == []


def test_a_wider_slot_than_the_card_is_no_mistake(machine: FakeMachine) -> None:
    for number in (0, 1):
        write(machine.device(number), current_link_width=8, max_link_width=8)
    write(machine.device(0).parent, current_link_width=8)
    assert machine.bad() == []


@pytest.mark.parametrize("nonsense", ["N/A", "-1", "65535", "", "Unknown"])
def test_values_that_mean_not_available(machine: FakeMachine, nonsense: str) -> None:
    write(machine.device(0), current_link_speed=nonsense, mem_info_vram_total=nonsense, gpu_busy_percent=nonsense)
    write(machine.device(0), max_link_width=nonsense, current_link_width=nonsense)
    assert machine.bad() == []


def test_a_topology_that_cannot_be_read_is_left_out(machine: FakeMachine) -> None:
    write(machine.root / "sys/class/kfd/kfd/topology/nodes/1", properties="gfx_target_version N/A\nsimd_count -1\n\0")
    assert machine.look().cards[0].gfx is None
    assert machine.bad() == []


def test_partitions(machine: FakeMachine) -> None:
    for number in (0, 1):
        write(machine.device(number), current_compute_partition="CPX", current_memory_partition="NPS4")
    assert "share of its memory" in machine.only().why
    write(machine.device(1), current_compute_partition="SPX", current_memory_partition="NPS1")
    assert "different modes" in machine.only().why


def test_a_card_without_its_hive(machine: FakeMachine) -> None:
    shutil.rmtree(machine.root / "sys/class/kfd/kfd/topology/nodes/2/io_links")
    verdict = machine.only()
    assert verdict.item == "xgmi"
    assert verdict.value.startswith("0000:25:00.0")


def test_ecc_off(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path / "root", cards=1, capability=0)
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=1)
    assert machine.only().item == "ecc 0000:05:00.0"


def test_memory_that_is_slow(machine: FakeMachine) -> None:
    seen = dataclasses.replace(machine.look(), bandwidth=(("gfx942", 4.2e12), ("gfx942", 1.1e12)))
    (verdict,) = [verdict for verdict in examine(seen) if verdict.status != "ok"]
    assert (verdict.item, verdict.value) == ("memory 1", "1100 GB/s, 21 % of 5300 GB/s")


def test_rocm_changed_since_the_last_self_test(machine: FakeMachine) -> None:
    seen = dataclasses.replace(machine.look(), tested_with="rocm 6.4.1")
    (verdict,) = [verdict for verdict in examine(seen) if verdict.status != "ok"]
    assert (verdict.item, verdict.fix) == ("selftest", "floatscope selftest")
    assert [v for v in examine(dataclasses.replace(seen, tested_with=seen.stack)) if v.status != "ok"] == []


@pytest.mark.parametrize(("count", "problem"), [(3, None), (None, "pyrsmi: no answer within 5 s")])
def test_amd_smi_that_disagrees(machine: FakeMachine, count: int | None, problem: str | None) -> None:
    seen = dataclasses.replace(machine.look(), smi_cards=count, smi_problem=problem)
    (verdict,) = [verdict for verdict in examine(seen) if verdict.status != "ok"]
    assert verdict.item == "cards.amd-smi"
    assert problem is None or verdict.why == problem


def test_dies_and_partitions_count_as_they_are_seen(tmp_path: Path) -> None:
    """Eight partitions share one address: torch has eight devices, AMD SMI eight or one."""
    machine = FakeMachine(tmp_path / "root", cards=1, hive_id=0)
    for part in range(1, 8):
        machine.node(part + 1, location_id=(5 << 8) + part, hive_id=0)
    machine.torch = dataclasses.replace(ROCM_TORCH, devices=8, chips=("gfx942",) * 8)
    assert machine.look().cards[0].nodes == 8
    assert [v for v in examine(dataclasses.replace(machine.look(), smi_cards=8)) if v.status != "ok"] == []


def test_a_driver_that_hangs_is_left_behind(machine: FakeMachine) -> None:
    file = machine.device(0) / "mem_info_vram_total"
    file.unlink()
    os.mkfifo(file)  # opening it waits until somebody writes
    seen, hung = look_in_time(0.2, environment={"HSA_XNACK": "1"}, root=machine.root, torch=ROCM_TORCH)
    assert [(verdict.item, verdict.value) for verdict in hung] == [("driver", "no answer")]
    assert "no answer within 0.2 s" in hung[0].why
    assert (seen.cards, seen.torch) == ((), ROCM_TORCH)
    # What was left behind ends with the card's answer.
    file.open("w").close()


def test_every_verdict_of_the_sources_says_why_and_what_to_do(machine: FakeMachine, tmp_path: Path) -> None:
    machine.environment = {"HSA_XNACK": "1", "HIP_VISIBLE_DEVICES": "9", "AMD_SERIALIZE_KERNEL": "3"}
    bad = machine.bad()
    assert len(bad) >= 3
    assert all(v.why and v.fix and not re.search(r"\bNone\b", v.value + v.why) for v in bad)
