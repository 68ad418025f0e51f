"""Attaching, ending steps and letting go."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import floatscope
from floatscope import Config, Scope, _placement, _scope, _sending
from floatscope._guard import Guard, swallowed
from floatscope._memory import MemorySink
from floatscope._operands import Operand
from floatscope._record import RecordLostError

Attach = Callable[..., tuple[Scope, MemorySink]]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def test_scalars_of_every_kind(attach: Attach) -> None:
    scope, sink = attach(make_model())
    loss = torch.tensor(2.5, requires_grad=True)
    scope.log(early=1)
    scope.step(
        loss=loss,
        tokens=2**63,
        share=np.float32(0.5),
        bf16=torch.tensor([1.5], dtype=torch.bfloat16),
        nan=math.nan,
        lr=3e-4,
    )
    with torch.no_grad():
        loss.mul_(2)
    scope.step(math.inf)
    scope.step(loss)
    first = sink.records()[0].scalars
    assert math.isnan(first.pop("nan"))
    assert first == {"early": 1.0, "loss": 2.5, "tokens": 2.0**63, "share": 0.5, "bf16": 1.5, "lr": 3e-4}
    assert sink.scalar("loss") == [2.5, math.inf, 5.0]
    assert [record.step for record in sink.records()] == [0, 1, 2]
    assert sink.scalar("step_time_s")[0] is None
    assert all(seconds is not None and seconds > 0 for seconds in sink.scalar("step_time_s")[1:])


def test_scalars_after_the_last_step_still_go_out(attach: Attach) -> None:
    scope, sink = attach(make_model())
    scope.step()
    scope.log(eval_loss=4.0)
    scope.close()
    scope.close()
    scope.step(loss=1.0)
    scope.log(more=1.0)
    assert sink.scalar("eval_loss") == [None, 4.0]
    assert sink.reason == "finished"


def test_the_layer_table_travels_once_and_when_it_changes(attach: Attach) -> None:
    model = make_model()
    scope, sink = attach(model)
    for _ in range(3):
        model(torch.ones(1, 3))
        scope.step()
    assert [len(record.layers) for record in sink.records()] == [2, 0, 0]
    assert [layer.parameters for layer in sink.records()[0].layers] == [12, 8]


def test_context_manager_tells_how_it_ended() -> None:
    model, sink = make_model(), MemorySink()
    with floatscope.watch(model, _sink=sink):
        pass
    assert sink.reason == "finished"
    sink = MemorySink()
    with pytest.raises(KeyError, match="mine"), floatscope.watch(model, _sink=sink):
        raise KeyError("mine")
    assert sink.reason == "failed"


def test_a_second_attachment_is_the_first(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    scope, _ = attach(model)
    again, _ = attach(model)
    assert again is scope
    assert "watched already" in caplog.text
    scope.close()
    anew, _ = attach(model)
    assert anew is not scope


class BadOperands(nn.Linear):
    def floatscope_operands(self) -> Mapping[str, Operand]:
        return {"act_in": Operand(format="fp8")}


class WrongKind(nn.Linear):
    def floatscope_operands(self) -> Mapping[str, Operand]:
        return {"input": Operand(format="e5m2")}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: floatscope.watch(nn.ReLU()), "model: it has no parameters"),
        (lambda: floatscope.watch(cast("Any", 42)), "model: expected a torch.nn.Module, got int"),
        *(
            (
                lambda given=given: floatscope.watch(make_model(), cast("Any", given)),
                f"optimizer: expected torch.optim.Optimizer or a sequence of them, got {name}$",
            )
            for given, name in [
                ("adam", "str"),
                (nn.Linear(1, 1), "Linear"),
                (make_model(), "Sequential"),
                ([nn.Linear(1, 1)], "Linear"),
                (0, "int"),
            ]
        ),
        (lambda: floatscope.watch(make_model(), sgd(make_model())), "optimizer 0 .SGD. holds no parameter of the"),
        (
            lambda: floatscope.watch(make_model(), scaler=cast("Any", 3)),
            "scaler: expected torch.amp.GradScaler",
        ),
        (
            lambda: floatscope.watch(make_model(), gradient_every=3, activation_every=5),
            "unknown option activation_every, gradient_every; did you mean activations_every, gradients_every. known",
        ),
        (lambda: floatscope.watch(make_model(), zzz=3), "unknown option zzz; known options are"),
        (lambda: floatscope.watch(make_model(), operands=1), "operands: expected True or False, got 1"),
        (lambda: floatscope.watch(make_model(), gradients_every=-1), "gradients_every: expected an integer of at le"),
        (lambda: floatscope.watch(make_model(), weights_every=1.5), "weights_every: expected an integer of at least 0"),
        (lambda: floatscope.watch(make_model(), queue_bytes=0), "queue_bytes: expected an integer of at least 1"),
        *(
            (lambda name=name: floatscope.watch(make_model(), run=name), "run: .* cannot be a run's name; use 1 to 128")
            for name in (" ", "", "a/b", "a\\b", "..", " a", "a\n", "x" * 129)
        ),
        (lambda: floatscope.watch(make_model(), server="localhost:6160"), "server: expected http://HOST:PORT"),
        (lambda: floatscope.watch(make_model(), first_step=-1), "first_step: expected an integer of at least 0"),
        (lambda: floatscope.watch(make_model(), first_step=2**63), "first_step: expected an integer of at most 9007"),
        *(
            (
                lambda name=name: floatscope.watch(make_model(), **{name: cast("Any", 5)}),
                f"{name}: expected a text, got",
            )
            for name in ("run", "server", "token", "spool_dir")
        ),
        (lambda: floatscope.watch(make_model(), token="se\ncret"), "^token: character 3 of 7 is none of printable AS"),
        (lambda: floatscope.watch(make_model(), spool_dir="a\0"), "spool_dir: no folder has a null character"),
        (
            lambda: floatscope.watch(make_model(), config=cast("Any", {})),
            "config: expected floatscope.Config, got dict",
        ),
        (lambda: floatscope.watch(BadOperands(1, 1)), "unknown format 'fp8'; known formats are fp32"),
        (lambda: floatscope.watch(WrongKind(1, 1)), r"unknown operands \['input'\]; known are act_in, weight"),
    ],
)
def test_bad_input_is_refused_at_once(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
    assert not _scope._attached


def test_config_and_options(attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATSCOPE_RUN", "from-environment")
    monkeypatch.setenv("FLOATSCOPE_SERVER", "http://trainer:1")
    monkeypatch.setenv("FLOATSCOPE_TOKEN", "secret")
    scope, _ = attach(make_model(), config=Config(weights_every=7, gradients_every=5), gradients_every=2)
    assert (scope.config.weights_every, scope.config.gradients_every) == (7, 2)
    assert (scope.config.run, scope.config.server, scope.config.token) == (
        "from-environment",
        "http://trainer:1",
        "secret",
    )
    assert "secret" not in repr(scope.config)
    scope, _ = attach(make_model(), run="named", server="https://h:2")
    assert (scope.config.run, scope.config.server) == ("named", "https://h:2")


def test_disabled_is_an_object_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATSCOPE_DISABLED", "1")
    model = make_model()
    sink = MemorySink()
    with floatscope.watch(model, sgd(model), _sink=sink) as scope:
        scope.log(x=1)
        scope.step(loss=3)
        assert isinstance(scope, Scope)
        assert scope.coverage["observed"] == 0
    assert not sink.pending
    assert all(not m._forward_hooks for m in model.modules())
    monkeypatch.setenv("FLOATSCOPE_DISABLED", "0")
    floatscope.watch(model, _sink=sink).close()
    assert sink.reason == "finished"


def test_our_failures_stay_ours(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    Guard.reraise = False
    model = make_model()
    optimizer = sgd(model)
    scope, sink = attach(model, optimizer, activations_every=1)

    def broken(*args: object, **kwargs: object) -> bool:
        raise RuntimeError("statistics failed")

    scope._recorder.record = broken  # type: ignore[method-assign]
    before = swallowed()
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scope.step(loss="not a number", fine=1)
    assert [record.step for record in sink.records()] == [0, 1]
    assert sink.scalar("fine") == [1.0, 1.0]
    after = swallowed()
    for place, times in {"a module's hook ran": 4, "an optimizer stepped": 2, "a scalar was logged": 2}.items():
        assert after[place] - before.get(place, 0) == times
    texts = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(texts) == len(set(texts)), "logged once for each place"
    assert any("training goes on" in text for text in texts)


def test_a_value_that_is_no_number_is_one_line(
    attach: Attach, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Guard.reraise = False
    monkeypatch.setattr("floatscope._guard._counts", Counter())
    scope, sink = attach(make_model())
    for _ in range(2):
        scope.step(loss="abc", fine=1)
    scope.step(loss=torch.ones(2), fine=2)
    (said,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert said.exc_info is None
    assert said.getMessage() == (
        "floatscope: scalar 'loss': expected one number, got str (could not convert string to float: 'abc'); "
        "training goes on without that value (logged once)"
    )
    assert sink.scalar("fine") == [1.0, 1.0, 2.0]
    assert swallowed()["a scalar was logged"] == 3


def test_a_step_lost_to_our_own_error_is_declared_and_its_names_are_kept(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    Guard.reraise = False
    model = make_model()
    scope, sink = attach(model)

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("copies failed")

    with monkeypatch.context() as patch:
        patch.setattr(_scope, "Pending", broken)
        scope.step(loss=1.0)
    scope.step(loss=2.0)
    lost, kept = sink.pending
    assert (lost.step, len(lost.layers)) == (0, 2)
    with pytest.raises(RecordLostError, match="internal"):
        lost.resolve()
    assert kept.resolve().scalars["loss"] == 2.0
    assert [event.kind for event in kept.resolve().events] == ["coverage"], "what the lost step said is said again"


def test_user_exceptions_pass_through() -> None:
    guard = Guard("testing")
    Guard.reraise = False
    with pytest.raises(KeyboardInterrupt), guard:
        raise KeyboardInterrupt
    with guard:
        raise ValueError("ours")
    assert swallowed()["testing"] == 1


PROGRAM = """
import multiprocessing, sys, torch, floatscope
from floatscope._memory import MemorySink
class Telling(MemorySink):
    def finish(self, reason):
        print("closed", reason, flush=True)
