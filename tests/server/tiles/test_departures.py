"""Where a rank departs from the others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from floatscope_server.frame import FIELD_DTYPES, Frame
from floatscope_server.tiles.departures import MOST, Departure, departures
from floatscope_server.tiles.statistics import Stat


def _frame(values: Mapping[str, object], *, steps: int = 4, layers: int = 3, first: int = 10) -> Frame:
    plain = {"count": 100, "zeros": 0, "nans": 0, "infs": 0, "absmax": 1.0, "absmin": 0.5, "sum": 0.0, "sumsq": 25.0}
    fields = {
        name: np.broadcast_to(np.asarray(value, FIELD_DTYPES[name]), (steps, layers)).copy()
        for name, value in {**plain, **values}.items()
    }
    return Frame(first_step=first, steps=steps, layers=np.arange(layers), fields=fields)


def _found(frames: list[tuple[int, Frame]], *, first_layer: int = 0) -> list[Departure]:
    return departures(frames, first=8, columns=16, first_layer=first_layer, layers=3 - first_layer)


def test_more_than_two_octaves_from_the_median() -> None:
    four, five = _frame({"absmax": 4.0}), _frame({})
    five.fields["absmax"][2, 1] = 4.5
    assert _found([(rank, _frame({})) for rank in range(3)] + [(9, four)]) == []
    found = _found([(rank, _frame({})) for rank in range(3)] + [(9, five)])
    assert found == [Departure(12, 9, 1, int(Stat.ABSMAX), 4.5, 1.0, "outlier")]
    assert _found([(rank, _frame({})) for rank in range(3)] + [(9, five)], first_layer=2) == []


def test_of_two_that_differ_nobody_departs_but_for_what_is_not_finite() -> None:
    odd = _frame({"absmax": 100.0})
    odd.fields["nans"][0, 2] = 7
    assert _found([(0, _frame({})), (1, odd)]) == [Departure(10, 1, 2, int(Stat.NONFINITE), 7.0, None, "nonfinite")]


def test_the_earliest_are_kept() -> None:
    odd = _frame({"absmax": 100.0}, steps=6, layers=40)
    frames = [(rank, _frame({}, steps=6, layers=40)) for rank in range(3)] + [(3, odd)]
    found = departures(frames, first=10, columns=6, first_layer=0, layers=40)
    assert len(found) == MOST
    assert {item.step for item in found} == {10, 11}
