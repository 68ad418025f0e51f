"""The outbox: rows that the engine wrote, delivered at least once each, under an id that never changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpcore
from sqlalchemy import and_, or_, update
from sqlmodel import Session, col, select

from floatscope_server.alerts.connect import ForbiddenAddressError, Guard, Reply, Resolver, Transport, resolve
from floatscope_server.alerts.engine import Store
from floatscope_server.alerts.models import Delivery, Endpoint
from floatscope_server.alerts.schedule import Verdict, decide
from floatscope_server.alerts.signing import signed_headers
from floatscope_server.database import trouble
from floatscope_server.settings import Settings

__all__ = ["Outbox"]

_log = logging.getLogger(__name__)

_LEASE = timedelta(seconds=60)
_PER_ENDPOINT = 2
_AT_ONCE = 64
_STOP_S = 2.0
_WAITING = ("pending", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leased:
    id: int
    endpoint_id: int
    event_id: str
    body: bytes
    tries: int
    url: str
    secrets: list[dict[str, Any]]


class Outbox:
    """Delivers in the event loop; the database is used from threads.

    An endpoint has two tries under way at most, so a slow one delays no other. ``clock`` says what is due and what is
    signed, ``poll_s`` how often to look, ``chance`` gives the jitter.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        resolver: Resolver = resolve,
        poll_s: float = 0.5,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._clock = clock
        self._poll_s = poll_s
        self._chance = chance
        self._guard = Guard(settings.webhook_allow)
        self._resolver = resolver
        self._transport: Transport | None = None
        self._main: asyncio.Task[None] | None = None
        self._tries: set[asyncio.Task[None]] = set()
        self._busy: Counter[int] = Counter()
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Begin to deliver, with what the last run of the server left leased: its outcome is not known, so it is sent
        again. One server at a time holds the store."""
        self._stopping.clear()
        self._transport = Transport(self._guard, self._resolver, connections=_AT_ONCE)
        await asyncio.to_thread(self._store.write, self._release)
        self._main = asyncio.create_task(self._run(), name="floatscope-outbox")

    async def stop(self) -> None:
        """End; what is under way gets a moment, and is sent again at the next start otherwise."""
        if self._main is None or self._transport is None:
            return
        self._stopping.set()
        self._freed.set()
        await self._main
        self._main = None
        if self._tries:
            await asyncio.wait(self._tries, timeout=_STOP_S)
        for task in self._tries:
            task.cancel()
        await asyncio.gather(*self._tries, return_exceptions=True)
        await self._transport.close()
        self._transport = None

    def _release(self, session: Session) -> None:
        session.execute(
            update(Delivery).where(col(Delivery.state) == "leased").values(state="failed", next_at=self._clock())
        )

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                while not self._stopping.is_set() and (leased := await self._lease()):
                    for delivery in leased:
                        self._busy[delivery.endpoint_id] += 1
                        task = asyncio.create_task(self._deliver(delivery))
                        self._tries.add(task)
                        task.add_done_callback(self._tries.discard)
            except Exception as error:  # noqa: BLE001 - logged
                # The reason is the database's, and the log of the store has it; no trace for each try.
                known = trouble(error) is not None
                _log.error("the outbox could not be read; trying again", exc_info=None if known else error)
            if self._stopping.is_set():
                return
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._freed.wait()

    async def _lease(self) -> list[_Leased]:
        free = _AT_ONCE - self._busy.total()
        if free <= 0:
            return []
        full = [endpoint for endpoint, busy in self._busy.items() if busy >= _PER_ENDPOINT]
        due = await asyncio.to_thread(self._due, full)
        chosen: list[int] = []
        taken = Counter(self._busy)
        for delivery, endpoint in due:
            if taken[endpoint] < _PER_ENDPOINT and len(chosen) < free:
                taken[endpoint] += 1
                chosen.append(delivery)
        if not chosen:
            return []
        return await asyncio.to_thread(self._store.write, lambda session: self._claim(session, chosen))

    def _due(self, full: list[int]) -> list[tuple[int, int]]:
        """(delivery, endpoint) of what may be tried now."""
        now = self._clock()
        with self._store.read() as session:
            rows = session.exec(
                select(Delivery.id, Delivery.endpoint_id)
                .join(Endpoint, col(Endpoint.id) == col(Delivery.endpoint_id))
                .where(
                    Endpoint.enabled,
                    col(Delivery.endpoint_id).not_in(full),
                    or_(
                        and_(col(Delivery.state).in_(_WAITING), col(Delivery.next_at) <= now),
                        and_(col(Delivery.state) == "leased", col(Delivery.lease_until) <= now),
                    ),
                )
                .order_by(col(Delivery.next_at), col(Delivery.id))
                .limit(4 * _AT_ONCE)
            ).all()
        return [(delivery, endpoint) for delivery, endpoint in rows if delivery is not None]

    def _claim(self, session: Session, chosen: list[int]) -> list[_Leased]:
        now = self._clock()
        leased: list[_Leased] = []
        for identity in chosen:
            row = session.get(Delivery, identity)
            endpoint = None if row is None else session.get(Endpoint, row.endpoint_id)
            if row is None or endpoint is None or not endpoint.enabled or row.state not in (*_WAITING, "leased"):
                continue
            row.state, row.lease_until, row.tries = "leased", now + _LEASE, row.tries + 1
            session.add(row)
            leased.append(
                _Leased(
                    id=identity,
                    endpoint_id=row.endpoint_id,
                    event_id=row.event_id,
                    body=row.body.encode(),
                    tries=row.tries,
                    url=endpoint.url,
                    secrets=list(endpoint.secrets),
                )
            )
        return leased

    async def _deliver(self, delivery: _Leased) -> None:
        try:
            answer = await self._try(delivery)
            verdict = decide(delivery.tries, answer, self._clock(), self._chance())
            await asyncio.to_thread(self._store.write, lambda session: self._settle(session, delivery, verdict))
        except Exception:  # noqa: BLE001 - logged
            _log.exception("delivery %d could not be settled; it is sent again after its lease", delivery.id)
        finally:
            self._busy[delivery.endpoint_id] -= 1
            self._freed.set()

    async def _try(self, delivery: _Leased) -> Reply | str:
        assert self._transport is not None
        headers: dict[str | bytes, str | bytes] = {}
        try:
            headers.update(signed_headers(delivery.secrets, delivery.event_id, delivery.body, self._clock()))
            headers |= {"content-type": "application/json", "user-agent": "floatscope-webhooks"}
            return await self._transport.post(delivery.url, headers, delivery.body)
        except ForbiddenAddressError as error:
            return str(error)
        except (TimeoutError, httpcore.TimeoutException):
            return "no answer in time"
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ConnectError) as error:
            return f"no connection: {str(error) or type(error).__name__}"
        except Exception as error:  # noqa: BLE001 - logged, and kept with the delivery
            # Whatever a receiver or its address provokes is the outcome of this try, or it would be tried for ever.
            _log.exception("a webhook could not be sent")
            return f"the webhook could not be sent: {str(error) or type(error).__name__}"[:500]

    def _settle(self, session: Session, delivery: _Leased, verdict: Verdict) -> None:
        now = self._clock()
        # Only the try that holds the lease may say how it ended; a redelivery asked for meanwhile stands.
        changed = session.execute(
            update(Delivery)
            .where(
                col(Delivery.id) == delivery.id,
                col(Delivery.state) == "leased",
                col(Delivery.tries) == delivery.tries,
            )
            .values(
                state=verdict.state,
                http_status=verdict.status,
                error=verdict.error,
                next_at=now if verdict.next_at is None else verdict.next_at,
                lease_until=None,
                done_at=None if verdict.state == "failed" else now,
            )
        )
        if not verdict.disable or changed.rowcount == 0:  # type: ignore[attr-defined]
            return
        endpoint = session.get(Endpoint, delivery.endpoint_id)
        if endpoint is not None:
            endpoint.enabled, endpoint.disabled_reason = False, verdict.error
            session.add(endpoint)
        session.execute(
            update(Delivery)
            .where(col(Delivery.endpoint_id) == delivery.endpoint_id, col(Delivery.state).in_(_WAITING))
            .values(state="dead", error="the endpoint is disabled", done_at=now)
        )
