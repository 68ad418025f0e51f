"""``floatscope server --check-store`` and ``--repair-store``."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from floatscope_server.database import Database, reason
from floatscope_server.store.repair import Suspect, mend
from floatscope_server.store.soundness import findings

__all__ = ["check", "repair"]


def check(database: Database, say: Callable[[str], None]) -> int:
    """Say what is wrong with a store, a line for each; 1 if anything is."""
    found, _ = _look(database, say)
    if not found:
        say("nothing is damaged")
    return 1 if found else 0


def repair(database: Database, say: Callable[[str], None]) -> int:
    """Mend damaged tiles, and say so; 1 if anything is still wrong after that. ``StoreError`` beside a server."""
    with database.writer() as connection:
        _, suspects = _look(database, lambda _: None)
        for suspect in suspects:
            text = _mended(connection, suspect)
            if text is not None:
                say(text)
    return check(database, say)


def _look(database: Database, say: Callable[[str], None]) -> tuple[int, list[Suspect]]:
    """How many findings there are, and the tiles among them that can be mended."""
    found, suspects = 0, []
    reader = database.reader()
    try:
        reader.check()
        for finding in findings(reader):
            found += 1
            say(finding.text)
            if finding.suspect is not None:
                suspects.append(finding.suspect)
    except DBAPIError as error:
        # Pages that hold rows are damaged: nothing can be read beyond.
        found += 1
        say(f"the rest cannot be read: {reason(error)}")
    finally:
        reader.close()
    return found, suspects


def _mended(connection: Connection, suspect: Suspect) -> str | None:
    with connection.begin(), Session(connection) as session:
        mending = mend(session, suspect)
        if mending is None:
            return None
        mending.apply(session)
        session.commit()
        return mending.text
