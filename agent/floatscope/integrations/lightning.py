"""For the Trainer of Lightning.

    Trainer(..., callbacks=[FloatscopeCallback()])

Under ``floatscope run`` nothing has to be written.
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

import torch

from floatscope._guard import Guard
from floatscope.integrations._arguments import plain
from floatscope.integrations._training import FrameworkTraining, check_options, end_stale, take

# The one package has two names; importing the other one too would take seconds.
_OLD = "pytorch_lightning"
_NAME = _OLD if _OLD in sys.modules and "lightning" not in sys.modules else "lightning.pytorch"
_package = importlib.import_module(_NAME)

__all__ = ["FloatscopeCallback"]

_KEPT = "floatscope"
"""What a checkpoint has of ours."""
_reading = Guard("what a Trainer was given was read")
_looking = Guard("a batch of a Trainer ended", charge="step")


class FloatscopeCallback(_package.Callback):  # type: ignore[misc, name-defined]
    """Watches what a Trainer fits, in automatic and in manual optimization.

    A step is one of the optimizer, or of all that step in a batch. ``options`` are those of ``floatscope.watch``;
    ``ValueError`` for one that makes no sense. A checkpoint holds the run's name and its steps, so that a training that
    resumes from it goes on as the next attempt. No method raises; none waits for a device, but that what Lightning
    logs is fetched where Lightning has just fetched it.
    """

    def __init__(self, **options: object) -> None:
        check_options(options)
        self._training = FrameworkTraining(options)
        self._kept: dict[str, Any] = {}
        self._seen = 0
        """Optimizer steps by the Trainer's count."""
        self._logged = False

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ANN401
        """Go on where it was written."""
        kept = checkpoint.get(_KEPT)
        self._kept = kept if isinstance(kept, dict) else {}

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
        """What runs now is no training."""
        take(trainer.optimizers)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
        """Begin to watch ``pl_module``."""
        end_stale(pl_module)
        take(trainer.optimizers)
        self._begin(trainer, pl_module)

    def _begin(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
        facts: dict[str, object] = {}
        arguments: dict[str, dict[str, object]] = {}
        scaler: Any = None
        with _reading:
            facts = _facts(trainer)
            hparams = {str(name): plain(value) for name, value in pl_module.hparams.items()}
            arguments = {"lightning": _arguments(trainer), "hparams": hparams}
            scaler = getattr(trainer.precision_plugin, "scaler", None)
        with _reading:
            facts["max_steps"] = _planned_steps(trainer, pl_module)
        self._seen = trainer.global_step
        kept, self._kept = self._kept, {}
        steps = kept.get("steps")
        self._training.begin(
            pl_module,
            scaler=scaler if isinstance(scaler, torch.amp.GradScaler) else None,
            first_step=steps if isinstance(steps, int) else trainer.global_step,
            run=kept.get("run"),
            facts=facts,
            arguments=arguments,
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: object, batch_idx: int) -> None:  # noqa: ANN401
        """What the last batch has logged is there."""
        self._take_logged(trainer)
        self._training.end_waiting()

    def on_train_batch_end(
        self,
        trainer: Any,  # noqa: ANN401
        pl_module: Any,  # noqa: ANN401
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """A micro-batch is done, and perhaps a step."""
        with _looking:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            # Lightning has divided it by the number of micro-batches.
            self._training.add_raw_loss(loss)
            if trainer.global_step != self._seen:
                self._seen = trainer.global_step
                self._logged = trainer.global_step % max(trainer.log_every_n_steps, 1) == 0
                self._training.step_done(loss_too=True)

    def _take_logged(self, trainer: Any) -> None:  # noqa: ANN401
        if self._logged:
            self._logged = False
            with _looking:
                self._training.log(trainer.logged_metrics)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ANN401
        """Note it, and under which name it goes on."""
        # Not as the callback's state: Lightning warns where the callback of a state is missing later.
        checkpoint[_KEPT] = {"run": self._training.run, "steps": self._training.steps}
        self._training.saved(f"step={trainer.global_step}")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
        """Send what is left."""
        self._take_logged(trainer)
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ANN401
        """Send what is left, of a training that failed."""
        self._training.end(failed=True)


def _planned_steps(trainer: Any, pl_module: Any) -> int | None:  # noqa: ANN401
    """The step to stop after; None where there is none, or where batches may have any number of steps."""
    varies = any(isinstance(one, _package.callbacks.GradientAccumulationScheduler) for one in trainer.callbacks)
    if varies or not pl_module.automatic_optimization:
        return None
    planned = trainer.estimated_stepping_batches
    return int(planned) if 0 < planned < math.inf else None


def _facts(trainer: Any) -> dict[str, object]:  # noqa: ANN401
    """Who trains, and the precision that was asked for."""
    return {
        "framework": {"name": _NAME, "version": _package.__version__},
        "declared_precision": str(trainer.precision),
        "gradient_accumulation_steps": trainer.accumulate_grad_batches,
    }


def _arguments(trainer: Any) -> dict[str, object]:  # noqa: ANN401
    names = (
        "max_epochs",
        "max_steps",
        "gradient_clip_val",
        "gradient_clip_algorithm",
        "log_every_n_steps",
        "num_nodes",
    )
    return {**{name: plain(getattr(trainer, name)) for name in names}, "strategy": type(trainer.strategy).__name__}
