"""A copy is made beside a running server; a server on the copy has a new epoch."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from floatscope import wire
from floatscope_server.database import StoreError, database_of
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from tests.databases import TestDatabase
from tests.server.conftest import Make, MakeAgent, MakePen, OpenStore, Running
from tests.server.programs import Command


def _restored(copy: Path, fresh: Settings, program: Callable[[str], str]) -> None:
    """As docs/storage.md says."""
    if fresh.postgres:
        assert fresh.db is not None
        subprocess.run(
            [program("pg_restore"), "--no-owner", "--clean", "--if-exists", f"--dbname={fresh.db}", copy], check=True
        )
    else:
        fresh.data.mkdir()
        copy.rename(fresh.database)


def test_a_copy_of_a_store_in_use_is_a_store_with_an_epoch_of_its_own(
    open_store: OpenStore,
    pen: MakePen,
    make: Make,
    tmp_path: Path,
    database: TestDatabase,
    program: Callable[[str], str],
) -> None:
    store = open_store()
    if store.settings.postgres:
        program("pg_dump")
    one = pen(store)
    for step in range(3):
        assert isinstance(one.deliver(wire.Body(scalars=(make.scalars("loss", step, [1.0]),))), wire.Ack)
    copy = store.database.backup(tmp_path)
    assert copy.parent == tmp_path
    assert copy.stat().st_mode & 0o777 == 0o600
    # What comes after the copy is not in it.
    assert isinstance(one.deliver(wire.Body(scalars=(make.scalars("loss", 3, [1.0]),))), wire.Ack)
    fresh = Settings(**database.of(tmp_path / "fresh"))
    _restored(copy, fresh, program)
    again = Store(fresh)
    again.start()
    try:
        assert again.epoch != store.epoch
        two = pen(again, writer=one.writer)
        assert two.seq == 3
        # The agent sends again what it has beyond that.
        assert isinstance(two.deliver(wire.Body(scalars=(make.scalars("loss", 3, [1.0]),))), wire.Ack)
        epoch = again.epoch
        again.stop()
        again.start()
        assert again.epoch == epoch
    finally:
        again.stop()


def test_a_start_keeps_the_epoch(open_store: OpenStore) -> None:
    store = open_store()
    epoch = store.epoch
    store.stop()
    store.start()
    assert store.epoch == epoch


@pytest.mark.engines("sqlite")
def test_the_command_copies_beside_a_running_server(
    server: Running, agent: MakeAgent, make: Make, command: Callable[..., Command], tmp_path: Path
) -> None:
    one = agent()
    one.deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.0]),)))
    target = tmp_path / "copy.db"
    data = str(tmp_path / "data")
    assert command("server", "--data", data, "--backup", str(target)).finish() == (0, f"copied to {target}\n", "")
    assert sorted(path.name for path in tmp_path.glob("copy.db*")) == ["copy.db"]
    with closing(sqlite3.connect(target)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert raw.execute("SELECT count(*) FROM wal_frame").fetchone() == (1,)
        assert raw.execute("PRAGMA page_size").fetchone() == (8192,)
        assert raw.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    # The server goes on.
    assert isinstance(one.deliver(wire.Body(scalars=(make.scalars("loss", 1, [1.0]),))), wire.Ack)
    status, out, err = command("server", "--data", data, "--backup", str(target)).finish()
    assert (status, out) == (2, "")
    assert err == f"floatscope: {target} exists: a backup replaces nothing; name another file\n"


@pytest.mark.engines("sqlite")
def test_what_cannot_be_copied_is_one_line(open_store: OpenStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no floatscope store"):
        database_of(Settings(data=tmp_path / "none")).backup(tmp_path)
    store = open_store()
    with pytest.raises(StoreError, match="cannot write"):
        store.database.backup(tmp_path / "nowhere" / "copy.db")
    store.stop()
    damaged = store.settings.database
    content = bytearray(damaged.read_bytes())
    content[3 * 8192 : 5 * 8192] = os.urandom(2 * 8192)
    damaged.write_bytes(content)
    with pytest.raises(StoreError, match=r"is damaged|cannot copy"):
        store.database.backup(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
