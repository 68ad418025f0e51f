"""Kills an outbox at every point of every transaction of its deliveries, in forked children, then lets one live.

Run as a program: ``python -m tests.server.alerts.delivery_kill_points FOLDER URL``, the receiver being somebody else's.
Prints as JSON where each run was killed and how its deliveries ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from pathlib import Path

from sqlmodel import col, select

from floatscope_server.alerts.models import Delivery
from floatscope_server.alerts.outbox import Outbox
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from tests.server.alerts.kill_points import Deadly, kills
from tests.server.alerts.outboxes import Bench

SECRET = "whsec_" + "QUJD" * 10
KINDS = ("generic", "slack", "feishu")
STATES = ("firing", "resolved")


def _settings(folder: Path) -> Settings:
    return Settings(data=folder, webhook_allow=("127.0.0.1",))


def _serve(url: str, folder: Path, number: int, point: str) -> None:
    """An outbox from its start until everything is delivered."""
    store = Store(_settings(folder))
    store.start()
    bench = Bench(store, _settings(folder))
    if not bench.rows():
        for kind in KINDS:
            key = [] if kind == "slack" else [{"secret": SECRET, "until": None}]
            endpoint = bench.endpoint(f"{url}/{kind}", type=kind, secrets=key)
            names = [f"{folder.name}.{kind}.{state}" for state in STATES]
            bench.rows_for(
                endpoint,
                [
                    (f"evt_{name}", state, {"id": alert, "run": name})
                    for alert, (name, state) in enumerate(zip(names, STATES, strict=True))
                ],
            )

    async def deliver() -> None:
        outbox = Outbox(Deadly(store, number, point), _settings(folder), poll_s=0.005)
        await outbox.start()
        await bench.until(lambda: set(bench.states()) == {"ok"})
        await outbox.stop()

    asyncio.run(deliver())
    store.stop()


def _ended(folder: Path) -> list[list[str]]:
    store = Store(_settings(folder))
    store.start()
    with store.read() as session:
        rows = session.exec(select(Delivery).order_by(col(Delivery.id))).all()
    store.stop()
    return [[row.event_id, row.state] for row in rows]


def main(folder: Path, url: str) -> None:
    # Before a write is after the one before it.
    runs = kills(folder, partial(_serve, url), points=("inside", "after"))
    found = [{"run": data.name, "killed": killed, "ended": _ended(data)} for data, _, _, killed in runs]
    print(json.dumps(found))  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
