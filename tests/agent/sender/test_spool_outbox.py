"""The outbox over a disk as a machine: whatever server, wire and disk do, nothing is doubled and no loss is silent."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import zlib
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from floatscope import wire
from floatscope._packing import Batch, Loss
from floatscope._spool._entries import buffers_of
from floatscope._spool._outbox import SpooledOutbox
from floatscope._spool._segments import Segments

HEAD = wire.Layer(index=4, name="head", module_type="Linear")


def batch(step: int, *events: wire.Event) -> Batch:
    body = wire.encode(wire.Body(first_step=step, steps=1, events=events))
    return Batch(first=step, last=step, records=1, body=body, crc=zlib.crc32(body))


def named(step: int) -> Batch:
    body = wire.encode(wire.Body(first_step=step, steps=1, layers=(HEAD,)))
    return Batch(first=step, last=step, records=1, body=body, crc=zlib.crc32(body), layers=(HEAD,))


def new_outbox(*, max_records: int = 1000, max_bytes: int = 1 << 20, window_bytes: int = 100) -> SpooledOutbox:
    return SpooledOutbox(max_records=max_records, max_bytes=max_bytes, window_bytes=window_bytes, wake=lambda: None)


def write(outbox: SpooledOutbox, segments: Segments, about: bytes = b"") -> None:
    while entries := outbox.unwritten(200):
        parts = [part for e in entries for part in buffers_of(e)]
        if segments.must_begin(sum(map(len, parts))):
            segments.begin(entries[0].seq, about)
        segments.append(parts, entries[0].seq, entries[-1].end)
        outbox.written()


def messages_of(outbox: SpooledOutbox, window: int = 8) -> list[wire.Block | wire.Gap]:
    messages = []
    while (data := outbox.next(max_in_flight=window, credit=1 << 20)) is not None:
        message = wire.decode_agent(data)
        assert isinstance(message, wire.Block | wire.Gap)
        messages.append(message)
    return messages


def first_step(block: wire.Block) -> int | None:
    """None for a block that only uses up a number."""
    body = wire.decode_body(block)
    return body.first_step if body.steps and not body.events else None


class Exchange(RuleBasedStateMachine):
    """One agent that spools and one server, with a wire between that delivers, breaks, or is answered late."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="floatscope-test-"))
        self.segments = Segments(self.folder, 500)
        self.outbox = new_outbox(max_records=12)
        self.outbox.attach(self.segments)
        self.steps = 0
        self.writes = True
        self.on_the_wire: list[bytes] = []
        self.answers: list[wire.Ack | wire.Nack] = []
        self.kept: list[wire.Block | wire.Gap] = []
        self.noted = 0

    @property
    def last_seq(self) -> int:
        return len(self.kept)

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.outbox.append(batch(self.steps))
            self.steps += 1

    @rule()
    def lose_before_packing(self) -> None:
        self.outbox.append(Loss(first=self.steps, last=self.steps, records=1, reason="pending_full"))
        self.steps += 1

    @precondition(lambda self: self.writes)
    @rule()
    def write(self) -> None:
        write(self.outbox, self.segments)

    @precondition(lambda self: self.writes)
    @rule()
    def the_disk_fails(self) -> None:
        self.writes = False
        self.outbox.unwritten(100)
        self.outbox.detach()

    @precondition(lambda self: self.writes)
    @rule()
    def clear_away(self) -> None:
        self.segments.forget(self.outbox.acknowledged)

    @precondition(lambda self: self.writes and self.segments.condensable())
    @rule()
    def make_room(self) -> None:
        numbers = self.segments.condensable()
        assert numbers is not None
        taken = self.outbox.hold_back(*numbers)
        self.outbox.lose_stored(self.segments.condense(taken, b""))

    @rule(window=st.integers(1, 8))
    def send(self, window: int) -> None:
        while (data := self.outbox.next(max_in_flight=window, credit=1 << 20)) is not None:
            self.on_the_wire.append(data)

    @precondition(lambda self: self.on_the_wire)
    @rule(refuse=st.sampled_from(["", "", "bad", "full", "noted"]))
    def deliver(self, refuse: str) -> None:
        message = wire.decode_agent(self.on_the_wire.pop(0))
        assert isinstance(message, wire.Block | wire.Gap)
        step = first_step(message) if isinstance(message, wire.Block) else None
        if message.seq > self.last_seq + 1:
            self.answers.append(wire.Nack(seq=message.seq, code="hole", message="", expected=self.last_seq + 1))
            if refuse == "full":
                self.answers[-1] = wire.Nack(seq=message.seq, code="full", message="", expected=message.seq)
        elif message.seq == self.last_seq + 1:
            if refuse == "noted" and step is not None:
                self.kept.append(wire.Gap(seq=message.seq, first=step, last=step, count=1, reason="noted"))
                self.answers.append(wire.Nack(seq=message.seq, code="noted", message="", expected=message.seq + 1))
                return
            if refuse == "full" or (refuse == "bad" and step is not None):
                self.answers.append(wire.Nack(seq=message.seq, code=refuse, message="", expected=message.seq))
                return
            self.kept.append(message)
        self.answers.append(wire.Ack(seq=self.last_seq, credit=0))

    @precondition(lambda self: self.answers)
    @rule()
    def answer(self) -> None:
        message = self.answers.pop(0)
        if isinstance(message, wire.Ack):
            self.outbox.acknowledge(message.seq)
            return
        match message.code:
            case "hole":
                self.outbox.rewind(message.expected)
            case "noted":
                self.outbox.settle(message.seq, "refused_noted")
            case "bad":
                assert self.outbox.quarantine(message.seq, "refused_bad")
                self.outbox.send_again()
            case "full":
                self.outbox.send_again()

    @rule()
    def reconnect(self) -> None:
        self.on_the_wire.clear()
        for message in self.answers:
            if isinstance(message, wire.Nack) and message.code == "noted":
                self.outbox.settle(message.seq, "refused_noted")
        self.answers.clear()
        self.outbox.rewind(self.last_seq + 1)

    @rule(forgotten=st.integers(1, 12))
    def restore_from_backup(self, forgotten: int) -> None:
        self.kept = self.kept[: max(0, len(self.kept) - forgotten)]
        self.reconnect()

    @invariant()
    def numbers_are_gapless(self) -> None:
        assert [message.seq for message in self.kept] == list(range(1, len(self.kept) + 1))

    def teardown(self) -> None:
        try:
            self._finish()
        finally:
            self.segments.forget_descriptors()
            shutil.rmtree(self.folder)

    def _finish(self) -> None:
        self.reconnect()
        for _ in range(1000):
            self.send(8)
            while self.on_the_wire:
                self.deliver(refuse="")
            while self.answers:
                self.answer()
            if self.outbox.empty():
                break
        assert self.outbox.empty()
        self.numbers_are_gapless()
        steps = [first_step(message) for message in self.kept if isinstance(message, wire.Block)]
        arrived = [step for step in steps if step is not None]
        assert arrived == sorted(set(arrived)), "once each and in order"
        gaps = [message for message in self.kept if isinstance(message, wire.Gap)]
        declared = {step for gap in gaps for step in range(gap.first, gap.last + 1)}
        assert set(range(self.steps)) <= set(arrived) | declared, "neither arrived nor declared"
        counts = self.outbox.counts()
        assert counts.waiting == 0
        assert counts.acknowledged == len(arrived)
        assert sum(counts.lost.values()) == self.steps - len(arrived)


