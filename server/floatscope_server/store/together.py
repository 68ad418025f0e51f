"""What only all ranks together tell: the norm of a sharded gradient, and whether replicas are still equal."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlmodel import Session, col

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.models import WalFrame
from floatscope_server.observation import ALL_RANKS
from floatscope_server.store.framed import scalars_of

__all__ = ["FRAMEWORK_NORM", "NORM", "SHARE", "Conclusions", "Together", "stored_scalars"]

SHARE = "grad_sumsq_share"
NORM = "grad_norm"
FRAMEWORK_NORM = "grad_norm/framework"
_OWN_NORM = f"floatscope/{NORM}"

_STEPS = 4096
"""Steps that wait for the rest of their ranks. Ranks run in step; what lags further behind is never complete."""
_ROW_BYTES = 32 << 20
"""Rows that wait for the other copies of theirs, with all that is around them."""
_OVERHEAD = 1024
"""Bytes of the objects around the rows of one rank and step, rounded up."""
_SHARES = 1 << 19
"""Numbers that wait for those of other ranks, about 50 MB: 8192 ranks wait for 64 steps."""
_NORM_TOLERANCE = 0.01
_SUMSQ_TOLERANCE = 1e-6
"""Copies have the same bits; only the order of adding up may differ from one kind of device to another."""
_SHOWN_RANKS = 16
_EXACT = ("count", "nans", "infs", "absmax")

_Index = npt.NDArray[np.int64]
_Rows = tuple[int, _Index, npt.NDArray[np.float64]]
"""Rank, layers, and for each of these what must be equal."""


@dataclass(slots=True)
class Conclusions:
    """What one block completed. ``scalars`` belong to no rank: they are of all."""

    scalars: tuple[wire.Scalars, ...] = ()
    events: tuple[wire.Event, ...] = ()


@dataclass(slots=True)
class _Copies:
    """The rows of one kind, placement and step that should be equal, as far as they have come."""

    original: list[_Rows] = field(default_factory=list)
    copies: list[_Rows] = field(default_factory=list)
    nbytes: int = 0


class Together:
    """What one attempt of a run still waits for. ``take`` every block, in the order of their commits."""

    def __init__(self) -> None:
        self._shares: OrderedDict[int, dict[int, float]] = OrderedDict()
        self._waiting = 0
        self._norms: OrderedDict[int, dict[int, float]] = OrderedDict()
        self._framework: OrderedDict[int, dict[int, float]] = OrderedDict()
        self._rows: OrderedDict[tuple[str, str, int, int], _Copies] = OrderedDict()
        self._row_bytes = 0
        self._copied: set[tuple[str, str, int]] = set()
        self._differing: set[tuple[str, str, int, int]] = set()
        self._mismatched = False
        self._given = False

    def take(self, rank: int, world: int, body: wire.Body, layers: Mapping[int, wire.Layer]) -> Conclusions:
        """Take in what ``rank`` of ``world`` sent; ``layers`` is the run's table."""
        finished = self.norms(rank, world, body.scalars)
        events = [*self._checked_norms(rank, body.scalars, finished), *self._compared(rank, body, layers)]
        if not finished:
            return Conclusions(events=tuple(events))
        series = wire.Scalars(
            name=_OWN_NORM if self._given else NORM,
            steps=np.array(list(finished), "<i8").tobytes(),
            values=np.array(list(finished.values()), "<f8").tobytes(),
        )
        return Conclusions(scalars=(series,), events=tuple(events))

    def norms(self, rank: int, world: int, scalars: Sequence[wire.Scalars]) -> dict[int, float]:
        """The norms, by step, for which ``scalars`` bring the last share."""
        finished: dict[int, float] = {}
        for series in scalars:
            if series.name != SHARE:
                continue
            # An agent that sends shares sends no norm: one of that name is the user's, and keeps it.
            self._given = self._given or any(other.name == NORM for other in scalars)
            for step, value in _points(series):
                shares = self._shares.setdefault(step, {})
                self._waiting += rank not in shares
                shares[rank] = value
                if len(shares) >= world:
                    total = sum(shares.values())
                    finished[step] = math.sqrt(total) if total >= 0 else math.nan
                    self._waiting -= len(self._shares.pop(step))
                while len(self._shares) > _STEPS or self._waiting > _SHARES:
                    self._waiting -= len(self._shares.popitem(last=False)[1])
        return finished

    def _checked_norms(
        self, rank: int, scalars: Sequence[wire.Scalars], finished: Mapping[int, float]
    ) -> Iterator[wire.Event]:
        """An event where the norm begins to differ from what the framework clips by."""
        touched: set[int] = set(finished)
        names = {series.name for series in scalars}
        own = _OWN_NORM if _OWN_NORM in names else "" if self._given else NORM
        for series in scalars:
            if series.name in (FRAMEWORK_NORM, own):
                target = self._framework if series.name == FRAMEWORK_NORM else self._norms
                for step, value in _points(series):
                    _slot(target, step)[rank] = value
                    touched.add(step)
        for step, value in finished.items():
            _slot(self._norms, step)[ALL_RANKS] = value
        for step in sorted(touched):
            theirs, ours = self._framework.get(step, {}), self._norms.get(step, {})
            of_rank = next((r for r in sorted(theirs) if r in ours or ALL_RANKS in ours), None)
            if of_rank is None:
                continue
            framework, norm = theirs[of_rank], ours.get(ALL_RANKS, ours.get(of_rank, math.nan))
            del self._framework[step], self._norms[step]
            if not (math.isfinite(norm) and math.isfinite(framework)):
                continue
            differs = abs(norm - framework) > _NORM_TOLERANCE * max(norm, framework)
            if differs and not self._mismatched:
                yield wire.Event(step=step, kind="norm_mismatch", detail={"ours": norm, "framework": framework})
            self._mismatched = differs

    def _compared(self, rank: int, body: wire.Body, layers: Mapping[int, wire.Layer]) -> Iterator[wire.Event]:
        """An event where a copy begins to differ from the row that counts."""
        for part in body.summaries:
            if part.placement not in ("shard", "replica"):
                continue
            original = rank if part.copy_of < 0 else part.copy_of
            group = part.kind, part.placement, original
            if original != rank:
                self._copied.add(group)
            elif group not in self._copied:
                continue  # nobody has copies of it
            frame = Frame.of(part)
            figures = np.stack([frame[name] for name in (*_EXACT, "sumsq")], axis=-1)
            for row in range(frame.steps):
                step = frame.first_step + row
                yield from self._compare(group, step, original == rank, (rank, frame.layers, figures[row]), layers)

    def _compare(
        self, group: tuple[str, str, int], step: int, is_original: bool, rows: _Rows, table: Mapping[int, wire.Layer]
    ) -> Iterator[wire.Event]:
        held = self._rows.setdefault((*group, step), _Copies())
        # Rows of one step may come in several blocks. A copy waits for what of its original is still to come.
        waiting = [] if is_original else [rows]
        pairs = (
            [(rows, copy) for copy in held.copies] if is_original else [(original, rows) for original in held.original]
        )
        different: dict[int, set[int]] = {}
        for original, copy in pairs:
            layers, wrong = _differences(original, copy)
            for layer, differs in zip(layers.tolist(), wrong.tolist(), strict=True):
                key = group[0], group[1], layer, copy[0]
                if differs and key not in self._differing:
                    different.setdefault(layer, {original[0]}).add(copy[0])
                (self._differing.add if differs else self._differing.discard)(key)
            if is_original:
                waiting.append(_without(copy, layers))
            else:
                waiting = [_without(part, layers) for part in waiting]
        waiting = [part for part in waiting if len(part[1])]
        if is_original:
            held.original.append(rows)
            held.copies = waiting
        else:
            held.copies += waiting
        nbytes = sum(_OVERHEAD + part[1].nbytes + part[2].nbytes for part in (*held.original, *held.copies))
        self._row_bytes += nbytes - held.nbytes
        held.nbytes = nbytes
        while self._row_bytes > _ROW_BYTES:
            _, oldest = self._rows.popitem(last=False)
            self._row_bytes -= oldest.nbytes
        if different:
            first = min(different)
            ranks = sorted(set().union(*different.values()))
            shown = ", ".join(map(str, ranks[:_SHOWN_RANKS])) + (", ..." if len(ranks) > _SHOWN_RANKS else "")
            yield wire.Event(
                step=step,
                kind="replicas_differ",
                detail={"kind": group[0], "layer": table[first].name, "layers": len(different), "ranks": shown},
            )


