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
    @rule(refuse=st.sampled_from(["", "", "bad", "full", "noted"]))
    def deliver(self, refuse: str) -> None:
        message = wire.decode_agent(self.on_the_wire.pop(0))
        assert isinstance(message, wire.Block | wire.Gap)
        if message.seq > self.last_seq + 1:
            self.answers.append(wire.Nack(seq=message.seq, code="hole", message="", expected=self.last_seq + 1))
            if refuse == "full":  # A server without room refuses each batch by itself, holes or not.
                self.answers[-1] = wire.Nack(seq=message.seq, code="full", message="", expected=message.seq)
        elif message.seq == self.last_seq + 1:
            if refuse == "noted" and isinstance(message, wire.Block):
                body = wire.decode_body(message)
                self.kept.append(
                    wire.Gap(seq=message.seq, first=body.first_step, last=body.first_step, count=1, reason="noted")
                )
                self.answers.append(wire.Nack(seq=message.seq, code="noted", message="", expected=message.seq + 1))
                return
            if refuse == "full" or (refuse == "bad" and isinstance(message, wire.Block)):
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
        # A note that does not arrive counts as an acknowledgement here, which is for the server's declaration to tell.
        for message in self.answers:
            if isinstance(message, wire.Nack) and message.code == "noted":
                self.outbox.settle(message.seq, "refused_noted")
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
                self.deliver(refuse="")
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


def named(step: int, layer: wire.Layer) -> Batch:
    body = wire.encode(wire.Body(first_step=step, steps=1, layers=(layer,)))
    return Batch(first=step, last=step, records=1, body=body, crc=zlib.crc32(body), layers=(layer,))


def messages_of(outbox: Outbox) -> list[wire.Block | wire.Gap]:
    messages = []
    while (data := outbox.next(max_in_flight=8, credit=1 << 20)) is not None:
        message = wire.decode_agent(data)
        assert isinstance(message, wire.Block | wire.Gap)
        messages.append(message)
    return messages


HEAD = wire.Layer(index=4, name="head", module_type="Linear")


def test_a_quarantined_batch_leaves_its_names_in_its_place() -> None:
    outbox = Outbox(max_records=9, max_bytes=1 << 20)
    outbox.append(named(0, HEAD))
    outbox.append(batch(1))
    assert [message.seq for message in messages_of(outbox)] == [1, 2]
    assert outbox.quarantine(1, "refused_bad")
    outbox.send_again()
    names, numbers, gap = messages_of(outbox)
    assert isinstance(names, wire.Block)
    assert isinstance(numbers, wire.Block)
    body = wire.decode_body(names)
    assert (names.seq, body.layers, body.continued) == (1, (HEAD,), True)
    assert (numbers.seq, wire.decode_body(numbers).first_step) == (2, 1)
    assert gap == wire.Gap(seq=3, first=0, last=0, count=1, reason="refused_bad")
    # Names that are refused as well would come for ever.
    assert outbox.quarantine(1, "refused_bad")
    outbox.send_again()
    assert [type(message) for message in messages_of(outbox)] == [wire.Gap, wire.Block, wire.Gap]
    assert outbox.counts().lost == {"refused_bad": 1}


def test_a_batch_that_the_server_noted_as_lost_leaves_its_names_and_acknowledges_nothing() -> None:
    outbox = Outbox(max_records=9, max_bytes=1 << 20)
    outbox.append(batch(0))
    outbox.append(named(1, HEAD))
    messages_of(outbox)
    outbox.settle(2, "refused_bad")
    assert outbox.counts().acknowledged == 0
    outbox.append(batch(2))
    names, numbers = messages_of(outbox)
    assert isinstance(names, wire.Block)
    assert wire.decode_body(names) == wire.Body(continued=True, first_step=2, steps=1, layers=(HEAD,))
    assert (names.seq, numbers.seq) == (3, 4)
    outbox.acknowledge(1)
    assert (outbox.counts().acknowledged, outbox.in_flight) == (1, 2)
    outbox.acknowledge(4)
    assert outbox.empty()


def test_names_between_the_pieces_of_a_step_do_not_complete_it() -> None:
    outbox = Outbox(max_records=9, max_bytes=1 << 20)
    body = wire.encode(wire.Body(continued=True, first_step=3, steps=1))
    outbox.append(Batch(first=3, last=3, records=0, body=body, crc=zlib.crc32(body), continued=True))
    assert len(messages_of(outbox)) == 1
    outbox.announce([HEAD])
    [names] = messages_of(outbox)
    assert isinstance(names, wire.Block)
    assert wire.decode_body(names) == wire.Body(continued=True, first_step=3, steps=1, layers=(HEAD,))


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
    outbox.append(named(0, HEAD))
    outbox.append(batch(1))
    gap, names, numbers = messages_of(outbox)
    assert isinstance(gap, wire.Gap)
    assert isinstance(names, wire.Block)
    assert isinstance(numbers, wire.Block)
    assert wire.decode_body(names).layers == (HEAD,)
    assert wire.decode_body(numbers).first_step == 1
