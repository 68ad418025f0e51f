"""The flight recorder: what it keeps, when it freezes, and that the dump arrives."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from floatscope import wire
from floatscope._flight import FlightRecorder
from floatscope._record import LostRecord, StepRecord
from floatscope._sender import Sender
from floatscope._trouble import nonfinite

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble, Pending

BLOCK = wire.MAX_BLOCK_BYTES
Step = Callable[..., "Pending"]


class _Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _recorder(clock: _Time | None = None, *, steps: int = 64, nbytes: int = 1 << 25) -> FlightRecorder:
    return FlightRecorder(max_steps=steps, max_bytes=nbytes, rank=3, clock=clock or _Time())


def _dumps(recorder: FlightRecorder) -> list[wire.Dump]:
    found = []
    while recorder.pieces:
        piece = recorder.pieces.popleft()
        body = wire.decode_body(wire.Block(seq=1, crc=piece.crc, body=piece.body))
        assert body.dump is not None
        assert (body.steps, body.summaries, body.scalars) == (0, (), ())
        assert len(wire.encode(wire.Block(seq=1, crc=piece.crc, body=piece.body))) <= BLOCK
        found.append(body.dump)
    return found


def _bodies(dumps: list[wire.Dump]) -> Iterator[wire.Body]:
    for dump in dumps:
        for data in dump.bodies:
            yield wire.decode_body(wire.Block(seq=1, crc=zlib.crc32(data), body=data))


def _losses(dumps: list[wire.Dump]) -> dict[int, float]:
    points: dict[int, float] = {}
    for series in (series for body in _bodies(dumps) for series in body.scalars if series.name == "loss"):
        steps, values = np.frombuffer(series.steps, "<i8"), np.frombuffer(series.values, "<f8")
        points.update(zip(steps.tolist(), values.tolist(), strict=True))
    return points


def test_the_newest_steps_are_kept_each_with_its_own_histogram(step: Step) -> None:
    recorder = _recorder(steps=8)
    for number in range(20):
        recorder.add(step(number, rows=3, hist=number % 2 == 0).resolve(), BLOCK)
    assert len(recorder) == 8
    assert recorder.freeze("alert-1", "loss_spike", 19, 1, BLOCK)
    dumps = _dumps(recorder)
    assert [(dump.part, dump.parts, dump.first_step, dump.last_step) for dump in dumps] == [(0, 1, 12, 19)]
    assert (dumps[0].kind, dumps[0].alert, dumps[0].step) == ("loss_spike", 1, 19)
    assert _losses(dumps) == {number: number / 8 for number in range(12, 20)}
    histograms = [histogram for body in _bodies(dumps) for histogram in body.histograms]
    assert [(histogram.first_step, histogram.steps) for histogram in histograms] == [(n, 1) for n in (12, 14, 16, 18)]
    summaries = [summary for body in _bodies(dumps) for summary in body.summaries]
    assert sum(summary.steps for summary in summaries) == 8


def test_memory_is_bounded_in_bytes_too(step: Step) -> None:
    recorder = _recorder(nbytes=200_000)
    for number in range(100):
        recorder.add(step(number, rows=100, hist=True).resolve(), BLOCK)
        assert recorder.nbytes <= 200_000
    assert 1 <= len(recorder) < 64


def test_a_large_dump_is_cut_into_blocks(step: Step) -> None:
    recorder = _recorder()
    for number in range(64):
        recorder.add(step(number, rows=200, hist=True).resolve(), BLOCK)
    recorder.freeze("alert-1", "nonfinite", 63, 1, BLOCK)
    dumps = _dumps(recorder)
    assert len(dumps) > 1
    assert [dump.part for dump in dumps] == list(range(len(dumps)))
    assert {dump.parts for dump in dumps} == {len(dumps)}
    assert list(_losses(dumps)) == list(range(64))


def test_an_alert_is_answered_once_and_a_kind_once_in_ten_minutes(step: Step) -> None:
    clock = _Time()
    recorder = _recorder(clock)
    recorder.add(step(5).resolve(), BLOCK)
    assert recorder.freeze("alert-1", "nonfinite", 5, 1, BLOCK)
    assert recorder.freeze("alert-1", "nonfinite", 5, 1, BLOCK)
    assert len(_dumps(recorder)) == 1
    assert not recorder.freeze("alert-2", "nonfinite", 5, 2, BLOCK)
    assert recorder.freeze("alert-3", "loss_spike", 5, 3, BLOCK)
    clock.now += 601
    assert recorder.freeze("alert-4", "nonfinite", 5, 4, BLOCK)
    assert [dump.id for dump in _dumps(recorder)] == ["alert-3", "alert-4"]


def test_steps_that_are_gone_already_freeze_nothing(step: Step) -> None:
    recorder = _recorder(steps=4)
    assert not recorder.freeze("alert-1", "nonfinite", 0, 1, BLOCK)
    for number in range(10):
        recorder.add(step(number).resolve(), BLOCK)
    assert not recorder.freeze("alert-1", "nonfinite", 5, 1, BLOCK)
    assert recorder.freeze("alert-1", "nonfinite", 6, 1, BLOCK)


def _with(record: StepRecord, *, nans: int = 0, infs: int = 0, **scalars: float) -> StepRecord:
    (rows,) = record.summaries
    fields = {**rows.fields, "nans": np.array([0, nans], np.int64), "infs": np.array([0, infs], np.int64)}
    return replace(record, scalars={**record.scalars, **scalars}, summaries=(replace(rows, fields=fields),))


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, False),
        ({"nans": 1}, True),
        ({"infs": 1}, True),
        ({"loss": math.nan}, True),
        ({"loss": -math.inf}, True),
        ({"infs": 1, "skipped": 1.0}, False),
        ({"nans": 1, "skipped": 0.0}, True),
    ],
)
def test_what_counts_as_broken(step: Step, change: dict[str, float], broken: bool) -> None:
    record = _with(step(0, rows=2).resolve(), **change)  # type: ignore[arg-type]
    assert nonfinite(record) is broken


def test_it_freezes_by_itself_where_numbers_end(step: Step) -> None:
    recorder = _recorder()
    for number in range(10):
        loss = math.nan if number >= 7 else 1.0
        recorder.add(replace(step(number).resolve(), scalars={"loss": loss}), BLOCK)
    (dump,) = _dumps(recorder)
    assert (dump.id, dump.kind, dump.alert, dump.step) == ("rank3-step7", "nonfinite", None, 7)
    assert list(_losses([dump])) == list(range(8))


def test_without_steps_nothing_is_kept(step: Step) -> None:
    recorder = _recorder(steps=0)
    recorder.add(replace(step(0).resolve(), scalars={"loss": math.nan}), BLOCK)
    assert (len(recorder), recorder.nbytes, list(recorder.pieces)) == (0, 0, [])
    assert not recorder.freeze("alert-1", "nonfinite", 0, 1, BLOCK)


@pytest.fixture
def sender(server: IngestDouble, sender_to: Callable[..., Sender]) -> Sender:
    """With a flight recorder of 16 steps."""
    return sender_to(server.url, flight=FlightRecorder(max_steps=16, max_bytes=1 << 20))


def _received(server: IngestDouble) -> list[wire.Dump]:
    return [body.dump for body in server.bodies() if body.dump is not None]


def test_a_freeze_is_answered_with_a_dump(
    server: IngestDouble, sender: Sender, step: Step, until: Callable[..., None]
) -> None:
    for number in range(20):
        sender.put(step(number, rows=2))
    until(lambda: len(server.steps()) == 20)
    server.say(wire.Freeze(id="alert-9", alert=9, kind="loss_spike", step=19))
    until(lambda: _received(server))
    sender.close()
    (dump,) = _received(server)
    assert (dump.id, dump.first_step, dump.last_step) == ("alert-9", 4, 19)
    assert server.steps() == list(range(20))
    assert sender.stats().lost == {}


def test_a_dump_survives_a_server_that_was_away(
    server: IngestDouble, sender: Sender, step: Step, until: Callable[..., None]
) -> None:
    sender.put(step(0))
    until(lambda: server.steps() == [0])
    server.stop()
    sender.put(_Broken(step(1)))
    until(lambda: len(sender._queue) == 0)
    server.start()
    until(lambda: _received(server))
    sender.close()
    (dump,) = _received(server)
    assert dump.id == "rank0-step1"


class _Broken:
    """A record whose loss is not a number."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self.step, self.nbytes, self.layers = pending.step, pending.nbytes, pending.layers

    def ready(self) -> bool:
        return True

    def resolve(self) -> StepRecord:
        return replace(self._pending.resolve(), scalars={"loss": math.nan})


