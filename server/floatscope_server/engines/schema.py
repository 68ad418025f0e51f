"""Bringing the schema up to date, and telling whose database it is."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect
from sqlmodel import SQLModel

__all__ = ["StoreError", "head_revision", "migrate", "migration_config"]


class StoreError(Exception):
    """The store cannot be used; the text says what to do."""


class NoStoreError(StoreError):
    """There is none. ``fact`` is that alone, for who has other advice than the text."""

    def __init__(self, place: object, advice: str) -> None:
        self.fact = f"there is no floatscope store at {place}"
        super().__init__(f"{self.fact}{advice}")


def migration_config() -> Config:
    """Alembic's configuration; the scripts lie in this package."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    return config


def head_revision() -> str:
    """The newest schema this version knows."""
    head = ScriptDirectory.from_config(migration_config()).get_current_head()
    assert head is not None
    return head


def migrate(connection: Connection, title: str, another: str) -> None:
    """Upgrade inside the caller's transaction. ``another`` says how to choose another database.

    ``StoreError`` for the database of a newer floatscope, of another program, or without a table it should have.
    """
    config = migration_config()
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    tables = set(inspect(connection).get_table_names()) - {"alembic_version"}
    if current is not None and current not in known and "wal_frame" in tables:
        raise StoreError(
            f"{title} was written by a newer floatscope (schema {current}; this version knows up to "
            f"{scripts.get_current_head()}): upgrade floatscope, or {another}"
        )
    if current not in known and tables:
        raise StoreError(f"{title} is another program's (it has a table {min(tables)!r}): {another}")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if missing := sorted(SQLModel.metadata.tables.keys() - set(inspect(connection).get_table_names())):
        raise StoreError(f"{title} lacks the table {missing[0]!r}: restore a backup, or {another}")
