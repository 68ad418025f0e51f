"""A run that is deleted is gone for everybody at once, and its rows soon after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlmodel import SQLModel, func, select

from floatscope import wire
from floatscope_server.alerts.models import Evaluated
from floatscope_server.database import Reader
from floatscope_server.models import (
    Attempt,
    DeviceFacts,
    DumpPart,
    Gap,
    LayerRow,
    Retention,
    Run,
    StepEvent,
    Tile,
    TileRaw,
)
from floatscope_server.query.runs import run_list
from floatscope_server.store import Store
from floatscope_server.store.keeper import Keeper
from floatscope_server.store.lifecycle import DELETED
from floatscope_server.store.removal import LiveRunError
from tests.server.keeping import kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.conftest import Clock, Make, MakePen, OpenStore, Reply
    from tests.server.programs import Command

_OTHERS = {"alembic_version", "meta"}


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def _end(store: Store, clock: Clock) -> None:
    clock.now += 1000.0
    store.tick()


def _every_table(store: Store) -> None:
    """A row in each table of the run that ``kept.fill`` does not write to."""
    at = store.now()
    rows: list[SQLModel] = [
        StepEvent(run_id=1, attempt=1, step=1, rank=0, writer=1, seq=1, kind="skipped"),
        Gap(run_id=1, rank=0, first=0, last=1, count=1, reason="r"),
        DumpPart(
            run_id=1,
            dump="d",
            writer=1,
            part=0,
            parts=1,
            attempt=1,
            rank=0,
            kind="k",
            step=1,
            first_step=0,
            last_step=1,
            created_at=at,
            data=b"x",
        ),
        DeviceFacts(run_id=1, attempt=1, rank=0, backend="nvml", idx=0),
        Retention(run_id=1),
    ]
    store.write(lambda session: session.add_all(rows))
    kept.alarm(store, 3)


def test_nothing_of_it_is_left_and_nothing_of_another_is_touched(
    store: Store, pen: MakePen, make: Make, clock: Clock
) -> None:
    kept.fill(store, pen, make, kinds="grad act")
    kept.fill(store, pen, make, run="other")
    kept.keep(store)
    _every_table(store)
    _end(store, clock)
    expected = {name: number for name, number in kept.rows_of(store).items() if name in _OTHERS}
    with store.read() as session:
        other = session.exec(select(LayerRow).where(LayerRow.run_id == 2)).all()
    assert store.delete_run("run")
    with store.read() as session:
        assert [item["name"] for item in run_list(session)] == ["other"]
    kept.keep(store)
    with store.read() as session:
        assert session.exec(select(Run.id)).all() == [2]
        assert len(session.exec(select(LayerRow)).all()) == len(other)
        assert {row.run_id for row in session.exec(select(Attempt))} == {2}
    assert store.delete_run("other")
    kept.keep(store)
    assert {name: number for name, number in kept.rows_of(store).items() if name != "session"} == expected


def test_it_goes_in_pieces_and_on_after_a_restart(
    open_store: OpenStore, store: Store, pen: MakePen, make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floatscope_server.store.keeper.ROWS", 20)
    kept.fill(store, pen, make)
    _end(store, clock)
    assert store.delete_run("run")
    keeper = Keeper(store)
    before = sum(kept.rows_of(store).values())
    for _ in range(5):
        assert keeper.step()
    after = sum(kept.rows_of(store).values())
    assert before - 100 <= after < before
    store.stop()
    again = open_store()
    kept.keep(again)
    assert kept.rows_of(again, "tile_raw", "tile", "run", "stream", "attempt") == dict.fromkeys(
        ("tile_raw", "tile", "run", "stream", "attempt"), 0
    )


def test_a_run_that_goes_on_is_not_deleted(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    one = kept.fill(store, pen, make, steps=10)
    with pytest.raises(LiveRunError):
        store.delete_run("run")
    clock.now += store.settings.stalled_after_s / 2
    assert isinstance(one.ask(wire.Bye(seq=one.seq + 1, reason="finished")), wire.Ack)
    assert store.delete_run("run")
    assert not store.delete_run("run")
    assert not store.delete_run("deleted/1")


def test_its_name_is_free_again_and_what_its_agents_send_is_refused(
    store: Store, pen: MakePen, make: Make, clock: Clock
) -> None:
    one = kept.fill(store, pen, make, steps=10)
    _end(store, clock)
    assert store.delete_run("run")
    refused = one.deliver(wire.Body())
    assert isinstance(refused, wire.Refused)
    assert (refused.code, refused.retryable) == ("run_deleted", False)
    second = kept.fill(store, pen, make, steps=100)
    kept.keep(store)
    with store.read() as session:
        runs = session.exec(select(Run)).all()
        assert [(run.name, run.id) for run in runs] == [("run", 2)]
    assert isinstance(second.deliver(wire.Body()), wire.Ack)
    assert kept.raw_tiles(store) == list(range(5))


def test_what_was_judged_meanwhile_goes_too(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    kept.fill(store, pen, make, steps=10)
    _end(store, clock)
    assert store.delete_run("run")
    late = Evaluated(writer="0" * 32, run_id=1, attempt=1, seq=1, step=1)
    store.write(lambda session: session.add(late))
    kept.keep(store)
    assert kept.rows_of(store, "run", "evaluated") == {"run": 0, "evaluated": 0}


def test_the_clock_does_not_bring_it_back(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    kept.fill(store, pen, make, steps=10)
    _end(store, clock)
    assert store.delete_run("run")
    _end(store, clock)
    with store.read() as session:
        assert session.exec(select(Run.state)).all() == [DELETED]


@pytest.mark.engines("sqlite")
def test_a_killed_server_goes_on_deleting(
    open_store: OpenStore,
    pen: MakePen,
    make: Make,
    clock: Clock,
    command: Callable[..., Command],
    http: Callable[..., Reply],
    wait_for: Callable[..., None],
) -> None:
    store = open_store(commit_interval_s=1e-4)
    kept.fill(store, pen, make, steps=1600)
    _end(store, clock)
    assert store.delete_run("run")
    rows = sum(kept.rows_of(store, "tile", "tile_raw").values())
    store.stop()
    data = str(store.settings.data)
    left = [rows]
    for _ in range(3):
        server = command("server", "--data", data, "--port", "0")
        server.address()
        reader = store.database.reader()
        wait_for(lambda reader=reader: _tiles(reader) < left[-1], "rows to go")
        server.process.kill()
        server.finish()
        left.append(_tiles(reader))
        reader.close()
        if not left[-1]:
            break
    server = command("server", "--data", data, "--port", "0")
    address = server.address()
    reader = store.database.reader()
    wait_for(lambda: not _tiles(reader), "all rows to go")
    reader.close()
    assert http(f"http://{address}/api/v1/runs").json == []
    assert left == sorted(left, reverse=True)


def _tiles(reader: Reader) -> int:
    with reader.session() as session:
        return sum(session.exec(select(func.count()).select_from(table)).one() for table in (TileRaw, Tile))
