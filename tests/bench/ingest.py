"""Samples per second that a real server process acknowledges as on disk, and how long an acknowledgement takes.

A sample is one statistic of one layer at one step. One writer, 300 layers, two kinds, eight statistics; blocks of as
many steps as an agent packs into a quarter of a second at 40 steps per second.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from websockets.sync.client import ClientConnection, connect

from floatscope import wire
from tests.bench.spread import spread
from tests.postgres import Cluster, programs

_LAYERS = 300
_STEPS = 10
_BLOCKS = 400
_FIELDS = (
    *(("count", "<i8"), ("zeros", "<i8"), ("nans", "<i8"), ("infs", "<i8")),
    *(("absmax", "<f4"), ("absmin", "<f4"), ("sum", "<f8"), ("sumsq", "<f8")),
)


def main() -> None:
    print("  SQLite:")
    with tempfile.TemporaryDirectory(prefix="floatscope-bench-") as data:
        samples = _ingest(data, ())
        size = sum(entry.stat().st_size for entry in os.scandir(data) if entry.is_file())
        print(f"    {size / samples:.2f} bytes per sample on disk (the write-ahead log included)")
    binaries = programs()
    if binaries is None:
        print("  PostgreSQL is not installed")
        return
    print("  PostgreSQL, on this machine:")
    cluster = Cluster(binaries, fsync=True)
    try:
        name = cluster.create()
        samples = _ingest(None, ("--db", cluster.url(name)))
        size = cluster.size(name)
        print(f"    {size / samples:.2f} bytes per sample in the database (without its log)")
    finally:
        cluster.remove()


def _ingest(data: str | None, options: Sequence[str]) -> int:
    """Send everything; how many samples that was."""
    with server_process(data, options) as url, _client(url) as socket:
        blocks = list(_blocks())
        sent: dict[int, float] = {}
        waits: list[float] = []
        begin = time.perf_counter()
        for seq, block in enumerate(blocks, 1):
            while len(sent) >= wire.MAX_IN_FLIGHT:
                _take(socket, sent, waits)
            sent[seq] = time.perf_counter()
            socket.send(block)
        while sent:
            _take(socket, sent, waits)
        elapsed = time.perf_counter() - begin
        samples = _BLOCKS * _STEPS * _LAYERS * 2 * len(_FIELDS)
        commits = _commits(url)
        print(f"    {samples / elapsed / 1e6:.2f} million samples/s acknowledged, {_BLOCKS / elapsed:.0f} blocks/s")
        print(f"    {commits / elapsed:.0f} commits/s")
        print(f"    acknowledgement after {spread([wait * 1e3 for wait in waits], 'ms')} (8 blocks in flight)")
        return samples


def _commits(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        found = re.search(rb"^floatscope_commits_total (\d+)", answer.read(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@contextmanager
def server_process(data: str | None, options: Sequence[str] = ()) -> Iterator[str]:
    command = [sys.executable, "-m", "floatscope", "server", "--port", "0", *options]
    command += [] if data is None else ["--data", data]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = re.search(r"http://\S+", process.stdout.readline())
            assert address is not None
            yield address[0]
        finally:
            process.terminate()


@contextmanager
def _client(url: str) -> Iterator[ClientConnection]:
    address = url.replace("http", "ws", 1) + "/ingest/v1"
    with connect(address, subprotocols=[wire.SUBPROTOCOL], compression=None, max_size=None) as socket:  # type: ignore[list-item]
        layers = tuple(
            wire.Layer(index=i, name=f"blocks.{i}.mlp", module_type="Linear", order=i) for i in range(_LAYERS)
        )
        hello = wire.Hello(
            protocol_min=wire.PROTOCOL_MIN,
            protocol_max=wire.PROTOCOL,
            agent="bench",
            identity=wire.Identity(run="bench", writer=secrets.token_hex(16)),
            wall_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            layers=layers,
        )
        socket.send(wire.encode(hello))
        welcome = wire.decode_server(_bytes(socket))
        assert isinstance(welcome, wire.Welcome), welcome
        yield socket


def _bytes(socket: ClientConnection) -> bytes:
    message = socket.recv(timeout=30)
    assert isinstance(message, bytes)
    return message


def _take(socket: ClientConnection, sent: dict[int, float], waits: list[float]) -> None:
    message = wire.decode_server(_bytes(socket))
    if isinstance(message, wire.Ack):
        now = time.perf_counter()
        for seq in [seq for seq in sent if seq <= message.seq]:
            waits.append(now - sent.pop(seq))
    else:
        assert not isinstance(message, wire.Nack | wire.Refused), message


def _blocks() -> Iterator[bytes]:
    rng = np.random.default_rng(0)
    layers = np.arange(_LAYERS, dtype="<u4").tobytes()
    for number in range(_BLOCKS):
        first = number * _STEPS
        values = {name: np.exp(rng.normal(-6, 2, (_STEPS, _LAYERS))).astype(dtype) for name, dtype in _FIELDS}
        values["count"] = np.full((_STEPS, _LAYERS), 1 << 20, "<i8")
        fields = tuple(wire.Field(name=name, dtype=dtype, data=values[name].tobytes()) for name, dtype in _FIELDS)
        summaries = tuple(
            wire.Summaries(kind=kind, first_step=first, steps=_STEPS, layers=layers, fields=fields)
            for kind in ("grad", "act")
        )
        body = wire.Body(first_step=first, steps=_STEPS, summaries=summaries)
        yield wire.encode(wire.make_block(number + 1, body))
