"""Each card: its link, its memory, its mode, and the formats it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from floatscope._chips import bandwidth_of, fp8_formats, fp8_of
from floatscope._doctor._machine import Card, Machine
from floatscope._doctor._verdict import Verdict, ok, warning
from floatscope._formats import formats

__all__ = ["card_checks", "format_checks", "history_checks"]

_SLOW = 0.5
"""A plain copy reaches 70 to 90 % of a data sheet's bandwidth; less than half: throttled, shared or partitioned."""


def card_checks(machine: Machine) -> Iterator[Verdict]:
    """PCI Express, ECC, partitions, XGMI, memory bandwidth."""
    for card in machine.cards:
        yield from _link(card)
        if card.ecc is False and card.gfx in ("gfx90a", "gfx942", "gfx950"):
            yield warning(
                f"ecc {card.pci}",
                "off",
                "a flipped bit in this chip's memory goes unnoticed and looks like a numerical problem",
                "switch ECC (sramecc) on: remove amdgpu.ras_enable=0 from the kernel's command line",
            )
    yield from _partitions(machine)
    yield from _xgmi(machine)
    for number, (chip, measured) in enumerate(machine.bandwidth):
        peak = bandwidth_of(chip)
        value = f"{measured / 1e9:.0f} GB/s"
        if peak is not None and measured < _SLOW * peak:
            yield warning(
                f"memory {number}",
                f"{value}, {100 * measured / peak:.0f} % of {peak / 1e9:.0f} GB/s",
                "less than half of what the chip's memory can do",
                "see whether somebody else uses the card, its power cap and its temperature",
            )
        else:
            yield ok(f"memory {number}", value)


def _link(card: Card) -> Iterator[Verdict]:
    narrow = [link for link in card.links if link.width and link.max_width and link.width < link.max_width]
    # A root port may be wider than the card: what counts is what both ends could do.
    own_width = min((link.max_width for link in card.links if link.max_width), default=None)
    own_speed = min((link.max_speed for link in card.links if link.max_speed), default=None)
    for link in narrow:
        if own_width and link.width and link.width < own_width:
            yield warning(
                f"pcie {card.pci}",
                f"x{link.width} of x{own_width} at {link.address}",
                "the link came up with fewer lanes: transfers to and from the host take that much longer",
                "reseat the card or riser, look at `dmesg | grep -i pcie` and the slot's setting in the firmware",
            )
            return
    slow = [link for link in card.links if link.speed and own_speed and link.speed < own_speed]
    # Consumer cards lower the speed while they are idle; one that does not tell how busy it is may be.
    saving = not card.busy_percent and (card.gfx or "").startswith("gfx1")
    if slow and not saving:
        yield warning(
            f"pcie {card.pci}",
            f"{slow[0].speed:g} of {own_speed:g} GT/s at {slow[0].address}",
            "the link runs at a lower speed than both of its ends can",
            "look again under load; if it stays, look for errors in `dmesg | grep -i aer`, or at the riser",
        )
    elif card.links:
        lanes, speed = card.links[0].width, card.links[0].speed
        shown = [f"x{lanes}" if lanes else "", f"{speed:g} GT/s" if speed else ""]
        yield ok(f"pcie {card.pci}", ", ".join(filter(None, shown)) or "not told")


def _partitions(machine: Machine) -> Iterator[Verdict]:
    modes = Counter((card.compute_partition, card.memory_partition) for card in machine.cards if card.compute_partition)
    shown = ", ".join(f"{count} in {compute}/{memory or '?'}" for (compute, memory), count in modes.items())
    if len(modes) > 1:
        yield warning(
            "partitions",
            shown,
            "the cards are in different modes: ranks get different memory and speed, and the slowest sets the pace",
            "set one mode on all of them: amd-smi set --compute-partition SPX, --memory-partition NPS1",
        )
    elif modes:
        ((compute, memory),) = modes
        if compute != "SPX" or memory not in (None, "NPS1"):
            yield warning(
                "partitions",
                shown,
                "each card shows up as several devices, with a share of its memory each; AMD SMI reports the whole "
                "card's memory for every one of them",
                "for a training that wants whole cards: amd-smi set --compute-partition SPX, --memory-partition NPS1",
            )
        else:
            yield ok("partitions", shown)


def _xgmi(machine: Machine) -> Iterator[Verdict]:
    hives = Counter(card.hive for card in machine.cards if card.hive)
    alone = [card.pci for card in machine.cards if card.hive and hives[card.hive] > 1 and not card.xgmi_peers]
    if alone:
        yield warning(
            "xgmi",
            f"{', '.join(alone)} has no XGMI link",
            "the card belongs to a hive of several and is not joined to them: RCCL falls back to PCI Express",
            "look at `amd-smi xgmi` and `dmesg | grep -i xgmi`; retraining the links takes a cold restart",
        )
    elif hives:
        yield ok("xgmi", f"{sum(hives.values())} cards in {len(hives)} hive(s)")


def format_checks(machine: Machine) -> Iterator[Verdict]:
    """What each kind of chip multiplies in 8 bits."""
    for chip in dict.fromkeys(machine.chips):
        variant = fp8_of(chip)
        if names := fp8_formats(variant):
            shown = ", ".join(f"{name} (max {formats[name].max:g})" for name in names)
            yield ok(f"fp8 {chip}", shown)
        elif variant == "none":
            yield ok(f"fp8 {chip}", "none in hardware: FP8 there is emulated, or runs as BF16")


def history_checks(machine: Machine) -> Iterator[Verdict]:
    """Whether the numbers were tested with what is installed now."""
    if machine.tested_with is not None and machine.tested_with != machine.stack:
        yield warning(
            "selftest",
            f"last run with {machine.tested_with or 'nothing known'}",
            f"since then the stack has changed to {machine.stack or 'nothing known'}; results may differ",
            "floatscope selftest",
        )
    elif machine.tested_with is not None:
        yield ok("selftest", "passed with what is installed now")
