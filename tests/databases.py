"""The engines that a test of the store runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import text

from floatscope_server.database import database_of
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from tests.postgres import Cluster

__all__ = ["Databases", "Disk", "TestDatabase"]


class Databases:
    """A cluster of PostgreSQL in which a test has its databases in a moment: copies of an empty store."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._template = cluster.create()
        with database_of(Settings(db=cluster.url(self._template))).writer():
            pass

    def create(self) -> str:
        """The name of a new one."""
        return self.cluster.create(self._template)


class TestDatabase:
    """A database for each data folder that a test names."""

    __test__ = False

    def __init__(self, databases: Databases | None) -> None:
        self._databases = databases
        self._names: dict[Path, str] = {}

    def of(self, folder: Path) -> dict[str, Any]:
        """Options of ``Settings``."""
        if self._databases is None:
            return {"data": folder}
        if folder not in self._names:
            self._names[folder] = self._databases.create()
        return {"data": folder, "db": self._databases.cluster.url(self._names[folder])}

    def drop(self) -> None:
        """Remove what was made."""
        for name in self._names.values():
            assert self._databases is not None
            self._databases.cluster.drop(name)


class Disk:
    """The disk below a store, as its engine tells of it: every commit fails until it is ``well`` again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sqlite = not store.settings.postgres

    def full(self) -> None:
        """No room is left."""
        if self._sqlite:
            self._do("PRAGMA max_page_count=1")  # SQLite makes it the present size
        else:
            self._refuse("53100")

    def broken(self) -> None:
        """Nothing can be written."""
        if self._sqlite:
            self._do("CREATE TRIGGER broken BEFORE UPDATE ON writer BEGIN SELECT no_such_function(); END")
        else:
            self._refuse("58030")

    def well(self) -> None:
        """As before."""
        if self._sqlite:
            self._do(f"PRAGMA max_page_count={1 << 20}")
            self._do("DROP TRIGGER IF EXISTS broken")
        else:
            self._do("DROP TRIGGER broken ON writer")

    def _refuse(self, state: str) -> None:
        self._do(
            "CREATE OR REPLACE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'the disk' USING ERRCODE = '{state}'; END $$"
        )
        self._do("CREATE TRIGGER broken BEFORE UPDATE ON writer EXECUTE FUNCTION broken()")

    def _do(self, statement: str) -> None:
        self._store.write(lambda session: session.execute(text(statement)))
