"""On two GPUs: what ranks that talk through NCCL report merges to what one process would, and no bit changes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from floatscope._guard import Guard
from floatscope_server.store.together import NORM, SHARE
from tests.agent import distributed_ranks
from tests.agent.distributed_ranks import CARDS, STEPS, finish, start_ranks
from tests.rank_reports import Reports, assert_same

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

MERGING = {"fsdp2": "plain", "ddp": "plain", "zero_redundancy": "plain", "ddp_accumulating": "plain_unused"}
BITWISE = ("ddp:20", "fsdp2_whole:20")


def trained(folder: Path, *names: str) -> dict[str, list[dict[str, Any]]]:
    """What each of two ranks left of the trainings."""
    finish(start_ranks(folder, {2: names}, FLOATSCOPE_TESTS_ON_CARDS="1"))
    return {
        name: [pickle.loads((folder / "2" / f"{name}.{rank}.pickle").read_bytes()) for rank in (0, 1)] for name in names
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return trained(tmp_path_factory.mktemp("cards"), *MERGING, *BITWISE)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Reports]:
    """The same on one card."""
    monkeypatch.setattr(Guard, "reraise", True)
    monkeypatch.setenv(CARDS, "1")
    return lambda name: Reports.of([distributed_ranks.run(name)])


@pytest.mark.parametrize("name", MERGING)
def test_merged_summaries_are_those_of_one_card(
    results: dict[str, list[dict[str, Any]]], alone: Callable[[str], Reports], name: str
) -> None:
    many, one = Reports.of(results[name]), alone(MERGING[name])
    for kind in ("grad", "weight", "act", "act_in", "act_grad"):
        for step in range(STEPS):
            merged, single = many.rows(kind, step), one.alone(kind, step)[0]
            assert merged.keys() == single.keys(), kind
            for layer, fields in single.items():
                # A rank's loss is the mean over its own samples, half of the whole batch.
                assert_same(merged[layer], fields, 2.0 if kind == "act_grad" else 1.0)
    clipping = one.results[0]["norms"]
    norms = many.norms() if any(many.scalar(SHARE)) else many.scalar(NORM)
    assert norms == pytest.approx(clipping, rel=1e-6)
    assert norms == pytest.approx(many.results[0]["norms"], rel=1e-6)


def test_a_layer_of_shards_and_replicas(tmp_path: Path, alone: Callable[[str], Reports]) -> None:
    many, one = Reports.of(trained(tmp_path, "tensor_parallel")["tensor_parallel"]), alone("plain")
    for kind in ("grad", "weight"):
        merged, single = many.rows(kind, 0), one.alone(kind, 0)[0]
        for layer in ("up", "down"):
            assert_same(merged[layer], single[layer])


@pytest.mark.parametrize("name", BITWISE)
def test_watching_changes_no_bit(results: dict[str, list[dict[str, Any]]], name: str) -> None:
    for weights in results[name]:
        assert weights["kinds"]
        assert all(map(torch.equal, weights["once"], weights["again"])), "the baseline does not repeat"
        assert all(map(torch.equal, weights["once"], weights["watched"]))
