"""Blocks that wait for the rules and follow each other, as one: most of what a calm block costs is the same for any
number of steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from floatscope import wire
from floatscope_server.alerts.beside import nbytes
from floatscope_server.observation import Observation

__all__ = ["joined"]

_STEPS = 128
"""A step that is not calm has all that are joined with it judged one by one."""
_BYTES = 4 << 20


def joined(observations: Iterable[Observation]) -> Iterator[Observation]:
    """``observations`` with those as one that are neighbours, blocks of the same writer, each of the steps after those
    of the one before, and hold nothing but statistics of the same tensors and scalars."""
    held: list[Observation] = []
    steps = size = 0
    for observation in observations:
        more = nbytes(observation)
        if held and not (
            _follows(held[-1], observation) and steps + observation.body.steps <= _STEPS and size + more <= _BYTES
        ):
            yield _one(held)
            held, steps, size = [], 0, 0
        held.append(observation)
        steps += observation.body.steps
        size += more
    if held:
        yield _one(held)


def _follows(before: Observation, after: Observation) -> bool:
    return (
        (before.writer, before.run_id, before.attempt, before.world)
        == (after.writer, after.run_id, after.attempt, after.world)
        and before.seq + 1 == after.seq
        and before.layers is after.layers
        and _is_plain(before)
        and _is_plain(after)
        and before.body.first_step + before.body.steps == after.body.first_step
        and len(before.body.summaries) == len(after.body.summaries)
        and all(map(_continues, before.body.summaries, after.body.summaries))
        and [series.name for series in before.body.scalars] == [series.name for series in after.body.scalars]
    )


def _is_plain(observation: Observation) -> bool:
    body = observation.body
    return not (
        body.continued or body.events or body.devices or body.layers or body.histograms or observation.merged
    ) and all(part.first_step == body.first_step and part.steps == body.steps for part in body.summaries)


def _continues(before: wire.Summaries, after: wire.Summaries) -> bool:
    return (
        (before.kind, before.placement, before.copy_of) == (after.kind, after.placement, after.copy_of)
        and before.layers == after.layers
        and [field.name for field in before.fields] == [field.name for field in after.fields]
    )


def _one(held: Sequence[Observation]) -> Observation:
    last = held[-1]
    if len(held) == 1:
        return last
    bodies = [observation.body for observation in held]
    steps = sum(body.steps for body in bodies)
    summaries = tuple(
        msgspec.structs.replace(
            parts[0],
            steps=steps,
            fields=tuple(
                msgspec.structs.replace(fields[0], data=b"".join(field.data for field in fields))
                for fields in zip(*(part.fields for part in parts), strict=True)
            ),
        )
        for parts in zip(*(body.summaries for body in bodies), strict=True)
    )
    scalars = tuple(
        wire.Scalars(
            name=series[0].name,
            steps=b"".join(one.steps for one in series),
            values=b"".join(one.values for one in series),
        )
        for series in zip(*(body.scalars for body in bodies), strict=True)
    )
    body = msgspec.structs.replace(bodies[0], steps=steps, summaries=summaries, scalars=scalars)
    return Observation(
        run_id=last.run_id,
        run=last.run,
        attempt=last.attempt,
        rank=last.rank,
        writer=last.writer,
        seq=last.seq,
        world=last.world,
        body=body,
        layers=last.layers,
    )
