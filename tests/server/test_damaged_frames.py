"""A frame of the open tail whose bytes are gone: all else is shown, judged and sealed, and the loss is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import update
from sqlmodel import Session, col, func, select

from floatscope import wire
from floatscope_server.models import Gap, WalFrame
from floatscope_server.query.tails import Tails
from floatscope_server.query.window import TileReader
from floatscope_server.store.checking import check, repair
from floatscope_server.store.framed import is_whole
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


def test_no_flipped_bit_passes_for_another_number(start: Start, pen: MakePen, make: Make) -> None:
    running = _filled(start, pen, make, b"")
    store = running.services.store
    paths = ("heatmap?metric=absmax", "heatmap?metric=rms", "scalars", "histogram?layer=l", "devices?points=10")
    with store.read() as session:
        whole = {row.id: row.data for row in session.exec(select(WalFrame).where(WalFrame.seq == 4))}
    rng = np.random.default_rng(0)
    for number, data in whole.items():
        for at in rng.integers(0, 8 * len(data), 12).tolist():
            flipped = bytearray(data)
            flipped[at // 8] ^= 1 << at % 8
            store.write(_replace(number, bytes(flipped)))
            assert not is_whole(bytes(flipped)) or at < 8, "the first byte tells of the checksum"
            with store.read() as session:
                (seen,) = [one for one in replay(session, 1, 1, last_steps=300) if one.seq == 4]
            body = seen.body
            assert sum(map(bool, (body.summaries, body.scalars, body.histograms, body.devices))) == 3
        store.write(_replace(number, data))
    store.write(_replace(next(iter(whole)), b"\xc1"))
    running.services.reader, running.services.tails = TileReader(1 << 26), Tails()
    assert [running.get(f"/api/v1/runs/run/{path}").status for path in paths] == [200] * len(paths)


def test_what_an_earlier_version_stored_is_read(start: Start, pen: MakePen, make: Make) -> None:
    running = _filled(start, pen, make, b"\x90")
    store = running.services.store
    before = running.json("/api/v1/runs/run/heatmap?metric=absmax")["values"]
    with store.read() as session:
        rows = {row.id: row.data for row in session.exec(select(WalFrame).where(WalFrame.seq != 3))}
    for number, data in rows.items():
        store.write(_replace(number, data[5:]))
    running.services.reader = TileReader(1 << 26)
    assert running.json("/api/v1/runs/run/heatmap?metric=absmax")["values"] == before


def test_a_check_finds_them_and_a_repair_declares_them(start: Start, pen: MakePen, make: Make) -> None:
    running = _filled(start, pen, make, b"\xc1damaged")
    store = running.services.store
    running.stop()
    said: list[str] = []
    assert check(store.database, said.append) == 1
    assert sorted(line.split(",")[0] for line in said) == [
        "a frame of gpu",
        "a frame of hist/grad",
        "a frame of layer/grad",
        "a frame of scalar",
    ]
    assert repair(store.database, said.append) == 0
    store.start()
    with store.read() as session:
        gaps = {gap.reason: (gap.first, gap.last) for gap in session.exec(select(Gap))}
    store.stop()
    assert gaps["a stored frame of layer/grad was damaged"] == (20, 29)
    assert gaps["a stored frame of gpu was damaged"] == (0, 0)
    assert len(gaps) == 4


def _replace(number: int | None, data: bytes) -> Callable[[Session], object]:
    return lambda session: session.execute(update(WalFrame).where(col(WalFrame.id) == number).values(data=data))
