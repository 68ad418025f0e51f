"""The two doors for agents: a socket and a POST of the same bytes."""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from floatscope import wire
from floatscope_server.ingest import WIRE_MEDIA_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.conftest import Agent, Make, MakeAgent, Reply, Running, Start


def _packed(*messages: wire.AgentMessage | bytes) -> bytes:
    parts = [m if isinstance(m, bytes) else wire.encode(m) for m in messages]
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def _unpacked(content: bytes) -> list[wire.ServerMessage]:
    answers = []
    while content:
        (size,) = struct.unpack_from("<I", content)
        answers.append(wire.decode_server(content[4 : 4 + size]))
        content = content[4 + size :]
    return answers


def _post(
    server: Running, http: Callable[..., Reply], *messages: wire.AgentMessage | bytes
) -> list[wire.ServerMessage]:
    reply = http(f"{server.url}/ingest/v1", method="POST", body=_packed(*messages))
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == WIRE_MEDIA_TYPE
    return _unpacked(reply.body)


def _end(agent: Agent) -> int:
    """The code with which the server closes."""
    with pytest.raises(ConnectionClosed) as caught:
        agent.receive()
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code


def test_welcome_says_what_the_agent_may_do(server: Running, agent: MakeAgent) -> None:
    welcome = agent(connected=False).connect()
    assert isinstance(welcome, wire.Welcome)
    assert (welcome.protocol, welcome.last_seq, welcome.attempt) == (1, 0, 1)
    assert welcome.credit >= wire.MAX_IN_FLIGHT * wire.MAX_BLOCK_BYTES
    assert welcome.epoch == server.services.store.epoch


def test_many_blocks_in_flight_end_in_one_cumulative_ack(agent: MakeAgent, make: Make) -> None:
    one = agent()
    for seq in range(1, 101):
        one.send(wire.make_block(seq, wire.Body(scalars=(make.scalars("loss", seq, [1.0]),))))
    answers = 0
    while True:
        ack = one.receive()
        answers += 1
        assert isinstance(ack, wire.Ack)
        if ack.seq == 100:
            break
    assert answers < 100


def test_a_reconnected_agent_goes_on_where_the_disk_is(agent: MakeAgent) -> None:
    one = agent()
    for _ in range(3):
        one.deliver(wire.Body())
    one.close()
    welcome = one.connect()
    assert isinstance(welcome, wire.Welcome)
    assert welcome.last_seq == 3
    assert isinstance(one.deliver(wire.Body()), wire.Ack)


def test_a_post_does_the_same_as_a_socket(
    server: Running, agent: MakeAgent, make: Make, http: Callable[..., Reply]
) -> None:
    one = agent(connected=False, layers=[make.layer(0, "a")])
    body = wire.Body(summaries=(make.summaries("grad", 0, [[1.0]]),), scalars=(make.scalars("loss", 0, [1.0]),))
    answers = _post(server, http, one.hello(), wire.make_block(1, body), wire.make_block(3, body), wire.Beat())
    welcome, ack, nack, beat = answers
    assert isinstance(welcome, wire.Welcome)
    assert isinstance(ack, wire.Ack)
    assert ack.seq == 1
    assert isinstance(nack, wire.Nack)
    assert nack.expected == 2
    assert isinstance(beat, wire.Beat)
    assert server.json("/api/v1/runs/run/heatmap?metric=absmax")["values"] == [[1.0]]
    again = one.connect()
    assert isinstance(again, wire.Welcome)
    assert again.last_seq == 1


@pytest.mark.parametrize("body", [b"\x01", b"\xff\xff\xff\xff", _packed(b"abc")[:-1]])
def test_a_post_that_ends_too_early_is_malformed(server: Running, http: Callable[..., Reply], body: bytes) -> None:
    reply = http(f"{server.url}/ingest/v1", method="POST", body=body)
    assert reply.status == 400
    assert reply.json["error"]["code"] == "malformed"


@pytest.mark.parametrize(("low", "high", "word"), [(2, 3, "upgrade the server"), (0, 0, "upgrade the agent")])
def test_another_protocol_is_refused_with_what_to_do(
    server: Running, agent: MakeAgent, http: Callable[..., Reply], low: int, high: int, word: str
) -> None:
    one = agent(connected=False)
    hello = msgspec.structs.replace(one.hello(), protocol_min=low, protocol_max=high)
    (refused,) = _post(server, http, hello, wire.make_block(1, wire.Body()))
    assert isinstance(refused, wire.Refused)
    assert (refused.code, refused.retryable) == ("protocol", False)
    assert word in refused.hint
    one.hello = lambda: hello  # type: ignore[method-assign]
    assert one.connect() == refused
    assert _end(one) == 1008
    assert server.json("/api/v1/runs") == []


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x00" * 100, b"\x81" * 5000, b"\x91" * 60_000])
def test_junk_ends_the_conversation_with_a_word(agent: MakeAgent, junk: bytes) -> None:
    one = agent()
    refused = one.ask(junk)
    assert isinstance(refused, wire.Refused)
    assert refused.code == "malformed"
    assert _end(one) == 1008


