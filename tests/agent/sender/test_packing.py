"""Packing: what goes in comes out, in blocks that fit, whatever the size of a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope import wire
from floatscope._packing import Batch, Loss, pack
from floatscope._record import StepRecord, SummaryRows

if TYPE_CHECKING:
    from tests.agent.sender.conftest import Pending

    MakeStep = Callable[..., Pending]

Cell = tuple[str, int, int, str]  # kind, step, layer, field


def cells_of_records(records: Sequence[StepRecord]) -> dict[Cell, float]:
    return {
        (rows.kind, record.step, int(layer), name): values[row].item()
        for record in records
        for rows in record.summaries
        for name, values in rows.fields.items()
        for row, layer in enumerate(rows.layers)
    }


def cells_of_bodies(bodies: Sequence[wire.Body]) -> dict[Cell, float]:
    cells: dict[Cell, float] = {}
    for part in (part for body in bodies for part in body.summaries):
        layers = np.frombuffer(part.layers, "<u4")
        for field in part.fields:
            values = np.frombuffer(field.data, field.dtype).reshape(part.steps, len(layers))
            for (step, row), value in np.ndenumerate(values):
                cell = (part.kind, part.first_step + step, int(layers[row]), field.name)
                assert cell not in cells
                cells[cell] = value.item()
    return cells


def histogram_totals(bodies: Sequence[wire.Body]) -> tuple[np.ndarray, int]:
    total, sampled = np.zeros((100_000, 512), np.int64), 0
    for part in (part for body in bodies for part in body.histograms):
        counts, at = np.frombuffer(part.counts, "<u8"), 0
        rows = zip(
            *(
                np.frombuffer(data, code)
                for data, code in zip(
                    (part.layers, part.first, part.length, part.sampled), ("<u4", "<u2", "<u2", "<i8"), strict=True
                )
            ),
            strict=True,
        )
        for layer, first, length, elements in rows:
            total[layer, first : first + length] += counts[at : at + length].astype(np.int64)
            at += int(length)
            sampled += int(elements)
        assert at == len(counts)
    return total, sampled


def bodies_of(items: Sequence[Batch | Loss], max_bytes: int = wire.MAX_BLOCK_BYTES) -> list[wire.Body]:
    bodies = []
    for seq, item in enumerate(items, start=2**40):
        assert isinstance(item, Batch)
        block = wire.Block(seq=seq, crc=item.crc, body=item.body)
        assert len(wire.encode(block)) <= max_bytes
        bodies.append(wire.decode_body(block))
    return bodies


def test_consecutive_steps_become_one_array(step: MakeStep) -> None:
    records = [step(n, rows=3, hist=True).record for n in range(10, 16)]
    [body] = bodies_of(list(pack(records, wire.MAX_BLOCK_BYTES)))
    [summaries] = body.summaries
    assert (body.first_step, body.steps, summaries.first_step, summaries.steps) == (10, 6, 10, 6)
    assert cells_of_bodies([body]) == cells_of_records(records)
    total, sampled = histogram_totals([body])
    expected = sum(record.summaries[0].hist for record in records if record.summaries[0].hist is not None)
    assert np.array_equal(total[:3], expected)
    assert sampled == 6 * 3 * 4096
    [histograms] = body.histograms
    assert (histograms.first_step, histograms.steps) == (10, 6)


def test_other_rows_or_a_jump_begin_a_new_array(step: MakeStep) -> None:
    records = [step(n, rows=rows).record for n, rows in ((1, 2), (2, 2), (3, 4), (4, 2), (9, 2), (9, 2), (3, 2))]
    [body] = bodies_of(list(pack(records, wire.MAX_BLOCK_BYTES)))
    assert [(part.first_step, part.steps) for part in body.summaries] == [
        (1, 2),
        (3, 1),
        (4, 1),
        (9, 1),
        (9, 1),
        (3, 1),
    ]
    assert (body.first_step, body.steps) == (1, 9)
    [loss] = body.scalars
    assert np.frombuffer(loss.steps, "<i8").tolist() == [1, 2, 3, 4, 9, 9, 3]


def test_odd_numbers_keep_their_bits() -> None:
    bits = np.array([0x7FC00000, wire.MISSING_BITS, 0x7F800000, 0x80000000, 1], np.uint32)
    rows = SummaryRows(
        kind="act",
        layers=np.arange(5, dtype=np.uint32),
        fields={"count": np.full(5, 2**62, np.int64), "absmax": bits.view(np.float32)},
    )
    record = StepRecord(step=0, scalars={"loss": float("nan"), "lr": float("-inf")}, summaries=(rows,))
    [body] = bodies_of(list(pack([record], wire.MAX_BLOCK_BYTES)))
    fields = {field.name: field.data for field in body.summaries[0].fields}
    assert np.array_equal(np.frombuffer(fields["absmax"], "<u4"), bits)
    assert np.frombuffer(fields["count"], "<i8").tolist() == [2**62] * 5
    values = {series.name: np.frombuffer(series.values, "<f8")[0] for series in body.scalars}
    assert np.isnan(values["loss"])
    assert values["lr"] == -np.inf


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=12),
    max_bytes=st.integers(3_000, 40_000),
)
def test_nothing_is_lost_or_too_large_at_any_block_size(shapes: list[tuple[int, bool]], max_bytes: int) -> None:
    rng = np.random.default_rng(len(shapes))
    records = [
        StepRecord(
            step=n,
            scalars={"loss": 1.0 * n},
            summaries=tuple(
                SummaryRows(
                    kind=kind,
                    layers=np.arange(rows, dtype=np.uint32),
                    fields={"count": rng.integers(1, 9, rows), "sum": rng.random(rows)},
                    hist=rng.integers(0, 2, (rows, 512)) if hist else None,
                )
                for kind in ("grad", "act")
            )
            if rows
            else (),
            events=(wire.Event(step=n, kind="skipped", detail={"optimizer": 0}),),
            layers=tuple(wire.Layer(index=i, name=f"layers.{i}", module_type="Linear") for i in range(rows)),
        )
        for n, (rows, hist) in enumerate(shapes)
    ]
    items = list(pack(records, max_bytes))
    # A row with a full histogram is 4 kB; blocks smaller than that cannot carry it and say so.
    if any(isinstance(item, Loss) for item in items):
        assert max_bytes < 4_600
        return
    bodies = bodies_of(items, max_bytes)
    assert sum(item.records for item in items) == len(records)
    assert cells_of_bodies(bodies) == cells_of_records(records)
    total, _ = histogram_totals(bodies)
    assert total.sum() == sum(int(rows.hist.sum()) for r in records for rows in r.summaries if rows.hist is not None)
    assert [event.step for body in bodies for event in body.events] == list(range(len(records)))
    known: set[int] = set()
    for body in bodies:
        known |= {layer.index for layer in body.layers}
        used = {int(i) for part in body.summaries for i in np.frombuffer(part.layers, "<u4")}
        assert used <= known, "rows before the layers they mean"


def test_a_step_larger_than_a_block_is_cut(step: MakeStep) -> None:
    record = step(7, rows=40_000, hist=True).record
    items = list(pack([record], wire.MAX_BLOCK_BYTES))
    bodies = bodies_of(items)
    assert len(bodies) > 5
    assert {body.first_step for body in bodies} == {7}
    assert [item.records for item in items] == [0] * (len(items) - 1) + [1]
    rows = np.concatenate([np.frombuffer(part.layers, "<u4") for body in bodies for part in body.summaries])
    assert np.array_equal(rows, np.arange(40_000))
    assert [body.continued for body in bodies] == [True] * (len(bodies) - 1) + [False]


def test_only_the_last_body_of_each_step_completes_it(step: MakeStep) -> None:
    records = [step(n, rows=12_000, hist=True).record for n in range(3)] + [step(n).record for n in range(3, 6)]
    bodies = bodies_of(list(pack(records, wire.MAX_BLOCK_BYTES)))
    assert len(bodies) > 6
    whole = [(body.first_step, body.steps) for body in bodies if not body.continued]
    assert [first + steps - 1 for first, steps in whole] == [0, 1, 2, 5]
    for body, following in itertools.pairwise(bodies):
        assert not body.continued or (following.first_step, body.steps) == (body.first_step, 1)


@pytest.mark.parametrize("what", ["layers", "events", "scalars"])
def test_long_lists_are_cut_too(step: MakeStep, what: str) -> None:
    more: dict[str, object] = {
        "layers": tuple(wire.Layer(index=i, name="x" * 1000, module_type="Linear") for i in range(3000)),
        "events": tuple(wire.Event(step=1, kind="e" * 1000) for _ in range(3000)),
        "scalars": {"s" * 1000 + str(i): float(i) for i in range(3000)},
    }
    record = replace(step(1, rows=2).record, **{what: more[what]})  # type: ignore[arg-type]
    bodies = bodies_of(list(pack([record], wire.MAX_BLOCK_BYTES)))
    assert len(bodies) > 2
    assert sum(len(getattr(body, what)) for body in bodies) == 3000
    assert cells_of_bodies(bodies) == cells_of_records([record])


def test_what_cannot_be_cut_is_a_declared_loss(step: MakeStep) -> None:
    giant = wire.Layer(index=0, name="x" * wire.MAX_BLOCK_BYTES, module_type="Linear")
    records = [step(4, layers=(giant,)).record, step(5).record]
    items = list(pack(records, wire.MAX_BLOCK_BYTES))
    assert [item for item in items if isinstance(item, Loss)] == [Loss(first=4, last=4, records=0, reason="too_large")]
    steps = [np.frombuffer(body.scalars[0].steps, "<i8") for body in bodies_of([i for i in items if i.nbytes])]
    assert np.concatenate(steps).tolist() == [4, 5]


@pytest.mark.parametrize("damage", [{"a\ud800": 1.0}, {"huge": 10**400}])
def test_what_no_message_can_hold_costs_its_own_record(step: MakeStep, damage: dict[str, float]) -> None:
    records = [step(n).record for n in range(5)]
    records[2] = replace(records[2], scalars=damage)
    items = list(pack(records, wire.MAX_BLOCK_BYTES))
    assert [item for item in items if isinstance(item, Loss)] == [
        Loss(first=2, last=2, records=1, reason="unencodable")
    ]
    bodies = bodies_of([item for item in items if isinstance(item, Batch)])
    steps = [int(s) for body in bodies for series in body.scalars for s in np.frombuffer(series.steps, "<i8")]
    assert steps == [0, 1, 3, 4]


def test_an_empty_row_has_no_counts() -> None:
    rows = SummaryRows(
        kind="grad",
        layers=np.array([3, 4], np.uint32),
        fields={"count": np.array([5, 5])},
        hist=np.stack([np.zeros(512, np.int64), np.eye(1, 512, 511, dtype=np.int64)[0]]),
    )
    [body] = bodies_of(list(pack([StepRecord(step=0, scalars={}, summaries=(rows,))], wire.MAX_BLOCK_BYTES)))
    [part] = body.histograms
    assert np.frombuffer(part.first, "<u2").tolist() == [0, 511]
    assert np.frombuffer(part.length, "<u2").tolist() == [0, 1]
