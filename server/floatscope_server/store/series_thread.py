"""The thread that seals scalars, device samples and histograms."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from floatscope_server.database import StoreError, reason, trouble
from floatscope_server.store.backoff import Pauses
from floatscope_server.store.series_sealer import Due, MovedError, commit, due, prepare
from floatscope_server.store.store import Store

__all__ = ["SeriesThread"]

_log = logging.getLogger(__name__)

_EVERY_S = 2.0
_LATE_EVERY_S = 30.0
"""The ranks of a run are never quite in step; what comes late is gathered for so long."""


class SeriesThread:
    """Looks every 2 s for what can be sealed in ``store``, which is open from ``start`` to ``stop``."""

    def __init__(self, store: Store, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pauses: Pauses[tuple[int, int] | None] = Pauses(monotonic)
        """Of streams and attempts that could not be sealed; None for all of them."""

    def start(self) -> None:
        """Begin."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._main, name="floatscope-series", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish the transaction in hand, then end."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def seal(self, *, late: bool = True, everything: bool = False) -> int:
        """Seal what is due, with ``everything`` all there is; how many transactions that took."""
        done = 0
        moved = True
        while moved and not self._stop.is_set():
            moved = False
            with self._store.read() as session:
                items = due(session, self._store.now().timestamp(), late=late, everything=everything)
            for item in items:
                if self._stop.is_set() or self._pauses.paused(_part(item)) or not self._sealed(item):
                    continue
                done += 1
                moved = True
        return done

    def _sealed(self, item: Due) -> bool:
        """Whether it could be done. One stream that cannot must not stop the others, and is let alone for a while."""
        try:
            with self._store.read() as session:
                prepared = prepare(session, item)
            self._store.write(partial(commit, prepared=prepared))
        except MovedError:
            return False
        except Exception as error:  # noqa: BLE001 - logged; the frames are still there
            self._failed(_part(item), f"{item.stream} of run {item.run_id}", error)
            return False
        self._pauses.end(_part(item))
        return True

    def _failed(self, part: tuple[int, int] | None, what: str, error: Exception) -> None:
        seconds = self._pauses.begin(part)
        text = "%s could not be sealed, and stays in the tail; trying again in %g s: %s; %s"
        found = trouble(error)
        if isinstance(error, StoreError):
            advice = "nothing is lost"
        elif found is None:
            advice = "if that stays so, report it with this log"
        else:
            advice = self._store.database.advice(found)
        ours = found is None and not isinstance(error, StoreError)
        _log.warning(text, what, seconds, reason(error), advice, exc_info=ours)

    def _main(self) -> None:
        checked = time.monotonic()
        while not self._stop.wait(_EVERY_S):
            if self._pauses.paused(None):
                continue
            late = time.monotonic() - checked >= _LATE_EVERY_S
            if late:
                checked = time.monotonic()
            try:
                self.seal(late=late)
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                self._failed(None, "what there is of series and histograms", error)
            else:
                self._pauses.end(None)


def _part(item: Due) -> tuple[int, int]:
    return item.stream_id, item.attempt
