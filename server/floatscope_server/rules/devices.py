"""The cards of a run: what the device rules remember, and their findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from floatscope import wire
from floatscope._chips import FP8, fp8_of
from floatscope_server.rules import card_faults, utilisation, vram
from floatscope_server.rules.findings import Held, series_finding
from floatscope_server.rules.parameters import RuleParameters
from floatscope_server.rules.verdict import Finding, Outcome

__all__ = ["DeviceWindow"]

_WARM_UP_STEPS = 10
"""Steps of a run before its memory and load are its own: until then the model is loaded and the allocator fills."""


class _Card:
    def __init__(self, rules: RuleParameters) -> None:
        self.memory = vram.Memory(rules.vram_leak, rules.vram_jitter)
        self.busy = utilisation.Busy(rules.gpu_util_drop.seconds)
        self.health = card_faults.Health(rules.gpu_fault)
        self.newest = -1.0
        self.owned = False


class DeviceWindow:
    """What went before on the cards of all ranks. A card is known by its rank and its PCI address, or its index."""

    def __init__(self, rules: RuleParameters) -> None:
        self._rules = rules
        self._cards: dict[tuple[int, str], _Card] = {}
        self.fp8: FP8 | None = None
        """What the cards multiply, by their name."""

    def judge(self, devices: tuple[wire.Device, ...], rank: int, step: int, *, counts: bool) -> Iterator[Finding]:
        """Findings about samples of ``rank``, taken at ``step``. ``counts``: the run has warmed up, or the samples are
        a recording without a run."""
        for sample in sorted(devices, key=lambda sample: sample.time_ns):
            yield from self._judge(sample, rank, step, counts=counts)

    def warmed_up(self, steps: int) -> bool:
        """Whether a run that has shown ``steps`` steps is past loading and filling."""
        return steps > _WARM_UP_STEPS

    def _judge(self, sample: wire.Device, rank: int, step: int, *, counts: bool) -> Iterator[Finding]:
        rules = self._rules
        if self.fp8 is None and sample.name is not None:
            self.fp8 = fp8_of(sample.name)
        name = sample.pci or f"card{sample.index}"
        card = self._cards.get((rank, name))
        if card is None:
            card = self._cards[rank, name] = _Card(rules)
        at = sample.time_ns / 1e9
        card.newest = at
        card.owned = card.owned or sample.allocated_bytes is not None
        memory = card.memory
        memory.push(rules.vram_jitter, sample, counts=counts)
        found: list[tuple[str, Held, Outcome]] = [
            ("vram_near_oom", rules.vram_near_oom, vram.judge_near_oom(rules.vram_near_oom, memory, sample)),
            ("vram_leak", rules.vram_leak, vram.judge_leak(rules.vram_leak, memory, sample)),
            ("vram_jitter", rules.vram_jitter, vram.judge_jitter(rules.vram_jitter, memory, sample)),
        ]
        if sample.busy_percent is not None and counts:
            card.busy.push(at, sample.busy_percent)
            found.append(("gpu_util_drop", rules.gpu_util_drop, utilisation.judge_drop(rules.gpu_util_drop, card.busy)))
        for kind, rule, outcome in found:
            yield from _finding(kind, rule, step, rank, outcome, family=f"{rank}/{name}", device=name, at=at)
        card.health.push(sample)
        fault, health = rules.gpu_fault, card.health
        for what, hold, outcome in (
            ("errors", 0.0, card_faults.judge_errors(health, sample)),
            ("throttle", 0.0, card_faults.judge_throttle(fault, health, sample)),
            ("link", fault.link_seconds, card_faults.judge_link(sample)),
        ):
            held = card_faults.KeptByTime(hold, fault.keep_seconds)
            family = f"{rank}/{name}/{what}"
            yield from _finding("gpu_fault", held, step, rank, outcome, family=family, device=name, at=at)
        if sample.busy_percent is not None and counts:
            yield from self._imbalance(step, at)

    def _imbalance(self, step: int, at: float) -> Iterator[Finding]:
        rule = self._rules.gpu_imbalance
        cards = {key: c for key, c in self._cards.items() if c.busy.recent and at - c.newest < rule.seconds}
        # A machine may have more cards than the run uses; those that it allocates on are its own.
        if any(card.owned for card in cards.values()):
            cards = {key: card for key, card in cards.items() if card.owned}
        several = len({rank for rank, _ in cards}) > 1
        means = {(f"rank {r} {name}" if several else name): card.busy.mean for (r, name), card in cards.items()}
        outcome = utilisation.judge_imbalance(rule, means)
        yield from _finding("gpu_imbalance", rule, step, 0, outcome, family="", device=None, at=at)


def _finding(
    kind: str, rule: Held, step: int, rank: int, outcome: Outcome, *, family: str, device: str | None, at: float
) -> Iterator[Finding]:
    """The finding with what only the window knows: the step, and whose card it is."""
    verdict = outcome.verdict
    if verdict is not None:
        placed = dataclasses.replace(verdict, since_step=step)
        if device is not None:
            placed = dataclasses.replace(placed, device=device, rank=rank)
        outcome = dataclasses.replace(outcome, verdict=placed)
    finding = series_finding(kind, rule, step, rank, outcome, family=family, at=at)
    if finding is not None:
        yield finding
