"""The SQLite file: schema, discipline, and what is refused."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlmodel import SQLModel

import floatscope_server.access
import floatscope_server.alerts.models
import floatscope_server.models  # noqa: F401
from floatscope_server.database import StoreError
from floatscope_server.engines.schema import head_revision
from floatscope_server.engines.sqlite import SQLite, lock_folder
from floatscope_server.models import Meta
from floatscope_server.offline import read_runs
from floatscope_server.settings import Settings
from floatscope_server.store import Store


def test_the_migrated_schema_is_that_of_the_models(tmp_path: Path) -> None:
    with SQLite(tmp_path / "a.db").writer() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []


def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with SQLite(path).writer() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0999_future'"))
        connection.commit()
    with pytest.raises(StoreError, match=r"newer floatscope \(schema 0999_future.*upgrade"), SQLite(path).writer():
        pass
    reader = SQLite(path).reader()
    with pytest.raises(StoreError, match="0999_future"):
        reader.check()
    reader.close()


def test_opening_again_keeps_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for _ in range(2):
        with SQLite(path).writer() as connection:
            assert MigrationContext.configure(connection).get_current_revision() == head_revision()


def test_durability_is_what_the_acknowledgement_promises(tmp_path: Path) -> None:
    with SQLite(tmp_path / "a.db").writer() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "page_size", "auto_vacuum", "foreign_keys")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "page_size": 8192, "auto_vacuum": 2, "foreign_keys": 1}


def test_readers_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with SQLite(path).writer():
        reader = SQLite(path).reader()
        with reader.session() as session, pytest.raises(OperationalError, match="readonly"):
            session.execute(text("DELETE FROM run"))
        reader.close()


def test_a_reader_sees_one_snapshot_while_the_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with SQLite(path).writer() as connection:
        reader = SQLite(path).reader()
        with reader.session() as session:
            count = text("SELECT count(*) FROM meta")
            assert session.execute(count).scalar() == 0
            connection.rollback()
            with connection.begin():
                connection.execute(text("INSERT INTO meta VALUES ('a', 'b')"))
            assert session.execute(count).scalar() == 0
        with reader.session() as session:
            assert session.execute(count).scalar() == 1
        reader.close()


def test_a_disk_that_is_full_at_the_end_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.db"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with SQLite(path).writer() as connection, connection.begin():
            connection.execute(text("INSERT INTO meta VALUES ('a', :value)"), {"value": "b" * 1_000_000})
            connection.commit()
            # The file has no room for what is in the WAL.
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the WAL could not be brought into the database" in caplog.text
    with SQLite(path).writer() as connection:
        assert connection.execute(text("SELECT length(value) FROM meta WHERE key = 'a'")).scalar() == 1_000_000


def test_a_full_disk_at_the_start_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        found = pytest.raises(StoreError, match=r"^cannot use the database .*a\.db: .*; choose another folder")
        with found, SQLite(tmp_path / "a.db").writer():
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_two_servers_on_one_folder_are_refused(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    with pytest.raises(StoreError, match="another floatscope server is using"):
        lock_folder(tmp_path)
    os.close(lock)
    os.close(lock_folder(tmp_path))


def test_a_folder_that_cannot_be_made_is_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write in the data folder .* --data DIR"):
        lock_folder(tmp_path / "file" / "data")


def test_a_file_that_is_no_database_is_a_clear_message(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="file is not a database"), SQLite(path).writer():
        pass


def test_names_with_odd_characters_are_paths_not_options(tmp_path: Path) -> None:
    folder = tmp_path / "a?mode=memory#x%41"
    folder.mkdir()
    with SQLite(folder / "a.db").writer():
        assert (folder / "a.db").is_file()
    SQLite(folder / "a.db").reader().close()


def test_the_linked_sqlite_keeps_what_we_rely_on() -> None:
    # ON CONFLICT DO UPDATE and read-only WAL readers.
    assert sqlite3.sqlite_version_info >= (3, 24, 0)


def _made(path: Path) -> Path:
    with SQLite(path).writer():
        pass
    return path


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "floatscope.db"
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE run (id INT)")
        raw.commit()
    with pytest.raises(StoreError, match="another program's"), SQLite(path).writer():
        pass
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("run",)]


@pytest.mark.parametrize("table", ["run", "wal_frame", "endpoint", "meta"])
def test_a_database_that_lacks_a_table_is_a_clear_message(tmp_path: Path, table: str) -> None:
    path = _made(tmp_path / "floatscope.db")
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"DROP TABLE {table}")
        raw.commit()
    with pytest.raises(StoreError, match=f"lacks the table '{table}'"), SQLite(path).writer():
        pass


@pytest.mark.parametrize("start", [100, 8192, 2 * 8192])
def test_a_damaged_database_is_one_line(tmp_path: Path, start: int) -> None:
    path = _made(tmp_path / "floatscope.db")
    content = bytearray(path.read_bytes())
    content[start:] = bytes(len(content) - start)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"cannot (use|open) the database|lacks the table"):
        Store(Settings(data=tmp_path)).start()
    with pytest.raises(StoreError):
        read_runs(Settings(data=tmp_path))


def test_a_quiet_server_brings_its_wal_into_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., None]
) -> None:
    monkeypatch.setattr("floatscope_server.store.store._CHECKPOINT_S", 0.0)
    store = Store(Settings(data=tmp_path / "data"))
    store.start()
    try:
        store.write(lambda session: session.add(Meta(key="fact", value="kept")))

        def kept() -> bool:
            # The file alone, as if the WAL were lost.
            (tmp_path / "copy.db").write_bytes((tmp_path / "data" / "floatscope.db").read_bytes())
            with closing(sqlite3.connect(tmp_path / "copy.db")) as raw:
                try:
                    return raw.execute("SELECT 1 FROM meta WHERE key = 'fact'").fetchone() is not None
                except sqlite3.DatabaseError:
                    return False

        wait_for(kept, "a checkpoint")
    finally:
        store.stop()
    assert not (tmp_path / "data" / "floatscope.db-wal").exists()


def test_health_returns_with_the_disk(tmp_path: Path, wait_for: Callable[..., None]) -> None:
    store = Store(Settings(data=tmp_path / "data"))
    store.start()
    try:
        store._failing = True
        wait_for(lambda: store.writing, "the probe")
    finally:
        store.stop()


def test_the_store_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "data"
    before = os.umask(0o022)
    try:
        store = Store(Settings(data=folder))
        store.start()
        modes = {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}
        store.stop()
        # What was readable before is closed at the next start.
        (folder / "floatscope.db").chmod(0o644)
        store.start()
        store.stop()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {"floatscope.db", "floatscope.db-wal", "floatscope.db-shm"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert (folder / "floatscope.db").stat().st_mode & 0o777 == 0o600
