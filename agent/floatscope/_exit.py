"""The end of the process, in order: by ``atexit``, or as ``multiprocessing`` ends the children that it forks."""

from __future__ import annotations

import atexit
import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.util import Finalize

__all__ = ["call_at_exit"]

_finalize: Finalize | None = None


def call_at_exit(close: Callable[[bool], object]) -> None:
    """Call ``close`` at the end, with whether an exception ends the program, before all registered earlier.

    ``close`` is one function for all calls, and may be called twice.
    """
    global _finalize
    # Functions run in the reverse order: this one before that of the sender, whose module may be newer.
    atexit.unregister(_exit)
    atexit.register(_exit, close)
    if multiprocessing.parent_process() is not None:
        # A child that it forks ends by os._exit, which atexit never hears of.
        if _finalize is not None:
            _finalize.cancel()
        _finalize = Finalize(None, _end_child, args=(close,), exitpriority=0)


def _exit(close: Callable[[bool], object]) -> None:
    # The interpreter leaves the exception that ended the program here.
    # An interactive session keeps the last of any number of errors there, and outlives them.
    close(hasattr(sys, "last_type") and not hasattr(sys, "ps1"))


def _end_child(close: Callable[[bool], object]) -> None:
    # It is on its way through the caller's "finally".
    error = sys.exception()
    close(error is not None and not isinstance(error, SystemExit))
