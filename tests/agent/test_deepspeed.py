"""DeepSpeed itself, over gloo on the CPU: what its ranks report merges to what one process would."""

from __future__ import annotations

import importlib.util
import os
import pickle
import site
import subprocess
import sys
import venv
from collections.abc import Callable
from typing import Any

import pytest
import torch

from floatscope_server.store.together import SHARE
from tests.agent import distributed_ranks
from tests.agent.distributed_ranks import ROOT, STEPS, Model, Training, finish
from tests.needs import needs
from tests.rank_reports import Reports, assert_same

pytestmark = pytest.mark.long

NAMES = (
    "0-fp32-2",
    "0-bf16-1",
    "1-fp32-1",
    "1-bf16-2",
    "1-bf16-2-wide",
    "2-fp32-2",
    "2-bf16-2",
    "2-bf16-1-wide",
    "2-fp32-1-offload",
    "2-fp32-1-robin",
    "2-fp32-1-inner",
    "3-fp32-2",
    "3-bf16-1",
    "3-fp32-1-inner",
    "3-fp32-1-offload",
)
DEADLINE_S = 600.0
OPTIMIZERS = {
    "0-bf16-1": "FP16_UnfusedOptimizer",
    "1-bf16-2-wide": "BF16_Optimizer",
    "3-fp32-2": "DeepSpeedZeroOptimizer_Stage3",
    "2-fp32-2": "DeepSpeedZeroOptimizer",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has DeepSpeed: this one, or of an environment of its own, with what this one has under it."""
    if importlib.util.find_spec("deepspeed") is not None:
        return sys.executable
    environment = tmp_path_factory.mktemp("deepspeed") / "venv"
    venv.create(environment, with_pip=True)
    program = environment / "bin" / "python"
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "underneath.pth").write_text("\n".join(site.getsitepackages()))
    variables = os.environ | {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    command = [str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "deepspeed"]
    installed = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    why = (installed.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
    needs(installed.returncode == 0, f"DeepSpeed, which pip could not install ({why}); it")
    return str(program)


@pytest.fixture(scope="module")
def ranks(python: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """``ranks(name)``: by rank what the training left."""
    folder = tmp_path_factory.mktemp("ranks")
    paths = os.pathsep.join(map(str, (ROOT / "agent", ROOT / "server", ROOT)))
    variables = os.environ | {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": paths,
        "PYTHONWARNINGS": "ignore",
        "TORCH_EXTENSIONS_DIR": str(folder),
    }
    finish(
        *(
            subprocess.Popen(
                [python, "-m", "tests.agent.deepspeed_ranks", str(folder), str(rank), "2", *NAMES],
                cwd=ROOT,
                env=variables | {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for rank in (0, 1)
        ),
        deadline_s=DEADLINE_S,
    )
    return lambda name: [pickle.loads((folder / f"{name}.{rank}.pickle").read_bytes()) for rank in (0, 1)]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_training_changes(ranks: Callable[[str], list[dict[str, Any]]], name: str) -> None:
    for result in ranks(name):
        alone, watched = result["alone"], result["watched"]
        assert watched["optimizer"] == OPTIMIZERS.get(name, watched["optimizer"])
        assert all(map(torch.equal, alone["weights"], watched["weights"]))
        assert alone["norms"] == pytest.approx(watched["norms"], rel=0, nan_ok=True)
        assert alone["collectives"] == watched["collectives"] > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "3-fp32-1-offload"])
def test_every_gradient_is_read_before_it_is_clipped(ranks: Callable[[str], list[dict[str, Any]]], name: str) -> None:
    results = [result["watched"] for result in ranks(name)]
    many = Reports.of(results)
    for result in results:
        coverage = result["coverage"]
        assert coverage["observed"] == coverage["trainable"]
        assert not [reason for reason in coverage["reasons"] if "not merged" in reason or "gradient" in reason]
    norms = many.norms() if any(many.scalar(SHARE)) else many.scalar("grad_norm")
    assert len(norms) == STEPS
    if name != "0-fp32-2":  # which tells none
        assert norms == pytest.approx(results[0]["norms"], rel=1e-4)
        assert many.scalar("grad_norm/framework") == pytest.approx(results[0]["norms"])
        clips = [min(1.0, 0.5 / (norm + 1e-6)) for norm in results[0]["norms"]]
        assert many.scalar("clip_coef") == pytest.approx(clips, rel=1e-5)
    assert many.scalar("lr") == [pytest.approx(0.1)] * STEPS


@pytest.mark.parametrize("name", [name for name in NAMES if "fp32" in name and name != "3-fp32-1-offload"])
def test_merged_summaries_are_those_of_one_process(ranks: Callable[[str], list[dict[str, Any]]], name: str) -> None:
    many = Reports.of([result["watched"] for result in ranks(name)])
    one = Reports.of([distributed_ranks.train(Training(model=Model().float()))])
    for kind in ("grad", "weight", "act", "act_in", "act_grad"):
        for step in range(STEPS):
            merged, single = many.rows(kind, step), one.alone(kind, step)[0]
            assert merged.keys() == single.keys(), kind
            # A rank's loss is the mean over its own samples, a share of 1 / world of the whole batch.
            factor = 2.0 if kind == "act_grad" else 1.0
            for layer, fields in single.items():
                assert_same(merged[layer], fields, factor, rel=1e-4, floor=1e-5)


def test_formats_are_those_that_gradients_are_kept_in(ranks: Callable[[str], list[dict[str, Any]]]) -> None:
    for name, stored in (("2-bf16-2", "bf16"), ("3-bf16-1", "bf16"), ("1-bf16-2-wide", "fp32")):
        many = Reports.of([result["watched"] for result in ranks(name)])
        latest = {layer.name: layer for body in many.bodies[1] for layer in body.layers}
        formats = {o.format for layer in latest.values() for o in layer.operands if o.kind == "grad"}
        assert formats == {stored}, name


def test_what_is_offloaded_says_so(ranks: Callable[[str], list[dict[str, Any]]]) -> None:
    reasons = ranks("3-fp32-1-offload")[0]["watched"]["coverage"]["reasons"]
    [reason] = [reason for reason in reasons if "moves it to the host" in reason]
    assert "module.up" in reasons[reason]
