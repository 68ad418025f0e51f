"""Rows for what is captured in CUDA graphs: what a capture would launch runs at once on the CPU."""

from __future__ import annotations

import pytest
import torch

from floatscope import summarize
from floatscope._captured import CapturedPart, CapturedRows
from floatscope._stats import WordAt

OUTPUT = CapturedPart("act", 3, "fp32", loss_scaled=False, sharded=False)
GRADIENT = CapturedPart("grad", 3, "fp32", loss_scaled=False, sharded=False)
CPU = torch.device("cpu")


@pytest.fixture
def rows() -> CapturedRows:
    captured = CapturedRows()
    captured.reserve({CPU}, 2)
    return captured


def test_tensors_of_one_part_merge_and_kinds_stay_apart(rows: CapturedRows) -> None:
    x, y, gradient = torch.randn(5, 3), torch.randn(7), torch.randn(11)
    assert [rows.measure(tensor, OUTPUT) for tensor in (x, y)] == ["", ""]
    assert not rows.measure(gradient, GRADIENT)
    [output] = rows.collect({"act"})
    expected = summarize([x, y])
    assert output.part == OUTPUT
    assert output.words[WordAt.ELEMENTS] == expected.count
    assert output.words[WordAt.TENSORS] == 2
    assert torch.equal(output.hist.long(), torch.from_numpy(expected.hist.copy()))
    assert [row.part for row in rows.collect({"act", "grad"})] == [OUTPUT, GRADIENT]


def test_clearing_leaves_the_rows_where_graphs_write_to_them(rows: CapturedRows) -> None:
    rows.measure(torch.ones(4), OUTPUT)
    [before] = rows.collect({"act"})
    rows.reserve({CPU}, 50)
    rows.clear()
    [after] = rows.collect({"act"})
    assert after.words.data_ptr() == before.words.data_ptr()
    assert not after.words.any()
    assert not after.hist.any()


def test_a_scale_on_the_device_is_that_of_the_latest_replay(rows: CapturedRows) -> None:
    scale = torch.tensor(4.0)
    rows.measure(torch.ones(4), OUTPUT, scale)
    rows.measure(torch.ones(4), GRADIENT, 2.0)
    scale.fill_(8.0)
    output, gradient = rows.collect({"act", "grad"})
    assert isinstance(output.cast_scale, torch.Tensor)
    assert output.cast_scale == 4.0, "a copy was captured, not the tensor"
    assert gradient.cast_scale == 2.0


def test_what_has_no_row_says_why(rows: CapturedRows) -> None:
    assert (
        "more tensors than there are rows"
        in [rows.measure(torch.ones(1), OUTPUT._replace(layer=layer)) for layer in range(3)][2]
    )
    assert "came to this device" in rows.measure(torch.ones(1, device="meta"), OUTPUT)
