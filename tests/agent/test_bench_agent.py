"""``floatscope bench agent`` on a model of one layer: what it prints and writes, and what it refuses."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from floatscope._bench import compiled, host, method, peers, recorders, table, traffic
from floatscope._bench.catalogue import RECORDERS, Plan
from floatscope._bench.hooks import all_hooks
from floatscope._bench.training import Training
from floatscope.commands import bench
from tests.agent import peer_doubles

CPU = torch.device("cpu")
FIGURES = {
    *(
        "form",
        "base_ms",
        "added_ms",
        "added_ms_quartiles",
        "percent",
        "limit_ms",
        "x_limit",
        "pairs",
        "steps",
        "peak_gib",
    ),
    *("host_us", "forward_hook_us", "syncs_per_step"),
}


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    bench.configure(parser)
    return bench.run(parser.parse_args(["agent", "--device", "cpu", *arguments]))


@pytest.fixture
def without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed here, no peer is."""
    peers = {spec.package for name, spec in RECORDERS.items() if name in _peers()}
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in peers else find(name))


def _peers() -> set[str]:
    return {name for name, spec in RECORDERS.items() if spec.package not in ("", "torch", "floatscope")}


@pytest.mark.usefixtures("without_peers")
def test_table_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    ours = ["nobody", "floatscope-gradients", "floatscope-outputs", "floatscope-all", "foreach-norms", "torch-all"]
    asked = [*ours, *sorted(_peers())]
    assert run("--models", "tiny", "--recorders", ",".join(asked), "--pairs", "2", "--json", str(file)) == 0
    report = json.loads(file.read_text())
    assert {"gpu", "multiprocessors", "cpu", "cores", "threads", "python", "torch", "triton"} <= set(report["machine"])
    (result,) = report["results"]
    assert (result["model"], result["compile"], result["tensors"]) == ("tiny", None, 16)
    rows = {row["name"]: row for row in result["recorders"]}
    assert set(rows) == set(asked)
    printed = capsys.readouterr().out
    for name, row in rows.items():
        assert RECORDERS[name].about in printed
        if name in _peers():
            assert row["status"] == "not installed"
            assert f"{RECORDERS[name].about}: not installed (pip install {RECORDERS[name].package})" in printed
            continue
        assert row["status"] == "measured"
        assert set(row) >= FIGURES
        assert row["pairs"] == 2
        assert row["percent"] == pytest.approx(100 * row["added_ms"] / row["base_ms"])
    gradients = rows["floatscope-gradients"]
    assert gradients["limit_ms"] == pytest.approx(1e3 * 4 * result["parameters"] / report["copy_bytes_per_s"])
    assert gradients["x_limit"] == pytest.approx(gradients["added_ms"] / gradients["limit_ms"])
    limits = [rows[name]["limit_ms"] for name in ours[1:4]]
    assert limits == sorted(set(limits))
    assert rows["floatscope-outputs"]["limit_ms"] == rows["torch-all"]["limit_ms"]
    assert rows["floatscope-all"]["host_us"] > rows["floatscope-all"]["forward_hook_us"] > 0
    assert rows["nobody"]["host_us"] is None
    assert table.markdown(report) == printed


