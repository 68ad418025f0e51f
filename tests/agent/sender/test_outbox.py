"""The outbox as a machine: dropped, cut, refused or forgotten, numbers stay gapless and no loss is silent."""

from __future__ import annotations

import zlib

from hypothesis import settings
from hypothesis.stateful import invariant

from floatscope import wire
from floatscope._outbox import Outbox
from floatscope._packing import Batch
from tests.agent.sender import exchange
from tests.agent.sender.exchange import HEAD, batch, messages_of, named


class Exchange(exchange.Exchange):
    """In memory only."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(max_records=12, max_bytes=1 << 20)

    @invariant()
    def bounded(self) -> None:
        # 12 by the limit; what is in flight is never dropped, nor is the newest one.
        assert self.outbox.counts().waiting <= 12 + 1


Exchange.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestExchange = Exchange.TestCase


def test_a_quarantined_batch_leaves_its_names_in_its_place() -> None:
    outbox = Outbox(max_records=9, max_bytes=1 << 20)
    outbox.append(named(0))
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
    outbox.append(named(1))
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
    outbox.append(named(0))
    outbox.append(batch(1))
    gap, names, numbers = messages_of(outbox)
    assert isinstance(gap, wire.Gap)
    assert isinstance(names, wire.Block)
    assert isinstance(numbers, wire.Block)
    assert wire.decode_body(names).layers == (HEAD,)
    assert wire.decode_body(numbers).first_step == 1
