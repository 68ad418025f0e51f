"""One message on its way to one endpoint, and what came of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpcore

from floatscope_server.alerts.connect import ForbiddenAddressError, Guard, Resolver, Transport
from floatscope_server.alerts.receivers import APPRISE, CHATS, GENERIC, letter
from floatscope_server.alerts.receivers.answer import Answer, plain
from floatscope_server.alerts.receivers.note import Note, items_of
from floatscope_server.alerts.receivers.targets import Targets
from floatscope_server.alerts.signing import active_secrets, signed_headers

__all__ = ["Parcel", "Row", "Sender"]

_log = logging.getLogger(__name__)

_HEADERS = {"content-type": "application/json", "user-agent": "floatscope-webhooks"}
_KEEP = 16 << 10
_APPRISE_S = 45.0
_APPRISE_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A delivery that is part of a message; ``tries`` counts this one."""

    id: int
    event_id: str
    body: str
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """What is sent at once: one delivery, or to a chat all that wait for it."""

    endpoint_id: int
    type: str
    language: str
    url: str
    secrets: list[dict[str, Any]]
    rows: tuple[Row, ...]
    lease_until: datetime
    """Tells this try from another one of the same number, after a redelivery."""

    @property
    def note(self) -> Note:
        """What a chat is told."""
        return Note(items_of([json.loads(row.body) for row in self.rows]), self.language)


class Sender:
    """``clock`` says what is signed. Whatever a receiver or its address provokes is the outcome of the try."""

    def __init__(
        self,
        guard: Guard,
        resolver: Resolver,
        targets: Targets,
        *,
        clock: Callable[[], datetime],
        connections: int,
    ) -> None:
        self._guard = guard
        self._resolver = resolver
        self._targets = targets
        self._clock = clock
        self._transport = Transport(guard, resolver, connections=connections)
        self._threads = ThreadPoolExecutor(_APPRISE_THREADS, thread_name_prefix="floatscope-apprise")

    async def send(self, parcel: Parcel) -> Answer:
        """One try."""
        try:
            if parcel.type == GENERIC:
                return await self._webhook(parcel)
            if parcel.type == APPRISE:
                return await self._apprise(parcel)
            return await self._chat(parcel)
        except ForbiddenAddressError as error:
            return Answer(error=str(error))
        except (TimeoutError, httpcore.TimeoutException):
            return Answer(error="no answer in time")
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ConnectError) as error:
            return Answer(error=f"no connection: {str(error) or type(error).__name__}")
        except Exception as error:  # noqa: BLE001 - logged, and kept with the delivery
            # It would be tried for ever otherwise. The trace has lines of code, not the address that is the secret.
            _log.exception("a message to endpoint %d could not be sent", parcel.endpoint_id)
            return Answer(error=f"the message could not be sent: {str(error) or type(error).__name__}"[:500])

    async def _webhook(self, parcel: Parcel) -> Answer:
        (row,) = parcel.rows
        now, body = self._clock(), row.body.encode()
        headers = signed_headers(parcel.secrets, row.event_id, body, now) | _HEADERS
        return plain(await self._transport.post(parcel.url, headers, body), now)

    async def _chat(self, parcel: Parcel) -> Answer:
        now = self._clock()
        secret = next(iter(active_secrets(parcel.secrets, now)), None)
        # In a thread: a thousand alerts take tens of milliseconds.
        url, body = await asyncio.to_thread(lambda: letter(parcel.type, parcel.url, secret, parcel.note, now))
        reply = await self._transport.post(url, _HEADERS, body, keep=_KEEP)
        return CHATS[parcel.type].answer(reply, now)

    async def _apprise(self, parcel: Parcel) -> Answer:
        name = parcel.url
        for host in self._targets.hosts(name):
            try:
                found = await self._resolver(host, 0)
            except (OSError, UnicodeError):
                continue  # the library will say that it cannot connect
            if not any(self._guard.permits(host, address) for address in found):
                raise ForbiddenAddressError(
                    f"{host} is at {', '.join(found)}, where messages may not go; an operator can allow it with "
                    "--webhook-allow (FLOATSCOPE_WEBHOOK_ALLOW)"
                )
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_APPRISE_S):
            return await loop.run_in_executor(self._threads, lambda: self._targets.send(name, parcel.note))

    async def close(self) -> None:
        """Close all connections. A thread that waits for a receiver is left to itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._transport.close()
