"""Statistics that Transformer Engine's debug features log: ``LAYER_TENSOR_STATISTIC iteration=N value=X``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from floatscope_server.readers.rows import Extreme, Item, Row
from floatscope_server.readers.text import number, whole

__all__ = ["Statistics"]

_LINE = re.compile(r"(\S+)\s+iteration=(\d+)\s+value=(\S+)")
_NAME = re.compile(r"(.+)_(activation|weight|gradient|output|wgrad)_(.+)")
_KINDS = {"activation": "act_in", "weight": "weight", "gradient": "act_grad", "output": "act", "wgrad": "grad"}
_AMAX = frozenset({"cur_amax", "amax", "max", "min"})
_UNDER = re.compile(r"(?:.*_)?underflows%")
_BLOCKS = re.compile(r"(?:mxfp8|nvfp4|fp4).*")


class Statistics:
    """Rows of single values, and one extreme for each tensor of an iteration: its lines come one after the other."""

    def __init__(self) -> None:
        self._open: Extreme | None = None

    def read(self, line: int, text: str) -> Iterator[Item]:
        """What a line says."""
        found = _LINE.search(text)
        value = None if found is None else number(found[3])
        if found is None or value is None:
            return
        name, step = found[1], whole(found[2])
        parts = _NAME.fullmatch(name)
        layer, tensor, statistic = parts.groups() if parts is not None else ("", "", "")
        kind = _KINDS.get(tensor, "")
        now = self._open
        if now is not None and (now.step, now.layer, now.kind) != (step, layer, kind):
            yield from self.finish()
            now = None
        yield Row(line=line, step=step, values={name: value}, meaning={})
        if parts is None:
            return
        if now is None:
            cast = tensor in ("activation", "weight", "gradient")
            now = self._open = Extreme(
                line=line,
                step=step,
                layer=layer,
                kind=kind,
                format="" if not cast else "e5m2" if tensor == "gradient" else "e4m3fn",
                absmax=0.0,
                role="cast" if cast else "stored",
                # The scale is not logged. As of "dynamic" the range is not judged, only what underflows and NaN.
                scaling="dynamic",
            )
        if statistic in _AMAX or not math.isfinite(value):
            now.absmax = value if not math.isfinite(value) else max(now.absmax, abs(value))
        elif _UNDER.fullmatch(statistic):
            now.under = value / 100
            if _BLOCKS.match(statistic):
                now.format = "e4m3fn" if statistic.startswith("mxfp8") else "e2m1"

    def finish(self) -> Iterator[Item]:
        """The tensor whose lines have ended."""
        if self._open is not None:
            yield self._open
        self._open = None
