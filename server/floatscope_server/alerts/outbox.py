"""The outbox: rows that the engine wrote, delivered at least once each, under an id that never changes.

To a program each goes by itself. To a chat they go as fast as it takes them, and what waits meanwhile goes in one
message, which lists the worst and counts the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import groupby

from sqlalchemy import and_, or_, update
from sqlmodel import Session, col, select

from floatscope_server.alerts.connect import Guard, Resolver, resolve
from floatscope_server.alerts.models import Delivery, Endpoint
from floatscope_server.alerts.needs import Store
from floatscope_server.alerts.receivers import APPRISE_PACE, CHATS, GENERIC
from floatscope_server.alerts.receivers.pace import Bucket
from floatscope_server.alerts.receivers.targets import Targets
from floatscope_server.alerts.schedule import Verdict, decide
from floatscope_server.alerts.sending import Parcel, Row, Sender
from floatscope_server.database import trouble
from floatscope_server.settings import Settings

__all__ = ["GIVEN_UP_AT_MOST", "Outbox", "disable"]

_log = logging.getLogger(__name__)

_LEASE = timedelta(seconds=60)
_PER_ENDPOINT = 2
_PER_CHAT = 1
_AT_ONCE = 64
_GROUP = 1000
_STOP_S = 2.0
_WAITING = ("pending", "failed")

GIVEN_UP_AT_MOST = 10
"""Messages given up, each after the whole schedule of tries and without any success in between; then the endpoint is
disabled."""


class Outbox:
    """Delivers in the event loop; the database is used from threads.

    An endpoint has two tries under way at most, a chat one, so a slow one delays no other. ``clock`` says what is due
    and what is signed, ``poll_s`` how often to look, ``chance`` gives the jitter, ``targets`` what apprise may reach.
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
        targets: Targets | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._poll_s = poll_s
        self._chance = chance
        self._guard = Guard(settings.webhook_allow)
        self._resolver = resolver
        self._targets = Targets({}) if targets is None else targets
        self._sender: Sender | None = None
        self._main: asyncio.Task[None] | None = None
        self._tries: set[asyncio.Task[None]] = set()
        self._busy: Counter[int] = Counter()
        self._buckets: dict[int, Bucket] = {}
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Begin to deliver, with what the last run of the server left leased: its outcome is not known, so it is sent
        again. One server at a time holds the store."""
        self._stopping.clear()
        self._sender = Sender(self._guard, self._resolver, self._targets, clock=self._clock, connections=_AT_ONCE)
        await asyncio.to_thread(self._store.write, self._release)
        self._main = asyncio.create_task(self._run(), name="floatscope-outbox")

    async def stop(self) -> None:
        """End; what is under way gets a moment, and is sent again at the next start otherwise."""
        if self._main is None or self._sender is None:
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
        await self._sender.close()
        self._sender = None

    def _release(self, session: Session) -> None:
        session.execute(
            update(Delivery).where(col(Delivery.state) == "leased").values(state="failed", next_at=self._clock())
        )

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                while not self._stopping.is_set() and (parcels := await self._lease()):
                    for parcel in parcels:
                        self._busy[parcel.endpoint_id] += 1
                        if bucket := self._buckets.get(parcel.endpoint_id):
                            bucket.take(self._clock())
                        task = asyncio.create_task(self._deliver(parcel))
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

    async def _lease(self) -> list[Parcel]:
        free = _AT_ONCE - self._busy.total()
        if free <= 0:
            return []
        now = self._clock()
        full = {endpoint for endpoint, busy in self._busy.items() if busy >= self._most(endpoint)}
        full |= {endpoint for endpoint, bucket in self._buckets.items() if bucket.level(now) < 1.0}
        due = await asyncio.to_thread(self._due, full, now)
        # Those whose oldest has waited longest come first.
        due.sort(key=lambda found: found[2][0][0])
        chosen = [part for endpoint, type_, rows in due for part in self._parts(endpoint, type_, rows, now)][:free]
        if not chosen:
            return []
        return await asyncio.to_thread(self._store.write, lambda session: self._claim(session, chosen))

    def _most(self, endpoint: int) -> int:
        return _PER_CHAT if endpoint in self._buckets else _PER_ENDPOINT

    def _parts(
        self, endpoint: int, type_: str, rows: list[tuple[datetime, int]], now: datetime
    ) -> list[tuple[int, list[int]]]:
        """What of ``rows`` goes now, by messages."""
        ids = [identity for _, identity in rows]
        if type_ == GENERIC:
            return [(endpoint, [identity]) for identity in ids[: _PER_ENDPOINT - self._busy[endpoint]]]
        bucket = self._buckets.get(endpoint)
        if bucket is None:
            pace = CHATS[type_].pace if type_ in CHATS else APPRISE_PACE
            bucket = self._buckets[endpoint] = Bucket(pace, now)
        # Single alerts are better reading; a list once there are more than may be sent.
        return [(endpoint, ids[:1] if len(ids) <= bucket.level(now) else ids)]

    def _due(self, full: set[int], now: datetime) -> list[tuple[int, str, list[tuple[datetime, int]]]]:
        """(endpoint, its type, [(since when due, delivery)], the first due first) of what may be tried now."""
        found: list[tuple[int, str, list[tuple[datetime, int]]]] = []
        with self._store.read() as session:
            endpoints = session.exec(select(Endpoint.id, Endpoint.type).where(Endpoint.enabled)).all()
            for endpoint, type_ in endpoints:
                if endpoint is None or endpoint in full:
                    continue
                rows = session.exec(
                    select(Delivery.next_at, Delivery.id)
                    .where(
                        Delivery.endpoint_id == endpoint,
                        # Said once more: without it SQLite reads the endpoint's whole log.
                        col(Delivery.state).in_((*_WAITING, "leased")),
                        or_(
                            and_(col(Delivery.state).in_(_WAITING), col(Delivery.next_at) <= now),
                            and_(col(Delivery.state) == "leased", col(Delivery.lease_until) <= now),
                        ),
                    )
                    .order_by(col(Delivery.next_at), col(Delivery.id))
                    .limit(_PER_ENDPOINT if type_ == GENERIC else _GROUP)
                ).all()
                if due := [(at, identity) for at, identity in rows if identity is not None]:
                    found.append((endpoint, type_, due))
        return found

    def _claim(self, session: Session, chosen: list[tuple[int, list[int]]]) -> list[Parcel]:
        now = self._clock()
        parcels: list[Parcel] = []
        for endpoint_id, ids in chosen:
            endpoint = session.get(Endpoint, endpoint_id)
            if endpoint is None or not endpoint.enabled:
                continue
            query = select(Delivery).where(col(Delivery.id).in_(ids), col(Delivery.state).in_((*_WAITING, "leased")))
            rows: list[Row] = []
            for row in session.exec(query.order_by(col(Delivery.id))):
                row.state, row.lease_until, row.tries = "leased", now + _LEASE, row.tries + 1
                session.add(row)
                assert row.id is not None
                rows.append(Row(id=row.id, event_id=row.event_id, body=row.body, tries=row.tries))
            if rows:
                parcels.append(
                    Parcel(
                        endpoint_id=endpoint_id,
                        type=endpoint.type,
                        language=endpoint.language,
                        url=endpoint.url,
                        secrets=list(endpoint.secrets),
                        rows=tuple(rows),
                        lease_until=now + _LEASE,
                    )
                )
        return parcels

    async def _deliver(self, parcel: Parcel) -> None:
        assert self._sender is not None
        try:
            answer = await self._sender.send(parcel)
            now, chance = self._clock(), self._chance()
            if answer.wait_s and (bucket := self._buckets.get(parcel.endpoint_id)):
                bucket.hold(now + timedelta(seconds=answer.wait_s))
            verdicts = {tries: decide(tries, answer, now, chance) for tries in {row.tries for row in parcel.rows}}
            await asyncio.to_thread(self._store.write, lambda session: self._settle(session, parcel, verdicts))
        except Exception:  # noqa: BLE001 - logged
            _log.exception("a message to endpoint %d could not be settled; it is sent again", parcel.endpoint_id)
        finally:
            self._busy[parcel.endpoint_id] -= 1
            self._freed.set()

    def _settle(self, session: Session, parcel: Parcel, verdicts: dict[int, Verdict]) -> None:
        now = self._clock()
        settled: list[Verdict] = []
        by_tries = sorted(parcel.rows, key=lambda row: row.tries)
        for tries, rows in groupby(by_tries, key=lambda row: row.tries):
            verdict = verdicts[tries]
            # Only the try that holds the lease may say how it ended; a redelivery asked for meanwhile stands.
            changed = session.execute(
                update(Delivery)
                .where(
                    col(Delivery.id).in_([row.id for row in rows]),
                    col(Delivery.state) == "leased",
                    col(Delivery.tries) == tries,
                    col(Delivery.lease_until) == parcel.lease_until,
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
            if changed.rowcount:  # type: ignore[attr-defined]
                settled.append(verdict)
        endpoint = session.get(Endpoint, parcel.endpoint_id)
        if endpoint is None or not settled:
            return
        if not endpoint.enabled:
            # It was disabled meanwhile, when this was under way and did not count as waiting.
            _give_up(session, endpoint, now)
            return
        if any(verdict.state == "ok" for verdict in settled):
            endpoint.given_up = 0
        elif dead := next((verdict for verdict in settled if verdict.state == "dead"), None):
            endpoint.given_up += 1
            if dead.disable or endpoint.given_up >= GIVEN_UP_AT_MOST:
                many = "" if dead.disable else f"{endpoint.given_up} messages in a row were given up; the last: "
                disable(session, endpoint, f"{many}{dead.error}", now)
        session.add(endpoint)


def disable(session: Session, endpoint: Endpoint, reason: str, now: datetime) -> None:
    """Send nothing to ``endpoint`` any more; what waits for it is given up."""
    endpoint.enabled, endpoint.disabled_reason = False, reason
    session.add(endpoint)
    _give_up(session, endpoint, now)


def _give_up(session: Session, endpoint: Endpoint, now: datetime) -> None:
    session.execute(
        update(Delivery)
        .where(col(Delivery.endpoint_id) == endpoint.id, col(Delivery.state).in_(_WAITING))
        .values(state="dead", error="the endpoint is disabled", done_at=now)
    )
