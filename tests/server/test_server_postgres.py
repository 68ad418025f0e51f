"""PostgreSQL: who holds the store, how it is laid out, and what happens when it goes away."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import LargeBinary, create_engine, text
from sqlalchemy.exc import DBAPIError, InternalError
from sqlalchemy.pool import NullPool
from sqlmodel import SQLModel, select

import floatscope_server.access
import floatscope_server.alerts.models
import floatscope_server.models  # noqa: F401
from floatscope import wire
from floatscope_server.database import Database, StoreError, Trouble, database_of, trouble
from floatscope_server.models import Meta, WalFrame
from floatscope_server.observation import Observation
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from tests.databases import Databases
from tests.needs import needs
from tests.postgres import Cluster, programs
from tests.server.conftest import Make, MakePen, Pen
from tests.server.programs import Command

_SECRET = "a-password-of-nobody"


@pytest.fixture
def url(cluster: Callable[[], Databases]) -> Iterator[str]:
    """Of a database with an empty store."""
    databases = cluster()
    name = databases.create()
    yield databases.cluster.url(name)
    databases.cluster.drop(name)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    one = Store(Settings(db=url))
    one.start()
    yield one
    if one.started:
        one.stop()


def _of(url: str) -> Database:
    return database_of(Settings(db=url))


def _execute(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_the_migrated_schema_is_that_of_the_models(url: str) -> None:
    with _of(url).writer():
        pass
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []


def test_blobs_are_stored_as_they_are_and_the_tail_is_vacuumed(url: str) -> None:
    stored = dict(
        _execute(
            url,
            "SELECT relname || '.' || attname, attstorage::text FROM pg_attribute JOIN pg_class c ON c.oid = attrelid "
            "WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND atttypid = 'bytea'::regtype",
        )
    )
    blobs = {
        f"{table.name}.{column.name}"
        for table in SQLModel.metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, LargeBinary)
    }
    assert stored == dict.fromkeys(blobs, "e")
    ((options,),) = _execute(url, "SELECT reloptions FROM pg_class WHERE relname = 'wal_frame'")
    assert {"autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=2000"} <= set(options)


def test_numbers_of_rows_are_64_bits(url: str) -> None:
    narrow = _execute(
        url,
        "SELECT table_name FROM information_schema.columns "
        "WHERE table_schema = 'public' AND column_name = 'id' AND data_type = 'integer'",
    )
    assert narrow == []


def test_a_commit_is_on_disk_whatever_the_default_says(url: str) -> None:
    _execute(url, "ALTER DATABASE " + url.split("/")[3].split("?")[0] + " SET synchronous_commit = off")
    with _of(url).writer() as connection:
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"


def test_readers_cannot_write_and_see_one_snapshot(url: str) -> None:
    count = text("SELECT count(*) FROM meta WHERE key = 'a'")
    with _of(url).writer() as connection:
        reader = _of(url).reader()
        with reader.session() as session, pytest.raises(InternalError) as caught:
            session.execute(text("DELETE FROM run"))
        assert trouble(caught.value) is Trouble.READ_ONLY
        with reader.session() as session:
            assert session.execute(count).scalar() == 0
            with connection.begin():
                connection.execute(text("INSERT INTO meta VALUES ('a', 'b')"))
            assert session.execute(count).scalar() == 0
        with reader.session() as session:
            assert session.execute(count).scalar() == 1
        reader.close()


def test_a_second_server_is_refused_until_the_first_is_killed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys; from floatscope_server.database import database_of\n"
        "from floatscope_server.settings import Settings\n"
        "with database_of(Settings(db=sys.argv[1])).writer(): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, url], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with monkeypatch.context() as patched:
            patched.setattr("floatscope_server.engines.postgres._PATIENCE_S", 0.1)
            with pytest.raises(StoreError, match=r"another floatscope server is using .* stop it, or .* --db"):
                Store(Settings(db=url)).start()
        first.kill()
        # At once: the server of PostgreSQL may not have noticed yet.
        second = Store(Settings(db=url))
        second.start()
        second.stop()


def test_a_schema_of_a_newer_version_is_refused_and_left_alone(url: str) -> None:
    _execute(url, "UPDATE alembic_version SET version_num = '0999_future'")
    with pytest.raises(StoreError, match=r"newer floatscope \(schema 0999_future.*upgrade"), _of(url).writer():
        pass
    reader = _of(url).reader()
    with pytest.raises(StoreError, match="0999_future"):
        reader.check()
    reader.close()


def test_another_programs_database_is_left_alone(cluster: Callable[[], Databases]) -> None:
    databases = cluster()
    name = databases.cluster.create()
    url = databases.cluster.url(name)
    _execute(url, "CREATE TABLE run (id INT)")
    with pytest.raises(StoreError, match="another program's"), _of(url).writer():
        pass
    _execute(url, "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('theirs')")
    with pytest.raises(StoreError, match="another program's"), _of(url).writer():
        pass
    assert _execute(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(2,)]
    reader = _of(url).reader()
    with pytest.raises(StoreError, match="schema theirs"):
        reader.check()
    reader.close()
    databases.cluster.drop(name)


def test_an_empty_database_holds_no_store_yet(cluster: Callable[[], Databases]) -> None:
    databases = cluster()
    name = databases.cluster.create()
    reader = _of(databases.cluster.url(name)).reader()
    with pytest.raises(StoreError, match="there is no floatscope store"):
        reader.check()
    reader.close()
    databases.cluster.drop(name)


def test_a_database_that_cannot_hold_every_name_is_refused(cluster: Callable[[], Databases]) -> None:
    databases = cluster()
    server = databases.cluster
    _execute(
        server.url("postgres"),
        "CREATE DATABASE narrow ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0",
    )
    with pytest.raises(StoreError, match="encoded in LATIN1"), _of(server.url("narrow")).writer():
        pass
    server.drop("narrow")


def test_what_a_user_may_not_do_is_a_clear_message(cluster: Callable[[], Databases]) -> None:
    server = cluster().cluster
    name = server.create()
    url = server.url(name)
    _execute(url, "CREATE ROLE weak LOGIN")
    weak = url.replace("floatscope@", "weak@", 1)
    with pytest.raises(StoreError, match=r"permission denied .* give this user the right"), _of(weak).writer():
        pass
    with pytest.raises(StoreError, match="has no schema"), _of(f"{url}&options=-csearch_path%3Dnone").writer():
        pass
    server.drop(name)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{_SECRET}@127.0.0.1:1/db",
        f"postgresql://me:{_SECRET}@[::1/db",
        f"postgresql://me:{_SECRET}@127.0.0.1/db?no_such_option=1",
        f"postgresql://me:%zz{_SECRET}@127.0.0.1/db",
        f"postgresql://me@127.0.0.1:1/db?password={_SECRET}",
    ],
)
def test_no_message_repeats_a_password(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StoreError) as caught:
        Store(Settings(db=url)).start()
    assert "\n" not in str(caught.value)
    shown = f"{caught.value} {caught.value.__cause__} {caplog.text} {Settings(db=url)}"
    assert _SECRET not in shown


# What happens when PostgreSQL goes away.


@pytest.fixture
def own() -> Iterator[Cluster]:
    """A cluster that a test may stop."""
    binaries = programs()
    needs(binaries, "PostgreSQL (initdb)")
    assert binaries is not None
    one = Cluster(binaries, fsync=True)
    yield one
    one.remove()


def _body(make: Make, step: int) -> wire.Body:
    return wire.Body(scalars=(make.scalars("loss", step, [float(step)]),))


def _until_acknowledged(one: Pen, make: Make, seq: int) -> int:
    """Deliver block ``seq`` as an agent does; how often it was told to wait."""
    waited = 0
    while True:
        one.seq = seq - 1
        answer = one.deliver(_body(make, seq - 1))
        if isinstance(answer, wire.Ack):
            assert answer.seq == seq
            return waited
        assert isinstance(answer, wire.Nack)
        assert answer.retryable, answer
        assert answer.expected <= seq
        waited += 1
        threading.Event().wait(0.05)


def _seqs(store: Store) -> list[int]:
    with store.read() as session:
        return list(session.exec(select(WalFrame.seq).order_by(text("id"))))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
def test_a_restart_of_postgresql_loses_nothing_and_doubles_nothing(
    own: Cluster,
    pen: MakePen,
    make: Make,
    how: signal.Signals,
    caplog: pytest.LogCaptureFixture,
    wait_for: Callable[[Callable[[], object], str], None],
) -> None:
    store = Store(Settings(db=own.url(own.create())))
    store.start()
    heard: list[int] = []
    store.observers.append(lambda observation: heard.append(observation.seq))
    one = pen(store)
    for seq in (1, 2):
        assert _until_acknowledged(one, make, seq) == 0
    own.stop(how)
    nack = one.deliver(_body(make, 2))
    assert isinstance(nack, wire.Nack)
    assert (nack.code, nack.retryable, nack.expected) == ("storage_error", True, 3)
    wait_for(lambda: not store.writing, "the loss to be known")
    with pytest.raises(DBAPIError) as caught, store.read() as session:
        session.exec(select(Meta)).all()
    assert trouble(caught.value) is Trouble.LOST
    own.start()
    _until_acknowledged(one, make, 3)
    assert _seqs(store) == [1, 2, 3]
    assert heard == [1, 2, 3]
    # Once more, with nobody who sends: it comes back by itself.
    own.stop(how)
    wait_for(lambda: not store.writing, "the loss to be noticed")
    own.start()
    wait_for(lambda: store.writing, "the store to come back")
    store.stop()
    assert "Traceback" not in caplog.text


def test_a_commit_that_is_stored_but_not_confirmed_is_neither_doubled_nor_unheard(
    store: Store, pen: MakePen, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Observation] = []
    store.observers.append(heard.append)
    one = pen(store)
    assert isinstance(one.deliver(_body(make, 0)), wire.Ack)
    commit = psycopg.Connection.commit

    def unconfirmed(connection: psycopg.Connection[Any]) -> None:
        commit(connection)
        monkeypatch.setattr(psycopg.Connection, "commit", commit)
        connection.close()
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(psycopg.Connection, "commit", unconfirmed)
    nack = one.deliver(_body(make, 1))
    if isinstance(nack, wire.Ack):  # the tick of every second was in the way
        pytest.skip("the commit was another one")
    assert isinstance(nack, wire.Nack)
    assert nack.retryable
    assert [o.seq for o in heard] == [1]
    _until_acknowledged(one, make, 2)
    _until_acknowledged(one, make, 3)
    assert _seqs(store) == [1, 2, 3]
    assert [o.seq for o in heard] == [1, 2, 3]
    assert heard[1].body.scalars == _body(make, 1).scalars


def test_a_server_that_lost_the_store_to_another_gives_up(
    store: Store,
    url: str,
    pen: MakePen,
    make: Make,
    wait_for: Callable[[Callable[[], object], str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = pen(store)
    assert isinstance(one.deliver(_body(make, 0)), wire.Ack)
    # Its session ends, and before it is back another server has come and gone.
    _execute(
        url,
        "BEGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'floatscope writer'; "
        "UPDATE meta SET value = 'another' WHERE key = 'owner'; COMMIT",
    )

    def given_up() -> bool:
        try:
            store.write(lambda _: None)
        except StoreError as error:
            return "takes nothing any more" in str(error)
        except DBAPIError:
            return False
        return False

    wait_for(given_up, "the writer to give up")
    assert not store.writing
    assert "start this one again" in caplog.text
    assert "Traceback" not in caplog.text


def test_the_process_of_a_server_that_gave_up_ends(url: str, command: Callable[..., Command]) -> None:
    server = command("server", "--port", "0", "--db", url)
    server.address()
    _execute(
        url,
        "BEGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'floatscope writer'; "
        "UPDATE meta SET value = 'another' WHERE key = 'owner'; COMMIT",
    )
    status, _, err = server.finish()
    assert status == 2
    assert "start this one again" in err
    assert "Traceback" not in err


def test_a_reader_that_has_its_answer_does_not_mind_that_the_engine_goes_away(store: Store, url: str) -> None:
    with store.read() as session:
        mine = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with psycopg.connect(url, autocommit=True) as other:
            # Waits until it has ended, at most 60 s.
            assert other.execute("SELECT pg_terminate_backend(%s, 60000)", (mine,)).fetchone() == (True,)
    with store.read() as session:
        assert session.execute(text("SELECT pg_backend_pid()")).scalar_one() != mine
