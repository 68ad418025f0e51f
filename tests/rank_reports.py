"""What the ranks of a training reported, merged as the server does it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.merge import Merged, merge_ranks
from floatscope_server.store.together import Together

INTEGERS = ("count", "zeros", "nans", "infs")
_bodies = msgspec.msgpack.Decoder(wire.Body)


@dataclass(frozen=True, kw_only=True)
class Reports:
    """What the ranks of one training reported."""

    results: list[dict[str, Any]]
    bodies: list[list[wire.Body]]
    """By rank."""

    @classmethod
    def of(cls, results: list[dict[str, Any]]) -> Reports:
        return cls(results=results, bodies=[[_bodies.decode(b) for b in r.get("bodies", [])] for r in results])

    def names(self) -> dict[int, str]:
        """Layers by index, which is the same on every rank here."""
        tables = [{layer.index: layer.name for body in mine for layer in body.layers} for mine in self.bodies]
        assert all(table == tables[0] for table in tables)
        return {index: plain_name(name) for index, name in tables[0].items()}

    def parts(self, kind: str, step: int) -> Iterator[tuple[int, Frame]]:
        for rank, bodies in enumerate(self.bodies):
            for part in (part for body in bodies for part in body.summaries if part.kind == kind):
                if part.first_step <= step < part.first_step + part.steps:
                    yield rank, Frame.of(part).between(step, step)

    def merged(self, kind: str, step: int) -> Merged:
        return merge_ranks(self.parts(kind, step), np.array([step]), len(self.names()))

    def rows(self, kind: str, step: int) -> dict[str, dict[str, float]]:
        """Merged fields of each layer that has any."""
        merged = self.merged(kind, step)
        fields = merged.together.fields
        return {
            name: {field: values[0, index].item() for field, values in fields.items()}
            for index, name in self.names().items()
            if merged.present[0, index]
        }

    def alone(self, kind: str, step: int) -> dict[int, dict[str, dict[str, float]]]:
        """Of one process, or of layers that do not merge: the same by rank."""
        found: dict[int, dict[str, dict[str, float]]] = {}
        for rank, frame in self.parts(kind, step):
            if frame.placement in ("", "local"):
                for at, index in enumerate(frame.layers.tolist()):
                    fields = {name: values[0, at].item() for name, values in frame.fields.items()}
                    found.setdefault(rank, {})[self.names()[index]] = fields
        return found

    def scalar(self, name: str, rank: int = 0) -> list[float]:
        series = [s for body in self.bodies[rank] for s in body.scalars if s.name == name]
        return [value for s in series for value in np.frombuffer(s.values, "<f8").tolist()]

    def norms(self) -> list[float]:
        """As the server finishes them."""
        together = Together()
        world = len(self.bodies)
        found: dict[int, float] = {}
        for rank, bodies in enumerate(self.bodies):
            for body in bodies:
                found |= together.norms(rank, world, body.scalars)
        return [found[step] for step in sorted(found)]


def plain_name(name: str) -> str:
    for prefix in ("module.", "_fsdp_wrapped_module."):
        name = name.removeprefix(prefix)
    return name


def assert_same(
    merged: dict[str, float], single: dict[str, float], factor: float = 1.0, *, rel: float = 1e-6, floor: float = 0.0
) -> None:
    """``factor``: how many times larger the elements of ``merged`` should be. ``floor``: how much of the largest
    rounding may leave of an element that cancels."""
    for name in INTEGERS:
        assert merged[name] == single[name], name
    assert merged["absmax"] == pytest.approx(factor * single["absmax"], rel=rel)
    assert merged["absmin"] == pytest.approx(factor * single["absmin"], rel=rel, abs=floor * merged["absmax"])
    assert merged["sumsq"] == pytest.approx(factor**2 * single["sumsq"], rel=rel)
    # A sum may cancel: it is held against what it is a sum of.
    magnitude = math.sqrt(merged["sumsq"] * max(single["count"], 1))
    assert merged["sum"] == pytest.approx(factor * single["sum"], rel=rel, abs=max(floor, 1e-9) * magnitude)
