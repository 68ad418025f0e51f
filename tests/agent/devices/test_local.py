"""The agent's side: the sidecar's life, and the join with the allocator's figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from floatscope import wire
from floatscope._devices import AllocatorFigures, LocalDevices, allocator_figures
from floatscope._devices._local import join
from floatscope._devices._sidecar import Sidecar
from tests.agent.devices.processes import alive

if TYPE_CHECKING:
    from tests.agent.devices.conftest import FakeSys

    Until = Callable[..., None]

GIB = 1 << 30


def figures(pci: str | None, *, index: int = 0, total: int = 191 * GIB) -> AllocatorFigures:
    return AllocatorFigures(
        index=index,
        pci=pci,
        name="torch's name",
        used_bytes=9,
        total_bytes=total,
        allocated_bytes=3,
        reserved_bytes=4,
        alloc_retries=0,
        ooms=1,
    )


def reading(pci: str | None, index: int = 0) -> wire.Device:
    return wire.Device(
        time_ns=1, backend="nvml", index=index, pci=pci, vram_used_bytes=5, vram_total_bytes=192 * GIB, power_watts=1.0
    )


def test_join_goes_by_address_and_keeps_this_process_cards() -> None:
    [one] = join([reading("0000:05:00.0"), reading("0000:25:00.0", 1)], [figures("0000:25:00")])
    assert (one.index, one.pci, one.backend) == (1, "0000:25:00.0", "nvml+torch")
    assert (one.vram_used_bytes, one.allocated_bytes, one.reserved_bytes) == (5, 3, 4)
    assert (one.alloc_retries, one.ooms) == (0, 1)


def test_join_without_cuda_keeps_every_card() -> None:
    readings = (reading("0000:05:00.0"), reading(None, 1))
    assert join(readings, []) == readings


def test_join_of_an_unknown_address_is_torchs_word_alone() -> None:
    for pci in ("0000:99:00", None):
        [one] = join([reading("0000:05:00.0")], [figures(pci)])
        assert (one.backend, one.vram_used_bytes, one.power_watts) == ("torch", 9, None)


def test_partitions_have_their_own_memory_figures() -> None:
    parts = [figures("0000:05:00", index=i, total=24 * GIB) for i in range(2)]
    first, second = join([reading("0000:05:00.0")], parts)
    assert (first.index, second.index) == (0, 1)
    assert (first.vram_used_bytes, first.vram_total_bytes, first.power_watts) == (9, 24 * GIB, 1.0)


def test_readings_come_without_blocking(fake_sys: FakeSys, until: Until) -> None:
    fake_sys.card(0, "0000:05:00.0")
    devices = LocalDevices(sysfs=fake_sys.root, period_s=0.02)
    assert devices.poll() == ()
    devices.start()
    got: list[wire.Device] = []

    def three() -> bool:
        got.extend(devices.poll())
        return len(got) >= 3

    until(three)
    assert {one.pci for one in got} == {"0000:05:00.0"}
    assert devices.reason is None
    pid = devices._sidecar.pid
    assert pid is not None
    devices.close()
    assert not alive(pid)
    assert devices.poll() == ()


def test_no_card_leaves_a_reason_and_no_process(fake_sys: FakeSys, until: Until) -> None:
    devices = LocalDevices(sysfs=fake_sys.root)
    devices.start()
    pid = devices._sidecar.pid
    assert pid is not None
    until(lambda: devices.poll() or devices.reason)
    assert devices.reason is not None
    assert "sysfs: no AMD card below" in devices.reason
    until(lambda: devices.poll() or not alive(pid))
    devices.close()


def test_torch_alone_is_asked_once_a_period(fake_sys: FakeSys, until: Until) -> None:
    now = 100.0
    devices = LocalDevices(sysfs=fake_sys.root, allocator=lambda: [figures(None)], clock=lambda: now)
    devices.start()
    until(lambda: devices.poll() or devices.reason)
    now = 101.5
    assert [one.backend for one in devices.poll()] == ["torch"]
    assert devices.poll() == ()
    devices.close()


def test_a_sidecar_that_dies_is_started_once_more_and_leaves_a_reason(fake_sys: FakeSys, until: Until) -> None:
    fake_sys.card(0, "0000:05:00.0")
    sidecar = Sidecar(sysfs=fake_sys.root, period_s=0.02)
    sidecar.start()
    first = sidecar.pid
    assert first is not None
    until(sidecar.poll)
    os.kill(first, signal.SIGKILL)
    pids: list[int] = []

    def again() -> bool:
        readings = sidecar.poll()
        pids[:] = [pid for pid in (sidecar.pid,) if pid not in (None, first)]
        return bool(readings and pids)

    until(again)
    assert "--files-only" in Path(f"/proc/{pids[0]}/cmdline").read_text().split("\0")
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: sidecar.poll() or sidecar.reason)
    assert sidecar.reason in ("the device sidecar ended with status -9", "the device sidecar closed its output")
    until(lambda: sidecar.poll() or not sidecar._ending)


def test_a_sidecar_that_closes_its_output_and_goes_on_is_not_waited_for(until: Until) -> None:
    sidecar = Sidecar()
    sidecar._command = ["-c", "import os, time; os.close(1); time.sleep(60)"]
    sidecar.start()
    pids: set[int] = set()

    def given_up() -> bool:
        if sidecar.pid is not None:
            pids.add(sidecar.pid)
        sidecar.poll()
        return sidecar.reason is not None

    until(given_up)
    assert sidecar.reason == "the device sidecar closed its output"
    assert len(pids) == 2
    until(lambda: sidecar.poll() or not any(map(alive, pids)))
    sidecar.close()


def test_why_there_is_none_names_the_end_before(fake_sys: FakeSys, until: Until) -> None:
    sidecar = Sidecar(sysfs=fake_sys.root)
    command, sidecar._command = sidecar._command, ["-c", "import os; os.abort()"]
    sidecar.start()
    sidecar._command = command
    until(lambda: sidecar.poll() or sidecar.reason)
    assert sidecar.reason is not None
    assert sidecar.reason.startswith("the device sidecar ")
    assert "; sysfs: no AMD card below" in sidecar.reason
    sidecar.close()


def test_the_sidecar_ignores_ctrl_c(fake_sys: FakeSys, until: Until) -> None:
    fake_sys.card(0, "0000:05:00.0")
    sidecar = Sidecar(sysfs=fake_sys.root, period_s=0.02)
    sidecar.start()
    until(sidecar.poll)
    assert sidecar.pid is not None
    os.kill(sidecar.pid, signal.SIGINT)
    for _ in range(3):
        until(sidecar.poll)
    sidecar.close()


def test_the_sidecar_loads_neither_torch_nor_the_senders_parts() -> None:
    code = "import floatscope._devices.__main__, sys; print({'torch', 'websockets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_allocator_figures_without_cuda_load_nothing() -> None:
    code = "import sys; from floatscope import _devices as d; print(d.allocator_figures(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"


def test_allocator_figures_of_a_cpu_torch_are_none() -> None:
    pytest.importorskip("torch")
    import torch

    if torch.cuda.is_available():
        pytest.skip("this process uses a card")
    assert allocator_figures() == []


def test_figures_of_a_real_card(until: Until) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a card")
    devices = LocalDevices(period_s=0.1)
    devices.start()
    held = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    got: list[wire.Device] = []

    def joined() -> bool:
        got.extend(devices.poll())
        return bool(got) and got[-1].allocated_bytes is not None

    until(joined)
    devices.close()
    one = got[-1]
    assert one.backend.endswith("+torch"), devices.reason
    assert one.allocated_bytes is not None
    assert one.vram_used_bytes is not None
    assert one.vram_total_bytes is not None
    assert held.nbytes <= one.allocated_bytes <= one.vram_used_bytes <= one.vram_total_bytes
