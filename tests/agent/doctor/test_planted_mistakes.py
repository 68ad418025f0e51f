"""``floatscope doctor --json`` as it is typed, on a clean machine and on one mistake at a time."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable

import pytest

from floatscope import _cli, _devices
from floatscope._devices._count import Count
from floatscope._doctor import _ask_torch, _look
from tests.agent.doctor.machines import GIB, FakeMachine, write

Doctor = Callable[[], tuple[int, list[dict[str, str]]]]

PLANTS: dict[str, Callable[[FakeMachine], object]] = {
    "driver": lambda m: write(m.root / "sys/module/amdgpu", initstate="going"),
    "/dev/kfd": lambda m: (m.root / "dev/kfd").unlink(),
    "/dev/dri": lambda m: shutil.rmtree(m.root / "dev/dri"),
    "ulimit memlock": lambda m: m.limits(locked="65536"),
    "ulimit nofile": lambda m: m.limits(files="1024"),
    "rebar 0000:05:00.0": lambda m: write(m.device(0), mem_info_vis_vram_total=GIB // 4),
    "pcie 0000:25:00.0": lambda m: write(m.device(1), current_link_width=8),
    "partitions": lambda m: _split(m),
    "rocm": lambda m: write(m.root / "opt/rocm/.info", version="6.2.0-66"),
    "HSA_OVERRIDE_GFX_VERSION": lambda m: m.environment.update(HSA_OVERRIDE_GFX_VERSION="11.0.0"),
    "HIP_VISIBLE_DEVICES": lambda m: m.environment.update(HIP_VISIBLE_DEVICES="0,1,7"),
    "AMD_SERIALIZE_KERNEL": lambda m: m.environment.update(AMD_SERIALIZE_KERNEL="3"),
    "HCCL_HOME": lambda m: m.environment.update(HCCL_HOME="/opt/hccl"),
    "NCCL_P2P_DISABLE": lambda m: m.environment.update(NCCL_P2P_DISABLE="1"),
}
"""The item that must be named -> what is done to a clean machine."""


def _split(machine: FakeMachine) -> None:
    for number in range(2):
        write(machine.device(number), current_memory_partition="NPS4")


@pytest.fixture
def doctor(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The command, with ``machine`` in place of the root directory and of what torch and AMD SMI answer."""
    look = functools.partial(_look.look_in_time, root=machine.root)

    def look_there(timeout_s: float, **_: object) -> object:
        return look(timeout_s, environment=machine.environment, torch=machine.torch)

    monkeypatch.setattr(_look, "look_in_time", look_there)
    monkeypatch.setattr(_ask_torch, "import_torch", lambda: (None, None))
    monkeypatch.setattr(_devices, "smi_cards", lambda: Count(cards=2))

    def typed() -> tuple[int, list[dict[str, str]]]:
        status = _cli.main(["doctor", "--json"])
        verdicts = json.loads(capsys.readouterr().out)["verdicts"]
        return status, [verdict for verdict in verdicts if verdict["status"] != "ok"]

    return typed


def test_a_clean_machine_is_silent(doctor: Doctor) -> None:
    assert doctor() == (0, [])


@pytest.mark.parametrize("item", PLANTS)
def test_a_planted_mistake_is_named_with_its_fix(doctor: Doctor, machine: FakeMachine, item: str) -> None:
    PLANTS[item](machine)
    status, bad = doctor()
    assert status == 1
    assert [verdict["item"] for verdict in bad] == [item]
    assert all(verdict["why"] and verdict["fix"] for verdict in bad)


def test_libraries_are_listed(machine: FakeMachine) -> None:
    found = {verdict.item: verdict.value for verdict in machine.verdicts()}
    assert (found["rccl"], found["miopen"]) == ("1.0.70204", "1.0.70204")
    assert len(PLANTS) >= 12
