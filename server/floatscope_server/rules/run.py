"""A run's recent past and its judgement, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from floatscope import wire
from floatscope_server.observation import Observation
from floatscope_server.rules.layers import LayerWindow
from floatscope_server.rules.parameters import RuleParameters
from floatscope_server.rules.record import Record, has_sound_loss, record_of, scalars_by_step
from floatscope_server.rules.scalars import ScalarWindow
from floatscope_server.rules.tensors import Block, LayerTable
from floatscope_server.rules.verdict import Finding

__all__ = ["RunWindow"]


class _Rank:
    def __init__(self, rules: RuleParameters, rank: int) -> None:
        self.scalars = ScalarWindow(rules, rank)
        self.layers = LayerWindow(rules, rank)


class RunWindow:
    """All that the rules remember of one attempt of one run.

    ``judge`` is a generator and moves the window on as it is consumed: the verdicts of a finding must be asked for
    before the next one is drawn.
    """

    def __init__(self, rules: RuleParameters) -> None:
        self._rules = rules
        self._ranks: dict[int, _Rank] = {}
        self._layers: Mapping[int, wire.Layer] = {}
        self._table = LayerTable({})

    def judge(self, observation: Observation) -> Iterator[Finding]:
        """The findings of every step of ``observation``, in order."""
        body = observation.body
        if observation.layers != self._layers:
            self._layers = dict(observation.layers)
            self._table = LayerTable(self._layers)
        rank = self._ranks.setdefault(observation.rank, _Rank(self._rules, observation.rank))
        scalars = scalars_by_step(body.scalars)
        blocks = [Block(summaries) for summaries in body.summaries if summaries.layers]
        skips = {event.step for event in body.events if event.kind == "skipped"}
        steps = set(scalars) | skips
        for block in blocks:
            steps.update(range(block.first_step, block.first_step + block.steps))
        for step in sorted(steps):
            rows = {block.kind: found for block in blocks if (found := block.rows(step)) is not None}
            values = scalars.get(step, {})
            layers = rank.layers.see(
                self._table, rows, reduced=observation.world > 1, sound_loss=has_sound_loss(values)
            )
            now: Record = record_of(
                step,
                values,
                skip_event=step in skips,
                seen=rank.scalars.names,
                previous_scale=rank.scalars.last_scale,
                grad_nan=layers.grad_nan,
                grad_inf=layers.grad_inf,
            )
            rank.scalars.learn(values)
            nonfinite = rank.scalars.nonfinite(now)
            yield from rank.layers.judge(layers, now, nonfinite, since=rank.scalars.nonfinite_since)
            yield from rank.scalars.judge(now)
            rank.scalars.push(now, nonfinite)
