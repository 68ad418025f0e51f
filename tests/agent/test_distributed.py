"""Trainings over several processes: what their ranks report merges to what one process would."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from floatscope._guard import Guard
from floatscope_server.store.together import NORM, SHARE
from tests.agent import distributed_ranks
from tests.agent.distributed_ranks import STEPS, finish, start_ranks
from tests.rank_reports import Reports, assert_same

ON_2 = (
    "fsdp2",
    "fsdp2_ignored",
    "fsdp1",
    "ddp",
    "ddp_accumulating",
    "ddp_inner",
    "ddp_later",
    "zero_redundancy",
    "tensor_parallel",
    "unknown",
)
ON_4 = ("fsdp2", "hsdp", "ddp")


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Reports]:
    """``ranks_of(training, world)``; all of a world run in the same processes, once."""
    folder = tmp_path_factory.mktemp("worlds")
    finish(start_ranks(folder, {2: ON_2, 4: ON_4}))

    def reports(name: str, world: int) -> Reports:
        files = [folder / f"{world}" / f"{name}.{rank}.pickle" for rank in range(world)]
        return Reports.of([pickle.loads(file.read_bytes()) for file in files])

    return reports


@pytest.fixture(scope="module")
def alone() -> Callable[[str], Reports]:
    """``alone(training)``: the same in one process."""
    Guard.reraise = True
    return lambda name: Reports.of([distributed_ranks.run(name)])


MERGING = [
    ("fsdp2", 2, "plain"),
    ("fsdp2", 4, "plain"),
    ("hsdp", 4, "plain"),
    ("ddp", 2, "plain"),
    ("ddp", 4, "plain"),
    ("ddp_inner", 2, "plain"),
    ("ddp_later", 2, "plain"),
    ("zero_redundancy", 2, "plain"),
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
            # A rank's loss is the mean over its own samples, a share of 1 / world of the whole batch.
            factor = float(world) if kind == "act_grad" else 1.0
            for layer, fields in single.items():
                assert_same(merged[layer], fields, factor)
    clipping = one.results[0]["norms"]
    norms = many.norms() if any(many.scalar(SHARE)) else many.scalar(NORM)
    assert norms == pytest.approx(clipping, rel=1e-6)
    assert norms == pytest.approx(many.results[0]["norms"], rel=1e-6)
    assert not any("not merged" in reason for reason in many.results[0]["coverage"]["reasons"])


def test_shards_without_elements_are_reported_as_such(ranks_of: Callable[[str, int], Reports]) -> None:
    many = ranks_of("fsdp2", 4)
    gate = next(index for index, name in many.names().items() if name == "gate")
    counts = {rank: frame["count"][0, frame.layers.tolist().index(gate)] for rank, frame in many.parts("grad", 0)}
    assert counts[0] == distributed_ranks.WIDTH + 1
    assert [counts.get(rank, 0) for rank in (1, 2, 3)] == [0, 0, 0]


def test_replicas_say_whose_copies_they_are(ranks_of: Callable[[str, int], Reports]) -> None:
    places = {(rank, frame.placement, frame.copy_of) for rank, frame in ranks_of("hsdp", 4).parts("grad", 0)}
    assert places == {(0, "shard", -1), (1, "shard", -1), (2, "shard", 0), (3, "shard", 1)}
    places = {(rank, frame.placement, frame.copy_of) for rank, frame in ranks_of("ddp", 2).parts("grad", 0)}
    assert places == {(0, "replica", -1), (1, "replica", 0)}


def test_a_layer_of_shards_and_replicas(
    ranks_of: Callable[[str, int], Reports], alone: Callable[[str], Reports]
) -> None:
    many, one = ranks_of("tensor_parallel", 2), alone("plain")
    for kind in ("grad", "weight"):
        # The first step only: torch clips no mixture of DTensors and plain ones.
        merged, single = many.rows(kind, 0), one.alone(kind, 0)[0]
        for layer in ("up", "down"):
            assert_same(merged[layer], single[layer])
    down = next(index for index, name in many.names().items() if name == "down")
    places = {(r, f.placement, f.copy_of) for r, f in many.parts("grad", 0) if down in f.layers}
    assert places == {(0, "shard", -1), (0, "replica", -1), (1, "shard", -1), (1, "replica", 0)}
    # Plain tensors beside DTensors: nothing says that they are equal.
    assert many.alone("grad", 0).keys() == {0, 1}
    assert not many.norms()
    assert not many.scalar(NORM)


def test_a_parameter_that_fsdp_leaves_alone_is_kept_apart(
    ranks_of: Callable[[str, int], Reports], alone: Callable[[str], Reports]
) -> None:
    many, one = ranks_of("fsdp2_ignored", 2), alone("plain")
    assert many.rows("weight", 0)["up"]["count"] == distributed_ranks.WIDTH * distributed_ranks.INNER
    assert_same(many.rows("weight", 0)["down"], one.alone("weight", 0)[0]["down"])
    for fields in many.alone("grad", 0).values():
        assert fields.keys() == {"up"}
        assert fields["up"]["count"] == distributed_ranks.INNER
    assert not any(many.scalar(name) for name in (SHARE, NORM)), "part of the gradient is not known to be whole"
    assert any("not merged" in reason for reason in many.results[0]["coverage"]["reasons"])


def test_flat_parameters(ranks_of: Callable[[str, int], Reports], alone: Callable[[str], Reports]) -> None:
    many, one = ranks_of("fsdp1", 2), alone("plain")
    for kind in ("grad", "weight"):
        merged, single = many.rows(kind, 0), one.alone(kind, 0)[0]
        assert merged.keys() == single.keys()
        for layer, fields in single.items():
            assert_same(merged[layer], fields)
    assert many.norms()[0] == pytest.approx(one.results[0]["norms"][0], rel=1e-6)


def test_what_nobody_explains_stays_with_its_rank(
    ranks_of: Callable[[str, int], Reports], alone: Callable[[str], Reports]
) -> None:
    many, one = ranks_of("unknown", 2), alone("plain")
    assert not many.rows("grad", 0)
    assert many.alone("grad", 0).keys() == {0, 1}
    assert not any(many.scalar(name) for name in (SHARE, NORM))
    assert many.scalar("grad_norm/local") == pytest.approx(many.results[0]["norms"])
    assert any("not merged" in reason for reason in many.results[0]["coverage"]["reasons"])
    assert_same(many.rows("act", 0)["up"], one.alone("act", 0)[0]["up"])


def test_the_framework_s_norm_is_reported_beside_ours(ranks_of: Callable[[str, int], Reports]) -> None:
    many = ranks_of("ddp", 2)
    assert many.scalar("grad_norm/framework") == pytest.approx(many.scalar(NORM), rel=1e-6)
    assert not ranks_of("fsdp2", 2).scalar("grad_norm/framework"), "to have it would take a collective operation"
