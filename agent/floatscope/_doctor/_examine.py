"""All verdicts on a machine."""

from __future__ import annotations

from floatscope._doctor._card_checks import card_checks, format_checks, history_checks
from floatscope._doctor._driver_checks import container_checks, count_checks, driver_checks, permission_checks
from floatscope._doctor._environment_checks import environment_checks
from floatscope._doctor._host_checks import host_checks
from floatscope._doctor._machine import Machine
from floatscope._doctor._masks import mask_checks
from floatscope._doctor._torch_checks import torch_checks
from floatscope._doctor._verdict import Verdict

__all__ = ["examine"]

_CHECKS = (
    driver_checks,
    permission_checks,
    container_checks,
    host_checks,
    count_checks,
    torch_checks,
    mask_checks,
    environment_checks,
    card_checks,
    format_checks,
    history_checks,
)


def examine(machine: Machine) -> list[Verdict]:
    """One verdict for each thing that could be judged; pure."""
    return [verdict for check in _CHECKS for verdict in check(machine)]
