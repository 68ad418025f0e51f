"""A sealed store of a small geometry, and what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Table
from sqlalchemy import select as select_columns
from sqlmodel import Session, SQLModel, col, func, select

from floatscope_server.alerts.models import Alert
from floatscope_server.models import Gap, Retention, Run, StreamState, Tile, TileRaw
from floatscope_server.query.line import canonical_line
from floatscope_server.query.window import TileReader, Window, source_of
from floatscope_server.store import Store
from floatscope_server.store.dropping import set_keeping
from floatscope_server.store.keeper import Keeper
from floatscope_server.store.sealer import Sealer
from floatscope_server.tiles.statistics import Agg, Stat
from tests.server.tiles.frames import random_frame
from tests.server.tiles.sealing import deliver, judge

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakePen, Pen

LAYERS = 6
TOP = (Stat.ABSMAX, Agg.MAX)


def fill(store: Store, pen: MakePen, make: Make, *, steps: int = 400, run: str = "run", kinds: str = "grad") -> Pen:
    """A run of ``steps`` steps, sealed as far as can be: level 0 has 16 columns in a tile, levels differ by 4."""
    one = pen(store, run=run, layers=[make.layer(i, f"l{i}") for i in range(LAYERS)])
    rng = np.random.default_rng(1)
    for kind in kinds.split():
        for first in range(0, steps, 50):
            deliver(one, [random_frame(rng, first, min(50, steps - first), range(LAYERS))], kind=kind)
    seal(store)
    return one


def seal(store: Store) -> None:
    judge(store)
    sealer = Sealer(store, lost_after_s=1e9, slack=8, monotonic=partial(next, count(0, 1000)))
    while sealer.seal_due():
        pass
    assert not sealer.failed


def keep(store: Store, keeper: Keeper | None = None) -> int:
    """Everything that is due; how many pieces it took."""
    keeper = keeper or Keeper(store)
    pieces = 0
    while keeper.step():
        pieces += 1
        assert pieces < 10_000
    return pieces


def retain(store: Store, run_id: int = 0, **values: Any) -> None:  # noqa: ANN401
    """What is kept; all else for ever."""
    for_ever: dict[str, Any] = dict.fromkeys(
        name for name in Retention.model_fields if name not in ("run_id", "pin_alerts")
    )
    store.write(lambda session: set_keeping(session, run_id, {**for_ever, "pin_alerts": True, **values}))


def raw_tiles(store: Store, attempt: int = 1) -> list[int]:
    with store.read() as session:
        rows = select(TileRaw.idx).where(TileRaw.attempt == attempt, TileRaw.stat == int(Stat.COUNT)).distinct()
        return sorted(session.exec(rows))


def pooled_tiles(store: Store, level: int) -> list[tuple[int, int]]:
    """(1 for a part, number)."""
    with store.read() as session:
        rows = select(Tile.part, Tile.idx).where(Tile.level == level, Tile.stat == int(Stat.STEPS)).distinct()
        return sorted(session.exec(rows))


def rows_of(store: Store, *names: str) -> dict[str, int]:
    """Rows of the tables ``names``, or of all that have any."""
    tables: list[Table] = [t for t in SQLModel.metadata.sorted_tables if not names or t.name in names]
    with store.read() as session:
        counts = {t.name: session.execute(select_columns(func.count()).select_from(t)).scalar_one() for t in tables}
    return counts if names else {name: number for name, number in counts.items() if number}


def state(store: Store, attempt: int = 1) -> StreamState:
    with store.read() as session:
        return session.exec(select(StreamState).where(StreamState.attempt == attempt)).one()


def gaps(store: Store) -> list[Gap]:
    with store.read() as session:
        return list(session.exec(select(Gap).order_by(col(Gap.id))))


def window(
    store: Store,
    first: int,
    last: int,
    *,
    cell: int = 1,
    reader: TileReader | None = None,
    wanted: Iterable[tuple[Stat, Agg]] = (TOP,),
) -> Window:
    """``wanted`` of the run "run", layer by layer."""
    with store.read() as session:
        run_id = session.exec(select(Run.id).where(Run.name == "run")).one()
        assert run_id is not None
        source = source_of(session, run_id, "layer/grad")
        assert source is not None
        return (reader or TileReader(1 << 24)).window(
            session,
            source,
            canonical_line(session, run_id),
            first=first,
            last=last,
            cell=cell,
            wanted=set(wanted),
            layers=np.arange(LAYERS),
        )


def alarm(store: Store, step: int, *, state: str = "firing") -> None:
    """An alert at ``step`` of the first run."""

    def write(session: Session) -> None:
        run = session.exec(select(Run).order_by(col(Run.id))).first()
        assert run is not None
        assert run.id is not None
        session.add(
            Alert(
                run_id=run.id,
                run=run.name,
                attempt=1,
                dedupe_key=f"{step}",
                kind="spike",
                severity="warning",
                state=state,
                first_step=step,
                last_step=step,
                since_step=step,
                reason="r",
                message="m",
                message_zh="m",
                opened_at=store.now(),
            )
        )

    store.write(write)


def flip(store: Store, table: Any, *where: Any, change: Callable[[bytearray], None] | None = None) -> int:  # noqa: ANN401
    """Damage the first row of ``table`` with ``where``; its id."""

    def write(session: Session) -> int:
        row = session.exec(select(table).where(*where).order_by(table.id)).first()
        assert row is not None
        data = bytearray(row.data)
        if change is None:
            data[-1] ^= 0x40
        else:
            change(data)
        row.data = bytes(data)
        session.add(row)
        number: int = row.id
        return number

    return store.write(write)
