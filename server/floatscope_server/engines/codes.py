"""What the error codes of both engines mean to the server."""

from __future__ import annotations

import sqlite3
from enum import Enum

__all__ = ["Trouble", "of_sqlite", "of_sqlstate"]


class Trouble(Enum):
    """What stands in the way of a statement that is right: once it is gone, the same works."""

    FULL = "the disk is full"
    CONNECTIONS = "no connection is free"
    READ_ONLY = "it cannot be written"
    DAMAGED = "it is damaged"
    LOST = "the connection is lost"
    BUSY = "it is in use"
    OTHER = "it failed"


_SQLITE = {
    sqlite3.SQLITE_FULL: Trouble.FULL,
    sqlite3.SQLITE_CANTOPEN: Trouble.OTHER,
    sqlite3.SQLITE_READONLY: Trouble.READ_ONLY,
    sqlite3.SQLITE_CORRUPT: Trouble.DAMAGED,
    sqlite3.SQLITE_NOTADB: Trouble.DAMAGED,
    sqlite3.SQLITE_BUSY: Trouble.BUSY,
    sqlite3.SQLITE_LOCKED: Trouble.BUSY,
    sqlite3.SQLITE_IOERR: Trouble.OTHER,
}

# https://www.postgresql.org/docs/15/errcodes-appendix.html
_STATES = {
    "53100": Trouble.FULL,
    "53300": Trouble.CONNECTIONS,
    "25006": Trouble.READ_ONLY,
    "42501": Trouble.READ_ONLY,
    "40001": Trouble.BUSY,
    "40P01": Trouble.BUSY,
    "55P03": Trouble.BUSY,
}
_CLASSES = {
    "08": Trouble.LOST,
    "53": Trouble.OTHER,
    "57": Trouble.LOST,
    "58": Trouble.OTHER,
    "F0": Trouble.OTHER,
    "XX": Trouble.DAMAGED,
}


def of_sqlite(code: int | None, *, operational: bool) -> Trouble | None:
    """By the primary code. ``operational``: the driver calls it an OperationalError."""
    found = None if code is None else _SQLITE.get(code & 0xFF)
    return found or (Trouble.OTHER if operational else None)


def of_sqlstate(state: str | None, *, operational: bool) -> Trouble | None:
    """By the SQLSTATE; there is none where the server was not reached."""
    if state is None:
        return Trouble.LOST if operational else None
    return _STATES.get(state) or _CLASSES.get(state[:2]) or (Trouble.OTHER if operational else None)
