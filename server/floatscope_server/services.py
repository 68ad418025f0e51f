"""The parts of a running server, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

import anyio.to_thread
from fastapi import Depends, Response
from sqlmodel import Session
from starlette.requests import HTTPConnection

from floatscope_server.agents import Agents
from floatscope_server.alerts.engine import AlertEngine
from floatscope_server.alerts.outbox import Outbox
from floatscope_server.alerts.receivers.targets import Targets, read_targets
from floatscope_server.auth import Gatekeeper
from floatscope_server.card_metrics import CardMetrics
from floatscope_server.database import utc
from floatscope_server.intake import Intake
from floatscope_server.live import LiveHub
from floatscope_server.query.answers import Answers, Flights, Tagged
from floatscope_server.query.layertable import LayerTables
from floatscope_server.query.memory import MemorySession, NotInMemoryError
from floatscope_server.query.once import remember
from floatscope_server.query.tails import Tails
from floatscope_server.query.window import TileReader
from floatscope_server.responses import busy
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from floatscope_server.store.keeper import Keeper
from floatscope_server.store.sealer import Sealer
from floatscope_server.store.series_thread import SeriesThread

__all__ = ["Running", "Services", "services_of"]

_T = TypeVar("_T")

_READS = 3
"""Questions answered at once. More would only take the interpreter from ingest: their work is Python's."""


_READ_WAIT_S = 5.0
"""For a turn; then the answer is 503."""


class Services:
    """Built without side effects; ``start`` opens the store and ``stop`` closes it. ``ValueError`` for a file of
    targets that is not sound."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.store = Store(settings, clock=clock)
        self.tails = Tails()
        self.series = SeriesThread(self.store)
        self.reader = TileReader(settings.cache_bytes)
        self.layers = LayerTables(lambda: self.store.layers_version, shared=settings.postgres)
        self.answers = Answers(settings.answer_bytes)
        self._flights = Flights()
        self.remembered = 0
        """How many were answered without the database."""
        self.store.present.keep = self.reader.frames.put
        self.live = LiveHub(self.store, settings)
        self.cards = CardMetrics(clock)
        self.alerts = AlertEngine(self.store, self.live, settings)
        self.sealer = Sealer(self.store, lost_after_s=settings.lost_after_s)
        self.keeper = Keeper(self.store)
        self.sealer.between = self.keeper.step
        self.reader.on_damaged = self.keeper.damaged
        addresses = {} if settings.apprise_file is None else read_targets(settings.apprise_file)
        self.targets = Targets(addresses)
        self.outbox = Outbox(self.store, settings, clock=lambda: utc(clock()), targets=self.targets)
        self.agents = Agents()
        self.gatekeeper = Gatekeeper(self.store, settings, clock=clock)
        self.intake = Intake(self.store, settings)
        self._turns = asyncio.Semaphore(_READS)
        self._threads = anyio.CapacityLimiter(_READS)

    def prepare(self) -> None:
        """Open the store; ``StoreError`` if that cannot be done. ``start`` does it if nobody has."""
        self.store.start()
        try:
            with self.store.database.understood():
                self.gatekeeper.start()
        except BaseException:
            self.store.stop()
            raise

    async def start(self) -> None:
        """Begin to serve, in the running event loop."""
        if not self.store.started:
            await asyncio.to_thread(self.prepare)
        self.live.start()
        self.store.observers += [self.live.observe, self.alerts.observe, self.cards.observe]
        self.agents.start()
        self.alerts.observers.append(self.agents.alert_fired)
        self.alerts.start()
        self.store.observers.append(self.sealer.observe)
        self.store.lagging = lambda: self.sealer.behind() or self.alerts.behind()
        self.sealer.start()
        self.series.start()
        await self.outbox.start()

    async def answer(self, question: Callable[[Session], _T], begun: Callable[[], None] = lambda: None) -> _T:
        """What ``question`` returns, asked in a thread with a session on one snapshot.

        Who waits for a turn holds neither thread nor connection; ``begun`` is called when it has come. ``Refusal``
        (503) if none comes in time.
        """
        try:
            async with asyncio.timeout(_READ_WAIT_S):
                await self._turns.acquire()
        except TimeoutError:
            raise busy() from None
        begun()
        try:
            return await anyio.to_thread.run_sync(self._ask, question, limiter=self._threads)
        finally:
            self._turns.release()

    async def shared(self, key: object, known: str, question: Callable[[Session], Tagged]) -> Response:
        """The response to ``question``, of which ``key`` has everything that was asked; ``known`` is the header
        If-None-Match. Those who ask the same at the same time get one answer."""

        def respond(session: Session) -> Response:
            return self.answers.respond(question(session), known)

        return await self._flights.ask((key, known), lambda begun: self.answer(respond, begun))

    async def newest(self, run: str, key: object, known: str, question: Callable[[Session], Tagged]) -> Response:
        """As ``shared``, for a question about what ``run`` has newest: from memory, if it is there."""
        version = self.layers.version()
        now = self.store.present.of(run)
        if now is not None:
            session = MemorySession(now)
            self.layers.attach(session, version)
            try:
                response = self.answers.respond(question(session), known)
            except NotInMemoryError:
                pass
            else:
                self.remembered += 1
                return response
        response = await self.shared(key, known, question)
        self.store.keep_present(run)
        return response

    def _ask(self, question: Callable[[Session], _T]) -> _T:
        # Before the snapshot: a layer that comes in between is then read once more, and not missed.
        version = self.layers.version()
        with self.store.read() as session:
            self.layers.attach(session, version)
            remember(session)
            return question(session)

    async def stop(self) -> None:
        """What agents have sent is committed and judged before the store closes."""
        await self.live.stop()
        await asyncio.to_thread(self.sealer.stop)
        await asyncio.to_thread(self.alerts.stop)
        await self.outbox.stop()
        await asyncio.to_thread(self.series.stop)
        await asyncio.to_thread(self.store.stop)


async def _running(connection: HTTPConnection) -> Services:
    # A coroutine: FastAPI calls a plain function in a thread, and there may be none free.
    return services_of(connection)


Running = Annotated[Services, Depends(_running)]


def services_of(connection: HTTPConnection) -> Services:
    """The services of the application that ``connection`` came to."""
    services = connection.app.state.services
    assert isinstance(services, Services)
    return services
