"""An outbox on a store with a clock that stands still until it is told to move."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlmodel import Session, col, func, select

from floatscope_server.alerts.models import Delivery, Endpoint
from floatscope_server.alerts.outbox import Outbox
from floatscope_server.alerts.signing import first_secrets
from floatscope_server.settings import Settings
from floatscope_server.store import Store

__all__ = ["Bench", "Clock"]

DEADLINE_S = 60.0
# A look that finds nothing asks the clock once, a message up to six times.
_LOOKS = 8


class Clock:
    """Stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.asked = 0

    def __call__(self) -> datetime:
        self.asked += 1
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Bench:
    """An outbox on a store, and rows to deliver."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store, self.settings, self.clock = store, settings, Clock()

    def endpoint(self, url: str, **options: Any) -> Endpoint:  # noqa: ANN401 - of Endpoint
        def add(session: Session) -> Endpoint:
            row = Endpoint(**{"url": url, "secrets": first_secrets(None), "created_at": self.clock(), **options})
            session.add(row)
            session.flush()
            return row

        return self.store.write(add)

    def row(self, endpoint: Endpoint, event_id: str, *, state: str = "firing", **data: Any) -> None:  # noqa: ANN401
        """One delivery, of an alert with ``data``."""
        self.rows_for(endpoint, [(event_id, state, data)])

    def rows_for(self, endpoint: Endpoint, events: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Deliveries of (event, state, data of the alert), in one transaction."""
        assert endpoint.id is not None
        alert = {"run": "demo", "kind": "nonfinite", "severity": "critical", "message": "NaN", "message_zh": "溢出"}
        made = [
            Delivery(
                endpoint_id=endpoint.id,
                event_id=event_id,
                type=f"alert.{state}",
                body=json.dumps({"type": f"alert.{state}", "data": alert | data}, ensure_ascii=False),
                next_at=self.clock(),
                created_at=self.clock(),
            )
            for event_id, state, data in events
        ]
        self.store.write(lambda session: session.add_all(made))

    def rows(self) -> list[Delivery]:
        with self.store.read() as session:
            return list(session.exec(select(Delivery).order_by(col(Delivery.id))))

    def states(self) -> list[str]:
        return [row.state for row in self.rows()]

    def deliver(self, act: Callable[[], Awaitable[None]], **options: Any) -> None:  # noqa: ANN401 - of Outbox
        """Run ``act`` while the outbox delivers."""

        async def main() -> None:
            outbox = Outbox(self.store, self.settings, clock=self.clock, poll_s=0.01, chance=lambda: 0.0, **options)
            await outbox.start()
            try:
                await act()
            finally:
                await outbox.stop()

        asyncio.run(main())

    async def quiet(self) -> None:
        """Until the outbox has looked several times at this time of its clock and has nothing under way."""
        enough = self.clock.asked + _LOOKS

        def idle() -> bool:
            with self.store.read() as session:
                leased = session.exec(select(func.count()).where(col(Delivery.state) == "leased")).one()
            return leased == 0 and self.clock.asked >= enough

        await self.until(idle)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not await asyncio.to_thread(condition):
                await asyncio.sleep(0.005)
