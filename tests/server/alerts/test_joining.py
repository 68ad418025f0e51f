"""Blocks that are judged as one: what may be joined, and that it changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from floatscope import wire
from floatscope_server.alerts.book import Book
from floatscope_server.alerts.joining import joined
from floatscope_server.bench.data import Synthetic
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters, RunWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LAYERS = {
    number: wire.Layer(
        index=number,
        name=f"layer{number}",
        module_type="Linear",
        parameters=64,
        operands=(wire.Operand(kind="grad", format="fp16"),),
    )
    for number in range(6)
}


def _blocks(lengths: Iterable[int], data: Synthetic) -> list[Observation]:
    found: list[Observation] = []
    first = 0
    for seq, steps in enumerate(lengths, start=1):
        found.append(
            Observation(
                run_id=1,
                run="run",
                attempt=1,
                rank=0,
                writer="a",
                seq=seq,
                world=1,
                body=data.body(first, steps),
                layers=_LAYERS,
            )
        )
        first += steps
    return found


@pytest.fixture
def blocks() -> list[Observation]:
    return _blocks([10] * 30, Synthetic(layers=6, kinds=2))


def test_neighbours_are_one(blocks: list[Observation]) -> None:
    found = list(joined(blocks))
    assert [(one.seq, one.body.first_step, one.body.steps) for one in found] == [
        (12, 0, 120),
        (24, 120, 120),
        (30, 240, 60),
    ]
    whole = Synthetic(layers=6, kinds=2).body(120, 120)
    assert found[1].body.summaries == whole.summaries
    assert [(s.name, s.steps) for s in found[1].body.scalars] == [(s.name, s.steps) for s in whole.scalars]


def _event(o: Observation) -> Observation:
    return replace(o, body=msgspec.structs.replace(o.body, events=(wire.Event(step=10, kind="skipped"),)))


def _continued(o: Observation) -> Observation:
    return replace(o, body=msgspec.structs.replace(o.body, continued=True))


def _fewer(o: Observation) -> Observation:
    return replace(o, body=msgspec.structs.replace(o.body, summaries=o.body.summaries[:1]))


def _elsewhere(o: Observation) -> Observation:
    body = o.body
    parts = tuple(msgspec.structs.replace(part, first_step=part.first_step + 1) for part in body.summaries)
    return replace(o, body=msgspec.structs.replace(body, first_step=body.first_step + 1, summaries=parts))


@pytest.mark.parametrize(
    "change",
    [
        _event,
        _continued,
        _fewer,
        _elsewhere,
        lambda o: replace(o, seq=o.seq + 1),
        lambda o: replace(o, writer="b"),
        lambda o: replace(o, layers=dict(_LAYERS)),
        lambda o: replace(o, merged=o.body.scalars[:1]),
    ],
    ids=["event", "continued", "fewer", "elsewhere", "hole", "writer", "layers", "merged"],
)
def test_what_is_different_stays_apart(blocks: list[Observation], change: Callable[[Observation], Observation]) -> None:
    second = change(blocks[1])
    assert list(joined([blocks[0], second])) == [blocks[0], second]


def _judged(observations: Iterable[Observation]) -> list[tuple[str, str, int, str]]:
    window, book = RunWindow(RuleParameters()), Book()
    done = []
    for observation in observations:
        for finding in window.judge(observation, lambda: book.kinds):
            done += book.apply(finding)
    return [(change.entry.kind, change.kind, change.step, change.entry.dedupe_key) for change in done]


@pytest.mark.parametrize("length", [1, 3, 10])
def test_the_alerts_are_the_same(length: int) -> None:
    data = Synthetic(layers=6, kinds=2)
    found = _blocks([length] * (600 // length), data)
    for at, value in ((250, np.nan), (420, 1e9)):
        body = found[at // length].body
        loss = body.scalars[0]
        values = np.frombuffer(loss.values, "<f8").copy()
        values[at % length] = value
        series = (msgspec.structs.replace(loss, values=values.tobytes()), *body.scalars[1:])
        found[at // length] = replace(found[at // length], body=msgspec.structs.replace(body, scalars=series))
    apart = _judged(found)
    assert {(kind, change) for kind, change, *_ in apart} >= {("nonfinite", "firing"), ("loss_spike", "firing")}
    assert _judged(joined(found)) == apart
