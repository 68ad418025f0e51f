"""Histograms in the open tail and in tiles: the same, and what NumPy adds up."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import func, select

from floatscope import Summary, wire
from floatscope._summary import SparseHistograms, shares_in_format, sparse_shares
from floatscope_server.models import HistTile, WalFrame
from floatscope_server.query.derived import share_pieces, share_planes
from floatscope_server.query.histogram import layer_histogram
from floatscope_server.query.histtails import HistTails
from floatscope_server.query.line import Stretch, run_named, stream_id
from floatscope_server.query.ranks import reach_of
from floatscope_server.store.hist_merge import merge_histograms
from floatscope_server.store.series_thread import SeriesThread
from floatscope_server.tiles.codec import TileError, is_missing
from floatscope_server.tiles.hist import BINS, HistRows
from tests.server.bodies import layer

if TYPE_CHECKING:
    from floatscope_server.store import Store
    from tests.server.conftest import MakePen

_MERGING = ("shard", "replica", "data")


def _part(
    first_step: int, steps: int, rows: dict[int, tuple[int, list[int]]], placement: str = "", copy_of: int = -1
) -> wire.Histograms:
    """``rows``: first bin and counts by layer."""
    counts = [count for _, values in rows.values() for count in values]
    return wire.Histograms(
        kind="grad",
        first_step=first_step,
        steps=steps,
        layers=np.array(list(rows), "<u4").tobytes(),
        first=np.array([first for first, _ in rows.values()], "<u2").tobytes(),
        length=np.array([len(values) for _, values in rows.values()], "<u2").tobytes(),
        sampled=np.array([sum(values) for _, values in rows.values()], "<i8").tobytes(),
        counts=np.array(counts, "<u8").tobytes(),
        placement=placement,
        copy_of=copy_of,
    )


@st.composite
def _parts(draw: st.DrawFn) -> tuple[int, wire.Histograms]:
    rank = draw(st.integers(0, 2))
    row = st.tuples(st.integers(0, 500), st.lists(st.integers(0, 2**40), max_size=4))
    placement = draw(st.sampled_from(wire.PLACEMENTS))
    copy_of = draw(st.sampled_from([-1, 0, 1])) if placement in _MERGING else -1
    rows = draw(st.dictionaries(st.integers(0, 2), row, min_size=1))
    return rank, _part(draw(st.integers(0, 12)), draw(st.integers(1, 4)), rows, placement, copy_of)


def _slowly(parts: list[tuple[int, wire.Histograms]], of: int, complete_to: int | None) -> list[dict[str, Any]]:
    """The rules, one row at a time."""
    newest: dict[tuple[int, str, int, int], dict[str, Any]] = {}
    for rank, part in parts:
        layers = np.frombuffer(part.layers, "<u4").tolist()
        if of not in layers:
            continue
        at = layers.index(of)
        length = np.frombuffer(part.length, "<u2").tolist()
        start = sum(length[:at])
        counts = np.frombuffer(part.counts, "<u8").tolist()[start : start + length[at]]
        original = rank if part.copy_of < 0 else part.copy_of
        newest[rank, part.placement, original, part.first_step] = {
            "rank": rank,
            "group": (part.placement, original),
            "begin": part.first_step,
            "end": part.first_step + part.steps,
            "first": np.frombuffer(part.first, "<u2").tolist()[at],
            "counts": counts,
            "sampled": np.frombuffer(part.sampled, "<i8").tolist()[at],
        }
    rows = [row for row in newest.values() if row["group"][0] in _MERGING]
    if rows:
        chosen = {}
        for group in {row["group"] for row in rows}:
            having = [row["rank"] for row in rows if row["group"] == group]
            chosen[group] = group[1] if group[1] in having else min(having)
        rows = [row for row in rows if chosen[row["group"]] == row["rank"]]
    else:
        lowest = min((row["rank"] for row in newest.values()), default=0)
        rows = [row for row in newest.values() if row["rank"] == lowest]
    cells: list[list[dict[str, Any]]] = []
    for row in sorted(rows, key=lambda row: row["begin"]):
        if cells and row["begin"] < max(other["end"] for other in cells[-1]):
            cells[-1].append(row)
        else:
            cells.append([row])
    found = []
    every = {row["rank"] for row in rows}
    for cell in cells:
        dense = np.zeros(BINS + 4, np.uint64)
        for row in cell:
            dense[row["first"] : row["first"] + len(row["counts"])] += np.array(row["counts"], np.uint64)
        end = max(row["end"] for row in cell)
        ranks = {row["rank"] for row in cell}
        found.append(
            {
                "begin": cell[0]["begin"],
                "end": end,
                "sampled": sum(row["sampled"] for row in cell),
                "dense": dense[:BINS].tolist(),
                "complete": complete_to is not None and end - 1 <= complete_to and ranks == every,
            }
        )
    return found


def _plain(rows: HistRows, of: int) -> list[dict[str, Any]]:
    mine = rows.take(np.flatnonzero(rows.layer == of))
    return [
        {
            "begin": int(mine.steps[i] + mine.ahead[i]),
            "end": int(mine.steps[i] + mine.ahead[i] + mine.span[i]),
            "sampled": int(mine.sampled[i]),
            "dense": dense.tolist(),
            "complete": bool(mine.complete[i]),
        }
        for i, dense in enumerate(mine.dense())
    ]


@settings(deadline=None)
@given(st.lists(_parts(), max_size=12), st.none() | st.integers(0, 20))
def test_ranks_merge_by_the_rules_however_they_are_cut(
    parts: list[tuple[int, wire.Histograms]], complete_to: int | None
) -> None:
    merged = merge_histograms(parts, complete_to)
    again = HistRows.decoded(merged.encoded())
    for of in range(3):
        expected = _slowly(parts, of, complete_to)
        assert _plain(merged, of) == expected
        assert _plain(again, of) == expected
        assert _plain(merge_histograms(parts, complete_to, of), of) == expected


@settings(deadline=None)
@given(st.lists(_parts(), min_size=1, max_size=12), st.sampled_from([1, 2, 8, 64]))
def test_sums_over_steps_are_sums(parts: list[tuple[int, wire.Histograms]], cell: int) -> None:
    rows = merge_histograms(parts, 100)
    pooled = rows.pooled(cell)
    for of in range(3):
        single = _plain(rows, of)
        for column in _plain(pooled, of):
            start = column["begin"] // cell
            inside = [row for row in single if row["begin"] // cell == start]
            assert column["sampled"] == sum(row["sampled"] for row in inside)
            assert column["dense"] == np.sum([row["dense"] for row in inside], axis=0).tolist()
            assert column["end"] == max(row["end"] for row in inside)


def test_damage_is_noticed() -> None:
    data = merge_histograms([(0, _part(0, 1, {0: (3, [1, 2, 3])}))], 0).encoded()
    for at in range(len(data)):
        with pytest.raises(TileError):
            HistRows.decoded(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def _ask(store: Store, of: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - options of layer_histogram
    given_: dict[str, Any] = {"first": None, "last": None, "columns": 600, "kind": "grad", **options}
    with store.read() as session:
        return layer_histogram(session, run_named(session, "run"), layer=of, **given_)


def test_tiles_answer_as_the_tail_did_and_sums_add_up(store: Store, pen: MakePen) -> None:
    layers, columns, every = 20, 400, 10
    rng = np.random.default_rng(0)
    ranks = [pen(store, rank=r, world=2, layers=[layer(i, f"l{i}") for i in range(layers)]) for r in (0, 1)]
    dense = rng.integers(0, 1000, (2, columns, layers, 6))
    for start in range(0, columns, 50):
        for rank, one in enumerate(ranks):
            parts = tuple(
                _part(at * every, 1, {i: (100 + i, dense[rank, at, i].tolist()) for i in range(layers)}, "data")
                for at in range(start, start + 50)
            )
            one.deliver(wire.Body(histograms=parts))
    questions: list[dict[str, Any]] = [
        {"columns": 4000},
        {"first": 305, "last": 2222, "columns": 4000},
        {"columns": 10},
        {"first": 305, "last": 2222, "columns": 7},
    ]
    before = [_ask(store, name, **question) for question in questions for name in ("l0", "l19")]
    assert SeriesThread(store).seal(everything=True) > 1
    with store.read() as session:
        assert session.exec(select(func.count()).select_from(WalFrame)).one() == 0
        assert session.exec(select(func.max(HistTile.level))).one() > 0
    after = [_ask(store, name, **question) for question in questions for name in ("l0", "l19")]
    assert after == before
    total = dense.sum(axis=0)
    for answer, (question, i) in zip(after, itertools.product(questions, (0, 19)), strict=True):
        assert len(answer["columns"]) <= question["columns"]
        assert all(column["complete"] for column in answer["columns"])
        low, high = question.get("first", 0), question.get("last", columns * every)
        steps = np.arange(columns) * every
        for column in answer["columns"]:
            cell = answer["cell"]
            start = column["first_step"] // cell * cell
            inside = (steps // cell * cell == start) & (steps >= low) & (steps <= high)
            assert column["counts"] == total[inside, i].sum(axis=0).tolist()
            assert column["first"] == 100 + i


def test_what_comes_late_is_added_to_what_was_not_complete(store: Store, pen: MakePen) -> None:
    ranks = [pen(store, rank=r, world=2, layers=[layer(0, "a")]) for r in (0, 1)]
    parts = (_part(0, 1, {0: (5, [1, 2])}, "shard"), _part(9000, 1, {0: (5, [1])}, "shard"))
    ranks[0].deliver(wire.Body(histograms=parts))
    SeriesThread(store).seal(everything=True)
    with store.read() as session:
        # Rank 1 may still be on its way, but not for ever.
        assert session.exec(select(WalFrame.first)).all() == [9000]
    assert [column["complete"] for column in _ask(store, "a")["columns"]] == [False, False]
    ranks[1].deliver(wire.Body(histograms=(_part(0, 1, {0: (4, [7])}, "shard"),)))
    for _ in range(2):
        column = _ask(store, "a")["columns"][0]
        assert (column["first"], column["counts"], column["sampled"]) == (4, [7, 1, 2], 10)
        SeriesThread(store).seal(everything=True)


def test_a_row_that_comes_again_counts_once_at_every_zoom(store: Store, pen: MakePen) -> None:
    one = pen(store, layers=[layer(0, "a")])
    one.deliver(wire.Body(histograms=tuple(_part(step, 1, {0: (5, [1, 2])}) for step in range(1000))))
    SeriesThread(store).seal(everything=True)
    one.deliver(wire.Body(histograms=(_part(300, 1, {0: (5, [10, 20])}), _part(1000, 1, {0: (5, [1, 2])}))))
    for _ in range(2):
        columns = _ask(store, "a", columns=20)["columns"]
        assert [column["counts"][0] for column in columns] == [64] * 4 + [73] + [64] * 10 + [41]
        columns = _ask(store, "a", columns=20, first=290, last=309)["columns"]
        assert [column["counts"][0] for column in columns] == [1] * 10 + [10] + [1] * 9
        SeriesThread(store).seal(everything=True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_tail_is_decoded_once_and_merged_as_if_it_were_read_anew(store: Store, pen: MakePen, ranks: int) -> None:
    pens = [pen(store, rank=rank, world=ranks, layers=[layer(i, f"l{i}") for i in range(2)]) for rank in range(ranks)]
    tails = HistTails()
    rng = np.random.default_rng(ranks)
    for number, step in enumerate([0, 8, 8, 24, 16, 32, 40]):
        for one in pens[: 1 + number % ranks] if number < 6 else pens:
            counts = rng.integers(0, 9, 4).tolist()
            one.deliver(wire.Body(histograms=(_part(step, 8, {0: (7, counts), 1: (9, counts[:2])}, "shard"),)))
        with store.read() as session:
            run = run_named(session, "run")
            complete_to = reach_of(session, run).complete_to
            stream = stream_id(session, run.id or 0, "hist/grad")
            assert stream is not None
            before = tails.decoded
            kept, anew = (each.rows(session, stream, 1, complete_to) for each in (tails, HistTails()))
            for field in fields(HistRows):
                assert getattr(kept, field.name).tolist() == getattr(anew, field.name).tolist(), (number, field.name)
            assert 1 <= tails.decoded - before <= ranks
        assert len(kept.steps)
    SeriesThread(store).seal(everything=True)
    with store.read() as session:
        stream = stream_id(session, run_named(session, "run").id or 0, "hist/grad")
        assert stream is not None
        assert not len(tails.rows(session, stream, 1, complete_to).steps)


@pytest.mark.parametrize("name", ["fp16", "e4m3fn", "e5m2", "bf16"])
def test_shares_of_sparse_histograms_are_those_of_dense_ones(name: str) -> None:
    rng = np.random.default_rng(1)
    rows = HistRows.concatenated(
        [
            merge_histograms([(0, _part(step, 1, {0: (int(first), counts.tolist())}))], 0)
            for step, (first, counts) in enumerate(
                zip(rng.integers(180, 330, 40), rng.integers(0, 9, (40, 60)), strict=True)
            )
        ]
    )
    scale = 2.0 ** rng.integers(-20, 20, 40) * np.where(np.arange(40) % 3, 1.0, 1.3)
    scale[5], scale[6] = 0.0, math.nan
    sparse = SparseHistograms(rows.first, rows.length, rows.counts.astype(np.int64))
    found = sparse_shares(sparse, scale, [name] * 40)
    expected = shares_in_format(rows.dense(), 0.0, math.inf, scale, [name] * 40)
    for key in ("under", "over_low", "over_high", "floor"):
        np.testing.assert_allclose(getattr(found, key), getattr(expected, key), rtol=1e-12)
    dense = rows.dense()
    for row in (0, 7):
        whole = Summary(count=int(dense[row].sum()), hist=dense[row], absmax=math.inf, absmin=0.0)
        assert found.under[row] == pytest.approx(whole.underflow(name, float(scale[row])))


@pytest.mark.parametrize("sealed", [False, True])
def test_any_format_can_be_asked_of_what_is_stored(store: Store, pen: MakePen, sealed: bool) -> None:
    one = pen(store, layers=[layer(i, f"l{i}") for i in range(3)])
    half = {0: (2 * 127 - 50, [4] + [0] * 48 + [4]), 1: (2 * 127, [1])}  # 2^-25 and 1; 1
    one.deliver(wire.Body(histograms=tuple(_part(step, 1, half) for step in range(100))))
    if sealed:
        SeriesThread(store).seal(everything=True)
    with store.read() as session:
        line = [Stretch(attempt=1, first=0, last=99)]
        planes = share_planes(
            share_pieces(session, HistTails(), run_named(session, "run"), "grad", line, [0, 1, 2]),
            first=0,
            cell=16,
            formats={0: "fp16", 1: "e4m3fn", 2: "fp16"},
            scale=np.tile([1.0, 1024.0, 1.0], (7, 1)),
        )
    assert planes.under.shape == (7, 3)
    # The bin above 2^-25 holds what fp16 rounds up.
    assert planes.under[:, 0].tolist() == [0.0] * 7
    assert planes.over_high[:, 1].tolist() == [1.0] * 7
    assert planes.floor[:, 0].tolist() == [0.5] * 7
    assert is_missing(planes.under[:, 2]).all()
    assert not is_missing(planes.under[:, :2]).any()
