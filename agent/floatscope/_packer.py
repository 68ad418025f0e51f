"""The work of the packing thread: from records whose numbers have arrived to batches in the outbox."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, TypeVar

from floatscope import wire
from floatscope._flight import FlightRecorder
from floatscope._guard import Guard
from floatscope._log import logger
from floatscope._orders import Orders
from floatscope._outbox import Outbox
from floatscope._packing import Loss, pack, yield_the_interpreter
from floatscope._queue import PendingQueue
from floatscope._record import RecordLostError, StepRecord
from floatscope._spool._outbox import SpooledOutbox
from floatscope._trouble import Watch

__all__ = ["DeviceSource", "Packer"]

_T = TypeVar("_T")
_asking = Guard("devices were asked")
_watching = Guard("records were looked at")

_RESOLVE_AT_ONCE_BYTES = 4 << 20
_RECORDS_PER_TURN = 16
"""Small records resolved before the interpreter is offered to the training thread: about 0.2 ms."""


class DeviceSource(Protocol):
    """Where device readings come from. Used from one thread."""

    def start(self) -> None:
        """Begin reading."""

    def poll(self) -> tuple[wire.Device, ...]:
        """Readings since the last call. Never blocks."""

    def close(self) -> None:
        """Stop reading and end what was started."""

    def forget(self) -> None:
        """In a forked child: let go of inherited descriptors."""


class Packer:
    """Takes records from ``queue`` and puts batches into ``outbox``. For one thread."""

    def __init__(
        self,
        queue: PendingQueue,
        outbox: Outbox | SpooledOutbox,
        *,
        flight: FlightRecorder,
        orders: Orders,
        devices: DeviceSource | None,
        dump_bytes: float,
    ) -> None:
        """A flight recorder's dump waits while ``dump_bytes`` or more are in the outbox."""
        self._queue, self._outbox = queue, outbox
        self._flight, self._orders = flight, orders
        self._devices = devices
        self._dump_bytes = dump_bytes
        self._watch = Watch()
        self.last_step = -1
        """The newest that was taken from the queue."""

    def start(self) -> None:
        """Begin to read devices."""
        self._ask_devices(lambda devices: devices.start())

    def close(self) -> None:
        """Stop reading them."""
        self._ask_devices(lambda devices: devices.close())

    def forget(self) -> None:
        """In a forked child: let go of what is inherited."""
        if self._devices is not None:
            self._devices.forget()

    def pack(self, max_block_bytes: int, *, closing: bool) -> None:
        """Pack what is ready, in blocks of at most ``max_block_bytes``. ``closing``: a dump waits no longer."""
        devices = self._ask_devices(lambda devices: devices.poll()) or ()
        more = True
        while more:
            records, more = self._resolve_some()
            with _watching:
                for trouble in filter(None, map(self._watch.see, records)):
                    self._orders.notice(trouble)
            if dropped := self._queue.take_dropped():
                self._lose("pending_full", dropped.first, dropped.last, dropped.count, dropped.layers)
            if devices and records:
                records[-1] = replace(records[-1], devices=(*records[-1].devices, *devices))
                devices = ()
            self._pack(self._flight.see(records, max_block_bytes), max_block_bytes)
        if devices:
            alone = StepRecord(step=max(0, self.last_step), scalars={}, summaries=(), devices=devices)
            for item in pack([alone], max_block_bytes):
                self._outbox.append(replace(item, records=0))
        self._flight.obey(self._orders.freezes, max_block_bytes)
        room = math.inf if closing else self._dump_bytes
        while self._flight.pieces and self._outbox.counts().waiting_bytes < room:
            self._outbox.append(self._flight.pieces.popleft())

    def _ask_devices(self, what: Callable[[DeviceSource], _T]) -> _T | None:
        """The answer of the device source. One that fails is not asked again: telemetry goes on without it."""
        devices = self._devices
        if devices is None:
            return None
        answered = False
        with _asking:
            answer = what(devices)
            answered = True
        if answered:
            return answer
        self._devices = None
        with _asking:
            devices.close()
        return None

    def _pack(self, records: list[StepRecord], max_block_bytes: int) -> None:
        packed = 0
        try:
            for item in pack(records, max_block_bytes):
                self._outbox.append(item)
                packed += item.records
                yield_the_interpreter()
        except Exception:
            logger.debug("records could not be packed", exc_info=True)
            rest = records[packed:]
            self._lose("internal", rest[0].step, rest[-1].step, len(rest), [x for r in rest for x in r.layers])

    def _lose(self, reason: str, first: int, last: int, records: int, layers: Iterable[wire.Layer]) -> None:
        self._outbox.append(Loss(first=first, last=last, records=records, reason=reason))
        self._outbox.announce(layers)

    def _resolve_some(self) -> tuple[list[StepRecord], bool]:
        records: list[StepRecord] = []
        size = 0
        while size < _RESOLVE_AT_ONCE_BYTES:
            pending = self._queue.take()
            if pending is None:
                return records, False
            size += pending.nbytes
            try:
                records.append(pending.resolve())
            except Exception as error:  # a device error surfaces here first
                logger.debug("step %d could not be read", pending.step, exc_info=True)
                reason = error.reason if isinstance(error, RecordLostError) else "unreadable"
                self._lose(reason, pending.step, pending.step, 1, pending.layers)
            self.last_step = pending.step
            if len(records) % _RECORDS_PER_TURN == 0:
                yield_the_interpreter()
        return records, True
