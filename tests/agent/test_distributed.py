"""Trainings over several processes: what their ranks report merges to what one process would."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from floatscope import wire
from floatscope._guard import Guard
from floatscope_server.frame import Frame
from floatscope_server.merge import Merged, merge_ranks
from floatscope_server.store.together import NORM, SHARE, Together
from tests.agent import distributed_ranks
from tests.agent.distributed_ranks import STEPS

ROOT = Path(__file__).parents[2]
DEADLINE_S = 100.0
ON_2 = (
    "fsdp2",
    "fsdp2_ignored",
    "fsdp1",
    "ddp",
    "ddp_accumulating",
    "ddp_inner",
    "ddp_later",
    "tensor_parallel",
    "unknown",
    "bitwise_ddp",
    "bitwise_fsdp2",
)
ON_4 = ("fsdp2", "hsdp", "ddp")
INTEGERS = ("count", "zeros", "nans", "infs")
_bodies = msgspec.msgpack.Decoder(wire.Body)


def start_ranks(folder: Path, world: int, names: Sequence[str], **environment: str) -> list[subprocess.Popen[str]]:
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | environment
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.agent.distributed_ranks", str(folder), str(rank), str(world), *names],
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> None:
    try:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output


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


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Reports]:
    """``ranks_of(training, world)``; all of a world run in the same processes, once."""
    folders: dict[int, Path] = {}

    def reports(name: str, world: int) -> Reports:
        if world not in folders:
            folder = tmp_path_factory.mktemp(f"world{world}")
            finish(start_ranks(folder, world, {2: ON_2, 4: ON_4}[world]))
            folders[world] = folder
        files = [folders[world] / f"{name}.{rank}.pickle" for rank in range(world)]
        return Reports.of([pickle.loads(file.read_bytes()) for file in files])

    return reports


@pytest.fixture(scope="module")
def alone() -> Callable[[str], Reports]:
    """``alone(training)``: the same in one process."""
    Guard.reraise = True
    return lambda name: Reports.of([distributed_ranks.run(name)])


def assert_same(merged: dict[str, float], single: dict[str, float]) -> None:
    for name in INTEGERS:
        assert merged[name] == single[name], name
    assert merged["absmax"] == pytest.approx(single["absmax"], rel=1e-6)
    assert merged["absmin"] == pytest.approx(single["absmin"], rel=1e-6)
    assert merged["sumsq"] == pytest.approx(single["sumsq"], rel=1e-6)
    # A sum may cancel: it is held against what it is a sum of.
    magnitude = math.sqrt(single["sumsq"] * max(single["count"], 1))
    assert merged["sum"] == pytest.approx(single["sum"], rel=1e-6, abs=1e-9 * magnitude)


MERGING = [
    ("fsdp2", 2, "plain"),
    ("fsdp2", 4, "plain"),
    ("hsdp", 4, "plain"),
    ("ddp", 2, "plain"),
    ("ddp", 4, "plain"),
    ("ddp_inner", 2, "plain"),
    ("ddp_later", 2, "plain"),
    ("ddp_accumulating", 2, "plain_unused"),
]


@pytest.mark.parametrize(("name", "world", "double"), MERGING)
def test_merged_summaries_are_those_of_one_process(
    ranks_of: Callable[[str, int], Reports], alone: Callable[[str], Reports], name: str, world: int, double: str
) -> None:
    many, one = ranks_of(name, world), alone(double)
    for kind in ("grad", "weight", "act", "act_in", "act_grad"):
        for step in range(STEPS):
            merged, single = many.rows(kind, step), one.alone(kind, step)[0]
            assert merged.keys() == single.keys(), kind
            for layer, fields in single.items():
                assert_same(merged[layer], fields)
    clipping = one.results[0]["norms"]
    norms = many.norms() if any(many.scalar(SHARE)) else many.scalar(NORM)
    assert norms == pytest.approx(clipping, rel=1e-6)
    assert norms == pytest.approx(many.results[0]["norms"], rel=1e-6)
    assert not any("not merged" in reason for reason in many.results[0]["coverage"]["reasons"])
