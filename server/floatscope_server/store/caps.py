"""How many series and cards a run may have: names cost memory and rows for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from sqlalchemy import Connection

from floatscope import wire
from floatscope_server.database import upsert
from floatscope_server.models import DeviceFacts
from floatscope_server.store.ledger import KnownRun, KnownWriter
from floatscope_server.store.shapes import FACTS

__all__ = ["MAX_DEVICES", "MAX_SERIES", "note_devices", "within_caps"]

MAX_SERIES = 20_000
"""Scalars of an attempt, over its ranks: 1024 ranks with 19 each."""

MAX_DEVICES = 4096
"""Cards of an attempt, counted once for each rank that reads one."""


def within_caps(run: KnownRun, writer: KnownWriter, body: wire.Body) -> tuple[wire.Body, Counter[str]]:
    """``body`` without new series and cards that are too many, and how many those were for each reason."""
    left_out: Counter[str] = Counter()
    room = MAX_SERIES - run.series_in[writer.attempt]
    scalars: list[wire.Scalars] = []
    fresh: set[str] = set()
    for series in body.scalars:
        if (writer.attempt, writer.rank, series.name) not in run.series and series.name not in fresh:
            if len(fresh) >= room:
                left_out[f"more than {MAX_SERIES} scalar series in one attempt"] += 1
                continue
            fresh.add(series.name)
        scalars.append(series)
    known = {key[2:] for key in run.devices if key[:2] == (writer.attempt, writer.rank)} if body.devices else set()
    full = MAX_DEVICES - sum(key[0] == writer.attempt for key in run.devices) if body.devices else 0
    devices: list[wire.Device] = []
    for device in body.devices:
        key = device.backend, device.index
        if key not in known:
            if full <= 0:
                left_out[f"more than {MAX_DEVICES} cards in one attempt"] += 1
                continue
            full -= 1
            known.add(key)
        devices.append(device)
    if not left_out:
        return body, left_out
    return msgspec.structs.replace(body, scalars=tuple(scalars), devices=tuple(devices)), left_out


def note_devices(connection: Connection, run: KnownRun, writer: KnownWriter, devices: Iterable[wire.Device]) -> None:
    """Store what stays the same of the cards, where it is new."""
    for device in devices:
        key = writer.attempt, writer.rank, device.backend, device.index
        known = run.devices.get(key, (None,) * len(FACTS))
        # Most readings are without those that are read seldom, which makes them no less true.
        told = (getattr(device, fact) for fact in FACTS)
        facts = {fact: old if new is None else new for fact, new, old in zip(FACTS, told, known, strict=True)}
        if key in run.devices and known == tuple(facts.values()):
            continue
        run.devices[key] = tuple(facts.values())
        whose = dict(zip(("attempt", "rank", "backend", "idx"), key, strict=True))
        statement = upsert(connection, DeviceFacts).values(run_id=run.id, **whose, **facts)
        connection.execute(statement.on_conflict_do_update(index_elements=["run_id", *whose], set_=facts))
