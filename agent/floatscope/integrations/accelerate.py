"""For loops of your own that use Accelerate.

    accelerator = Accelerator(log_with=FloatscopeTracker())
    ...
    accelerator.init_trackers("project", config={"learning_rate": 1e-3})

Under ``floatscope run`` nothing has to be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from floatscope.integrations._accelerator import Loop
from floatscope.integrations._training import check_options

__all__ = ["FloatscopeTracker"]


class FloatscopeTracker(GeneralTracker):  # type: ignore[misc]
    """Watches the model that an ``Accelerator`` prepares with its optimizer, and takes what is logged.

    Make it before ``accelerator.prepare`` is called. ``options`` are those of ``floatscope.watch``; ``ValueError`` for
    one that makes no sense. With ``accelerator.register_for_checkpointing(tracker)`` a training that goes on from a
    saved state does so under the run's name, as the next attempt, at its step. No method raises or waits for a device.
    """

    name = "floatscope"
    requires_logging_directory = False
    main_process_only = False
    """Each rank watches what it trains."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        check_options(options)
        self._loop = Loop(options)
        self._loop.install()

    @property
    def tracker(self) -> object:
        """What a tracker wraps: its training here."""
        return self._loop.training

    def store_init_configuration(self, values: Mapping[str, object]) -> None:
        """Join ``values`` to the run's configuration, if the first step has not begun."""
        self._loop.configuration.update(values)

    def log(self, values: Mapping[str, object], step: int | None = None, **kwargs: object) -> None:
        """Attach the numbers of ``values`` to the step that was done last. ``step`` may count anything: not used."""
        self._loop.training.log(values)

    def finish(self) -> None:
        """Send what is left, as ``accelerator.end_training()`` has it."""
        self._loop.remove()

    def state_dict(self) -> dict[str, Any]:
        """What a saved state keeps."""
        return {"run": self._loop.training.run, "steps": self._loop.training.steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where it was saved."""
        self._loop.kept = dict(state_dict)
