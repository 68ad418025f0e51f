"""Telemetry as an agent sends it, and what the server makes of it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlmodel import Session, select

from floatscope import wire
from floatscope_server.models import Run, ScalarSeries
from floatscope_server.observation import ALL_RANKS
from floatscope_server.store import Store
from floatscope_server.store.together import NORM

__all__ = ["Unpack", "histogram", "layer", "norm_of_all_ranks", "run_of", "scalars", "summaries", "unpack"]

Unpack = Callable[[bytes], tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]]


def layer(index: int, name: str, *operands: tuple[str, str], order: int | None = None) -> wire.Layer:
    """A layer with (kind, format) operands."""
    return wire.Layer(
        index=index,
        name=name,
        module_type="Linear",
        parameters=16,
        order=index if order is None else order,
        operands=tuple(wire.Operand(kind=kind, format=name_) for kind, name_ in operands),
    )


def summaries(
    kind: str,
    first_step: int,
    absmax: npt.ArrayLike,
    *,
    layers: Sequence[int] | None = None,
    **fields: Any,  # noqa: ANN401
) -> wire.Summaries:
    """Summaries of [steps, layers] ``absmax``; other fields default to something consistent."""
    top = np.atleast_2d(np.asarray(absmax, np.float32))
    rows = list(range(top.shape[1])) if layers is None else layers
    values: dict[str, Any] = {
        "count": 100,
        "zeros": 0,
        "nans": 0,
        "infs": 0,
        "absmax": top,
        "absmin": top / 8,
        "sum": 0.0,
        "sumsq": 25.0 * top.astype(np.float64) ** 2,
        "scale": 1.0,
        **fields,
    }
    dtypes = {"count": "<i8", "zeros": "<i8", "nans": "<i8", "infs": "<i8", "sum": "<f8", "sumsq": "<f8"}
    return wire.Summaries(
        kind=kind,
        first_step=first_step,
        steps=top.shape[0],
        layers=np.array(rows, "<u4").tobytes(),
        fields=tuple(
            wire.Field(
                name=name,
                dtype=dtypes.get(name, "<f4"),
                data=np.broadcast_to(np.asarray(value, dtypes.get(name, "<f4")), top.shape).tobytes(),
            )
            for name, value in values.items()
        ),
    )


def scalars(name: str, first_step: int, values: Sequence[float]) -> wire.Scalars:
    """A series of consecutive steps."""
    steps = np.arange(first_step, first_step + len(values), dtype="<i8")
    return wire.Scalars(name=name, steps=steps.tobytes(), values=np.array(values, "<f8").tobytes())


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """An FSB1 block, read as its description says."""
    assert data[:4] == b"FSB1"
    (length,) = struct.unpack_from("<I", data, 4)
    header = json.loads(data[8 : 8 + length])
    start = 8 + length
    assert start % 8 == 0
    arrays = {}
    for entry in header["arrays"]:
        assert entry["offset"] % 8 == 0
        count = math.prod(entry["shape"])
        array = np.frombuffer(data, entry["dtype"], count, start + entry["offset"])
        arrays[entry["name"]] = array.reshape(entry["shape"])
    return header["meta"], arrays


def run_of(store: Store, name: str = "run") -> Run:
    """The run as it is stored."""
    with store.read() as session:
        return session.exec(select(Run).where(Run.name == name)).one()


def norm_of_all_ranks(session: Session, attempt: int) -> ScalarSeries | None:
    """What is kept of the norm that all ranks of the first run make together."""
    return session.exec(
        select(ScalarSeries).where(
            ScalarSeries.run_id == 1,
            ScalarSeries.attempt == attempt,
            ScalarSeries.rank == ALL_RANKS,
            ScalarSeries.name == NORM,
        )
    ).one_or_none()


def histogram(step: int, first: int, counts: Sequence[int]) -> wire.Histograms:
    """Of the gradient of layer 0 in one step, from bin ``first`` on."""
    return wire.Histograms(
        kind="grad",
        first_step=step,
        steps=1,
        layers=np.array([0], "<u4").tobytes(),
        first=np.array([first], "<u2").tobytes(),
        length=np.array([len(counts)], "<u2").tobytes(),
        sampled=np.array([sum(counts)], "<i8").tobytes(),
        counts=np.array(counts, "<u8").tobytes(),
    )
