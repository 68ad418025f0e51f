"""What the agent makes of each answer, with the server's side written down."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from websockets.sync.connection import Connection

from floatscope import wire
from floatscope._conversation import Conversation, Duties, Timing
from floatscope._outbox import Outbox
from floatscope._packing import Batch

WELCOME = wire.Welcome(protocol=1, epoch="e", last_seq=0, attempt=1, credit=8 << 20, wall_ns=0)


class Written:
    """A connection that gives the next ``answers`` each time that ``after`` batches have come, and ends at last."""

    def __init__(self, after: int, *answers: list[bytes]) -> None:
        self._after = after
        self._answers = iter(answers)
        self._ready: list[bytes] = []
        self._unanswered = 0
        self.batches: list[tuple[int, int | str]] = []
        self.farewell: str | None = None

    def send(self, data: bytes) -> None:
        message = wire.decode_agent(data)
        if isinstance(message, wire.Block):
            self.batches.append((message.seq, wire.decode_body(message).first_step))
        elif isinstance(message, wire.Gap):
            self.batches.append((message.seq, message.reason))
        else:
            return
        self._unanswered += 1
        if self._unanswered == self._after:
            self._unanswered = 0
            self._ready = list(next(self._answers))

    def recv(self, timeout: float) -> bytes:
        if not self._ready:
            raise TimeoutError
        return self._ready.pop(0)


def talk(connection: Written, steps: int) -> Outbox:
    outbox = Outbox(max_records=100, max_bytes=1 << 20)
    for step in range(steps):
        body = wire.encode(wire.Body(first_step=step, steps=1))
        outbox.append(Batch(first=step, last=step, records=1, body=body, crc=zlib.crc32(body)))
    ticks = itertools.count()
    duties = Duties(beat=wire.Beat, farewell=lambda: "done", aborted=lambda: False, heard=lambda order: None)
    timing = Timing(clock=lambda: next(ticks) / 50, silence_s=1e9)
    end = Conversation(cast("Connection", connection), WELCOME, outbox, duties, timing).run()
    assert isinstance(end, wire.Bye)
    return outbox


def ack(seq: int) -> bytes:
    return wire.encode(wire.Ack(seq=seq, credit=8 << 20))


def test_a_refusal_acknowledges_nothing() -> None:
    """Without room a server refuses each batch by itself: that it speaks of the third says nothing of the first."""
    full = [
        wire.encode(wire.Nack(seq=seq, code="storage_full", message="", expected=seq, retryable=True))
        for seq in (1, 2, 3)
    ]
    connection = Written(3, full, [ack(3)])
    outbox = talk(connection, steps=3)
    assert connection.batches == [(1, 0), (2, 1), (3, 2)] * 2
    assert (outbox.counts().acknowledged, outbox.counts().lost) == (3, {})


def test_a_hole_acknowledges_what_is_below_it() -> None:
    hole = wire.encode(wire.Nack(seq=3, code="hole", message="", expected=2, retryable=True))
    connection = Written(1, [], [], [hole], [], [ack(3)])
    outbox = talk(connection, steps=3)
    assert connection.batches == [(1, 0), (2, 1), (3, 2), (2, 1), (3, 2)]
    assert outbox.counts().acknowledged == 3


def test_a_batch_refused_for_good_settles_itself_alone() -> None:
    refused = wire.encode(wire.Nack(seq=2, code="damaged", message="", expected=3))
    connection = Written(3, [refused, ack(1), ack(3)])
    outbox = talk(connection, steps=3)
    assert connection.batches == [(1, 0), (2, 1), (3, 2)]
    assert (outbox.counts().acknowledged, outbox.counts().lost) == (2, {"refused_damaged": 1})


@pytest.mark.parametrize(
    "word",
    [
        msgspec.msgpack.encode({"type": "later", "steps": 5}),
        msgspec.msgpack.encode({"type": 7}),
        msgspec.msgpack.encode([1, 2]),
        b"\xc1",
        b"",
        "text from a server that has gone mad",
    ],
)
def test_a_word_of_a_later_server_is_ignored(word: Any) -> None:  # noqa: ANN401 (whatever a socket gives)
    connection = Written(2, [word, ack(2)])
    assert talk(connection, steps=2).counts().acknowledged == 2


class Endless:
    """A connection whose server gives ``answer`` to each batch, or, asked for more, ``word`` all the time."""

    def __init__(self, answer: Callable[[int], bytes | None], word: bytes | None = None) -> None:
        self._answer, self._word = answer, word
        self._ready: list[bytes] = []
        self.batches = 0
        self.received = 0

    def send(self, data: bytes) -> None:
        message = wire.decode_agent(data)
        if isinstance(message, wire.Block | wire.Gap):
            self.batches += 1
            if (answer := self._answer(self.batches)) is not None:
                self._ready.append(answer)

    def recv(self, timeout: float) -> bytes:
        if not self._ready and self._word is None:
            raise TimeoutError
        self.received += 1
        return self._ready.pop(0) if self._ready else cast("bytes", self._word)


def talk_for(seconds: float, connection: Endless, welcome: wire.Welcome = WELCOME) -> None:
    outbox = Outbox(max_records=100, max_bytes=1 << 20)
    for step in range(50):
        body = wire.encode(wire.Body(first_step=step, steps=1))
        outbox.append(Batch(first=step, last=step, records=1, body=body, crc=zlib.crc32(body)))
    ticks = itertools.count()
    now = 0.0

    def clock() -> float:
        nonlocal now
        now = next(ticks) / 1000
        return now

    duties = Duties(beat=wire.Beat, farewell=lambda: None, aborted=lambda: now > seconds, heard=lambda order: None)
    timing = Timing(clock=clock, silence_s=1e9)
    Conversation(cast("Connection", connection), welcome, outbox, duties, timing).run()


def test_a_server_that_expects_less_each_time_is_not_asked_in_a_loop() -> None:
    def hole(batches: int) -> bytes:
        return wire.encode(wire.Nack(seq=10**6, code="hole", message="", expected=10**6 - batches, retryable=True))

    connection = Endless(hole)
    talk_for(20.0, connection)
    assert connection.batches < 50


@pytest.mark.parametrize("word", [wire.encode(wire.Beat()), b"\xc1"])
def test_a_flood_of_words_ends_the_connection(word: bytes) -> None:
    connection = Endless(lambda batches: None, word)
    with pytest.raises(wire.WireError, match="floods"):
        talk_for(1000.0, connection)
    assert connection.received < 2000


@pytest.mark.parametrize("heartbeat_s", [0.0, -1.0, math.nan])
def test_absurd_wishes_are_kept_within_limits(heartbeat_s: float) -> None:
    connection = Endless(lambda batches: ack(batches))
    talk_for(5.0, connection, msgspec.structs.replace(WELCOME, heartbeat_s=heartbeat_s, max_in_flight=-3))
    assert connection.batches == 50


def test_an_endless_pause_is_cut() -> None:
    def full(batches: int) -> bytes:
        nack = wire.Nack(seq=1, code="full", message="", expected=1, retryable=True, retry_after_s=math.inf)
        return wire.encode(nack) if batches == 1 else ack(batches)

    connection = Endless(full)
    talk_for(90.0, connection)
    assert connection.batches > 1
