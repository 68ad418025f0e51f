"""Rows from Megatron's iterations: skipped ones found, norms unscaled, memory as readings of a card."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from floatscope import wire
from floatscope_server.readers.megatron import Scaled
from floatscope_server.readers.names import meaning
from floatscope_server.readers.rows import Item, Reading, Row
from floatscope_server.readers.skips import Seen, scales_of, spread
from floatscope_server.readers.smi import GIB, byte_count

__all__ = ["Iterations"]

_NORM, _TOTAL_NORM = "grad norm", "total grad norm"
_SKIPPED = "number of skipped iterations"
_MOST_SKIPS = 100_000
"""Between two lines; more is damage."""
_NAN = "number of nan iterations"
_MEMORY = ("hip mem", "rocm mem", "hip memory", "rocm memory")


class Iterations:
    """What went before in one log."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._scale: float | None = None
        self._norm: float | None = None
        self._unscaled = 0.0
        self._normed = False
        self._tells_overflows = False
        self._scaled = Scaled()

    def read(
        self, line: int, step: int, values: dict[str, float], *, rank: int | None, overflows: Sequence[Seen]
    ) -> Iterator[Item]:
        """The rows of an iteration line. ``overflows`` were told of since the line before it."""
        before = self._step if self._step is not None and self._step < step else step - 1
        self._step = step
        self._tells_overflows = self._tells_overflows or bool(overflows)
        skips = spread(before, step, self._skips(values, overflows))
        for i, skipped in enumerate(skips):
            if skipped != step:
                scale = scales_of(overflows[i]) if i < len(overflows) else {}
                yield Row(line=line, step=skipped, values=scale, meaning={**scale, "skipped": 1.0}, records=0)
                if skipped + 1 < step and skipped + 1 not in skips:
                    yield Row(line=line, step=skipped + 1, values={}, meaning={"skipped": 0.0}, records=0)
        now_skipped = step in skips
        known = self._meaning(values, skipped=now_skipped)
        self._scale = values.get("loss scale", self._scale)
        if rank is not None:
            values["rank"] = float(rank)
        yield Row(line=line, step=step, values=values, meaning=known)
        yield from self._memory(line, values, rank)

    def _skips(self, values: dict[str, float], overflows: Sequence[Seen]) -> int:
        """Skipped iterations since the line before: as counted (some versions count none), as told, or by the scale."""
        told = values.get(_SKIPPED, 0.0)
        count = max(int(told) if 0 < told < _MOST_SKIPS else 0, len(overflows))
        scale = values.get("loss scale")
        if count or scale is None or self._scale is None or not 0 < scale < self._scale < math.inf:
            return count
        return max(round(math.log2(self._scale / scale)), 1)

    def _meaning(self, values: dict[str, float], *, skipped: bool) -> dict[str, float]:
        known = meaning(values)
        if "lm loss" in values:
            # By its own name: the rules know that a log with an "lm loss" leaves it out where it is NaN.
            known["lm loss"] = known.pop("loss")
        known.pop("grad_norm", None)
        norm = values.get(_NORM, values.get(_TOTAL_NORM))
        if norm is not None:
            self._normed = self._normed or norm != 0
            # A skipped step prints the norm of the step before once more, beside a scale that it was not taken at.
            if not (skipped and norm == self._norm):
                self._unscaled = self._scaled.unscale(norm, values.get("loss scale"))
            # 0.000 from the start means that none is computed. Without a loss, a norm would say that it was NaN.
            if self._normed and not (skipped and "lm loss" not in values):
                known[_NORM] = self._unscaled
            self._norm = norm
        if "loss scale" in values or self._tells_overflows:
            known["skipped"] = float(skipped)
        if values.get(_NAN, 0) > 0:
            known["raw_loss_nonfinite"] = values[_NAN]
        return known

    def _memory(self, line: int, values: dict[str, float], rank: int | None) -> Iterator[Item]:
        for stem in _MEMORY:
            used, total = values.get(f"{stem} usage"), values.get(f"{stem} total")
            if used is not None and total is not None:
                # Printed as GB, but these are GiB: a card of 256 GiB shows 255.98.
                device = wire.Device(
                    time_ns=0,
                    backend="log",
                    index=rank or 0,
                    vram_used_bytes=byte_count(used, GIB),
                    vram_total_bytes=byte_count(total, GIB),
                )
                yield Reading(line=line, device=device, values={})
                return
