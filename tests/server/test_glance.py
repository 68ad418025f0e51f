"""The least headroom of a block, which is found without a logarithm for each cell, against all of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.query.fields import headroom
from floatscope_server.store.glance import Glance

if TYPE_CHECKING:
    from tests.server.conftest import Make


def _part(rng: np.random.Generator, *, odd: bool, scaled: bool, steps: int = 6) -> wire.Summaries:
    shape = steps, 5
    # Few different magnitudes, so that the least headroom has several places.
    absmax = np.exp2(rng.integers(8, 16, shape)).astype("<f4")
    absmax[rng.random(shape) < 0.2] = 0
    absmax[:, 1] = np.nextafter(absmax[:, 1], np.float32(0))
    fields = {
        "count": np.where(rng.random(shape) < (0.2 if odd else 0), 0, 64).astype("<i8"),
        "zeros": np.zeros(shape, "<i8"),
        "nans": (rng.random(shape) < (0.1 if odd else 0)).astype("<i8"),
        "infs": np.zeros(shape, "<i8"),
        "absmax": absmax,
    }
    if scaled:
        fields["scale"] = np.exp2(rng.integers(-2, 3, shape)).astype("<f4")
    return wire.Summaries(
        kind="grad",
        first_step=0,
        steps=shape[0],
        layers=rng.permutation(shape[1]).astype("<u4").tobytes(),
        fields=tuple(wire.Field(name=n, dtype=v.dtype.str, data=v.tobytes()) for n, v in fields.items()),
    )


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("odd", [False, True])
def test_the_worst_is_that_of_all_cells(make: Make, odd: bool, scaled: bool, steps: int) -> None:
    layers = {n: make.layer(n, f"layer{n}", *([] if n == 3 else [("grad", "fp16")])) for n in range(5)}
    limits = np.array([math.nan if n == 3 else math.log2(65504) for n in range(5)])
    rng = np.random.default_rng(4)
    for _ in range(50):
        part = _part(rng, odd=odd, scaled=scaled, steps=steps)
        glance = Glance()
        glance.add(wire.Body(first_step=0, steps=steps, summaries=(part,)), layers, rank=0)
        frame = Frame.of(part)
        plane = headroom(frame, limits[frame.layers])
        if not (plane < math.inf).any():
            assert glance.worst is None
            continue
        step, column = divmod(int(np.nanargmin(plane)), plane.shape[1])
        assert glance.worst == {
            "headroom": float(plane[step, column]),
            "layer": f"layer{frame.layers[column]}",
            "kind": "grad",
            "step": step,
        }


def test_no_limit_has_no_worst(make: Make) -> None:
    glance = Glance()
    part = _part(np.random.default_rng(0), odd=False, scaled=False)
    glance.add(wire.Body(summaries=(part,)), {n: make.layer(n, str(n)) for n in range(5)}, rank=0)
    assert glance.worst is None
