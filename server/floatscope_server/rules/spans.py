"""The tensor statistics of many steps at a glance."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.rules.tensors import F64, Block, Bool, Index, Rows

__all__ = ["Span", "spans_of"]


class Span:
    """One kind over S steps and L different layers: what ``Block`` holds, made only where a rule asks for it."""

    def __init__(self, kind: str, frames: list[Frame]) -> None:
        self.kind = kind
        self.first_step = frames[0].first_step
        self.steps = np.arange(self.first_step, self.first_step + frames[0].steps)
        self.layers: Index = frames[0].layers if len(frames) == 1 else np.concatenate([f.layers for f in frames])
        self._frames = frames

    def has(self, name: str) -> bool:
        """Whether any layer has the field."""
        return any(name in frame.fields for frame in self._frames)

    def raw(self, name: str) -> NDArray[np.generic]:
        """A field that all have, as it was sent. [S, L]"""
        if len(self._frames) == 1:
            return self._frames[0].fields[name]
        return np.concatenate([frame.fields[name] for frame in self._frames], axis=1)

    def _joined(self, arrays: Iterable[F64]) -> F64:
        parts = list(arrays)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    @cached_property
    def observed(self) -> Bool:
        """Where anything was measured."""
        observed: Bool = self.raw("count") > 0  # type: ignore[operator]
        return observed

    @cached_property
    def all_observed(self) -> bool:
        """Whether everything was."""
        return bool(self.observed.all())

    @cached_property
    def nonfinite(self) -> bool:
        """Whether there is any NaN or infinity."""
        return bool(self.raw("nans").any() or self.raw("infs").any())

    @cached_property
    def scale(self) -> F64:
        """The factor at the cast; 1 where none was reported."""
        return self._joined(frame.scale for frame in self._frames)

    @cached_property
    def amax(self) -> F64:
        """The largest finite magnitude as the format meets it."""
        return self._joined(frame.amax for frame in self._frames)

    def field(self, name: str) -> F64:
        """A field as float64, NaN where it was not sent."""
        return self._joined(frame[name] for frame in self._frames)

    @cached_property
    def zeros(self) -> F64:
        """The share of elements that are 0, NaN where nothing was observed."""
        count = self.field("count")
        shares: F64 = np.divide(self.field("zeros"), count, out=np.full(count.shape, np.nan), where=self.observed)
        return shares

    @cached_property
    def _blocks(self) -> list[Block]:
        return [Block(self.kind, frame) for frame in self._frames]

    def rows(self, step: int) -> Rows:
        """The rows of one step, as the rules read them step by step."""
        found: Rows | None = None
        for block in self._blocks:
            rows = block.rows(step)
            assert rows is not None
            found = rows if found is None else found.joined(rows)
        assert found is not None
        return found


def spans_of(summaries: Iterable[wire.Summaries]) -> dict[str, Span] | None:
    """The spans by kind, with the placements of a sharded model side by side. None where the parts of one kind are of
    different steps or of the same layer."""
    frames: dict[str, list[Frame]] = {}
    for part in summaries:
        frames.setdefault(part.kind, []).append(Frame.of(part))
    spans: dict[str, Span] = {}
    for kind, parts in frames.items():
        if any((part.first_step, part.steps) != (parts[0].first_step, parts[0].steps) for part in parts):
            return None
        span = spans[kind] = Span(kind, parts)
        layers = span.layers
        if len(layers) > 1 and not (layers[1:] > layers[:-1]).all() and len(np.unique(layers)) < len(layers):
            return None
    return spans
