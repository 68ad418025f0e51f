"""Makes the scope of a training that was found."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

import floatscope
from floatscope._attach import declared
from floatscope._attach.models import Together, roots_of, unwrapped
from floatscope._gradients import parameters_of
from floatscope._optimizer_facts import optimizer_facts
from floatscope._placement import rank_and_world
from floatscope._run_name import run_name
from floatscope._scope import Scope, scope_of

__all__ = ["attach", "steps_before"]


def attach(
    optimizers: Sequence[Optimizer],
    called: nn.Module | None,
    scalers: Sequence[torch.amp.GradScaler],
    watch: Callable[..., Scope] | None = None,
) -> Scope | None:
    """A driven scope for the models that ``optimizers`` update; None where there is one already, or none to be had.

    One that was made here before and whose model has grown, by adapters say, is closed, and the run goes on at its step
    with all of the model. ``watch`` in place of ``floatscope.watch``.
    """
    parameters = [p for optimizer in optimizers for p in parameters_of(optimizer)]
    roots = [unwrapped(root) for root in roots_of(parameters, called)]
    first_step = steps_before(optimizers)
    run: str | None = None
    for root in roots:
        present = scope_of(root)
        if present is None:
            continue
        mine = set(root.parameters())
        if not present.driven or all(present.holds(p) for p in parameters if p in mine):
            return None
        run, first_step = present.config.run, present.steps
        present.close()
    if not roots:
        return None
    model = roots[0] if len(roots) == 1 else _together(roots, optimizers)
    _, world = rank_and_world()
    declared.declare_precision(model, scalers[0] if scalers else None)
    scope = (watch or floatscope.watch)(
        model,
        scaler=scalers[0] if scalers else None,
        run=run or os.environ.get("FLOATSCOPE_RUN") or run_name(world, os.environ),
        first_step=first_step,
        _facts=optimizer_facts(optimizers),
    )
    for scaler in scalers[1:]:
        scope.use_scaler(scaler)
    scope.drive(optimizers)
    return scope


def steps_before(optimizers: Iterable[Optimizer]) -> int:
    """How many steps were done before, as the states say that a training has loaded which resumes.

    Most of torch's optimizers count theirs, without those that a scaler skipped; the fused ones of Apex and Transformer
    Engine do so by group. 0 where none does, or where it counts on a device that would have to be waited for.
    """
    counts = [0]
    for optimizer in optimizers:
        for counting in (*optimizer.state.values(), *optimizer.param_groups):
            count = counting.get("step") if isinstance(counting, dict) else None
            if isinstance(count, torch.Tensor) and count.device.type == "cpu" and count.numel() == 1:
                count = int(count)
            if isinstance(count, int):
                counts.append(count)
                break  # it counts its parameters' steps alike
    return max(counts)


def _together(roots: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> Together:
    model = Together(roots)
    # Nobody else holds it: it is there for as long as one of them is trained.
    for optimizer in optimizers:
        weakref.finalize(optimizer, _nothing, model).atexit = False
    return model


def _nothing(model: nn.Module) -> None:
    pass
