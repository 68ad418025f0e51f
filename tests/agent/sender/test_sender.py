"""The sender against a real WebSocket server: everything arrives once and in order, or is declared as lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import floatscope
from floatscope import wire
from floatscope._conversation import Timing
from floatscope._record import LostRecord
from floatscope._sender import Limits, Sender, SenderStats

if TYPE_CHECKING:
    from tests.agent.sender.conftest import CuttingRelay, IngestDouble, Pending

    MakeSender = Callable[..., Sender]
    MakeStep = Callable[..., Pending]
    MakeRelay = Callable[[list[int]], CuttingRelay]
    Until = Callable[..., None]


def assert_conserved(server: IngestDouble, stats: SenderStats) -> None:
    """Every record is on the server once or declared there as lost, and the sender knows which."""
    arrived = server.steps()
    assert len(arrived) == len(set(arrived)) == stats.acknowledged
    assert sum(gap.count for gap in server.gaps()) == sum(stats.lost.values()) == stats.put - len(arrived)
    assert stats.waiting == 0
    assert [batch.seq for batch in server.kept] == [*range(1, len(server.kept) + 1)]


def test_everything_arrives_once_and_in_order(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    sender = sender_to(server.url, token="secret-token")
    for n in range(500):
        sender.put(step(n, rows=3))
    sender.close("finished")
    assert server.steps() == list(range(500))
    assert [batch.seq for batch in server.kept] == list(range(1, len(server.kept) + 1))
    assert sender.stats() == SenderStats(
        put=500, acknowledged=500, waiting=0, waiting_bytes=0, connections=1, cpu_s=sender.stats().cpu_s
    )
    until(lambda: server.seen[-1] == wire.Bye(seq=server.last_seq, reason="finished"))


def test_hello_names_the_writer_and_the_token_stays_out_of_the_url(
    server: IngestDouble, sender_to: MakeSender, until: Until
) -> None:
    sender_to(server.url + "/", token="secret-token")
    until(lambda: server.seen)
    hello = server.seen[0]
    assert isinstance(hello, wire.Hello)
    assert hello.identity == wire.Identity(run="r", writer="0" * 32)
    assert hello.config == {"batch": 8}
    assert hello.agent == f"floatscope {floatscope.__version__}"
    assert (hello.protocol_min, hello.protocol_max) == (wire.PROTOCOL_MIN, wire.PROTOCOL)
    assert server.paths == ["/ingest/v1"]
    assert server.headers[0]["Authorization"] == "Bearer secret-token"
    assert server.headers[0]["Sec-WebSocket-Protocol"] == "floatscope.v1"
    assert "Sec-WebSocket-Extensions" not in server.headers[0]


def test_steps_of_the_same_rows_share_a_block(server: IngestDouble, sender_to: MakeSender, step: MakeStep) -> None:
    arrived = False
    sender = sender_to(server.url)
    for n in range(40):
        record = step(n, rows=2)
        record.is_ready = lambda: arrived
        sender.put(record)
    arrived = True
    sender.close("finished")
    summaries = [part for body in server.bodies() for part in body.summaries]
    assert sum(part.steps for part in summaries) == 40
    assert len(summaries) < 10


@pytest.mark.parametrize("ack_delay_s", [0.0, 0.05])
def test_no_more_than_the_window_is_unanswered(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, ack_delay_s: float
) -> None:
    server.ack_delay_s = ack_delay_s
    server.max_in_flight = 3
    sender = sender_to(server.url)
    for n in range(30):
        sender.put(step(n, rows=1000, hist=True, nbytes=1 << 20))
    sender.close("finished")
    assert server.steps() == list(range(30))
    assert server.most_unanswered <= 3


def test_credit_bounds_what_is_unanswered(server: IngestDouble, sender_to: MakeSender, step: MakeStep) -> None:
    server.credit = wire.MAX_BLOCK_BYTES
    server.ack_delay_s = 0.02
    sender = sender_to(server.url)
    for n in range(20):
        sender.put(step(n, rows=1000, hist=True, nbytes=1 << 20))
    sender.close("finished")
    assert server.steps() == list(range(20))
    assert 0 < server.most_unanswered_bytes <= server.credit


def test_a_cut_at_any_byte_loses_and_doubles_nothing(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, relay: MakeRelay, until: Until
) -> None:
    # Inside the handshake, the hello, a block's header, a block's body, and between blocks.
    through = relay([10, 300, 420, 700, 900, 1500, 5_000, 20_000, 60_000])
    sender = sender_to(through.url)
    n = 0
    while through.cuts < 9:
        sender.put(step(n, rows=200))
        n += 1
        expected = n
        until(lambda expected=expected: sender.stats().acknowledged >= expected - 50)
    sender.close("finished")
    assert server.steps() == list(range(n))
    assert server.gaps() == []
    assert_conserved(server, sender.stats())


def test_server_restarts_while_blocks_are_unanswered(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    server.acks = False
    sender = sender_to(server.url)
    sender.put(step(0))
    until(lambda: server.last_seq == 1)
    server.stop()
    for n in range(1, 10):
        sender.put(step(n))
    server.acks = True
    server.start()
    sender.close("finished")
    assert server.steps() == list(range(10))
    assert sender.stats().acknowledged == 10
    second_hello = [message for message in server.seen if isinstance(message, wire.Hello)][1]
    assert second_hello.identity.attempt == 1


def test_server_that_forgot_acknowledged_data_is_told_what_is_gone(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "floatscope")
    sender = sender_to(server.url)
    layer = wire.Layer(index=0, name="head", module_type="Linear")
    for n in range(3):
        sender.put(step(n, layers=(layer,) if n == 0 else ()))
        until(lambda n=n: sender.stats().acknowledged == n + 1)
    assert server.last_seq == 3
    server.stop()
    server.last_seq = 1
    server.epoch = "after the restore"
    server.kept = server.kept[:1]
    server.start()
    sender.put(step(3))
    sender.close("finished")
    assert server.steps() == [0, 3]
    assert server.gaps() == [wire.Gap(seq=2, first=1, last=2, count=2, reason="server_lost")]
    assert [batch.seq for batch in server.kept] == [*range(1, len(server.kept) + 1)]
    hello = [message for message in server.seen if isinstance(message, wire.Hello)][-1]
    assert hello.layers == (layer,)
    assert "has other data than before" in caplog.text
    assert "from batch 2 on" in caplog.text


def test_server_that_never_acknowledges_is_left_and_asked_again(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    server.deaf = True
    sender = sender_to(server.url, timing=Timing(silence_s=0.2, poll_s=0.01))
    sender.put(step(0))
    until(lambda: sender.stats().connections >= 3)
    server.deaf = False
    sender.close("finished")
    assert server.steps() == [0]
    assert sender.stats().acknowledged == 1


def test_refused_batch_is_quarantined_and_the_rest_goes_on(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    def judge(batch: wire.Block | wire.Gap) -> wire.Nack | None:
        if isinstance(batch, wire.Block) and batch.seq == 2:
            return wire.Nack(seq=2, code="bad_body", message="no", expected=2)
        return None

    server.judge = judge
    server.acks = False  # Several are in flight when the refusal comes.
    sender = sender_to(server.url)
    for n in range(5):
        sender.put(step(n))
        until(lambda n=n: sum(isinstance(message, wire.Block) for message in server.seen) > n)
    server.acks = True
    sender.put(step(5))
    sender.close("finished")
    assert server.steps() == [0, 2, 3, 4, 5]
    assert server.gaps() == [wire.Gap(seq=2, first=1, last=1, count=1, reason="refused_bad_body")]
    assert sender.stats().lost == {"refused_bad_body": 1}
    assert_conserved(server, sender.stats())


def test_batch_that_the_server_notes_as_lost_is_not_sent_again(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    def judge(batch: wire.Block | wire.Gap) -> wire.Nack | None:
        if batch.seq == 2:
            server.last_seq = 2
            return wire.Nack(seq=2, code="malformed", message="no", expected=3)
        return None

    server.judge = judge
    sender = sender_to(server.url)
    for n in range(4):
        sender.put(step(n))
        until(lambda n=n: sender.stats().waiting == 0)
    sender.close("finished")
    assert server.steps() == [0, 2, 3]
    assert server.gaps() == []
    assert [message.seq for message in server.seen if isinstance(message, wire.Block)] == [1, 2, 3, 4]
    assert sender.stats().lost == {"refused_malformed": 1}


def test_busy_server_is_asked_again_later(server: IngestDouble, sender_to: MakeSender, step: MakeStep) -> None:
    asked: list[int] = []

    def judge(batch: wire.Block | wire.Gap) -> wire.Nack | None:
        asked.append(batch.seq)
        if len(asked) <= 2:
            return wire.Nack(seq=batch.seq, code="storage_full", message="full", expected=batch.seq, retryable=True)
        return None

    server.judge = judge
    sender = sender_to(server.url)
    for n in range(3):
        sender.put(step(n))
    sender.close("finished")
    assert server.steps() == [0, 1, 2]
    assert asked[:3] == [1, 1, 1]
    assert sender.stats().lost == {}


def test_full_outbox_drops_the_oldest_and_declares_it(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop()
    sender = sender_to(server.url, limits=Limits(outbox_records=10, flush_s=60.0))
    layer = wire.Layer(index=7, name="head", module_type="Linear")
    for n in range(50):
        sender.put(step(n, layers=(layer,) if n == 0 else ()))
        if n % 5 == 4:
            until(lambda n=n: sender.stats().waiting + sum(sender.stats().lost.values()) == n + 1)
            until(lambda: not sender._queue.nbytes)
    server.start()
    sender.close("finished")
    [gap] = server.gaps()
    arrived = server.steps()
    assert gap == wire.Gap(seq=1, first=0, last=arrived[0] - 1, count=arrived[0], reason="outbox_full")
    assert arrived == list(range(arrived[0], 50))
    assert 1 <= len(arrived) <= 10
    assert [entry for body in server.bodies() for entry in body.layers] == [layer]
    assert_conserved(server, sender.stats())


def test_full_pending_queue_drops_the_oldest_and_declares_it(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep
) -> None:
    arrived = False
    sender = sender_to(server.url, limits=Limits(pending_records=4, flush_s=60.0))
    names = (wire.Layer(index=0, name="head", module_type="Linear"),)
    for n in range(10):
        record = step(n, layers=names if n == 0 else ())
        record.is_ready = lambda: arrived
        sender.put(record)
    arrived = True
    sender.close("finished")
    assert server.steps() == [6, 7, 8, 9]
    assert server.layers() == {0: "head"}
    assert server.gaps() == [wire.Gap(seq=2, first=0, last=5, count=6, reason="pending_full")]
    assert_conserved(server, sender.stats())


def test_bytes_are_bounded_without_a_server(sender_to: MakeSender, step: MakeStep, server: IngestDouble) -> None:
    server.stop()
    limits = Limits(pending_bytes=2 << 20, outbox_bytes=3 << 20, flush_s=0.2)
    sender = sender_to(server.url, limits=limits)
    for n in range(200):
        sender.put(step(n, rows=1000, hist=True, nbytes=100_000))
        stats = sender.stats()
        assert stats.waiting_bytes <= limits.pending_bytes + limits.outbox_bytes + wire.MAX_BLOCK_BYTES
    sender.close("finished")
    stats = sender.stats()
    assert stats.lost.keys() <= {"pending_full", "outbox_full"}
    assert 0 < stats.waiting < 200
    assert stats.put == stats.waiting + sum(stats.lost.values())


@pytest.mark.parametrize(("count", "said"), [(1, ("1 record", "is lost")), (2, ("2 records", "are lost"))])
def test_what_is_lost_at_the_end_is_told(
    server: IngestDouble,
    sender_to: MakeSender,
    step: MakeStep,
    caplog: pytest.LogCaptureFixture,
    count: int,
    said: tuple[str, str],
) -> None:
    server.stop()
    sender = sender_to(server.url, limits=Limits(flush_s=0.2))
    for n in range(count):
        sender.put(step(n))
    sender.close("finished")
    assert f"{said[0]} could not be delivered to {server.url} within 0.2 s and {said[1]}" in caplog.text


def test_one_warning_while_unreachable_and_word_when_back(
    server: IngestDouble, sender_to: MakeSender, until: Until, step: MakeStep, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "floatscope")
    server.stop()
    sender = sender_to(server.url)
    sender.put(step(0))
    until(lambda: sender.stats().waiting == 1 and caplog.records)
    server.start()
    sender.close("finished")
    assert server.steps() == [0]
    first, where, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(f"floatscope: cannot reach a Floatscope server at {server.url}:")
    assert "floatscope server" in first
    assert where == f"floatscope: run r at {server.url}/#/run/r"
    assert second == f"floatscope: reached the Floatscope server at {server.url} again"


def test_final_refusal_warns_once_and_stops(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    server.refusal = wire.Refused(code="protocol", message="speaks 2 only", hint="upgrade floatscope to 0.2")
    sender = sender_to(server.url)
    sender.put(step(0))
    until(lambda: sender.stats().failure)
    sender.put(step(1))
    sender.close("finished")
    [record] = caplog.records
    assert "speaks 2 only" in record.getMessage()
    assert "upgrade floatscope to 0.2" in record.getMessage()
    assert len(server.seen) == 1
    assert sender.stats().lost == {"not_sending": 2}


def test_retryable_refusal_is_tried_again(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    server.refusal = wire.Refused(code="starting", message="starting", hint="wait", retryable=True)
    sender = sender_to(server.url)
    sender.put(step(0))
    until(lambda: len(server.seen) >= 3)
    server.refusal = None
    sender.close("finished")
    assert server.steps() == [0]


def test_another_protocol_version_is_refused_by_the_agent(
    server: IngestDouble, sender_to: MakeSender, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    server.protocol = wire.PROTOCOL + 1
    sender = sender_to(server.url)
    until(lambda: sender.stats().failure)
    assert f"it speaks protocol {wire.PROTOCOL + 1}" in caplog.text


def test_beats_tell_the_last_step(server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until) -> None:
    server.heartbeat_s = 0.05
    sender = sender_to(server.url)
    sender.put(step(41))
    until(lambda: any(isinstance(message, wire.Beat) and message.step == 41 for message in server.seen))


def test_a_record_that_cannot_be_read_is_lost_alone(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep
) -> None:
    class Broken:
        step = 1
        nbytes = 10
        layers = (wire.Layer(index=7, name="late", module_type="Linear"),)

        def ready(self) -> bool:
            return True

        def resolve(self) -> None:
            raise RuntimeError("device-side assert")

    sender = sender_to(server.url)
    sender.put(step(0))
    sender.put(Broken())  # type: ignore[arg-type]
    sender.put(step(2))
    sender.close("finished")
    assert server.steps() == [0, 2]
    assert server.layers() == {7: "late"}
    assert server.gaps()[0].reason == "unreadable"
    assert (server.gaps()[0].first, server.gaps()[0].last) == (1, 1)


def test_steps_lost_to_our_own_error_are_declared(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (wire.Layer(index=7, name="late", module_type="Linear"),)
    sender = sender_to(server.url)
    sender.put(LostRecord(step=0, layers=names))
    sender.put(step(1))
    until(lambda: sender.stats().acknowledged == 1)

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("packing failed")

    with monkeypatch.context() as patch:
        patch.setattr("floatscope._packer.pack", broken)
        sender.put(step(2))
        until(lambda: sum(sender.stats().lost.values()) == 2)
    sender.put(step(3))
    sender.close("finished")
    assert server.steps() == [1, 3]
    assert server.layers() == {7: "late"}
    assert [(gap.first, gap.count, gap.reason) for gap in server.gaps()] == [(0, 1, "internal"), (2, 1, "internal")]
    assert sender._beat().dropped == 2
    assert_conserved(server, sender.stats())


def test_unusable_configuration() -> None:
    with pytest.raises(ValueError, match="config: give plain"):
        Sender(wire.Identity(run="r", writer="0" * 32), "http://h", config={"model": object()})


def test_goodbye_is_said_though_the_connection_breaks_before_it(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    sender = sender_to(server.url)
    sender.put(step(0))
    until(lambda: sender.stats().acknowledged == 1)
    server.stop()
    server.start()
    sender.close("finished")
    until(lambda: wire.Bye(seq=1, reason="finished") in server.seen)