def train():
    global model
    model = torch.nn.Linear(2, 2)
    scope = floatscope.watch(model, _sink=Telling())
    scope.step(loss=1.0)
    if sys.argv[1].endswith("raise"):
        raise RuntimeError("training failed")
    if sys.argv[1].endswith("exit"):
        sys.exit(3)
if sys.argv[1].startswith("forked"):
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
    sys.exit(child.exitcode)
train()
if sys.argv[1] == "interactive":
    sys.ps1, sys.last_type = "In : ", KeyError
"""


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("end", 0, "finished"),
        ("exit", 3, "finished"),
        ("raise", 1, "failed"),
        ("interactive", 0, "finished"),
        ("forked end", 0, "finished"),
        ("forked exit", 3, "finished"),
        ("forked raise", 1, "failed"),
    ],
)
def test_the_end_of_the_program_closes(how: str, status: int, reason: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), how], check=False, capture_output=True, text=True, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout) == (status, f"closed {reason}\n")


def test_a_resumed_training_goes_on_at_its_own_step(attach: Attach) -> None:
    scope, sink = attach(make_model(), first_step=4321, weights_every=2)
    for _ in range(3):
        scope.step()
    assert [record.step for record in sink.records()] == [4321, 4322, 4323]
    assert [[rows.kind for rows in record.summaries] for record in sink.records()] == [[], ["weight"], []]
    assert [event.step for record in sink.records() for event in record.events] == [4321]


def test_rank_and_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert _placement.rank_and_world() == (3, 8)


def test_the_description_of_a_run_is_plain_data() -> None:
    model = make_model()
    config = Config(token="secret", histograms_every=3)
    description = _sending.description(model, [sgd(model)], torch.amp.GradScaler("cpu"), config)
    packed = msgspec.msgpack.encode(description)
    assert msgspec.msgpack.decode(packed) == description
    assert b"secret" not in packed
    assert description["optimizers"] == ["SGD"]
    assert (description["parameters"], description["scaler"], description["histograms_every"]) == (20, "GradScaler", 3)
