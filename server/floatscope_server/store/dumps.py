"""Checks a piece of a flight recorder's dump, as ``parts`` does for what is stored of the run itself."""

from __future__ import annotations

import re
import zlib

import msgspec
from sqlalchemy import Connection, insert, select
from sqlmodel import col

from floatscope import wire
from floatscope_server.database import utc
from floatscope_server.models import DumpPart
from floatscope_server.store.dump_room import is_removed, make_room
from floatscope_server.store.framed import framed
from floatscope_server.store.layermap import LayerMap
from floatscope_server.store.ledger import KnownRun, KnownWriter
from floatscope_server.store.parts import MAX_STEP, check_body

__all__ = ["store_dump"]

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_PARTS = 256
_MAX_KIND = 64
_MAX_BODIES = 1024
"""In one piece, that the writer thread reads in about 50 ms."""


def store_dump(
    connection: Connection,
    run: KnownRun,
    writer: KnownWriter,
    dump: wire.Dump,
    layer_map: LayerMap,
    newest: int | None,
    now: float,
    max_bytes: int,
) -> list[str]:
    """Write the piece with the run's layer numbers; why parts of it could not be.

    ``newest`` is the highest step of its attempt so far. Older dumps of the run go where all would be more than
    ``max_bytes``; a piece of one that went is noted, without its content.
    """
    if (reason := _unfit(dump)) is not None:
        return [reason]
    same = select(col(DumpPart.part)).where(
        col(DumpPart.run_id) == run.id,
        col(DumpPart.dump) == dump.id,
        col(DumpPart.writer) == writer.number,
        col(DumpPart.part) == dump.part,
    )
    if connection.execute(same).first() is not None:
        # What has come already stands: an agent that never got its answer sends it again.
        return []
    reasons: list[str] = []
    bodies: list[bytes] = []
    for data in dump.bodies:
        try:
            body = wire.decode_body(wire.Block(seq=0, crc=zlib.crc32(data), body=data))
        except wire.WireError:
            reasons.append("a step of a dump that cannot be read")
            continue
        checked = check_body(msgspec.structs.replace(body, layers=(), devices=(), dump=None), layer_map, newest)
        reasons += [f"in a dump: {reason}" for reason in checked.dropped]
        bodies.append(wire.encode(checked.body))
    data = framed(msgspec.msgpack.encode(bodies))
    if is_removed(connection, run, dump.id):
        data = b""
    elif not make_room(connection, run, dump.id, len(data), max_bytes):
        return [*reasons, f"a piece of a dump: the run's dumps may take {max_bytes} bytes"]
    row = {
        "run_id": run.id,
        "writer": writer.number,
        "attempt": writer.attempt,
        "rank": writer.rank,
        "dump": dump.id,
        "part": dump.part,
        "parts": dump.parts,
        "kind": dump.kind,
        "alert_id": dump.alert,
        "step": dump.step,
        "first_step": dump.first_step,
        "last_step": dump.last_step,
        "created_at": utc(now),
        "data": data,
    }
    connection.execute(insert(DumpPart), [row])
    return reasons


def _unfit(dump: wire.Dump) -> str | None:
    if not _ID.fullmatch(dump.id):
        return "a dump whose name is none"
    if not 0 < len(dump.kind) <= _MAX_KIND or not dump.kind.isprintable():
        return "a dump with a kind out of bounds"
    if not 1 <= dump.parts <= _MAX_PARTS or not 0 <= dump.part < dump.parts:
        return f"a dump of more than {_MAX_PARTS} pieces, or a piece beyond its last"
    if len(dump.bodies) > _MAX_BODIES:
        return f"a piece of a dump with more than {_MAX_BODIES} bodies"
    if dump.alert is not None and not 0 <= dump.alert < MAX_STEP:
        return "a dump for an alert out of range"
    if not all(0 <= step < MAX_STEP for step in (dump.step, dump.first_step, dump.last_step)):
        return "a dump with a step out of range"
    return None
