"""A machine with every kind of card, read by the sidecar while its figures change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from floatscope._devices._lines import Sample
from tests.agent.devices.machine import KINDS, Machine

if TYPE_CHECKING:
    from tests.agent.devices.conftest import FakeSys, RunningSidecar


def readings(sample: Sample) -> list[dict[str, object]]:
    """Those of its figures that a machine tells."""
    fields = (
        "pci",
        "name",
        "vram_total_bytes",
        "vram_used_bytes",
        "busy_percent",
        "power_watts",
        "temperature_celsius",
        "core_clock_mhz",
        "memory_clock_mhz",
    )
    return [{name: getattr(one, name) for name in fields} for one in sample.devices]


@pytest.mark.parametrize("smi", [False, True], ids=["sysfs", "amd-smi"])
def test_every_kind_of_card_and_what_changes(
    fake_sys: FakeSys,
    sidecar: Callable[..., RunningSidecar],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    smi: bool,
) -> None:
    machine = Machine(fake_sys, tmp_path / "cards")
    environment = {}
    if smi:
        environment = {"ROCM_PATH": str(request.getfixturevalue("rocm_path")), "FAKE_SMI_CARDS": str(machine.cards)}
    running = sidecar(**environment)
    sample = running.line()
    assert isinstance(sample, Sample)
    assert readings(sample) == [machine.expected(place) for place in range(len(KINDS))]
    backends = [one.backend for one in sample.devices]
    assert set(backends) == {"pyrsmi+sysfs" if smi else "sysfs"}

    # Two cards lose their figures, the others change.
    machine.set(busy=12, watts=300, used_gib=7, celsius=33, lost=(3, 9))
    expected = [machine.expected(place) for place in range(len(KINDS))]
    changed = running.until(lambda now: readings(now) == expected)
    # What is lost is no reason to take a card for another one.
    assert [one.backend for one in changed.devices] == backends