def stored_scalars(
    session: Session, stream: int, attempt: int, last: int | None
) -> Iterator[tuple[int, tuple[wire.Scalars, ...]]]:
    """Rank and series of each stored block of ``attempt`` that may still wait for others, in the order they came."""
    rows = session.execute(
        select(col(WalFrame.rank), col(WalFrame.data))
        .where(
            col(WalFrame.stream_id) == stream,
            col(WalFrame.attempt) == attempt,
            col(WalFrame.first) + col(WalFrame.n) > (last or 0) - _STEPS,
            col(WalFrame.rank) >= 0,
        )
        .order_by(col(WalFrame.id))
    )
    for rank, data in rows:
        yield rank, scalars_of(data) or ()


def _points(series: wire.Scalars) -> Iterator[tuple[int, float]]:
    return zip(np.frombuffer(series.steps, "<i8").tolist(), np.frombuffer(series.values, "<f8").tolist(), strict=True)


def _slot(waiting: OrderedDict[int, dict[int, float]], step: int) -> dict[int, float]:
    found = waiting.setdefault(step, {})
    if len(waiting) > _STEPS:
        waiting.popitem(last=False)
    return found


def _without(rows: _Rows, layers: _Index) -> _Rows:
    """``rows`` of other layers only."""
    rank, own, figures = rows
    if np.array_equal(own, layers):
        return rank, own[:0], figures[:0]
    keep = ~np.isin(own, layers)
    return rank, own[keep], figures[keep]


def _differences(original: _Rows, copy: _Rows) -> tuple[_Index, npt.NDArray[np.bool_]]:
    """The layers that both have, and where they are not equal."""
    _, layers, ours = original
    _, theirs, others = copy
    if not np.array_equal(layers, theirs):
        layers, at, there = np.intersect1d(layers, theirs, return_indices=True)
        ours, others = ours[at], others[there]
    # What is no number on both is no difference; how many there are of them is among what is compared.
    same = (ours == others) | (np.isnan(ours) & np.isnan(others))
    exact = same[:, :-1].all(axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(ours[:, -1] - others[:, -1]) > _SUMSQ_TOLERANCE * np.maximum(ours[:, -1], others[:, -1])
    return layers, ~exact | (~same[:, -1] & (apart | ~np.isfinite(ours[:, -1]) | ~np.isfinite(others[:, -1])))
