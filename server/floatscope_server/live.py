"""Live fan-out: what was committed goes to the browsers that look at it, each at its own pace."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

import msgspec
import numpy as np

from floatscope import wire
from floatscope_server.jsontext import encode_json
from floatscope_server.live_columns import Heat, Told, heat_blocks
from floatscope_server.observation import Observation
from floatscope_server.query.devices import sample_of
from floatscope_server.query.layertable import RunLayers
from floatscope_server.query.runs import run_list
from floatscope_server.settings import Settings
from floatscope_server.store import Store

__all__ = ["LiveHub", "Viewer"]

_APART_S = 0.2
"""From the beginning of one flush to that of the next. A flush that began so long after the end of the last one had the
pace of four steps a second, and fell in and out of step with them."""
_REST_S = 0.1
"""What a step waits for ranks that have not told of it: their blocks are committed one after the other."""
_ALONE_S = 0.4
"""What belongs to no step waits to go with one."""
_NOTICES_S = 0.5
"""Between two notices about the same run."""
_MAX_PENDING_BYTES = 16 << 20
_log = logging.getLogger(__name__)


class Viewer:
    """One browser: a queue bounded in messages and in bytes."""

    def __init__(self, settings: Settings) -> None:
        self.run: str | None = None
        self.heat: Heat | None = None
        self.dropped = 0
        self._max_messages = settings.viewer_messages
        self._max_bytes = settings.viewer_bytes
        self._queue: deque[str | bytes] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()

    def put(self, message: str | bytes) -> None:
        """Queue ``message``; if the viewer is too slow, all that waits gives way to one word to fetch anew."""
        if len(self._queue) >= self._max_messages or self._bytes + len(message) > self._max_bytes:
            self.dropped += len(self._queue) + 1
            self._queue.clear()
            message = encode_json({"type": "resync", "run": self.run}).decode()
            self._bytes = 0
        self._queue.append(message)
        self._bytes += len(message)
        self._wake.set()

    async def get(self) -> str | bytes:
        """The next message."""
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        message = self._queue.popleft()
        self._bytes -= len(message)
        return message

    @property
    def waiting(self) -> int:
        """Messages in the queue."""
        return len(self._queue)


class _Ready(IntEnum):
    """Whether what is pending can be sent."""

    NOTHING = 0
    SOMETHING = 1
    """But no step."""
    STEP = 2
    WHOLE = 3
    """All ranks have told of the newest step."""


@dataclass(slots=True)
class _Pending:
    """What has happened to one run since the last flush."""

    points: dict[str, list[list[object]]] = field(default_factory=dict)
    devices: list[dict[str, object]] = field(default_factory=list)
    events: list[dict[str, object]] = field(default_factory=list)
    summaries: list[Told] = field(default_factory=list)
    layers: bool = False
    overflow: bool = False
    nbytes: int = 0
    ready: _Ready = _Ready.SOMETHING
    newest: int = -1
    """The last step that any rank has told all of."""
    told: set[int] = field(default_factory=set)
    """The ranks that have."""

    def tell(self, observation: Observation) -> None:
        """Note which step its rank has come to, if it has told all of one."""
        body = observation.body
        last = body.first_step + body.steps - 1
        if body.continued or not body.steps or last < self.newest:
            return
        if last > self.newest:
            self.newest, self.told = last, set()
        self.told.add(observation.rank)
        self.ready = _Ready.WHOLE if len(self.told) >= observation.world else _Ready.STEP


class LiveHub:
    """Collects observations from the store's thread and sends them on: a step at once when all ranks have told of it,
    but at most five times a second."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.viewers: set[Viewer] = set()
        self._store = store
        self._settings = settings
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._changed: set[str] = set()
        self._layers: dict[str, RunLayers] = {}
        """Of runs that are looked at, with what was made of them for the last columns."""
        self._ready = _Ready.NOTHING
        self._woken = asyncio.Event()
        """Set, in the event loop, after ``_ready`` has risen."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def start(self) -> None:
        """Begin to send, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._store.run_observers.append(self.run_changed)
        self._store.layer_observers.append(self._layers_changed)
        self._tasks = self._loop.create_task(self._flush_all()), self._loop.create_task(self._give_notice())

    async def stop(self) -> None:
        """Stop sending."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def add(self, viewer: Viewer) -> bool:
        """Let ``viewer`` have messages; False if there are too many already."""
        if len(self.viewers) >= self._settings.max_viewers:
            return False
        self.viewers.add(viewer)
        return True

    def remove(self, viewer: Viewer) -> None:
        """Forget ``viewer``."""
        self.viewers.discard(viewer)

    # From any thread.

    def publish(self, run: str, message: dict[str, object]) -> None:
        """Send ``message`` to the viewers of ``run`` at once; never blocks."""
        text = encode_json(message).decode()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._to_viewers_of, run, text)
        self.run_changed(run)

    def observe(self, observation: Observation) -> None:
        """Take note of a committed block; only of runs that somebody looks at."""
        if not any(viewer.run == observation.run for viewer in tuple(self.viewers)):
            return
        body = observation.body
        with self._lock:
            pending = self._pending.setdefault(observation.run, _Pending())
            pending.tell(observation)
            self._wake()
            pending.nbytes += _size(body)
            if pending.nbytes > _MAX_PENDING_BYTES:
                pending.overflow = True
                return
            for series in (*(body.scalars if observation.rank == 0 else ()), *observation.merged):
                steps = np.frombuffer(series.steps, "<i8").tolist()
                values = np.frombuffer(series.values, "<f8").tolist()
                pending.points.setdefault(series.name, []).extend(map(list, zip(steps, values, strict=True)))
            pending.devices += [sample_of(device, observation.rank) for device in body.devices]
            pending.events += [{**msgspec.structs.asdict(e), "rank": observation.rank} for e in body.events]
            layers = self._layers_of(observation)
            pending.summaries += [(summary, layers) for summary in body.summaries]

    def _layers_of(self, observation: Observation) -> RunLayers:
        held = self._layers.get(observation.run)
        if held is None or held.layers is not observation.layers:
            held = self._layers[observation.run] = RunLayers(observation.layers, digest="")
        return held

    def run_changed(self, name: str) -> None:
        """Tell everybody of the run's line in the list, soon."""
        with self._lock:
            self._changed.add(name)

    def _layers_changed(self, name: str) -> None:
        if any(viewer.run == name for viewer in tuple(self.viewers)):
            with self._lock:
                self._pending.setdefault(name, _Pending()).layers = True
                self._wake()

    def _wake(self) -> None:
        """While ``_lock`` is held. A call into the event loop costs a system call: one for each block is too many."""
        states = {pending.ready for pending in self._pending.values()}
        ready = min(states & {_Ready.STEP, _Ready.WHOLE}, default=_Ready.SOMETHING)
        if ready <= self._ready or self._loop is None or self._loop.is_closed():
            return
        self._ready = ready
        self._loop.call_soon_threadsafe(self._woken.set)

    # In the event loop.

    def _to_viewers_of(self, run: str, message: str | bytes) -> None:
        for viewer in self.viewers:
            if viewer.run == run:
                viewer.put(message)

    async def _flush_all(self) -> None:
        begun = -math.inf
        while True:
            await self._until(_Ready.SOMETHING, None)
            await self._until(_Ready.STEP, _ALONE_S)
            await self._until(_Ready.WHOLE, _REST_S)
            await asyncio.sleep(begun + _APART_S - time.monotonic())
            begun = time.monotonic()
            with self._lock:
                pending, self._pending = self._pending, {}
                self._ready = _Ready.NOTHING
                self._layers = {run: self._layers[run] for run in pending.keys() & self._layers.keys()}
            for run, content in pending.items():
                await self._alone(run, partial(self._flush, run, content))

    async def _until(self, ready: _Ready, patience_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self._ready < ready:
                    self._woken.clear()
                    await self._woken.wait()

    async def _give_notice(self) -> None:
        """By itself: a question to the database must not hold up what is new."""
        while True:
            await asyncio.sleep(_NOTICES_S)
            with self._lock:
                changed, self._changed = self._changed, set()
            if self.viewers:
                for run in sorted(changed):
                    await self._alone(run, partial(self._tell_all, run))

    async def _alone(self, run: str, news: Callable[[], Awaitable[None]]) -> None:
        """One run that cannot be shown must not end the news of all others; its viewers fetch anew."""
        try:
            await news()
        except Exception:  # noqa: BLE001 - logged
            _log.exception("live news of the run %r could not be sent", run)
            self._to_viewers_of(run, encode_json({"type": "resync", "run": run}).decode())

    async def _tell_all(self, run: str) -> None:
        for text in await asyncio.to_thread(self._items, run):
            for viewer in self.viewers:
                viewer.put(text)

    def _items(self, run: str) -> list[str]:
        with self._store.read() as session:
            found = run_list(session, [run])
        messages = [{"type": "run", "run": item} for item in found] or [{"type": "gone", "run": run}]
        return [encode_json(message).decode() for message in messages]

    async def _flush(self, run: str, pending: _Pending) -> None:
        for text in await asyncio.to_thread(_texts, run, pending):
            self._to_viewers_of(run, text)
        if pending.overflow:
            return
        blocks: dict[Heat, list[bytes]] = {}
        # Somebody may turn to another heat map meanwhile.
        while missing := [heat for heat in self._looked_at(run) if heat not in blocks]:
            for heat in missing:
                blocks[heat] = await asyncio.to_thread(heat_blocks, run, heat, pending.summaries)
        for viewer in self.viewers:
            if viewer.run == run and viewer.heat is not None:
                for block in blocks[viewer.heat]:
                    viewer.put(block)

    def _looked_at(self, run: str) -> set[Heat]:
        return {viewer.heat for viewer in self.viewers if viewer.run == run and viewer.heat is not None}


def _texts(run: str, pending: _Pending) -> list[str]:
    """Made in a thread, as all that is heavy: the event loop serves everybody."""
    messages: list[dict[str, object]] = []
    if pending.overflow:
        messages.append({"type": "resync", "run": run})
    else:
        if pending.layers:
            messages.append({"type": "layers", "run": run})
        if pending.points:
            messages.append({"type": "scalars", "run": run, "points": pending.points})
        if pending.devices:
            messages.append({"type": "devices", "run": run, "samples": pending.devices})
        if pending.events:
            messages.append({"type": "events", "run": run, "events": pending.events})
    return [encode_json(message).decode() for message in messages]


def _size(body: wire.Body) -> int:
    """Bytes, roughly, that ``body`` takes until it is sent."""
    summaries = sum(len(field.data) for summary in body.summaries for field in summary.fields)
    points = sum(len(series.steps) for series in body.scalars)
    return summaries + 16 * points + 1000 * (1 + len(body.events) + len(body.devices))
