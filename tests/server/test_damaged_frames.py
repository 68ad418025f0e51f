"""A frame of the open tail whose bytes are gone: all else is shown, judged and sealed, and the loss is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import update
from sqlmodel import col, func, select

from floatscope import wire
from floatscope_server.models import Gap, WalFrame
from floatscope_server.query.tails import Tails
from floatscope_server.query.window import TileReader
from floatscope_server.store.replay import replay
from floatscope_server.store.series_thread import SeriesThread
from tests.server.bodies import histogram

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakePen, Running, Start

_T0_S = 1_700_000_000


def _filled(start: Start, pen: MakePen, make: Make, damage: bytes) -> Running:
    """Six blocks of ten steps, of which the third is damaged."""
    running = start()
    running.services.series.stop()
    store = running.services.store
    one = pen(store, layers=[make.layer(0, "l", ("grad", "bf16"))])
    for step in range(0, 60, 10):
        body = wire.Body(
            summaries=(make.summaries("grad", step, np.ones((10, 1))),),
            scalars=(make.scalars("loss", step, [1.0] * 10),),
            histograms=(histogram(step, 3, [1, 2]),),
            devices=(wire.Device(time_ns=(_T0_S + step) * 10**9, index=0, backend="cuda"),),
        )
        assert isinstance(one.deliver(body), wire.Ack)
    statement = update(WalFrame).where(col(WalFrame.seq) == 3).values(data=damage)
    store.write(lambda session: session.execute(statement))
    # As after a restart: nothing of it is in memory.
    running.services.reader, running.services.tails = TileReader(1 << 26), Tails()
    return running


_Damage = pytest.mark.parametrize(
    "damage", [b"\x93nothing", b"", b"\x90", b"\x02" * 40], ids=["text", "nothing", "list", "blosc"]
)


@_Damage
def test_the_rest_is_shown(start: Start, pen: MakePen, make: Make, damage: bytes) -> None:
    running = _filled(start, pen, make, damage)
    at = "/api/v1/runs/run/"
    rows = running.json(f"{at}heatmap?metric=absmax")["values"]
    assert rows == [[1.0] * 20 + [None] * 10 + [1.0] * 30]
    (loss,) = [series for series in running.json(f"{at}scalars") if series["name"] == "loss"]
    # An empty list of scalars is sound, and as empty.
    assert loss["steps"] == [*range(20), *range(30, 60)]
    assert len(running.json(f"{at}histogram?layer=l")["columns"]) == 5
    for path in ("latest", "tail", "series?layer=l", "devices", "devices?points=10", "summaries?step=25"):
        running.json(at + path)
    with running.services.store.read() as session:
        seen = list(replay(session, 1, 1, last_steps=300))
    assert [len(one.body.summaries) for one in seen] == [1, 1, 0, 1, 1, 1]


@_Damage
def test_the_rest_is_sealed_and_the_loss_declared(start: Start, pen: MakePen, make: Make, damage: bytes) -> None:
    running = _filled(start, pen, make, damage)
    store = running.services.store
    before = running.json("/api/v1/runs/run/scalars")
    SeriesThread(store).seal(everything=True)
    with store.read() as session:
        gaps = {gap.reason: (gap.first, gap.last, gap.count) for gap in session.exec(select(Gap))}
        left = session.exec(select(func.count()).select_from(WalFrame)).one()
    assert left == 6, "the summaries"
    declared = {reason.split()[4]: gap for reason, gap in gaps.items() if reason.endswith("was damaged")}
    assert declared["hist/grad"] == (20, 20, 1)
    if damage != b"\x90":
        assert declared["scalar"] == (20, 29, 1)
        assert declared["gpu"] == (0, 0, 1)
    assert running.json("/api/v1/runs/run/scalars") == before
