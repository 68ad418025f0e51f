"""The outbox over a disk as a machine: whatever server, wire and disk do, nothing is doubled and no loss is silent."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import precondition, rule

from floatscope import wire
from floatscope._spool._entries import buffers_of
from floatscope._spool._outbox import SpooledOutbox
from floatscope._spool._segments import Segments
from tests.agent.sender import exchange
from tests.agent.sender.exchange import HEAD, batch, first_step, messages_of, named


def new_outbox(*, max_records: int = 1000, max_bytes: int = 1 << 20, window_bytes: int = 100) -> SpooledOutbox:
    return SpooledOutbox(max_records=max_records, max_bytes=max_bytes, window_bytes=window_bytes, wake=lambda: None)


def write(outbox: SpooledOutbox, segments: Segments, about: bytes = b"") -> None:
    while entries := outbox.unwritten(200):
        parts = [part for e in entries for part in buffers_of(e)]
        if segments.must_begin(sum(map(len, parts))):
            segments.begin(entries[0].seq, about)
        segments.append(parts, entries[0].seq, entries[-1].end)
        outbox.written()


class Exchange(exchange.Exchange):
    """With a disk that may fail and overflow."""

    outbox: SpooledOutbox

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="floatscope-test-"))
        self.segments = Segments(self.folder, 500)
        self.outbox = new_outbox(max_records=12)
        self.outbox.attach(self.segments)
        self.writes = True

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

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.segments.forget_descriptors()
            shutil.rmtree(self.folder)


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


def test_what_a_server_forgot_before_it_was_given_up_is_lost_once(tmp_path: Path) -> None:
    segments = Segments(tmp_path, 500)
    outbox = new_outbox()
    outbox.attach(segments)
    for step in range(20):
        outbox.append(batch(step))
    write(outbox, segments)
    assert [message.seq for message in messages_of(outbox, window=1)] == [1]
    outbox.acknowledge(1)
    outbox.rewind(1)
    numbers = segments.condensable()
    assert numbers is not None
    outbox.lose_stored(segments.condense(outbox.hold_back(*numbers), b""))
    lost = sum(outbox.counts().lost.values())
    messages = messages_of(outbox, window=100)
    assert lost == sum(message.count for message in messages if isinstance(message, wire.Gap)) > 1
    outbox.acknowledge(messages[-1].seq)
    counts = outbox.counts()
    assert (counts.waiting, counts.acknowledged, sum(counts.lost.values())) == (0, 20 - lost, lost)
    segments.forget_descriptors()
