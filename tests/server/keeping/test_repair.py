"""A damaged tile is found, made again where the level below has it, dropped and declared where not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlmodel import Session, col, delete, select

from floatscope_server.models import StreamState, Tile, TileRaw
from floatscope_server.query.window import TileReader
from floatscope_server.store import Store
from floatscope_server.store.keeper import Keeper
from floatscope_server.store.repair import Suspect
from floatscope_server.store.soundness import findings
from floatscope_server.tiles.codec import encode, is_missing
from floatscope_server.tiles.statistics import Agg, Stat
from tests.server.keeping import kept
from tests.server.keeping.kept import TOP

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakePen, OpenStore


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def _found(store: Store) -> list[str]:
    reader = store.database.reader()
    try:
        return [finding.text for finding in findings(reader)]
    finally:
        reader.close()


_RAW_TOP = (col(TileRaw.stat) == int(Stat.ABSMAX), col(TileRaw.agg) == int(Agg.VALUE), col(TileRaw.idx) == 2)


def _pooled(level: int, part: int, stat: Stat = Stat.ABSMAX, agg: Agg = Agg.MAX) -> tuple[Any, ...]:
    return col(Tile.level) == level, col(Tile.part) == part, col(Tile.stat) == int(stat), col(Tile.agg) == int(agg)


def test_a_sound_store_has_no_findings(store: Store, pen: MakePen, make: Make) -> None:
    kept.fill(store, pen, make, kinds="grad act")
    assert _found(store) == []
    kept.retain(store, raw_keep_steps=64)
    kept.keep(store)
    assert _found(store) == []


def test_a_flipped_byte_is_read_as_missing_noted_once_and_dropped(
    store: Store, pen: MakePen, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    kept.fill(store, pen, make)
    whole = kept.window(store, 0, 63)
    pooled = kept.window(store, 0, 63, cell=4)
    number = kept.flip(store, TileRaw, *_RAW_TOP)
    assert len(found := _found(store)) == 1
    assert "absmax (value) of layers 0 to 3, steps 32 to 47, level 0 of layer/grad" in found[0]
    keeper = Keeper(store)
    reader = TileReader(1 << 24)
    reader.on_damaged = keeper.damaged
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            shown = kept.window(store, 0, 63, reader=reader)
            assert shown.damaged == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"row {number} of tile_raw is damaged; it is going to be mended"
    ]
    expected = is_missing(whole.planes[TOP])
    expected[:4, 32:48] = True
    np.testing.assert_array_equal(is_missing(shown.planes[TOP]), expected)
    kept.keep(store, keeper)
    assert _found(store) == []
    (gap,) = kept.gaps(store)
    assert (gap.first, gap.last, gap.rank) == (32, 47, -1)
    assert gap.reason == "a stored tile was damaged: absmax (value) of layer/grad, layers 0 to 3, level 0"
    after = kept.window(store, 0, 63, reader=reader)
    assert after.damaged == 0
    np.testing.assert_array_equal(after.planes[TOP][4:], whole.planes[TOP][4:])
    np.testing.assert_array_equal(after.planes[TOP][:, :32], whole.planes[TOP][:, :32])
    again = kept.window(store, 0, 63, cell=4)
    np.testing.assert_array_equal(again.planes[TOP], pooled.planes[TOP])


@pytest.mark.parametrize(("level", "part"), [(1, 0), (2, 0), (3, 1), (1, 1), (2, 1)])
@pytest.mark.parametrize(("stat", "agg"), [(Stat.ABSMAX, Agg.MAX), (Stat.STEPS, Agg.MAX), (Stat.RMS, Agg.MEAN)])
def test_a_coarser_tile_is_made_again(
    store: Store, pen: MakePen, make: Make, level: int, part: int, stat: Stat, agg: Agg
) -> None:
    kept.fill(store, pen, make, steps=350)
    where = _pooled(level, part, stat, agg)

    def content() -> dict[tuple[int, int, int], bytes]:
        with store.read() as session:
            rows = session.exec(select(Tile).where(col(Tile.level) == level, col(Tile.part) == part))
            return {(row.stat * 10 + row.agg, row.block, row.idx): row.data for row in rows}

    before = content()
    number = kept.flip(store, Tile, *where)
    keeper = Keeper(store)
    keeper.damaged([Suspect("tile", number)])
    kept.keep(store, keeper)
    assert content().keys() == before.keys()
    assert _found(store) == []
    assert kept.gaps(store) == []
    if level == 1:
        assert content() == before


def test_without_the_level_below_a_coarser_tile_is_dropped(store: Store, pen: MakePen, make: Make) -> None:
    kept.fill(store, pen, make)
    kept.retain(store, raw_keep_steps=0)
    kept.keep(store)
    number = kept.flip(store, Tile, *_pooled(1, 0))
    keeper = Keeper(store)
    keeper.damaged([Suspect("tile", number)])
    kept.keep(store, keeper)
    assert _found(store) == []
    (gap,) = kept.gaps(store)
    assert (gap.first, gap.last) == (0, 63)
    assert "absmax (max) of layer/grad, layers 0 to 3, level 1" in gap.reason
    assert not is_missing(kept.window(store, 0, 399, cell=16).planes[TOP][:, 4:20]).any()


def test_what_the_level_below_no_longer_has_stays_as_it_was(store: Store, pen: MakePen, make: Make) -> None:
    kept.fill(store, pen, make)
    kept.retain(store, raw_keep_steps=336)
    kept.keep(store)
    assert kept.raw_tiles(store)[0] == 3
    number = kept.flip(store, Tile, *_pooled(1, 0))
    before = kept.window(store, 0, 63, cell=4)
    keeper = Keeper(store)
    keeper.damaged([Suspect("tile", number)])
    kept.keep(store, keeper)
    assert len(kept.gaps(store)) == 1
    after = kept.window(store, 0, 63, cell=4)
    assert before.damaged == 1
    assert after.damaged == 0
    assert is_missing(after.planes[TOP][:4, :12]).all()
    assert not is_missing(after.planes[TOP][:4, 12:]).all()
    np.testing.assert_array_equal(after.planes[TOP][4:], before.planes[TOP][4:])


def test_a_tile_in_the_place_of_another_is_found(store: Store, pen: MakePen, make: Make) -> None:
    kept.fill(store, pen, make)

    def change(data: bytearray) -> None:
        made = encode(np.ones((4, 16), np.float32), first_layer=0, first_column=48)
        assert made is not None
        data[:] = made[1]

    number = kept.flip(store, TileRaw, *_RAW_TOP, change=change)
    assert [text.partition(": ")[2] for text in _found(store)] == ["it is of layer 0 and column 48"]
    keeper = Keeper(store)
    keeper.damaged([Suspect("tile_raw", number)])
    kept.keep(store, keeper)
    assert _found(store) == []


@pytest.mark.parametrize("damage", ["", "x" * 40, "TTL1"])
def test_what_is_no_tile_at_all_is_found(store: Store, pen: MakePen, make: Make, damage: str) -> None:
    kept.fill(store, pen, make, steps=100)

    def change(data: bytearray) -> None:
        data[:] = damage.encode()

    kept.flip(store, TileRaw, *_RAW_TOP, change=change)
    assert len(_found(store)) == 1
    assert kept.window(store, 0, 63).damaged == 1


def test_levels_and_watermarks_are_held_against_each_other(store: Store, pen: MakePen, make: Make) -> None:
    kept.fill(store, pen, make)

    def spoil(session: Session) -> None:
        session.execute(delete(Tile).where(col(Tile.level) == 2, col(Tile.part) == 1, col(Tile.block) == 1))
        row = session.exec(select(Tile).where(*_pooled(1, 0, Stat.STEPS)).order_by(col(Tile.idx))).first()
        assert row is not None
        session.add(Tile(**{**row.model_dump(exclude={"id"}), "part": 1, "idx": 0}))

    store.write(spoil)
    found = "\n".join(_found(store))
    assert "part 5 of level 2, block 1 is missing" in found
    assert "part 0 of level 1, block 0 is left beside its full tile" in found
    store.write(lambda session: session.exec(select(StreamState)).one().__setattr__("sealed", 1600))
    assert "the watermark 1600 lies beyond the last step 399" in "\n".join(_found(store))


def test_a_sound_tile_that_is_suspected_stays(store: Store, pen: MakePen, make: Make) -> None:
    kept.fill(store, pen, make, steps=100)
    before = kept.rows_of(store, "tile_raw", "tile")
    keeper = Keeper(store)
    keeper.damaged([Suspect("tile_raw", 1), Suspect("tile", 1), Suspect("tile", 10**6)])
    kept.keep(store, keeper)
    assert kept.rows_of(store, "tile_raw", "tile") == before
    assert kept.gaps(store) == []
