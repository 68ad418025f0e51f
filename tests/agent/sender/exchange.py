"""An agent's outbox and a server as a state machine, with a wire between that delivers, breaks, or is answered late."""

from __future__ import annotations

import zlib

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from floatscope import wire
from floatscope._outbox import Outbox
from floatscope._packing import Batch, Loss
from floatscope._spool._outbox import SpooledOutbox

__all__ = ["HEAD", "Exchange", "batch", "first_step", "messages_of", "named"]

HEAD = wire.Layer(index=4, name="head", module_type="Linear")


def batch(step: int, *events: wire.Event) -> Batch:
    body = wire.encode(wire.Body(first_step=step, steps=1, events=events))
    return Batch(first=step, last=step, records=1, body=body, crc=zlib.crc32(body))


def named(step: int) -> Batch:
    """A batch that names a layer."""
    body = wire.encode(wire.Body(first_step=step, steps=1, layers=(HEAD,)))
    return Batch(first=step, last=step, records=1, body=body, crc=zlib.crc32(body), layers=(HEAD,))


def messages_of(outbox: Outbox | SpooledOutbox, window: int = 8) -> list[wire.Block | wire.Gap]:
    """What ``outbox`` gives out until the window is full."""
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
    """Whatever server and wire do, numbers stay gapless, nothing is doubled and no loss is silent."""

    outbox: Outbox | SpooledOutbox

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.on_the_wire: list[bytes] = []
        self.answers: list[wire.Ack | wire.Nack] = []
        self.kept: list[wire.Block | wire.Gap] = []

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
        step = first_step(message) if isinstance(message, wire.Block) else None
        if message.seq > self.last_seq + 1:
            self.answers.append(wire.Nack(seq=message.seq, code="hole", message="", expected=self.last_seq + 1))
            if refuse == "full":  # A server without room refuses each batch by itself, holes or not.
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
        # A note that does not arrive counts as an acknowledgement here, which is for the server's declaration to tell.
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