def test_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--models", "tiny", "--recorders", "nobody", "--pairs", "2", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["model"] == "tiny"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--models", "7b"), "no model called 7b; there are 125m, 1.3b"),
        (("--recorders", "nobody,mlflow"), "no recorder called mlflow; there are nobody, floatscope-gradients"),
        (("--recorders", "wandb-1", "--compile"), "not measured with --compile: wandb-1; only nobody"),
        (("--json", "/nowhere/figures.json"), "cannot write /nowhere/figures.json"),
    ],
)
def test_refusals(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about machines without a GPU")
def test_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--device", "cuda") == 2
    assert "torch sees no GPU here; use --device cpu" in capsys.readouterr().err


def test_without_names_everything_is_measured() -> None:
    eager = Plan.of(device="cpu", models=(), recorders=(), pairs=1, compiled=False)
    assert eager.models == ("mlp", "mlp-1024", "transformer")
    assert eager.recorders == tuple(RECORDERS)
    assert not _peers() & set(Plan.of(device="cuda", models=(), recorders=(), pairs=1, compiled=True).recorders)


class Slow(recorders.Recorder):
    """Computes for a while in the steps in which it acts, and remembers which those were."""

    def __init__(self, every: int) -> None:
        super().__init__(every)
        self.number, self.attached = -1, 0

    def attach(self, training: Training) -> None:
        self.number, self.attached = -1, self.attached + 1

    def before_step(self) -> None:
        self.number += 1
        if self.number % self.every == 0:
            torch.randn(256, 256) @ torch.randn(256, 256) @ torch.randn(256, 256)


def test_pairs_compare_steps_in_which_the_recorder_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    acting = iter(range(1000))
    # A clock that the recorder alone moves: 1 ms a step, and 5 ms more in steps 0, 2, 4, ...
    monkeypatch.setattr(method, "_HostClock", lambda: _Steps(acting))
    recorder = Slow(2)
    series = method.paired(Training("tiny", CPU), recorder, 7, 60.0)
    assert series.added == [5.0] * 7
    assert set(series.base) == {1.0}
    assert recorder.number == 4 + 2 * 7 + 2 - 1


class _Steps:
    """Laps of 6, 1, 6, 1, ... ms, the parity going on from one series of steps to the next."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers, self._laps = numbers, -1

    def mark(self) -> None:
        self._laps += 1

    def laps_ms(self) -> list[float]:
        return [6.0 if next(self._numbers) % 2 == 0 else 1.0 for _ in range(self._laps)]


def test_a_recorder_too_slow_for_its_time_is_read_once() -> None:
    series = method.paired(Training("tiny", CPU), Slow(2), 40, 0.0)
    assert series.steps == len(series.added) == 1
    assert len(series.base) == 3


def test_blocks_leave_the_training_alone_in_between() -> None:
    recorder = Slow(1)
    series = method.in_turns(Training("tiny", CPU), recorder, 3, 60.0)
    assert (series.form, len(series.added), recorder.attached) == ("blocks", 6, 6)
    assert recorder.number == 3 + 3 - 1
    assert method.in_turns(Training("tiny", CPU), recorder, 1, 0.0).form == "steps"


@pytest.mark.parametrize("name", [name for name, spec in RECORDERS.items() if name not in _peers()])
def test_nothing_is_left_of_a_recorder(name: str) -> None:
    training = Training("tiny", CPU)
    recorder = recorders.OURS[name](1)
    host.host_cost(training, recorder)
    recorder.close()
    assert not any(all_hooks(training))


def _twice(name: str) -> None:
    training = Training("tiny", CPU)
    recorder = peers.PEERS[name](1)
    for _ in range(2):
        assert host.host_cost(training, recorder).step_us > 0
        assert not any(all_hooks(training))
    recorder.close()


@pytest.mark.parametrize("name", sorted(_peers()))
def test_doubles_of_peers_are_attached_and_leave(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for imported, double in peer_doubles.doubles().items():
        monkeypatch.setitem(sys.modules, imported, double)
    peer_doubles.asked.clear()
    _twice(name)
    options: dict[str, tuple[object, ...]] = {
        "wandb-1": ("watch", "gradients", 1),
        "wandb-100": ("watch", "gradients", 100),
        "tensorboard": ("add_histogram", "gradients/token.weight", (64, 32), 0),
        "transformers": ("debug", len(list(Training("tiny", CPU).model.modules()))),
        "pulsegrad-1": ("watch", ("k", 1), True),
        "pulsegrad-10": ("watch", True),
    }
    assert peer_doubles.asked[0] == options[name]
    assert peer_doubles.asked.count(options[name]) == 2


@pytest.mark.parametrize("name", sorted(_peers()))
@pytest.mark.filterwarnings("ignore")
def test_peers_are_attached_and_leave(name: str) -> None:
    package = RECORDERS[name].package
    # 400 MB for all of them: `make test` leaves them out, and their doubles stand in.
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the real {package} is left out; pip install {package} has it tested")
    _twice(name)


def test_recorders_read_what_they_say() -> None:
    training = Training("tiny", CPU)
    method.run_steps(training, recorders.Recorder(1), 1)
    norms = recorders.foreach_norms(1)
    norms.attach(training)
    seen = []
    training.before_optimizer = lambda: seen.append([p.grad.norm() for p in training.model.parameters()])  # type: ignore[union-attr]
    fetched: list[torch.Tensor] = []
    norms._fetch.send = fetched.append  # type: ignore[attr-defined]
    method.run_steps(training, norms, 1)
    norms.detach()
    torch.testing.assert_close(fetched[0][:, 1], torch.stack(seen[0]))
    x = torch.tensor([0.0, -2.0, 1e-5, float("inf"), float("nan")])
    eight = recorders._statistics([x])[0]
    assert eight[2:6].tolist() == [1, 1, 1, 2]


def test_bytes_of_a_step() -> None:
    training = Training("tiny", CPU)
    counted = traffic.count_bytes(training)
    parameters = sum(p.numel() for p in training.model.parameters())
    assert counted["gradients"] == counted["weights"] == 4 * parameters
    # Batch 2, 16 tokens, width 32, 64 words: three norms, qkv, two ways out, up, and the logits.
    assert counted["outputs"] == 4 * 2 * 16 * (3 * 32 + 3 * 32 + 2 * 32 + 4 * 32 + 64)
    assert counted["operands"] == 4 * 2 * 16 * ((32 + 96) + (32 + 32) + (32 + 128) + (128 + 32) + (32 + 64))


def test_time_in_hooks_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    clock = host._Clock()
    inner = clock.timed(lambda: None)
    outer = clock.timed(lambda: inner())
    outer()
    assert (clock.seconds, clock.calls) == (1.0, 1)


def test_waits_are_counted_by_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(recorders.Recorder):
        def before_step(self) -> None:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("something else", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    assert host._count_syncs(Training("tiny", CPU), Waiting(1), 3) == 1.0


# Dynamo looks at .grad of what crosses a graph break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_trainings_do_not_share_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of a class must run with its own hooks, and count what Dynamo did for it alone."""
    compile_ = torch.compile
    # What counts is what Dynamo does; Inductor would take a compiler and seconds.
    monkeypatch.setattr(torch, "compile", lambda model, mode: compile_(model, backend="eager"))
    compiled.forget()
    base, watched, hooked = Training("tiny", CPU, "default"), Training("tiny", CPU, "default"), Hooked(1)
    without = compiled.compile_now(base, recorders.Recorder(1))
    hooked.attach(watched)
    compilation = compiled.compile_now(watched, hooked)
    assert (without.graph_breaks, without.compilations) == (0, 1)
    assert compilation.graph_breaks > 0
    assert hooked.calls > 0
    series = compiled.compiled_in_turns(base, watched, hooked, 5, 60.0)
    assert series.form == "steps"
    assert len(series.added) >= 5
    compiled.forget()


class Hooked(recorders.Recorder):
    """A hook that cannot be compiled."""

    calls = 0

    def attach(self, training: Training) -> None:
        def count(*_: object) -> None:
            self.calls += 1

        hook: Any = torch.compiler.disable(count)  # type: ignore[no-untyped-call]
        training.model.head.register_forward_hook(hook)  # type: ignore[union-attr]


def test_the_command_imports_no_torch() -> None:
    code = "import sys; import floatscope.commands.bench; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