Exchange.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestExchange = Exchange.TestCase


def test_what_is_on_disk_leaves_memory_and_comes_back_in_order(tmp_path: Path) -> None:
    segments = Segments(tmp_path, 2000)
    outbox = new_outbox()
    outbox.attach(segments)
    for step in range(500):
        outbox.append(batch(step))
        write(outbox, segments)
    assert outbox.counts().waiting == 500
    assert outbox.counts().waiting_bytes <= 200
    assert len(list(tmp_path.iterdir())) > 10
    arrived = []
    while messages := messages_of(outbox):
        arrived += [first_step(m) for m in messages if isinstance(m, wire.Block)]
        outbox.acknowledge(messages[-1].seq)
    assert arrived == list(range(500))
    segments.forget(outbox.acknowledged)
    assert len(list(tmp_path.iterdir())) == 1
    assert segments.nbytes(outbox.acknowledged) == 0
    segments.forget_descriptors()


def test_overflow_gives_up_the_oldest_segments_but_not_their_events(tmp_path: Path) -> None:
    segments = Segments(tmp_path, 2000)
    outbox = new_outbox()
    outbox.attach(segments)
    for step in range(300):
        events = (wire.Event(step=step, kind="skipped"),) if step % 50 == 7 else ()
        outbox.append(batch(step, *events))
        write(outbox, segments)
    while numbers := segments.condensable():
        outbox.lose_stored(segments.condense(outbox.hold_back(*numbers), b""))
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".digest", ".spool"]
    kept: list[wire.Block | wire.Gap] = []
    while messages := messages_of(outbox):
        kept += messages
        outbox.acknowledge(messages[-1].seq)
    bodies = [wire.decode_body(m) for m in kept if isinstance(m, wire.Block)]
    events_seen = [event.step for body in bodies for event in body.events]
    assert events_seen == [7, 57, 107, 157, 207, 257]
    gaps = [m for m in kept if isinstance(m, wire.Gap)]
    assert {gap.reason for gap in gaps} == {"spool_full"}
    steps = [first_step(m) for m in kept if isinstance(m, wire.Block)]
    latest = [step for step in steps if step is not None]
    assert latest == list(range(latest[0], 300))
    assert sum(gap.count for gap in gaps) == latest[0] == outbox.counts().lost["spool_full"]
    assert [m.seq for m in kept] == list(range(1, 301))
    segments.forget_descriptors()


