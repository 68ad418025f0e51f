"""The one place that keeps our exceptions out of somebody's training."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from floatscope import _meter
from floatscope._log import logger

__all__ = ["Guard", "RefusedValueError", "on_interrupt", "swallowed"]

_counts: Counter[str] = Counter()
on_interrupt: list[Callable[[], None]] = []
"""Called when something that is no ``Exception``, as Ctrl-C, passes a guard on its way to the user's code."""


class RefusedValueError(ValueError):
    """A value that the user gave and that makes no sense; the text says which and why, and no traceback adds to it."""


class Guard:
    """``with Guard("reading gradients"):`` swallows, counts and, the first time at that place, logs an exception.

    With ``charge`` the time inside is the agent's, spent for that purpose (``_meter``): here the training ends and we
    begin. Instances hold no state of a single use: one can be shared and nested. With FLOATSCOPE_RAISE=1 in the
    environment exceptions pass, which the tests rely on.
    """

    __slots__ = ("_charge", "_place")

    reraise = os.environ.get("FLOATSCOPE_RAISE") == "1"

    def __init__(self, place: str, *, charge: str | None = None) -> None:
        self._place = place
        self._charge = charge

    def __enter__(self) -> None:
        if self._charge is not None:
            _meter.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._charge is not None:
            _meter.end(self._charge)
        if error is not None and not isinstance(error, Exception):
            for call in on_interrupt:
                call()
        if error is None or not isinstance(error, Exception) or Guard.reraise:
            return False
        _counts[self._place] += 1
        if _counts[self._place] > 1:
            return True
        # The program's own handlers, filters and clock take part in that.
        with suppress(Exception):
            if isinstance(error, RefusedValueError):
                logger.error("%s; training goes on without that value (logged once)", error)
            else:
                logger.error(
                    "failed while %s; training goes on without that reading (logged once)",
                    self._place,
                    exc_info=error,
                )
        return True


def swallowed() -> dict[str, int]:
    """How many exceptions were kept from the training since the process started, by place."""
    return dict(_counts)
