"""The questions of a page, asked of random stretches of a run, and how long each took."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from floatscope_server.bench.data import Synthetic, layer_name
from floatscope_server.bench.targets import QUESTIONS, Target, Use, spent

__all__ = ["Asker", "Figures"]

_COLUMNS = 600
_SHORTEST = 300
_PAUSE_S = 0.005
"""Between two questions: somebody who looks at a page, and not one who saturates the server."""
_METRICS = ("headroom", "absmax", "rms", "nonfinite")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Milliseconds of each question of one sort."""

    name: str
    took: list[float]
    uses: list[Use]
    """Of the threads that answer, for each question; empty where they cannot be told from others."""

    def results(self) -> dict[str, float]:
        """By the names that ``--json`` has. ``cpu`` is a mean; ``own`` is the time without that in which the threads
        were ready and had no core, which other work on the machine takes."""
        found = self._percentiles("", np.array(self.took))
        if self.uses:
            found |= self._percentiles("own_", self.took - 1e3 * np.array([use.waited for use in self.uses]))
            found[f"{self.name}_cpu_ms"] = 1e3 * sum(use.cpu for use in self.uses) / len(self.uses)
        return found

    def _percentiles(self, which: str, took: npt.NDArray[np.float64]) -> dict[str, float]:
        p50, p99 = np.percentile(took, (50, 99))
        return {f"{self.name}_{which}p50_ms": float(p50), f"{self.name}_{which}p99_ms": float(p99)}


class Asker:
    """Asks about ``runs``: the first one all, the others only beside it. ``head`` says how many steps there are.

    The length of a stretch is log-uniform from 300 steps to the whole run, its place uniform.
    """

    def __init__(self, target: Target, data: Synthetic, *, runs: list[str], head: Callable[[], int]) -> None:
        self._target = target
        self._data = data
        self._runs = runs
        self._head = head
        self._rng = np.random.default_rng(2)
        self._commit = ""
        self._questions: dict[str, Callable[[], bytes]] = {
            "heatmap": lambda: self._heat_map(**self._stretch()),
            "heatmap_whole": lambda: self._heat_map(),
            "scalars": lambda: self._of_run("scalars", names="loss,grad_norm", points=_COLUMNS, **self._stretch()),
            "layer": self._layer,
            "latest": lambda: self._of_run("latest", kind=self._kind(), metrics="headroom,rms"),
            "tail": self._tail,
            "compare_heatmaps": lambda: self._compare(what="heatmap", kind=self._kind()),
            "compare_scalars": lambda: self._compare(what="scalars", names="loss"),
        }

    @property
    def names(self) -> list[str]:
        """Of the sorts of questions."""
        return list(self._questions)

    def measure(self, name: str, count: int, say: Callable[[str], None]) -> Figures:
        """``count`` questions of one sort, one after the other, after one that does not count."""
        question = self._questions[name]
        question()
        took: list[float] = []
        uses: list[Use] = []
        for _ in range(count):
            before = self._target.used()
            begin = time.perf_counter()
            question()
            took.append(1e3 * (time.perf_counter() - begin))
            use = spent(before, self._target.used()).get(QUESTIONS)
            if use is not None:
                uses.append(use)
            time.sleep(_PAUSE_S)
        figures = Figures(name=name, took=took, uses=uses)
        say(
            f"{name}: "
            + ", ".join(f"{key.removeprefix(name + '_')} {value:.2f}" for key, value in figures.results().items())
        )
        return figures

    def _of_run(self, what: str, **query: object) -> bytes:
        return self._target.ask(f"/api/v1/runs/{self._runs[0]}/{what}", **query)

    def _heat_map(self, **stretch: object) -> bytes:
        metric = _METRICS[self._rng.integers(len(_METRICS))]
        return self._of_run("heatmap", kind=self._kind(), metric=metric, columns=_COLUMNS, **stretch)

    def _layer(self) -> bytes:
        layer = layer_name(int(self._rng.integers(self._data.layers)))
        return self._of_run("series", layer=layer, kind=self._kind(), points=_COLUMNS, **self._stretch())

    def _tail(self) -> bytes:
        since = {"commit": self._commit} if self._commit else {}
        answer = self._of_run("tail", kind=self._data.kinds[0], **since)
        (length,) = struct.unpack_from("<I", answer, 4)
        self._commit = str(json.loads(answer[8 : 8 + length])["meta"]["commit"])
        return answer

    def _compare(self, **query: object) -> bytes:
        return self._target.ask(
            "/api/v1/compare", runs=",".join(self._runs), columns=_COLUMNS, **query, **self._stretch()
        )

    def _kind(self) -> str:
        return self._data.kinds[self._rng.integers(len(self._data.kinds))]

    def _stretch(self) -> dict[str, object]:
        end = self._head()
        span = int(np.exp(self._rng.uniform(np.log(min(_SHORTEST, end)), np.log(end))))
        first = int(self._rng.integers(0, end - span + 1))
        return {"from": first, "to": first + span - 1}
