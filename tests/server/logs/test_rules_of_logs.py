"""What the rules must know of logs: records that are steps apart, and means beside the series that they are of."""

from __future__ import annotations

import numpy as np

from floatscope import wire
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters, RunWindow
from floatscope_server.rules.record import record_of


def test_patience_is_that_of_a_record() -> None:
    """A log shows every 50th step, and a step takes 5 s: nothing comes for 250 s, which is no stall."""
    window = RunWindow(RuleParameters())
    steps = np.arange(0, 1000, 50)
    scalars = tuple(
        wire.Scalars(name=name, steps=steps.astype("<i8").tobytes(), values=np.full(len(steps), value, "<f8").tobytes())
        for name, value in (("loss", 1.0), ("step_time_s", 5.0))
    )
    body = wire.Body(first_step=0, steps=951, scalars=scalars)
    seen = Observation(run_id=1, run="run", attempt=1, rank=0, writer="w", seq=1, world=1, body=body, layers={})
    for _ in window.judge(seen):
        pass
    assert [any(f.active for f in window.tick(quiet, 0.0)) for quiet in (300.0, 2400.0, 2600.0)] == [False, False, True]


def test_a_mean_over_the_training_is_no_loss_of_its_last_step() -> None:
    assert record_of(9, {"train_loss": 3.0}, seen={"loss", "train_loss"}).loss is None
    assert record_of(9, {"train_loss": 3.0}, seen={"train_loss"}).loss == 3.0
    assert record_of(9, {"train_loss": 3.0, "loss": 1.0}, seen={"loss"}).loss == 1.0


def test_a_norm_as_printed_does_not_stand_in_for_the_unscaled_one() -> None:
    """Megatron's skipped step repeats the norm of the step before, and leaves out the loss."""
    seen = {"loss", "lm loss", "grad_norm", "grad norm"}
    skipped = record_of(9, {"grad norm": 3e9, "skipped": 1.0}, seen=seen)
    assert (skipped.grad_norm, skipped.loss_absent) == (None, False)
    assert record_of(9, {"grad norm": 0.5, "grad_norm": 0.5}, seen=seen).loss_absent
    assert not record_of(9, {"grad norm": 0.0}, seen=seen).loss_absent