def test_spare_histograms_are_in_the_dump_and_not_in_the_run(
    server: IngestDouble, sender: Sender, step: Step, until: Callable[..., None]
) -> None:
    class Spare(_Broken):
        def resolve(self) -> StepRecord:
            return replace(self._pending.resolve(), spare_histograms=True)

    for number in range(3):
        sender.put(Spare(step(number, rows=2, hist=True)))
    until(lambda: len(server.steps()) == 3)
    server.say(wire.Freeze(id="alert-1", alert=1, kind="loss_spike", step=2))
    until(lambda: _received(server))
    sender.close()
    assert not any(body.histograms for body in server.bodies())
    assert sum(len(body.histograms) for body in _bodies(_received(server))) == 3


def test_what_the_server_says_is_handed_on_once(
    server: IngestDouble, sender: Sender, step: Step, until: Callable[..., None]
) -> None:
    sender.put(step(0))
    until(lambda: server.steps() == [0])
    alert = wire.Alert(id=4, kind="nonfinite", severity="critical", step=0, reason="loss", message="NaN")
    said: list[object] = []
    for message in (wire.Focus(steps=3), alert, alert):
        server.say(message)

    def hear() -> int:
        said.extend(sender.orders())
        return len(said)

    until(lambda: hear() == 2)
    sender.put(step(1))
    until(lambda: server.steps() == [0, 1])
    assert [*said, *sender.orders()] == [wire.Focus(steps=3), alert]
    sender.close()


def test_the_cost_travels_with_the_beat(
    server: IngestDouble, sender_to: Callable[..., Sender], until: Callable[..., None]
) -> None:
    server.heartbeat_s = 0.05
    sender = sender_to(server.url)
    cost = wire.Cost(share=0.004, mean=0.005, budget=0.01, every={"activations": 20})
    sender.report(cost)
    until(lambda: any(isinstance(message, wire.Beat) and message.cost == cost for message in server.seen))
    sender.close()


def test_a_run_shorter_than_a_heartbeat_tells_its_cost_before_the_goodbye(
    server: IngestDouble, sender_to: Callable[..., Sender], step: Step, until: Callable[..., None]
) -> None:
    sender = sender_to(server.url)
    sender.put(step(3))
    sender.put(LostRecord(step=4, layers=()))
    cost = wire.Cost(share=0.004, mean=0.005, budget=0.01, every={"activations": 20})
    sender.report(cost)
    sender.close()
    until(lambda: isinstance(server.seen[-1], wire.Bye))
    (beat,) = [message for message in server.seen if isinstance(message, wire.Beat)]
    assert server.seen[-2] is beat
    assert (beat.cost, beat.step, beat.dropped, beat.queue_bytes) == (cost, 4, 1, 0)