def test_junk_costs_nothing_that_came_before(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent()
    one.send(wire.make_block(1, wire.Body(scalars=(make.scalars("loss", 0, [1.0]),))))
    one.send(b"\xc1")
    assert isinstance(one.receive(), wire.Ack)
    assert isinstance(one.receive(), wire.Refused)
    assert server.json("/api/v1/runs/run/scalars")[0]["values"] == [1.0]


def test_a_conversation_has_one_hello_and_it_comes_first(
    server: Running, agent: MakeAgent, http: Callable[..., Reply]
) -> None:
    one = agent()
    refused = one.ask(one.hello())
    assert isinstance(refused, wire.Refused)
    assert refused.code == "order"
    (first,) = _post(server, http, wire.Beat())
    assert isinstance(first, wire.Refused)
    assert first.code == "order"


def test_a_frame_that_is_too_long_is_not_read(agent: MakeAgent) -> None:
    one = agent()
    # A binary frame's header (RFC 6455, 5.2) and nothing of what it announces: the server has not waited for that. With
    # bytes on the way the kernel would answer them by a reset, which overtakes the reason.
    one.send_raw(b"\x82\xff" + (2 * wire.MAX_BLOCK_BYTES).to_bytes(8, "big") + bytes(4))
    assert _end(one) == 1009


def test_text_is_refused(server: Running) -> None:
    with connect(f"ws://{server.address}/ingest/v1", compression=None) as socket:
        socket.send("hello")
        data = socket.recv(timeout=60)
    assert isinstance(data, bytes)
    refused = wire.decode_server(data)
    assert isinstance(refused, wire.Refused)
    assert "binary" in refused.message


def test_deflate_is_not_offered(server: Running) -> None:
    with connect(f"ws://{server.address}/ingest/v1", compression="deflate") as socket:
        assert socket.response is not None
        assert "Sec-WebSocket-Extensions" not in socket.response.headers


def test_agents_beside_each_other_keep_their_order(server: Running, agent: MakeAgent, make: Make) -> None:
    agents = [agent(rank=rank, world=4) for rank in range(4)]

    def deliver(one: Agent) -> None:
        for step in range(25):
            assert isinstance(one.deliver(wire.Body(scalars=(make.scalars("loss", step, [float(step)]),))), wire.Ack)

    threads = [threading.Thread(target=deliver, args=(one,)) for one in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = server.json("/api/v1/runs/run")
    assert [(w["rank"], w["last_seq"]) for w in shown["writers"]] == [(rank, 25) for rank in range(4)]
    assert server.json("/api/v1/runs/run/scalars")[0]["values"] == [float(step) for step in range(25)]


def test_a_stopping_server_loses_nothing_it_acknowledged(
    start: Start, server: Running, agent: MakeAgent, make: Make
) -> None:
    one = agent()
    for step in range(20):
        one.send(wire.make_block(step + 1, wire.Body(scalars=(make.scalars("loss", step, [1.0]),))))
    acked = one.receive()
    assert isinstance(acked, wire.Ack)
    server.stop()
    last = acked.seq
    while last < 20:
        try:
            answer = one.receive()
        except ConnectionClosed:
            break
        assert isinstance(answer, wire.Ack)
        last = answer.seq
    again = start()
    values = again.json("/api/v1/runs/run/scalars")[0]["values"]
    assert len(values) >= last


def test_what_a_configuration_cannot_hold_is_left_out_alone(server: Running, agent: MakeAgent) -> None:
    deep: object = 1
    for _ in range(490):
        deep = {"in": deep}
    config = {"lr": 0.1, "raw": b"abc", "deep": [deep], "big": 2**64 - 1, "nan": float("nan"), "list": [[b"x"]]}
    one = agent(run="deep", config=config)
    assert isinstance(one.deliver(wire.Body()), wire.Ack)
    shown = server.json("/api/v1/runs/deep")
    assert shown["config"] == {"lr": 0.1, "big": 2**64 - 1, "nan": "NaN"}
    assert {gap["reason"] for gap in shown["gaps"]} == {
        "configuration key 'raw' holds bytes",
        "configuration key 'deep' is nested deeper than 64",
        "configuration key 'list' holds bytes",
    }


def test_a_writer_keeps_its_rank_and_world(agent: MakeAgent) -> None:
    one = agent(rank=1, world=4)
    for rank, world in ((2, 4), (1, 8)):
        refused = agent(rank=rank, world=world, writer=one.writer, connected=False).connect()
        assert isinstance(refused, wire.Refused)
        assert refused.message == f"this writer is rank 1 of 4, not {rank} of {world}"
    assert isinstance(agent(rank=1, world=4, writer=one.writer, connected=False).connect(), wire.Welcome)
