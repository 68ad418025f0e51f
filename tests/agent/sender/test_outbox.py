"""The outbox as a machine: dropped, cut, refused or forgotten, numbers stay gapless and no loss is silent."""

from __future__ import annotations

import zlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from floatscope import wire
from floatscope._outbox import Outbox
from floatscope._packing import Batch, Loss


def batch(step: int) -> Batch:
    body = wire.encode(wire.Body(first_step=step, steps=1))
    return Batch(first=step, last=step, records=1, body=body, crc=zlib.crc32(body))


class Exchange(RuleBasedStateMachine):
    """One agent and one server with a wire between that delivers, breaks, or is answered late."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(max_records=12, max_bytes=1 << 20)
        self.steps = 0
        self.on_the_wire: list[bytes] = []
        self.answers: list[wire.Ack | wire.Nack] = []
        self.kept: list[wire.Block | wire.Gap] = []
        self.resent_from: int | None = None

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

    @rule(window=st.integers(1, 8))
    def send(self, window: int) -> None:
        while (data := self.outbox.next(max_in_flight=window, credit=1 << 20)) is not None:
            self.on_the_wire.append(data)

    @precondition(lambda self: self.on_the_wire)
    @rule(refuse=st.booleans())
    def deliver(self, refuse: bool) -> None:
        message = wire.decode_agent(self.on_the_wire.pop(0))
        assert isinstance(message, wire.Block | wire.Gap)
        if message.seq > self.last_seq + 1:
            self.answers.append(wire.Nack(seq=message.seq, code="hole", message="", expected=self.last_seq + 1))
        elif message.seq == self.last_seq + 1:
            if refuse and isinstance(message, wire.Block):
                self.answers.append(wire.Nack(seq=message.seq, code="bad", message="", expected=message.seq))
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
        if message.code == "bad":
            assert self.outbox.quarantine(message.seq, "refused_bad")
        self.outbox.rewind(message.expected)

    @rule()
    def reconnect(self) -> None:
        self.on_the_wire.clear()
        self.answers.clear()
        self.outbox.rewind(self.last_seq + 1)

    @rule(forgotten=st.integers(1, 3))
    def restore_from_backup(self, forgotten: int) -> None:
        self.kept = self.kept[: max(0, len(self.kept) - forgotten)]
        self.reconnect()

    @invariant()
    def numbers_are_gapless(self) -> None:
        assert [message.seq for message in self.kept] == list(range(1, len(self.kept) + 1))

    @invariant()
    def bounded(self) -> None:
        # 12 by the limit; what is in flight is never dropped, nor is the newest one.
        assert self.outbox.counts().waiting <= 12 + 1

    def teardown(self) -> None:
        self.reconnect()
        for _ in range(100):
            self.send(8)
            while self.on_the_wire:
                self.deliver(refuse=False)
            while self.answers:
                self.answer()
        assert self.outbox.empty()
        self.numbers_are_gapless()
        arrived = [wire.decode_body(message).first_step for message in self.kept if isinstance(message, wire.Block)]
        assert arrived == sorted(set(arrived)), "once each and in order"
        gaps = [message for message in self.kept if isinstance(message, wire.Gap)]
        declared = {step for gap in gaps for step in range(gap.first, gap.last + 1)}
        assert set(range(self.steps)) <= set(arrived) | declared, "neither arrived nor declared"
        counts = self.outbox.counts()
        assert counts.acknowledged == len(arrived)
        assert sum(counts.lost.values()) == self.steps - len(arrived)


Exchange.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestExchange = Exchange.TestCase


def test_losses_of_a_long_outage_take_constant_memory() -> None:
    outbox = Outbox(max_records=5, max_bytes=1 << 20)
    for step in range(10_000):
        outbox.append(batch(step))
    first = outbox.next(max_in_flight=8, credit=1 << 20)
    assert first is not None
    assert wire.decode_agent(first) == wire.Gap(seq=1, first=0, last=9994, count=9995, reason="outbox_full")
    second = outbox.next(max_in_flight=8, credit=1 << 20)
    assert second is not None
    block = wire.decode_agent(second)
    assert isinstance(block, wire.Block)
    assert wire.decode_body(block).first_step == 9995


def test_server_ahead_of_us_is_followed() -> None:
    outbox = Outbox(max_records=5, max_bytes=1 << 20)
    outbox.rewind(101)
    outbox.append(batch(0))
    data = outbox.next(max_in_flight=8, credit=1 << 20)
    assert data is not None
    message = wire.decode_agent(data)
    assert isinstance(message, wire.Block)
    assert message.seq == 101


def test_names_survive_the_loss_of_their_numbers() -> None:
    outbox = Outbox(max_records=1, max_bytes=1 << 20)
    layer = wire.Layer(index=4, name="head", module_type="Linear")
    named = batch(0)
    outbox.append(Batch(first=0, last=0, records=1, body=named.body, crc=named.crc, layers=(layer,)))
    outbox.append(batch(1))
    messages = []
    while (data := outbox.next(max_in_flight=8, credit=1 << 20)) is not None:
        messages.append(wire.decode_agent(data))
    gap, names, numbers = messages
    assert isinstance(gap, wire.Gap)
    assert isinstance(names, wire.Block)
    assert isinstance(numbers, wire.Block)
    assert wire.decode_body(names).layers == (layer,)
    assert wire.decode_body(numbers).first_step == 1
