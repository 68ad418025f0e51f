"""Viewers without a page: sockets that follow a run as a page does, in a process of their own."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from websockets.asyncio.client import connect

__all__ = ["HEAT", "Seen", "watching"]

HEAT = {"kind": "grad", "metric": "headroom", "format": "auto"}
"""What a page of a run looks at that nobody has changed."""

_PATIENCE_S = 60.0


@dataclass(slots=True)
class Seen:
    """What came to one viewer."""

    came: dict[int, float] = field(default_factory=dict)
    """By step, when the last word about it came, in seconds since 1970."""
    resyncs: int = 0
    received: int = 0
    """Bytes."""

    def note(self, at: float, first: int, steps: int) -> None:
        """That a block of ``steps`` steps from ``first`` on came."""
        self.came |= dict.fromkeys(range(first, first + steps), at)


@contextmanager
def watching(url: str, run: str, viewers: int) -> Iterator[Callable[[], list[Seen]]]:
    """As many viewers; the function ends them and says what they have seen."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_process, args=(url, run, viewers, theirs))
    process.start()
    theirs.close()

    def end() -> list[Seen]:
        ours.send("end")
        seen: list[Seen] = ours.recv()
        return seen

    try:
        assert ours.poll(_PATIENCE_S), "the viewers do not get through to the server"
        ours.recv()
        yield end
    finally:
        ours.close()
        process.join(_PATIENCE_S)


def _process(url: str, run: str, viewers: int, pipe: Connection) -> None:
    asyncio.run(_all(url, run, viewers, pipe))


async def _all(url: str, run: str, viewers: int, pipe: Connection) -> None:
    seen = [Seen() for _ in range(viewers)]
    async with asyncio.TaskGroup() as group:
        opened = [asyncio.Event() for _ in seen]
        tasks = [group.create_task(_follow(url, run, one, event)) for one, event in zip(seen, opened, strict=True)]
        for event in opened:
            await event.wait()
        pipe.send("ready")
        try:
            await asyncio.to_thread(pipe.recv)
        except EOFError:
            pass  # nobody asks any more
        else:
            pipe.send(seen)
        for task in tasks:
            task.cancel()


async def _follow(url: str, run: str, seen: Seen, opened: asyncio.Event) -> None:
    address = url.replace("http", "ws", 1) + "/live/v1"
    async with connect(address, compression=None, max_size=None) as socket:
        await socket.send(json.dumps({"type": "subscribe", "run": run, "heat": HEAT}))
        opened.set()
        async for message in socket:
            now = time.time()
            seen.received += len(message)
            if isinstance(message, str):
                seen.resyncs += json.loads(message)["type"] == "resync"
                continue
            (length,) = struct.unpack_from("<I", message, 4)
            header = json.loads(message[8 : 8 + length])
            seen.note(now, header["meta"]["first_step"], header["arrays"][0]["shape"][0])
