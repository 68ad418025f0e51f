"""For the Trainer of transformers, and what is made of it: TRL, LLaMA-Factory.

    Trainer(..., callbacks=[FloatscopeCallback()])

Under ``floatscope run`` nothing has to be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers.trainer_callback import TrainerCallback

from floatscope._guard import Guard
from floatscope.integrations import _llamafactory
from floatscope.integrations._accelerator import hear_losses
from floatscope.integrations._arguments import of_dataclass
from floatscope.integrations._training import FrameworkTraining, check_options, claim, end_stale, take

__all__ = ["FloatscopeCallback"]

_reading = Guard("a Trainer's arguments were read")
_naming = Guard("the run's name was put into the state that checkpoints hold")
_KEPT = "floatscope"
"""Of a Trainer's state, where the run's name is."""


class FloatscopeCallback(TrainerCallback):  # type: ignore[misc]
    """Watches what a Trainer trains, from the first step to the last.

    Steps are the Trainer's: step n is the one after which ``state.global_step`` is n + 1. ``options`` are those of
    ``floatscope.watch``; ``ValueError`` for one that makes no sense. A checkpoint holds the run's name, under which a
    training that resumes from it goes on as the next attempt, unless it was given another name. No method raises or
    waits for a device.
    """

    def __init__(self, **options: object) -> None:
        check_options(options)
        self._training = FrameworkTraining(options, hear_losses)
        _llamafactory.observe_arguments()

    def on_init_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
        """The Trainer is made, and what it trains is known."""
        if isinstance(model := given.get("model"), nn.Module):
            claim(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
        """Begin to watch ``given["model"]``."""
        if isinstance(model := given.get("model"), nn.Module):
            end_stale(model)
            take([given.get("optimizer")])
            self._begin(model, args, state, given)

    def _begin(self, model: nn.Module, args: Any, state: Any, given: Mapping[str, Any]) -> None:  # noqa: ANN401
        scaler = getattr(given.get("optimizer"), "scaler", None)
        facts: dict[str, object] = {}
        arguments: dict[str, dict[str, object]] = {}
        run: str | None = None
        with _reading:
            facts = _facts(args, state)
            arguments = {"transformers": of_dataclass(args), **_llamafactory.arguments(args)}
            run = _resumed_run(state) if state.global_step else None
        self._training.begin(
            model,
            scaler=scaler if isinstance(scaler, torch.amp.GradScaler) else None,
            first_step=state.global_step,
            run=run,
            facts=facts,
            arguments=arguments,
        )
        with _naming:
            if self._training.run is not None:
                # In the form of a callback's own state. Being one would have a Trainer make it anew, without options.
                state.stateful_callbacks[_KEPT] = {"args": {}, "attributes": {"run": self._training.run}}

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
        """The step before is over."""
        self._training.end_waiting()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
        """The optimizer is done, or was skipped."""
        self._training.step_done()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:  # noqa: ANN401
        """What is logged about a step comes after its end, and before the next one begins."""
        if isinstance(logs, Mapping):
            self._training.log(logs)

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
        """Note the checkpoint."""
        self._training.saved(f"checkpoint-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
        """Send what is left."""
        self._training.end()


def _resumed_run(state: Any) -> str | None:  # noqa: ANN401
    kept = state.stateful_callbacks.get(_KEPT)
    run = kept["attributes"].get("run") if isinstance(kept, dict) else None
    return run if isinstance(run, str) else None


def _facts(args: Any, state: Any) -> dict[str, object]:  # noqa: ANN401
    """Who trains, the precision that was asked for, and the step to stop after, which epochs alone do not tell."""
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"
    facts: dict[str, object] = {
        "framework": {"name": "transformers", "version": transformers.__version__},
        "declared_precision": precision,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "max_steps": state.max_steps,
    }
    return facts | _llamafactory.facts(args)
