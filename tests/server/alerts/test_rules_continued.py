"""A step that is cut into several blocks is judged as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from sqlmodel import select

from floatscope import wire
from floatscope_server.alerts.engine import AlertEngine, alerts_of
from floatscope_server.alerts.models import Evaluated
from floatscope_server.models import Run, StepEvent
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters, RunWindow
from floatscope_server.rules.run import Skip
from floatscope_server.settings import Settings
from floatscope_server.store import Store

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build, Feed, Screen

LAYERS = 6


def _overflow(build: Build, step: int) -> wire.Body:
    """A gradient overflow that the scaler caught."""
    return build.body(
        build.summary("act", step, LAYERS),
        build.summary("grad", step, LAYERS, nans={3: 1}, infs={3: 2, 4: 1}),
        records={step: {"loss": 2.0, "loss_scale": 1024.0, "skipped": 1.0}},
        events=[wire.Event(step=step, kind="skipped")],
    )


def _sound(build: Build, step: int) -> wire.Body:
    return build.body(
        build.summary("grad", step, LAYERS),
        records={step: {"loss": 2.0, "loss_scale": 2048.0, "skipped": 0.0}},
    )


def _rows(part: wire.Summaries, first: int, last: int) -> wire.Summaries:
    fields = tuple(
        msgspec.structs.replace(f, data=np.frombuffer(f.data, f.dtype).reshape(part.steps, -1)[:, first:last].tobytes())
        for f in part.fields
    )
    return msgspec.structs.replace(part, layers=part.layers[4 * first : 4 * last], fields=fields)


def _cut(body: wire.Body, how: str) -> list[wire.Body]:
    """As an agent cuts a step that is too large: by kind, then by layers; events and scalars come last."""
    act, grad = body.summaries
    parts: list[tuple[wire.Summaries, ...]] = {
        "kind": [(act,), (grad,)],
        "layers": [(act, _rows(grad, 0, 4)), (_rows(grad, 4, LAYERS),)],
        "both": [(act,), (_rows(grad, 0, 2),), (_rows(grad, 2, LAYERS),)],
        "nothing left for the last": [(act, grad), ()],
    }[how]  # type: ignore[assignment]
    bare = msgspec.structs.replace(body, summaries=(), scalars=(), events=())
    cut = [msgspec.structs.replace(bare, summaries=part, continued=True) for part in parts]
    cut[-1] = msgspec.structs.replace(cut[-1], scalars=body.scalars, events=body.events, continued=False)
    return cut


def _judged(build: Build, bodies: list[wire.Body], seqs: list[int] | None = None) -> tuple[list[object], list[Skip]]:
    window = RunWindow(RuleParameters())
    layers = build.layers(*(f"l{i}" for i in range(LAYERS)))
    found: list[object] = []
    for seq, body in zip(seqs or range(1, len(bodies) + 1), bodies, strict=True):
        for finding in window.judge(build.observation(body, layers=layers, seq=seq)):
            found += [(finding.kind, finding.step, finding.verdict(member)) for member in finding.active]
    assert not window.waits("w0")
    return found, window.skips


@pytest.mark.parametrize("how", ["kind", "layers", "both", "nothing left for the last"])
def test_a_skipped_overflow_in_parts_is_the_same_as_in_one(build: Build, how: str) -> None:
    before, after = [_sound(build, 0)], [_sound(build, 2)]
    whole = _judged(build, [*before, _overflow(build, 1), *after])
    assert whole[1] == [Skip(step=1, rank=0, layer="l4", certainty=1)]
    assert _judged(build, [*before, *_cut(_overflow(build, 1), how), *after]) == whole


def test_several_steps_and_the_first_part_of_the_next_in_one_block(build: Build) -> None:
    sound, parts = _sound(build, 0), _cut(_overflow(build, 1), "kind")
    joined = wire.Body(
        steps=2,
        summaries=(*sound.summaries, *parts[0].summaries),
        scalars=sound.scalars,
        continued=True,
    )
    assert _judged(build, [joined, parts[1]]) == _judged(build, [sound, _overflow(build, 1)])


def test_what_takes_the_place_of_the_rest_ends_the_step(build: Build) -> None:
    first = _cut(_overflow(build, 1), "layers")[0]
    # A gap took seq 3: the rest is lost, and the gradients that came count as those of a step that was not skipped.
    found, skips = _judged(build, [_sound(build, 0), first, _sound(build, 2)], [1, 2, 4])
    assert ("nonfinite", 1) in [item[:2] for item in found]  # type: ignore[index]
    assert skips == []


def test_a_step_without_end_is_judged_after_64_blocks(build: Build) -> None:
    first = _cut(_overflow(build, 1), "layers")[0]
    window = RunWindow(RuleParameters())
    layers = build.layers(*(f"l{i}" for i in range(LAYERS)))
    found = [
        (seq, finding.kind)
        for seq in range(1, 70)
        for finding in window.judge(build.observation(first, layers=layers, seq=seq))
        if finding.active
    ]
    assert (64, "nonfinite") in found


def _put_overflow(build: Build, feed: Feed) -> tuple[str, list[wire.Body]]:
    writer = feed.hello(run="run", layers=build.layers(*(f"l{i}" for i in range(LAYERS))))
    feed.put(writer, _sound(build, 0))
    parts = _cut(_overflow(build, 1), "layers")
    feed.put(writer, parts[0])
    return writer, parts


def _alerts(store: Store) -> list[tuple[str, str, str | None]]:
    with store.read() as session:
        run_id = session.exec(select(Run.id)).one()
        assert run_id is not None
        return [(alert["kind"], alert["severity"], alert["layer"]) for alert in alerts_of(session, run_id)]


def test_a_half_step_waits_over_a_restart_and_the_event_keeps_its_layer(
    build: Build, store: Store, feed: Feed, live: Screen, settings: Settings
) -> None:
    engine = AlertEngine(store, live, settings)
    store.observers[:] = [engine.observe]
    engine.start()
    writer, parts = _put_overflow(build, feed)
    engine.drain()
    engine.stop()
    assert _alerts(store) == []
    with store.read() as session:
        assert session.exec(select(Evaluated.held)).one()
    again = AlertEngine(store, live, settings)
    store.observers[:] = [again.observe]
    again.start()
    feed.put(writer, parts[1])
    again.drain()
    again.stop()
    assert _alerts(store) == [("nonfinite", "info", "l4")]
    with store.read() as session:
        event = session.exec(select(StepEvent)).one()
        assert not session.exec(select(Evaluated.held)).one()
    assert (event.layer, event.certainty) == ("l4", 1)


def test_the_end_of_a_run_ends_its_half_step(
    build: Build, store: Store, feed: Feed, live: Screen, settings: Settings
) -> None:
    engine = AlertEngine(store, live, settings)
    store.observers[:] = [engine.observe]
    engine.start()
    writer, _ = _put_overflow(build, feed)
    engine.drain()
    assert _alerts(store) == []
    feed.bye(writer)
    engine.drain()
    engine.stop()
    assert [kind for kind, _, _ in _alerts(store)] == ["nonfinite"]


def test_replay_keeps_what_says_that_a_step_goes_on(build: Build, store: Store, feed: Feed) -> None:
    seen: list[Observation] = []
    store.observers[:] = [seen.append]
    writer, parts = _put_overflow(build, feed)
    # A block with nothing but an event is a block too.
    feed.put(writer, build.body(events=[wire.Event(step=1, kind="skipped")]))
    feed.put(writer, parts[1])
    store.write(lambda _: None)
    again = list(store.replay(seen[0].run_id, 1, last_steps=10))
    assert [(o.seq, o.body.continued, o.body.events) for o in again] == [
        (o.seq, o.body.continued, o.body.events) for o in seen
    ]
