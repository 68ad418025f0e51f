"""The share of the interpreter of a thread that computes beside others which are waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Share"]

_TIMES = 2.0
"""Pauses over work: a tile of 1,000 layers of 8 ranks takes a second of CPU, and one is due every minute or so."""


class Share:
    """Leaves the interpreter to others for twice as long as it was used.

    Whoever computes gives the interpreter up after ``sys.getswitchinterval``, and not before; all others ask for it
    anew after each system call. A step of 8 ranks that is received, committed and sent to 20 viewers takes more than a
    hundred of these: at 5 ms it comes half a second late while a thread computes without a break.

    ``wait`` sleeps for as many seconds, or less if nothing is to be waited for any more. ``cpu`` gives the seconds that
    this thread has computed. ``hurry``: there are no pauses.
    """

    def __init__(self, wait: Callable[[float], object], *, cpu: Callable[[], float] = time.thread_time) -> None:
        self.hurry = False
        self._wait = wait
        self._cpu = cpu
        self._began = cpu()

    def begin(self) -> None:
        """Work begins, in this thread."""
        self._began = self._cpu()

    def rest(self) -> None:
        """A piece of it is done."""
        now = self._cpu()
        if not self.hurry and now > self._began:
            self._wait(_TIMES * (now - self._began))
        self._began = now
