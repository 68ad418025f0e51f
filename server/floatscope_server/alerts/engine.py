"""The engine: judges what the store has committed, and writes what comes of it.

Judging may lag behind the store and may die at any moment. What has been judged is a mark per writer that moves in the
transaction that stores the alerts, their events and the outbox rows; whatever lies beyond it is judged again after a
restart, from the state that the same transaction stored. So no transition is lost and none has two events.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any

from sqlalchemy import or_
from sqlmodel import Session, col, select

from floatscope_server.alerts.beside import (
    Lost,
    Silent,
    gap_mark,
    is_past,
    lost_since,
    nbytes,
    reach,
    set_gap_mark,
    silent_runs,
    unjudged,
)
from floatscope_server.alerts.joining import joined
from floatscope_server.alerts.judged import Judged
from floatscope_server.alerts.ledger import Mark, Work, store
from floatscope_server.alerts.machine import Ended
from floatscope_server.alerts.models import Alert, Evaluated
from floatscope_server.alerts.needs import Live, Store
from floatscope_server.alerts.notices import due, remind
from floatscope_server.alerts.preview import remembered
from floatscope_server.alerts.views import alerts_of
from floatscope_server.database import StoreError, trouble
from floatscope_server.models import Run, Writer
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters
from floatscope_server.settings import Settings
from floatscope_server.store.backoff import FIRST_S, doubled
from floatscope_server.store.lifecycle import ENDED, GONE

__all__ = ["AlertEngine", "alerts_of"]

_log = logging.getLogger(__name__)

_RUNS_IN_MEMORY = 64
_FLUSH_S = 1.0
_SWEEP_S = 2.0


@dataclass(frozen=True, slots=True, order=True)
class _Key:
    run_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class _Pause:
    """A run whose judging failed waits ``seconds``, until ``due`` on the monotonic clock."""

    due: float
    seconds: float


class AlertEngine:
    """Judges observations in a thread of its own.

    What waits is judged block by block, or several as one (``joining``). The queue is bounded by ``queue_blocks`` and
    ``queue_bytes``; what does not fit is not lost but read back from the store later (``overflows`` counts how often).
    ``clock`` gives the wall-clock times that are stored.
    """

    def __init__(
        self,
        store: Store,
        live: Live,
        settings: Settings,
        *,
        rules: RuleParameters | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        queue_blocks: int = 1024,
        queue_bytes: int = 32 << 20,
    ) -> None:
        self.overflows = 0
        self.observers: list[Callable[[str, Mapping[str, Any]], None]] = []
        """Get the run and the alert object of each alert that begins to fire, once that is on disk."""
        self._store = store
        self._live = live
        self._settings = settings
        self._rules = RuleParameters() if rules is None else rules
        self._clock = clock
        self._limits = (queue_blocks, queue_bytes)
        self._runs: OrderedDict[_Key, Judged] = OrderedDict()
        self._queue: deque[Observation] = deque()
        self._queued_bytes = 0
        self._behind: dict[_Key, None] = {}
        self._closing: dict[_Key, set[int]] = {}
        self._paused: dict[_Key, _Pause] = {}
        self._outdated: set[_Key] = set()
        """Runs in memory whose window was made by other parameters than those that are set."""
        self._stalled: set[_Key] = set()
        self._gap_mark: int | None = None
        self._gap_moved = False
        self._listens_since = 0.0
        self._waiters: list[threading.Event] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._new_rules = False
        self._thread: threading.Thread | None = None
        self._flushed = time.monotonic()
        self._swept = time.monotonic()

    def start(self) -> None:
        """Start judging, with what the last run of the server left unjudged."""
        self._stopping = False
        self._listens_since = self._clock().timestamp()
        self._thread = threading.Thread(target=self._main, name="floatscope-alerts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Judge and store what was handed in, then end. The store must still be running."""
        if self._thread is None:
            return
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        self._thread = None

    def observe(self, observation: Observation) -> None:
        """Take in a committed block. Never blocks; called in the store's writer thread."""
        size = nbytes(observation)
        with self._wake:
            if len(self._queue) >= self._limits[0] or self._queued_bytes + size > self._limits[1]:
                self.overflows += 1
                self._behind[_Key(observation.run_id, observation.attempt)] = None
            else:
                self._queue.append(observation)
                self._queued_bytes += size
            self._wake.notify()

    def behind(self) -> bool:
        """Whether so much waits for the rules that the store should wait for them: half of what the queue holds."""
        blocks, size = self._limits
        return 2 * len(self._queue) > blocks or 2 * self._queued_bytes > size

    def rules_changed(self) -> None:
        """Parameters were set: judge from here on by the new ones. What fires stays as it fired."""
        with self._wake:
            self._new_rules = True
            self._wake.notify()

    def resolve(self, run_id: int, attempt: int, alert_id: int) -> None:
        """Close a firing alert by hand. Blocks until that is stored, or could not be. It fires anew if its condition
        still holds."""
        with self._wake:
            self._closing.setdefault(_Key(run_id, attempt), set()).add(alert_id)
        self.drain()

    def drain(self) -> None:
        """Block until everything handed in so far is judged and stored, or the engine has ended."""
        if self._thread is None:
            return
        done = threading.Event()
        with self._wake:
            self._waiters.append(done)
            self._wake.notify()
        done.wait()

    # The engine's thread.

    def _main(self) -> None:
        recovered = False
        waiting: list[threading.Event] = []
        while True:
            behind, batch, waiters, stopping = self._take(idle=recovered)
            waiting += waiters
            try:
                if not recovered:
                    behind += self._unjudged()
                    recovered = True
                self._judge_all(behind, batch)
                if time.monotonic() - self._swept >= _SWEEP_S or waiting:
                    self._sweep()
                if waiting or stopping or self._due():
                    self._flush()
            except Exception as error:  # noqa: BLE001 - logged
                # The database is full or locked, or the store is stopping. Nothing of it is stored: forget it all and
                # read it back.
                if stopping:
                    _log.exception("the last alerts could not be stored; they are judged again at the next start")
                else:
                    known = trouble(error) is not None
                    _log.error("alerts could not be stored; trying again", exc_info=None if known else error)
                    self._forget(behind, batch)
                    continue
            batch = []  # nobody needs these blocks while the next ones are waited for
            if stopping or not self._paused:
                for waiter in waiting:
                    waiter.set()
                waiting = []
            if stopping:
                return

    def _judge_all(self, behind: list[_Key], batch: list[Observation]) -> None:
        now = time.monotonic()
        for key in [*behind, *(key for key, pause in self._paused.items() if pause.due <= now)]:
            self._alone(key, partial(self._load, key))
        for key, some in groupby(batch, lambda observation: _Key(observation.run_id, observation.attempt)):
            if key not in self._paused:
                self._alone(key, partial(self._judge, key, list(some)))
        with self._wake:
            closing, self._closing = self._closing, {}
        for key, alerts in closing.items():
            self._alone(key, partial(self._resolve, key, alerts))

    def _alone(self, key: _Key, action: Callable[[], object]) -> None:
        """What fails for one run is forgotten and read back from the store later, and holds up no other."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - logged
            before = self._paused.get(key)
            seconds = doubled(0.0 if before is None else before.seconds)
            self._paused[key] = _Pause(time.monotonic() + seconds, seconds)
            self._runs.pop(key, None)
            known = trouble(error) is not None
            text = "run %d could not be judged; trying again in %g s"
            _log.error(text, key.run_id, seconds, exc_info=None if known else error)
        else:
            self._paused.pop(key, None)

    def _take(self, *, idle: bool) -> tuple[list[_Key], list[Observation], list[threading.Event], bool]:
        with self._wake:
            if self._new_rules:
                self._behind |= dict.fromkeys(self._runs)
                self._outdated |= self._runs.keys()
                self._new_rules = False
            if idle and not (self._queue or self._behind or self._waiters or self._stopping):
                self._wake.wait(_FLUSH_S)
            behind, self._behind = list(self._behind), {}
            batch = list(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
            waiters, self._waiters = self._waiters, []
            return behind, batch, waiters, self._stopping

    def _forget(self, behind: list[_Key], batch: list[Observation]) -> None:
        keys = {**dict.fromkeys(behind), **dict.fromkeys(self._runs)}
        keys |= dict.fromkeys(_Key(o.run_id, o.attempt) for o in batch)
        self._runs.clear()
        self._stalled.clear()
        self._gap_mark, self._gap_moved = None, False
        with self._wake:
            self._behind |= keys
            if not self._stopping:
                self._wake.wait_for(lambda: self._stopping, FIRST_S)

    def _unjudged(self) -> list[_Key]:
        """What was committed and not judged before the last end."""
        with self._store.read() as session:
            return [_Key(*found) for found in unjudged(session)]

    def _load(self, key: _Key) -> Judged:
        """The attempt from the store: marks and open alerts, a silent replay up to the marks, then what lies beyond;
        of one that is in memory what lies beyond alone."""
        known = self._runs.get(key)
        if known is not None:
            self._flush()
            if key in self._outdated:
                del self._runs[key]
                known = None
        self._outdated.discard(key)
        with self._store.read() as session:
            marks = session.exec(
                select(Evaluated).where(Evaluated.run_id == key.run_id, Evaluated.attempt == key.attempt)
            ).all()
            written = session.exec(
                select(Writer.id, Writer.last_seq, Writer.last_step).where(
                    Writer.run_id == key.run_id, Writer.attempt == key.attempt
                )
            ).all()
            run = known or Judged.stored(session, key.run_id, key.attempt, marks, self._rules)
            if known is None:
                row = session.get_one(Run, key.run_id)
                for observation in remembered(session, row, key.attempt, reach(marks, written)):
                    run.window.remember(observation)
        self._runs[key] = run
        for observation in self._store.replay(key.run_id, key.attempt, last_steps=reach(marks, written)):
            if observation.seq > run.seqs.get(observation.writer, 0):
                self._judge_in(run, observation)
                if self._due():
                    # What is judged of a long backlog may be sealed before the end of it.
                    self._flush()
            elif known is None:
                run.window.remember(observation)
        for writer, seq, step in written:
            # Blocks without steps are not replayed.
            if seq > run.seqs.get(writer, 0):
                run.seqs[writer] = seq
                run.moved[writer] = Mark(writer, seq, step)
        return run

    def _run(self, key: _Key) -> Judged:
        run = self._runs.get(key)
        if run is None:
            self._end_older(key)
            run = self._load(key)
            while len(self._runs) > _RUNS_IN_MEMORY:
                self._flush()
                self._runs.popitem(last=False)
        self._runs.move_to_end(key)
        return run

    def _judge(self, key: _Key, observations: list[Observation]) -> None:
        run = self._run(key)
        for observation in joined(o for o in observations if o.seq > run.seqs.get(o.writer, 0)):
            if observation.seq > run.seqs.get(observation.writer, 0):
                self._judge_in(run, observation)

    def _judge_in(self, run: Judged, observation: Observation) -> None:
        run.book.past = is_past(observation)
        try:
            run.take(run.window.judge(observation, lambda: run.book.kinds))
        except Exception:  # noqa: BLE001 - logged
            # One block that the rules choke on must not end the judging of all others.
            _log.exception("block %d of writer %s could not be judged", observation.seq, observation.writer)
        run.mark(observation)

    def _finish(self, key: _Key) -> None:
        """No step of this attempt goes on."""
        run = self._run(key)
        run.take(run.window.finish())
        for mark in run.held.values():
            run.moved[mark.writer] = replace(mark, held=False)
        run.held.clear()

    def _end_older(self, key: _Key) -> None:
        """A new attempt has begun: nothing more is heard of those before."""
        with self._store.read() as session:
            older = session.exec(
                select(Alert.attempt)
                .where(Alert.run_id == key.run_id, Alert.attempt < key.attempt, Alert.state != "resolved")
                .distinct()
            ).all()
        open_here = [k for k in self._runs if k.run_id == key.run_id and k.attempt < key.attempt]
        for old in sorted({*open_here, *(_Key(key.run_id, attempt) for attempt in older)}):
            run = self._runs.get(old) or self._load(old)
            run.take(run.window.finish())
            run.transitions += run.book.end(Ended.RUN_RESTARTED)

    def _sweep(self) -> None:
        """Drop what is pending in runs that are over, and judge the steps whose rest will not come."""
        self._swept = time.monotonic()
        with self._store.read() as session:
            held = session.exec(
                select(Evaluated.run_id, Evaluated.attempt)
                .join(Run, col(Run.id) == col(Evaluated.run_id))
                .where(Evaluated.held, or_(col(Run.state).in_(ENDED), col(Run.attempt) > col(Evaluated.attempt)))
                .distinct()
            ).all()
            over = session.exec(
                select(Alert.run_id, Alert.attempt)
                .join(Run, col(Run.id) == col(Alert.run_id))
                .where(Alert.state == "pending", col(Run.state).in_(GONE))
                .distinct()
            ).all()
            silent = silent_runs(session)
            mark = gap_mark(session) if self._gap_mark is None else self._gap_mark
            lost = lost_since(session, mark)
            again = bool(due(session, self._settings, self._clock()))
        for key in sorted({_Key(*row) for row in held}):
            self._alone(key, partial(self._finish, key))
        for key in sorted({_Key(*row) for row in over}):
            self._alone(key, partial(self._close, key))
        now = self._clock().timestamp()
        for run in silent:
            key = _Key(run.run_id, run.attempt)
            if key not in self._paused:
                self._alone(key, partial(self._look_at_the_clock, key, run, now))
        if again:
            self._store.write(lambda session: remind(session, self._settings, self._clock()))
        self._gap_mark = mark
        for gap in lost:
            key = _Key(gap.run_id, gap.attempt)
            self._alone(key, partial(self._tell_of_gap, key, gap))
            self._gap_mark, self._gap_moved = gap.id, True

    def _look_at_the_clock(self, key: _Key, run: Silent, now: float) -> None:
        if key not in self._runs and (
            key in self._stalled or not run.may_be_stalled(self._rules.stalled, now, self._listens_since)
        ):
            return
        known = self._run(key)
        known.book.past = False
        known.take(known.window.tick(now, max(run.progress_at, self._listens_since), run.step_time_s))
        # Once told, a run that has left memory need not come back for it.
        (self._stalled.add if any(e.kind == "stalled" for e in known.book) else self._stalled.discard)(key)

    def _tell_of_gap(self, key: _Key, gap: Lost) -> None:
        run = self._run(key)
        run.take(run.window.gap(gap.first, gap.last, gap.count, gap.reason, gap.rank))

    def _resolve(self, key: _Key, alerts: set[int]) -> None:
        run = self._run(key)
        run.transitions += run.book.resolve(alerts)

    def _close(self, key: _Key) -> None:
        run = self._run(key)
        run.take(run.window.finish())
        run.transitions += run.book.end(Ended.RUN_FINISHED)

    def _due(self) -> bool:
        return time.monotonic() - self._flushed >= _FLUSH_S or any(run.transitions for run in self._runs.values())

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        work = {
            key: Work(
                run_id=key.run_id,
                run=run.name,
                attempt=key.attempt,
                entries=list(run.book.changed),
                transitions=run.transitions,
                marks=list(run.moved.values()),
                skips=list(run.window.skips),
                framework=run.framework,
            )
            for key, run in self._runs.items()
            if run.unstored
        }
        if not work and not self._gap_moved:
            return
        try:
            self._write(work)
        except Exception as error:
            if isinstance(error, StoreError) or trouble(error) is not None:
                raise
            # One of them is at fault: each is tried by itself.
            for key, item in work.items():
                self._alone(key, partial(self._write, {key: item}))

    def _write(self, work: Mapping[_Key, Work]) -> None:
        now = self._clock()
        mark = self._gap_mark if self._gap_moved else None

        def write(session: Session) -> list[list[dict[str, Any]]]:
            if mark is not None:
                set_gap_mark(session, mark)
            return [store(session, self._settings, item, now) for item in work.values()]

        changed = self._store.write(write)
        self._gap_moved = False
        for (key, item), alerts in zip(work.items(), changed, strict=True):
            fired = {transition.entry.id for transition in item.transitions if transition.kind == "firing"}
            self._runs[key].settled()
            for alert in alerts:
                self._live.publish(item.run, {"type": "alert", "run": item.run, "alert": alert})
                if alert["id"] in fired:
                    for observe in self.observers:
                        observe(item.run, alert)
