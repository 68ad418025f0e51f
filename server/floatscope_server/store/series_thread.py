"""The thread that seals scalars, device samples and histograms."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

from sqlalchemy.exc import DBAPIError

from floatscope_server.database import StoreError
from floatscope_server.store.series_sealer import Due, MovedError, commit, due, prepare
from floatscope_server.store.store import Store

__all__ = ["SeriesThread"]

_log = logging.getLogger(__name__)

_EVERY_S = 2.0
_LATE_EVERY_S = 30.0
"""The ranks of a run are never quite in step; what comes late is gathered for so long."""


class SeriesThread:
    """Looks every 2 s for what can be sealed in ``store``, which is open from ``start`` to ``stop``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

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
                if self._stop.is_set() or not self._sealed(item):
                    continue
                done += 1
                moved = True
        return done

    def _sealed(self, item: Due) -> bool:
        """Whether it could be done. One stream that cannot must not stop the others."""
        try:
            with self._store.read() as session:
                prepared = prepare(session, item)
            self._store.write(partial(commit, prepared=prepared))
        except MovedError:
            return False
        except (DBAPIError, StoreError) as error:
            _log.warning("%s could not be sealed: %s", item.stream, error)
            return False
        except Exception:  # noqa: BLE001 - logged; the frames are still there
            _log.exception("%s could not be sealed", item.stream)
            return False
        return True

    def _main(self) -> None:
        checked = time.monotonic()
        while not self._stop.wait(_EVERY_S):
            late = time.monotonic() - checked >= _LATE_EVERY_S
            if late:
                checked = time.monotonic()
            try:
                self.seal(late=late)
            except (DBAPIError, StoreError) as error:
                _log.warning("nothing could be sealed: %s", error)
