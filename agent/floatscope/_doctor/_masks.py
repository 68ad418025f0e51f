"""Environment variables that hide cards. They stack, number differently, and say nothing when they hide everything."""

from __future__ import annotations

import re
from collections.abc import Iterator

from floatscope._doctor._machine import Machine
from floatscope._doctor._verdict import Verdict, warning, wrong

__all__ = ["mask_checks", "visible"]

_ROCR, _HIP, _CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


_DEVICE = re.compile(r"[0-9]{1,9}|(?:GPU|MIG)-.+", re.IGNORECASE)
"""A number or a unique identifier. Slurm writes NoDevFiles where a job has no card."""


def _entries(text: str) -> list[str]:
    """What stays of a list: an entry that is no device ends it, as in the runtimes."""
    kept: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not _DEVICE.fullmatch(entry):
            break
        kept.append(entry)
    return kept


def visible(machine: Machine, cards: int) -> int:
    """How many of ``cards`` the masks leave."""
    for name in (_ROCR, _HIP if _HIP in machine.environment else _CUDA):
        if name in machine.environment:
            entries = _entries(machine.environment[name])
            cards = sum(not entry.isdecimal() or int(entry) < cards for entry in entries)
    return cards


def mask_checks(machine: Machine) -> Iterator[Verdict]:
    """Masks that hide everything, count beyond the end, or contradict one another."""
    masks = {name: machine.environment[name] for name in (_ROCR, _HIP, _CUDA) if name in machine.environment}
    if not machine.amd and _ROCR not in masks and _HIP not in masks:
        return
    cards = machine.dies
    for name, text in masks.items():
        # Behind ROCR_VISIBLE_DEVICES the others count what that left, which the verdict on both says.
        yield from _one(name, text, cards, of_machine=name == _ROCR or _ROCR not in masks)
    if _HIP in masks and _ROCR in masks:
        yield _stacked(masks[_HIP], masks[_ROCR])
    if _HIP in masks and _CUDA in masks and _entries(masks[_HIP]) != _entries(masks[_CUDA]):
        yield warning(
            _CUDA,
            f"{masks[_CUDA]!r} beside {_HIP}={masks[_HIP]!r}",
            "both mean the same on ROCm, and they differ: which one counts depends on who reads",
            f"unset one; launchers that know ROCm set {_HIP}",
        )


def _one(name: str, text: str, cards: int, *, of_machine: bool) -> Iterator[Verdict]:
    entries = _entries(text)
    if not entries and cards:
        yield wrong(name, repr(text), f"it hides all {cards} cards", f"unset {name}, or list the cards to use: 0,1")
    beyond = [entry for entry in entries if entry.isdecimal() and int(entry) >= cards > 0]
    if beyond and of_machine:
        yield wrong(
            name,
            repr(text),
            f"card {', '.join(beyond)} does not exist: there are {cards}, counted from 0, and later ones are dropped",
            f"list numbers below {cards}",
        )
    dropped = [part.strip() for part in text.split(",")][len(entries) :]
    if entries and any(dropped):
        yield wrong(
            name,
            repr(text),
            f"{dropped[0]!r} is no card, and the runtime ends the list there: {len(entries)} card(s) are left",
            "separate the numbers by one comma each: 0,1",
        )
    if len(set(entries)) < len(entries):
        yield wrong(
            name, repr(text), "a card is named twice; the runtime drops the list from there on", "name each card once"
        )


def _stacked(hip: str, rocr: str) -> Verdict:
    left = len(_entries(rocr))
    beyond = [entry for entry in _entries(hip) if entry.isdecimal() and int(entry) >= left]
    value = f"{_ROCR}={rocr!r}, {_HIP}={hip!r}"
    if beyond:
        return wrong(
            "masks",
            value,
            f"HIP numbers the {left} card(s) that ROCR has left, from 0: number {', '.join(beyond)} is none of them",
            f"unset {_ROCR} and keep {_HIP}",
        )
    return warning(
        "masks",
        value,
        f"HIP numbers the {left} card(s) that ROCR has left, not those of the machine",
        f"set only {_HIP}; its numbers are then those of the machine",
    )
