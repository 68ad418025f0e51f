"""The thread that turns the tail of each stream into tiles, one at a time, however many runs there are."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from sqlalchemy import select
from sqlmodel import Session, col

from floatscope_server.allocator import give_back
from floatscope_server.database import StoreError, reason, trouble
from floatscope_server.models import Run, Stream, WalFrame
from floatscope_server.observation import Observation
from floatscope_server.store.backoff import doubled
from floatscope_server.store.due import MOST_TILES, Due, due_in
from floatscope_server.store.lifecycle import ENDED
from floatscope_server.store.replay import WARM_UP_STEPS
from floatscope_server.store.seal import Seal
from floatscope_server.store.share import Share
from floatscope_server.store.summary_tail import DamagedFrameError
from floatscope_server.store.tilestore import OvertakenError

__all__ = ["Sealer", "Store"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_TICK_S = 0.5
_SWEEP_S = 5.0
"""All runs are looked at so often; in between those that have gone on by ``_ADVANCE`` steps."""
_ADVANCE = 64
_LATE_S = 2.0
"""Between two patches of a tile, so that what comes late in many small blocks is patched in few."""
_PAUSE_S = 0.1


class Store(Protocol):
    """What the sealer needs of the store."""

    def write(self, fn: Callable[[Session], _T]) -> _T: ...
    def read(self) -> AbstractContextManager[Session]: ...
    def settle(self) -> None: ...
    def now(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class _Pause:
    """A stream is let alone until ``due`` on the monotonic clock, after ``seconds`` if it failed; of what came late
    tiles beyond number ``patched`` need not wait."""

    due: float
    seconds: float = 0.0
    patched: int | None = None


class Sealer:
    """Seals what is due every half a second. ``sealed`` and ``failed`` count tiles since the start.

    ``slack`` is how many of the newest steps of a live run stay in the tail. ``between`` does a piece of other work on
    the tiles between two rounds, and returns whether there was any.
    """

    def __init__(
        self,
        store: Store,
        *,
        lost_after_s: float,
        slack: int = WARM_UP_STEPS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sealed = 0
        self.failed = 0
        self.between: Callable[[], bool] = bool
        self._store = store
        self._lost_after_s = lost_after_s
        self._slack = slack
        self._monotonic = monotonic
        self._ended = threading.Event()
        self._share = Share(self._ended.wait)
        self._seal = Seal(store, self._share.rest)
        self._paused: dict[tuple[int, int, bool], _Pause] = {}
        self._watched: set[int] | None = None
        self._heard: dict[int, int] = {}
        """Newest step of each run since the last sweep."""
        self._hearing = threading.Lock()
        self._reached: dict[int, dict[str, int]] = {}
        """By run and writer, the first step of its newest block."""
        self._looked: dict[int, int] = {}
        """What it was when the run was last looked at."""
        self._again: set[int] = set()
        self._behind = False
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start sealing, with what the last server left unsealed."""
        self._stopping = False
        self._ended.clear()
        self._thread = threading.Thread(target=self._main, name="floatscope-sealer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the tile in hand. The store must still be running."""
        if self._thread is None:
            return
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._ended.set()
        self._thread.join()
        self._thread = None
        self._behind = False

    def observe(self, observation: Observation) -> None:
        """A block of this run was committed. Never blocks."""
        body = observation.body
        with self._hearing:
            self._heard[observation.run_id] = max(
                self._heard.get(observation.run_id, -1), body.first_step + body.steps - 1
            )
            if body.steps:
                self._reached.setdefault(observation.run_id, {})[observation.writer] = body.first_step

    def behind(self) -> bool:
        """Whether more tiles of a stream are due than ingest may run ahead."""
        return self._behind

    def seal_due(self) -> int:
        """Seal one tile of each stream of which one is due; returns how many."""
        return self._seal_of(self._runs())

    def _seal_of(self, runs: Iterable[int]) -> int:
        done = 0
        behind = False
        self._again = set()
        for run_id in runs:
            found = self._due(run_id)
            for due in found:
                if self._stopping:
                    return done
                done += self._one(due)
            if found:
                self._again.add(run_id)
            behind = behind or any(due.behind > MOST_TILES and self._free(due) for due in found)
        self._behind = behind
        return done

    def _main(self) -> None:
        swept = -math.inf
        while True:
            done = 0
            try:
                if self._monotonic() - swept >= _SWEEP_S:
                    swept = self._monotonic()
                    give_back()
                    done = self.seal_due()
                else:
                    done = self._seal_of(self._advanced())
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                _log.warning(
                    "what is due to be sealed could not be read: %s", reason(error), exc_info=not _is_known(error)
                )
            # Two pieces follow each other with a pause: acknowledgements come first.
            pause = _PAUSE_S if self.between() else _TICK_S
            with self._wake:
                if not done and not self._stopping:
                    self._wake.wait(pause)
                if self._stopping:
                    return

    def _advanced(self) -> list[int]:
        with self._hearing:
            heard = dict(self._heard)
        ahead = {run_id for run_id, step in heard.items() if step >= self._looked.get(run_id, -1) + _ADVANCE}
        self._looked |= {run_id: heard[run_id] for run_id in ahead}
        return sorted(ahead | self._again)

    def _runs(self) -> list[int]:
        """Those that are not over, that something has come of, and at first all of which there is an open tail."""
        with self._hearing:
            heard, self._heard = self._heard, {}
        self._looked = {}
        with self._store.read() as session:
            running = set(session.execute(select(col(Run.id)).where(col(Run.state).not_in(ENDED))).scalars())
            if self._watched is None:
                self._watched = set(
                    session.execute(
                        select(col(Stream.run_id))
                        .where(
                            col(Stream.name).like("layer/%"),
                            select(col(WalFrame.id)).where(col(WalFrame.stream_id) == col(Stream.id)).exists(),
                        )
                        .distinct()
                    ).scalars()
                )
        self._watched |= running | heard.keys()
        return sorted(self._watched)

    def _due(self, run_id: int) -> Sequence[Due]:
        with self._hearing:
            reached = dict(self._reached.get(run_id, {}))
        with self._store.read() as session:
            found, open_streams = due_in(
                session,
                run_id,
                now=self._store.now(),
                slack=self._slack,
                lost_after_s=self._lost_after_s,
                reached=reached,
            )
        if not open_streams and self._watched is not None:
            self._watched.discard(run_id)
            with self._hearing:
                self._reached.pop(run_id, None)
        return found

    def _free(self, due: Due) -> bool:
        pause = self._paused.get(_part(due))
        if pause is None or pause.due <= self._monotonic():
            return True
        return pause.patched is not None and due.idx > pause.patched

    def _one(self, due: Due) -> int:
        part = _part(due)
        if not self._free(due):
            return 0
        before = self._paused.pop(part, None)
        # By itself the sealer has nobody to leave time to, and time for none where more than one tile waits.
        self._share.hurry = self._thread is None or due.behind > 1
        self._share.begin()
        try:
            done = self._seal.run(due)
        except OvertakenError:
            return 0
        except DamagedFrameError as error:
            _log.error("%s; it is dropped, and declared as a gap", error)
            return self._drop(due, error)
        except Exception as error:  # noqa: BLE001 - logged; the tail stays as it was
            self.failed += 1
            seconds = doubled(0.0 if before is None else before.seconds)
            self._paused[part] = _Pause(self._monotonic() + seconds, seconds)
            text = "stream %d, attempt %d could not be sealed at tile %d; trying again in %g s: %s"
            _log.warning(
                text, due.key.stream_id, due.key.attempt, due.idx, seconds, reason(error), exc_info=not _is_known(error)
            )
            return 0
        if due.late:
            self._paused[part] = _Pause(self._monotonic() + _LATE_S, patched=due.idx)
        self.sealed += done
        return int(done)

    def _drop(self, due: Due, error: DamagedFrameError) -> int:
        try:
            self._seal.drop(due, error.key)
        except OvertakenError:
            return 0
        return 1


def _part(due: Due) -> tuple[int, int, bool]:
    return due.key.stream_id, due.key.attempt, due.late


def _is_known(error: Exception) -> bool:
    """Whether the database or the end of the server is at fault, and not this program."""
    return isinstance(error, StoreError) or trouble(error) is not None
