"""A process that seals and kills itself: ``python -m tests.server.tiles.killed FOLDER JOB before|after``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlmodel import Session

from floatscope_server.settings import Settings
from floatscope_server.store import Store
from floatscope_server.store.sealer import Sealer

_T = TypeVar("_T")


class _Killed(Store):
    """Does not survive the ``job``-th transaction of the sealer."""

    job = 0
    after = False

    def write(self, fn: Callable[[Session], _T]) -> _T:
        self.job -= 1
        if self.job == 0 and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = super().write(fn)
        if self.job == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def main(folder: str, job: str, when: str) -> None:
    store = _Killed(Settings(data=Path(folder)), clock=lambda: 1_700_000_000.0)
    store.job, store.after = int(job), when == "after"
    store.start()
    Sealer(store, lost_after_s=60.0, slack=8).seal_due()
    store.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
