"""The rows of one device: which tensor's statistics go where, and how they leave for the host at the end of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import add, is_
from typing import NamedTuple

import numpy as np
import torch

from floatscope._placement import WHOLE, Placement
from floatscope._ring import Ring
from floatscope._stats import WORDS, Plan, Rows, Variant
from floatscope._streams import Streams
from floatscope._summary import BINS
from floatscope._transit import Copying, Here, Transit

__all__ = ["DeviceRows", "FromAmax", "Joined", "Part", "PartList", "Route", "Scalar", "Slot"]

_NUMBERS = 64
"""Places for scalars to begin with: 512 bytes that always travel."""
_PLANS = 256
"""Plans kept: a plan belongs to a list of rows, and a training repeats those. Outputs and operands of 1.3B parameters
are measured in 110 lists a step."""
_PLANNED = 1 << 15
"""Tensors in all of them, each some 400 bytes: experts that no token was sent to make another list in each step."""
_WORD = 8
_ROW_HIST = 4 * BINS


class Slot(NamedTuple):
    """A scalar that lies on a device, to be fetched with the rows."""

    device: torch.device
    place: int


Scalar = float | Slot


class FromAmax(NamedTuple):
    """A scale that follows from the largest magnitude in the row that it belongs to."""

    power_of_two: bool


class Part(NamedTuple):
    """What is known of a row without its numbers: whose statistics it holds, merged on the device."""

    kind: str
    layer: int
    row: int
    format: str
    loss_scaled: int
    """Whose loss scale the tensors carried when they were measured: the number of the scaler, from 1; 0 for none."""
    cast_scale: Scalar | FromAmax = 1.0
    """Factor at the cast that comes, on top of a loss scale."""
    placement: Placement = WHOLE
    in_norm: bool = True
    """Belongs to the gradient norm: False for evaluations of a closure that a later one replaced."""
    bound: int = 0
    """Most elements that lists of gradients put into the row, however many of them are read."""


class PartList(NamedTuple):
    """Parts by row, and in order; their rows by kind and layer; the row after the last."""

    parts: dict[int, Part]
    in_order: tuple[Part, ...]
    opened: dict[tuple[str, int], int]
    end: int

    @classmethod
    def of(cls, parts: dict[int, Part]) -> PartList:
        """Those of ``parts``, which are by row."""
        opened = {(part.kind, part.layer): row for row, part in parts.items()}
        return cls(parts, tuple(parts.values()), opened, max(parts) + 1)


class Joined(NamedTuple):
    """Tensors of one launch: ``at[i]`` is the row of the i-th, ``parts[i]`` whose it is."""

    at: tuple[int, ...]
    parts: tuple[Part, ...]


class _Known(NamedTuple):
    """Tensors that were measured together before, each the only one of its kind and layer."""

    joined: Joined
    rows: PartList


class Route(NamedTuple):
    """How rows leave a device: through a ring made for so many of them, in the order of its streams."""

    ring: Callable[[int], Ring]
    streams: Streams


class DeviceRows:
    """Rows of one device, each in the same place in every step, and the parts of the step in progress.

    Without a ``route`` the device is the host, and what it holds is simply copied.
    """

    def __init__(
        self,
        device: torch.device,
        variant: Variant,
        *,
        capacity: int,
        route: Route | None = None,
    ) -> None:
        self.device = device
        self.variant = variant
        self._route = route
        self._ring = route.ring(capacity) if route is not None else None
        self.streams = route.streams if route is not None else None
        self._rows = Rows(capacity, device, numbers=_NUMBERS)
        self._places: dict[tuple[str, int, int], int] = {}
        self._firsts: dict[tuple[str, int], Part] = {}
        """The part that a kind and layer began a step with the last time: it is the same in the next, as a rule."""
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._slots: dict[int, torch.Tensor] = {}
        self._leaving: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        """By their length: what of the block, and of the histograms, is copied and cleared when a step ends."""
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._planned = 0
        self._listed: tuple[tuple[int, ...], Plan] | None = None
        """The newest of them that was asked for: a list of gradients need not be hashed, being the same object."""
        self._known: dict[tuple[int, int, int], _Known] = {}
        """By the rows of the first and the last, and their number: what ``join`` was given in other steps."""
        self._begin()

    def _begin(self) -> None:
        self._parts: dict[int, Part] = {}
        """By row."""
        self._put: list[PartList] = []
        """Lists that are not among the parts yet: most steps need nothing else."""
        self._open: dict[tuple[str, int], int] = {}
        """The row that the next tensor of a kind and layer may merge into."""
        self._parallel: dict[tuple[str, int], int] = {}
        """Rows of a kind and layer in this step, where it takes more than one."""
        self._elements: dict[int, int] = {}
        self._lists: int | None = None
        """Of the list that was put last: whose loss scale it carried."""
        self._apart = False
        """Whether a gradient began a part of its own."""
        self._split = False
        """Whether anything may be in another row than the first of its kind and layer."""
        self._used = 0
        self._numbers = 0

    @property
    def kept(self) -> int:
        """Scalars of this step."""
        return self._numbers

    def reserve(self, kind: str, layers: Sequence[int]) -> None:
        """Give ``layers`` the first rows, so that little travels where only they are read."""
        for layer in layers:
            self._place(kind, layer, 0)

    def parts(self) -> Sequence[Part]:
        """Those of the step in progress."""
        if len(self._put) == 1 and not self._parts:
            return self._put[0].in_order
        self._settle()
        return list(self._parts.values())

    def _settle(self) -> None:
        for listed in self._put:
            self._parts.update(listed.parts)
            self._open.update(listed.opened)
        self._put.clear()

    def holds(self, part: Part) -> bool:
        """Whether anything was measured for ``part`` in this step."""
        return part in self.parts()

    def _open_part(self, kind: str, layer: int) -> Part | None:
        if self._put:
            self._settle()
        row = self._open.get((kind, layer))
        return None if row is None else self._parts[row]

    def part_for(
        self,
        kind: str,
        layer: int,
        elements: int,
        *,
        limit: int,
        format_: str,
        loss_scaled: int,
        placement: Placement = WHOLE,
    ) -> Part:
        """The part that a tensor of ``elements`` joins, or a new one where it must be kept apart."""
        part = self._open_part(kind, layer)
        if part is not None and part.loss_scaled == loss_scaled and part.placement == placement:
            total = self._elements.get(part.row, part.bound) + elements
            if total <= limit:
                self._elements[part.row] = total
                return part
        key = (kind, layer)
        number = self._parallel.get(key, -1 if part is None else 0) + 1
        self._parallel[key] = number
        self._apart |= kind == "grad"
        if number == 0:
            part = self.first_part(kind, layer, format_=format_, loss_scaled=loss_scaled, placement=placement)
        else:
            self._split = True
            part = Part(kind, layer, self._place(kind, layer, number), format_, loss_scaled, placement=placement)
        self._elements[part.row] = elements
        self.put(part)
        return part

    def first_part(
        self, kind: str, layer: int, *, format_: str, loss_scaled: int, placement: Placement = WHOLE
    ) -> Part:
        """What a kind and layer begins a step with: the same object in each, as a rule."""
        first = self._firsts.get((kind, layer))
        if first is None or (first.format, first.loss_scaled, first.placement) != (format_, loss_scaled, placement):
            first = Part(kind, layer, self._place(kind, layer, 0), format_, loss_scaled, placement=placement)
            self._firsts[kind, layer] = first
        return first

    def join(self, parts: tuple[Part, ...], elements: Sequence[int], *, limit: int) -> Joined:
        """The rows for tensors of ``elements``, which join ``parts`` (of ``first_part``) or are kept apart.

        One of 0 elements has joined its part already.
        """
        key = parts[0].row, parts[-1].row, len(parts)
        known = self._known.get(key)
        if known is not None and known.joined.parts == parts and self._join_all(known, elements, limit):
            return known.joined
        joined = tuple(
            self.part_for(
                part.kind,
                part.layer,
                count,
                limit=limit,
                format_=part.format,
                loss_scaled=part.loss_scaled,
                placement=part.placement,
            )
            if count
            else part
            for part, count in zip(parts, elements, strict=True)
        )
        found = Joined(tuple(part.row for part in joined), joined)
        by_row = {part.row: part for part in joined}
        if joined == parts and len(by_row) == len(parts):
            if len(self._known) >= _PLANS:
                self._known.clear()
            self._known[key] = _Known(found, PartList.of(by_row))
        return found

    def _join_all(self, known: _Known, elements: Sequence[int], limit: int) -> bool:
        # Nothing for each of them in Python: a step that reads all outputs of 146 layers has 438.
        if self._split or not all(elements):
            return False
        if self._put:
            self._settle()
        at, parts = known.joined
        if not all(map(is_, map(self._parts.get, at, parts), parts)):
            return False
        totals = list(map(add, map(self._elements.get, at, repeat(0)), elements))
        if max(totals) > limit:
            return False
        self._elements.update(zip(at, totals, strict=True))
        self._parts.update(known.rows.parts)
        self._open.update(known.rows.opened)
        self._used = max(self._used, known.rows.end)
        return True

    def put(self, part: Part) -> None:
        """Begin ``part``, or replace what is known of it."""
        self._parts[part.row] = part
        self._open[part.kind, part.layer] = part.row
        self._used = max(self._used, part.row + 1)

    def put_list(self, listed: PartList, *, loss_scaled: int) -> bool:
        """Begin, or go on with, all of ``listed`` at once.

        False where one of them must be kept apart from what was read of its layer.
        """
        if self._apart or self._lists not in (None, loss_scaled):
            self._settle()
            if any(key in self._open or key in self._parallel for key in listed.opened):
                return False
        self._lists = loss_scaled
        self._put.append(listed)
        self._used = max(self._used, listed.end)
        return True

    def close_parts(self, kind: str, layers: set[int]) -> None:
        """What is read of them from now on replaces what was read so far, in the norm."""
        self._apart = self._split = True
        for layer in layers:
            part = self._open_part(kind, layer)
            if part is not None:
                self._parts[part.row] = part._replace(in_norm=False)
                self._parallel.setdefault((kind, layer), 0)
                del self._open[kind, layer]

    def discard(self, part: Part) -> None:
        """Forget a part whose row holds nobody knows what; the next tensor begins another row."""
        self._settle()
        self._parts.pop(part.row, None)
        if self._open.get((part.kind, part.layer)) == part.row:
            del self._open[part.kind, part.layer]
        self._parallel.setdefault((part.kind, part.layer), 0)
        self._apart = self._split = True

    def place(self, kind: str, layer: int) -> int:
        """The first row of a kind and layer."""
        return self._place(kind, layer, 0)

    def _place(self, kind: str, layer: int, number: int) -> int:
        key = (kind, layer, number)
        row = self._places.get(key)
        if row is None:
            row = self._places[key] = len(self._places)
            if row >= self._rows.capacity:
                self._grow(2 * self._rows.capacity, len(self._rows.numbers))
        return row

    def _grow(self, capacity: int, numbers: int) -> None:
        if self.streams is not None:
            self.streams.join()
        before = self._rows
        self._rows = Rows(capacity, self.device, numbers=numbers)
        self._rows.numbers[: len(before.numbers)] = before.numbers
        self._rows.words[: before.capacity] = before.words
        self._rows.hist[: before.capacity] = before.hist
        self._views.clear()
        self._slots.clear()
        self._leaving.clear()
        if self._route is not None and capacity > before.capacity:
            # What is under way keeps its memory.
            self._ring = self._route.ring(capacity)
        if self.streams is not None:
            self.streams.cleared()

    def _view(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        view = self._views.get(row)
        if view is None:
            view = self._views[row] = (self._rows.words[row], self._rows.hist[row])
        return view

    def measure(self, tensor: torch.Tensor, row: int, *, histogram: bool) -> None:
        """Merge the statistics of ``tensor`` into ``row`` now, in the order of the current stream."""
        if self.streams is not None:
            self.streams.enter()
        words, hist = self._view(row)
        self.variant.measure(tensor, words, hist if histogram else None)

    def run(self, at: tuple[int, ...], tensors: Sequence[torch.Tensor], *, histogram: bool) -> None:
        """The same for many: ``tensors[i]`` into row ``at[i]``."""
        if self.streams is not None:
            self.streams.enter()
        listed = self._listed
        if listed is None or listed[0] is not at:
            listed = self._listed = at, self._plan(at)
        listed[1].run(self._rows, tensors, histogram=histogram)

    def _plan(self, at: tuple[int, ...]) -> Plan:
        plan = self._plans.get(at)
        if plan is None:
            while self._plans and (self._planned + len(at) > _PLANNED or len(self._plans) >= _PLANS):
                oldest = next(iter(self._plans))
                del self._plans[oldest]
                self._planned -= len(oldest)
            plan = self._plans[at] = self.variant.plan(at)
            self._planned += len(at)
        return plan

    def keep(self, value: torch.Tensor, into: Scalar | None = None) -> Slot:
        """A copy of a one-element tensor on this device; in the place of ``into``, if that is here."""
        if isinstance(into, Slot) and into.device == self.device:
            slot = into
        else:
            if self._numbers == len(self._rows.numbers):
                self._grow(self._rows.capacity, 2 * self._numbers)
            slot = Slot(self.device, self._numbers)
            self._numbers += 1
        if self.streams is not None:
            self.streams.enter()
        value = value.detach()
        self.slot(slot.place).copy_(value if value.dim() == 0 else value.reshape(()))
        return slot

    def slot(self, place: int) -> torch.Tensor:
        """A scalar of this step: float64 [], to be changed in place."""
        view = self._slots.get(place)
        if view is None:
            view = self._slots[place] = self._rows.numbers[place]
        return view

    def adopt(self, parts: Sequence[tuple[Part, torch.Tensor, torch.Tensor | None]], *, histogram: bool) -> None:
        """Take over rows that others wrote (words int64 [10], hist int32 [512]), and clear theirs."""
        if not parts:
            return
        if self.streams is not None:
            self.streams.enter()
        # Beyond the rows in use all are clear, whoever has a place there in other steps.
        first = self._used
        if first + len(parts) > self._rows.capacity:
            self._grow(2 * (first + len(parts)), len(self._rows.numbers))
        end = first + len(parts)
        self._rows.words[first:end] = torch.stack([words for _, words, _ in parts])
        counted = [(first + number, hist) for number, (_, _, hist) in enumerate(parts) if hist is not None]
        if histogram and counted:
            rows = [self._rows.hist[row] for row, _ in counted]
            torch._foreach_copy_(rows, [hist for _, hist in counted])
        # One launch for tensors of one dtype, one for each tensor where they differ.
        torch._foreach_zero_([words for _, words, _ in parts])
        if counted:
            torch._foreach_zero_([hist for _, hist in counted])
        self._parts.update({first + n: part._replace(row=first + n) for n, (part, _, _) in enumerate(parts)})
        self._used = end

    def send(self, *, histogram: bool) -> Transit | None:
        """Start what the step has written on its way, and clear it. None when there is nothing, or no room for it."""
        used = self._used
        if not used and not self._numbers:
            return None
        numbers = len(self._rows.numbers)
        block, hist = self._those_leaving(numbers + used * len(WORDS), used)
        histogram = histogram and used > 0
        try:
            if self._ring is None:
                here = hist.numpy().view(np.uint32).copy() if histogram else None
                transit: Transit | None = Here(block.numpy().copy(), here, numbers)
                block.zero_()
                if histogram:
                    hist.zero_()
                return transit
            assert self.streams is not None, "a device that is copied from has streams"
            self.streams.join()
            transit = self._copied(block, hist if histogram else None)
            block.zero_()
            if histogram:
                hist.zero_()
            event = self.streams.cleared()
            if transit is not None:
                transit.event = event
            return transit
        finally:
            self._begin()

    def _those_leaving(self, end: int, used: int) -> tuple[torch.Tensor, torch.Tensor]:
        # A step has as many as the one before, as a rule, and a view takes longer than all else that is done with it.
        leaving = self._leaving.get((end, used))
        if leaving is None:
            if len(self._leaving) >= _PLANS:
                self._leaving.clear()
            leaving = self._leaving[end, used] = self._rows.block[:end], self._rows.hist[:used]
        return leaving

    def _copied(self, block: torch.Tensor, hist: torch.Tensor | None) -> Copying | None:
        assert self._ring is not None, "the caller has asked"
        numbers, end = len(self._rows.numbers), len(block)
        extent = self._ring.take(end * _WORD + (len(hist) * _ROW_HIST if hist is not None else 0))
        lost = None
        if extent is None:
            lost, end, block, hist = "transfer_full", numbers, block[:numbers], None
            extent = self._ring.take(end * _WORD)
            if extent is None:
                return None
        (extent.host if hist is None else extent.host[:end]).copy_(block, non_blocking=True)
        if hist is not None:
            extent.host[end:].view(torch.int32).view(len(hist), BINS).copy_(hist, non_blocking=True)
        return Copying(extent, end, numbers, lost)
