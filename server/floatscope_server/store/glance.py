"""What a list of runs shows of each: kept up to date as blocks arrive, stored with the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope import wire
from floatscope._formats import formats
from floatscope_server.frame import Frame, headroom_bits
from floatscope_server.jsontext import number, plain
from floatscope_server.operands import has_judged_limit, operand_of
from floatscope_server.query.fields import headroom
from floatscope_server.store.pace import Pace

__all__ = ["Glance"]


_POINTS = 60
_BUCKET = 16
_BUCKETS = 4
_STEP_TIME = "step_time_s"


class Glance:
    """The last values, at most 60 points of the loss, and the worst headroom of the last 64 steps.

    Newest is what came last: steps that go back supersede those after them.
    """

    SHOWN = ("loss", "grad_norm", "loss_scale")

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        stored = stored or {}
        self.last: dict[str, tuple[int, float]] = {
            name: (step, number(value)) for name, (step, value) in stored.get("last", {}).items()
        }
        self._stride: int = stored.get("stride", 1)
        self._loss: list[tuple[int, float]] = [(cell, number(value)) for cell, value in stored.get("loss", [])]
        self._worst: list[dict[str, Any]] = [
            {**entry, "headroom": number(entry["headroom"])} for entry in stored.get("worst", [])
        ]
        self.cost: dict[str, Any] | None = stored.get("cost")
        """What the agent costs: {share, budget, limit, every} of the rank that pays most; None until one says so."""
        self.declared: dict[str, Any] = stored.get("declared", {})
        """What the configuration of the present attempt promises, as ``declared.declared`` has it."""
        self.executed: dict[str, Any] = stored.get("executed", {})
        """What its layers computed in, as ``declared.executed`` has it."""
        self.pace = Pace(stored.get("pace", ()))
        self._table: Mapping[int, wire.Layer] = {}
        self._known: dict[str, npt.NDArray[np.float64]] = {}

    def stored(self) -> dict[str, Any]:
        """As JSON for the run's row."""
        content = plain(
            {
                "last": self.last,
                "stride": self._stride,
                "loss": self._loss,
                "worst": self._worst,
                "cost": self.cost,
                "declared": self.declared,
                "executed": self.executed,
                "pace": self.pace.stored(),
            }
        )
        assert isinstance(content, dict)
        return content

    @property
    def sparkline(self) -> list[float]:
        """Losses, evenly spaced over the run; the worst of each stretch."""
        return [value for _, value in self._loss]

    @property
    def worst(self) -> dict[str, Any] | None:
        """{headroom, layer, kind, step} of the least headroom of late, or None."""
        return min(self._worst, key=lambda entry: entry["headroom"], default=None)

    def note_cost(self, costs: Iterable[Mapping[str, Any] | None]) -> None:
        """Take in what the ranks said of their cost."""
        dearest = max((cost for cost in costs if cost is not None), key=lambda cost: cost["share"], default=None)
        if dearest is not None:
            self.cost = {name: dearest[name] for name in ("share", "budget", "limit", "every")}

    def restart(self, first_step: int) -> None:
        """Forget what a new attempt that begins at ``first_step`` supersedes."""
        self._loss = [(cell, value) for cell, value in self._loss if cell * self._stride < first_step]
        self._worst = []
        self.pace.restart()

    def add(
        self, body: wire.Body, layers: Mapping[int, wire.Layer], *, rank: int, merged: Sequence[wire.Scalars] = ()
    ) -> None:
        """Take in one block; scalars are rank 0's only and those of all ranks together, headroom everybody's."""
        for series in (*(body.scalars if rank == 0 else ()), *merged):
            if series.name in self.SHOWN:
                self._scalars(series)
            elif series.name == _STEP_TIME:
                self.pace.add(np.frombuffer(series.steps, "<i8"), np.frombuffer(series.values, "<f8"))
        for part in body.summaries:
            self._headroom(part, layers)

    def _scalars(self, series: wire.Scalars) -> None:
        steps = np.frombuffer(series.steps, "<i8").tolist()
        values = np.frombuffer(series.values, "<f8").tolist()
        self.last[series.name] = (steps[-1], values[-1])
        if series.name != "loss":
            return
        for step, value in zip(steps, values, strict=True):
            self._supersede(step)
            cell = step // self._stride
            if self._loss and self._loss[-1][0] == cell:
                self._loss[-1] = (cell, _worse(self._loss[-1][1], value))
            elif not self._loss or self._loss[-1][0] < cell:
                self._loss.append((cell, value))
            while len(self._loss) > _POINTS or (self._loss and self._loss[-1][0] - self._loss[0][0] >= _POINTS):
                self._halve()

    def _supersede(self, step: int) -> None:
        """Forget the points after ``step``, and spread those before it as far as fits."""
        if not self._loss or self._loss[-1][0] * self._stride <= step:
            return
        while self._loss and self._loss[-1][0] * self._stride > step:
            self._loss.pop()
        while self._stride > 1 and (not self._loss or 2 * (self._loss[-1][0] - self._loss[0][0]) < _POINTS // 2):
            self._stride //= 2
            self._loss = [(2 * cell, value) for cell, value in self._loss]

    def _halve(self) -> None:
        self._stride *= 2
        halved: list[tuple[int, float]] = []
        for cell, value in self._loss:
            if halved and halved[-1][0] == cell // 2:
                halved[-1] = (cell // 2, _worse(halved[-1][1], value))
            else:
                halved.append((cell // 2, value))
        self._loss = halved

    def _headroom(self, part: wire.Summaries, layers: Mapping[int, wire.Layer]) -> None:
        frame = Frame.of(part)
        least = _least(frame, self._limits(part.kind, layers)[frame.layers])
        if least is None:
            return
        bits, at, column = least
        worst_step = part.first_step + at
        entry = {
            "headroom": bits,
            "layer": layers[int(frame.layers[column])].name,
            "kind": part.kind,
            "step": worst_step,
        }
        bucket = worst_step // _BUCKET
        for position, kept in enumerate(self._worst):
            if kept["step"] // _BUCKET == bucket:
                if entry["headroom"] < kept["headroom"]:
                    self._worst[position] = entry
                break
        else:
            self._worst.append(entry)
            # By arrival, so that a high step among lower ones goes with its time.
            oldest = bucket - _BUCKETS
            self._worst = [kept for kept in self._worst if kept["step"] // _BUCKET > oldest][-_BUCKETS:]

    def _limits(self, kind: str, layers: Mapping[int, wire.Layer]) -> npt.NDArray[np.float64]:
        """log2 of each format's largest number, NaN without a limit to be judged; kept while the table is the same."""
        if layers is not self._table:
            self._table = layers
            self._known = {}
        if kind not in self._known:
            limits = np.full(len(layers), np.nan)
            for index, layer in layers.items():
                operand = operand_of(layer, kind)
                if operand is not None and has_judged_limit(operand):
                    limits[index] = math.log2(formats[operand.format].max)
            self._known[kind] = limits
        return self._known[kind]


def _least(frame: Frame, log2_max: npt.NDArray[np.float64]) -> tuple[float, int, int] | None:
    """The least headroom in bits and the first place [steps, layers] that has it; None where there is none.

    Of a frame in which all is finite and nothing scaled it is that of the largest magnitude of each layer: a logarithm
    for each layer, and one for each step only of the layers that are in question.
    """
    if np.isnan(log2_max).all():
        return None
    fields, among = frame.fields, np.arange(len(frame.layers))
    if not ("scale" in fields or fields["nans"].any() or fields["infs"].any()) and frame.observed.all():
        peaks = headroom_bits(fields["absmax"].max(axis=0).astype(np.float64), log2_max).astype(np.float32)
        lowest = np.fmin.reduce(peaks)
        if frame.steps == 1:
            # A block of one step, of which there may be hundreds a second: there is no step left to look for.
            return (float(lowest), 0, int(np.argmax(peaks == lowest))) if lowest < math.inf else None
        among = np.flatnonzero(peaks == lowest)
        plane = headroom_bits(fields["absmax"][:, among].astype(np.float64), log2_max[among]).astype(np.float32)
    else:
        plane = headroom(frame, log2_max)
    if not (plane < math.inf).any():
        return None
    at, column = divmod(int(np.nanargmin(plane)), plane.shape[1])
    return float(plane[at, column]), at, int(among[column])


def _worse(a: float, b: float) -> float:
    return b if math.isnan(b) or b > a else a
