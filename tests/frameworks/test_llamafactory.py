"""LLaMA-Factory as its users start it, on a tiny model, offline: with and without ``floatscope run`` in front."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frameworks.serving import Server

pytestmark = pytest.mark.long

INSIDE = Path(__file__).parent / "inside"
STEPS = 6
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm")
TRAINED = {
    "lora": 2 * len(PROJECTIONS) * 2,
    "full": 2 * (len(PROJECTIONS) + len(NORMS)) + 3,  # and the embedding, the last norm, the head
    "freeze": len(PROJECTIONS) + len(NORMS),
}
IN_CODE = """
import sys, yaml
from floatscope.integrations.transformers import FloatscopeCallback
from llamafactory.hparams import parser
from llamafactory.train.tuner import run_exp
parser.is_torch_bf16_gpu_available = lambda: True  # which it takes for the condition of pure_bf16, on the CPU as well
file, run, server = sys.argv[1:]
run_exp(yaml.safe_load(open(file)), callbacks=[FloatscopeCallback(run=run, server=server)])
"""


@pytest.fixture(scope="module")
def folder(llamafactory: Path, train: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llamafactory")
    train([str(llamafactory), str(INSIDE / "tiny_llamafactory.py"), str(folder)])
    return folder


def logged(folder: Path, name: str) -> dict[int, float]:
    lines = map(json.loads, (folder / "trainer_log.jsonl").read_text().splitlines())
    return {line["current_steps"] - 1: line[name] for line in lines if name in line}


def weights(folder: Path) -> bytes:
    [file] = folder.glob("*model*.safetensors")
    return file.read_bytes()


@pytest.mark.parametrize("case", ["lora", "full", "freeze"])
def test_it_is_watched_and_nothing_changes(
    folder: Path, llamafactory: Path, train: Callable[..., str], server: Server, case: str
) -> None:
    program = str(llamafactory.parent / "llamafactory-cli")
    with server.following(folder / f"{case}-alone" / "trainer_log.jsonl", run=f"{case}-log"):
        train([program, "train", str(folder / f"{case}-alone.yaml")])
        server.until(lambda: len(server.scalar(f"{case}-log", "loss")) == STEPS)
    said = train([program, "train", str(folder / f"{case}-watched.yaml")], run=case, server=server)
    assert "failed while" not in said
    assert weights(folder / f"{case}-alone") == weights(folder / f"{case}-watched")
    shown = server.show(case)
    assert (shown["state"], shown["steps"], shown["ranks"]) == ("finished", STEPS, [0])
    assert shown["coverage"]["trainable"] == {"observed": TRAINED[case], "total": TRAINED[case]}
    executed = {o["format"] for layer in shown["layers"] for o in layer["operands"] if o["kind"] == "act"}
    config = shown["config"]
    assert config["framework"]["name"] == "llamafactory"
    assert config["declared_precision"] == ("bf16" if case == "lora" else "fp32")
    assert ("bf16" in executed) == (case == "lora")
    assert (config["stage"], config["finetuning_type"], config["template"]) == ("sft", case, "qwen")
    assert config["arguments"]["llamafactory.data_args"]["cutoff_len"] == 64
    assert config["arguments"]["transformers"]["max_steps"] == STEPS
    losses = logged(folder / f"{case}-watched", "loss")
    assert server.scalar(case, "loss") == losses == logged(folder / f"{case}-alone", "loss")
    # The log alone, without the agent, says the same of each step.
    assert server.scalar(f"{case}-log", "loss") == losses
    assert server.show(f"{case}-log")["steps"] == STEPS
    assert server.scalar(case, "raw_loss") == pytest.approx(losses, abs=1e-3)
    # What its own log leaves out.
    assert not logged(folder / f"{case}-watched", "grad_norm")
    norms = server.scalar(case, "grad_norm")
    assert norms.keys() == losses.keys()
    assert norms == pytest.approx(server.scalar(case, "logged/grad_norm"), rel=1e-3)


def test_two_ranks_are_one_run(folder: Path, llamafactory: Path, train: Callable[..., str], server: Server) -> None:
    program = str(llamafactory.parent / "llamafactory-cli")
    ranks = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "2", "PATH": f"{llamafactory.parent}:/usr/bin:/bin"}
    train([program, "train", str(folder / "ranks-alone.yaml")], more=ranks)
    train([program, "train", str(folder / "ranks-watched.yaml")], run="ranks", server=server, more=ranks)
    assert weights(folder / "ranks-alone") == weights(folder / "ranks-watched")
    shown = server.show("ranks")
    assert (shown["state"], shown["steps"], shown["ranks"], shown["world"]) == ("finished", STEPS, [0, 1], 2)
    assert shown["coverage"]["trainable"] == {"observed": TRAINED["full"], "total": TRAINED["full"]}
    assert shown["missing_ranks"] == []
    norms = server.scalar("ranks", "grad_norm")
    assert list(norms) == list(range(STEPS))
    assert norms == pytest.approx(server.scalar("ranks", "logged/grad_norm"), rel=1e-3)


def test_the_callback_in_code_tells_the_same(
    folder: Path, llamafactory: Path, train: Callable[..., str], server: Server
) -> None:
    train([str(llamafactory), "-c", IN_CODE, str(folder / "pure-watched.yaml"), "pure", server.url])
    shown = server.show("pure")
    assert (shown["state"], shown["steps"]) == ("finished", STEPS)
    assert shown["coverage"]["trainable"] == {"observed": TRAINED["full"], "total": TRAINED["full"]}
    config = shown["config"]
    assert (config["framework"]["name"], config["declared_precision"]) == ("llamafactory", "pure bf16")
    assert config["arguments"]["llamafactory.finetuning_args"]["pure_bf16"] is True
    # It leaves weights in the format that they are stored in, here fp32: what was declared was not executed.
    executed = {o["format"] for layer in shown["layers"] for o in layer["operands"] if o["kind"] in ("act", "weight")}
    assert executed == {"fp32"}
    assert server.scalar("pure", "loss") == logged(folder / "pure-watched", "loss")