def test_a_disk_that_is_too_slow_costs_the_oldest_and_says_so(tmp_path: Path) -> None:
    segments = Segments(tmp_path, 2000)
    outbox = new_outbox(max_records=10)
    outbox.attach(segments)
    outbox.append(named(0))
    for step in range(1, 100):
        outbox.append(batch(step))
    assert outbox.counts().lost == {"outbox_full": 91}
    write(outbox, segments)
    gap, names, *rest = itertools.islice(_drained(outbox), 100)
    assert gap == wire.Gap(seq=1, first=0, last=90, count=91, reason="outbox_full")
    assert isinstance(names, wire.Block)
    assert wire.decode_body(names).layers == (HEAD,)
    steps = [first_step(m) for m in rest if isinstance(m, wire.Block)]
    assert [step for step in steps if step is not None] == list(range(91, 100))
    segments.forget_descriptors()


def _drained(outbox: SpooledOutbox) -> list[wire.Block | wire.Gap]:
    kept: list[wire.Block | wire.Gap] = []
    while messages := messages_of(outbox):
        kept += messages
        outbox.acknowledge(messages[-1].seq)
    return kept


def test_what_a_process_gave_up_is_declared_when_it_is_gone(tmp_path: Path) -> None:
    segments = Segments(tmp_path, 2000)
    outbox = new_outbox()
    outbox.attach(segments)
    for step in range(100):
        outbox.append(batch(step))
        write(outbox, segments)
    while numbers := segments.condensable():
        outbox.lose_stored(segments.condense(outbox.hold_back(*numbers), b""))
    segments.forget_descriptors()
    left = Segments(tmp_path, 2000)
    contents = left.load()
    later = new_outbox()
    later.resume(left, contents, 0, ())
    later.rewind(1)
    kept = _drained(later)
    seen = [first_step(m) for m in kept if isinstance(m, wire.Block)]
    arrived = [number for number in seen if number is not None]
    assert arrived == list(range(arrived[0], 100))
    assert sum(gap.count for gap in kept if isinstance(gap, wire.Gap)) == arrived[0]
    assert later.counts().lost == {"spool_full": arrived[0]} == outbox.counts().lost
    assert (later.counts().acknowledged, later.counts().waiting) == (len(arrived), 0)
    left.forget_descriptors()
