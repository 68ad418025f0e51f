"""The one thread that writes, and what the rest of the server asks of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.database import Reader, StoreError, Trouble, database_of, reason, trouble, utc
from floatscope_server.models import Meta, Run
from floatscope_server.observation import Observation
from floatscope_server.settings import Settings
from floatscope_server.store.batch import Batch, Reply
from floatscope_server.store.epoch import settled_epoch
from floatscope_server.store.hello import greet, read_by, refusal
from floatscope_server.store.inbox import Counters, Inbox, Incoming, Job, guarded, later
from floatscope_server.store.ledger import Ledger
from floatscope_server.store.lifecycle import ENDED
from floatscope_server.store.present import Present
from floatscope_server.store.removal import condemn
from floatscope_server.store.replay import replay, replay_since

__all__ = ["Counters", "Store"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_TICK_S = 1.0
_CHECKPOINT_S = 30.0
"""SQLite does so at every 4000 pages; a quiet server must not keep its last ones in the WAL for ever."""

_HELD_BACK_S = 2.0
"""What a commit waits at most for sealing and the rules to catch up: eight blocks of each of eight ranks, ten steps of
300 layers each, take the rules more than a second."""
_CREDIT = wire.MAX_IN_FLIGHT * wire.MAX_BLOCK_BYTES


class Store:
    """The database of one server.

    ``observers`` get every block after its commit, in order, in the writer thread: they must be quick and may not
    write. ``run_observers`` get the name of a run whose row changed, ``layer_observers`` that of one whose layers did.
    While ``lagging`` says so telemetry waits for the jobs of ``write``, and agents for their acknowledgements.
    ``clock`` gives wall-clock seconds since 1970.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.database = database_of(settings)
        self.observers: list[Callable[[Observation], None]] = []
        self.run_observers: list[Callable[[str], None]] = []
        self.layer_observers: list[Callable[[str], None]] = []
        self.lagging: Callable[[], bool] = bool
        self.given_up = False
        """Whether the writer has ended untold: only a server that is started anew goes on."""
        self.on_given_up: Callable[[], object] = bool
        self.counters = Counters()
        self.epoch = ""
        self.layers_version = 0
        """Another one whenever layers have changed, before anybody is told."""
        self._clock = clock
        self._inbox = Inbox()
        self.present = Present(shared=settings.postgres)
        self._thread: threading.Thread | None = None
        self._ledger = Ledger()
        self._reader: Reader | None = None
        self._started_at = 0.0
        self._settling = False
        self._failing = self._complained = False
        self._in_hand: list[Incoming] = []
        self._committed: dict[str, int] = {}
        """The last seq on disk of each writer that has said hello."""
        self._doubtful: dict[str, int] = {}
        """That seq of writers whose newest blocks may be on disk or not: the connection was lost while committing."""

    def start(self) -> None:
        """Open the store, bring its schema up to date, start the writer; ``StoreError`` if that cannot be done."""
        opened: Future[None] = Future()
        self.given_up = False
        self._inbox.open()
        self._thread = threading.Thread(target=self._main, args=(opened,), name="floatscope-store", daemon=True)
        self._thread.start()
        try:
            opened.result()
        except BaseException:
            self._thread.join()
            self._thread = None
            raise
        self._reader = self.database.reader()

    def stop(self) -> None:
        """Commit what was handed in, then close."""
        if self._thread is None:
            return
        self._inbox.close()
        self._thread.join()
        self._thread = None
        if self._reader is not None:
            self._reader.close()

    # What ingest asks.

    def submit(self, writer_id: str, message: wire.AgentMessage, reply: Reply) -> None:
        """Queue a message of a writer that has said hello, or its hello.

        ``reply`` is called from the writer thread, once what it answers is on disk; it must not block.
        """
        self._inbox.put(Incoming(writer=writer_id, message=message, reply=reply))

    # What everybody asks.

    def write(self, fn: Callable[[Session], _T]) -> _T:
        """Run ``fn`` in the writer thread in a transaction of its own; returns or raises what it did."""

        def in_transaction(connection: Connection) -> _T:
            try:
                with connection.begin(), Session(connection, expire_on_commit=False) as session:
                    self.present.begin_job(session)
                    result = fn(session)
                    session.flush()
            except DBAPIError:
                # It may be on disk or not.
                self.present.forget()
                raise
            self.present.end_job(session, connection)
            return result

        return self._in_writer(in_transaction)

    def _in_writer(self, run: Callable[[Connection], _T]) -> _T:
        assert threading.current_thread() is not self._thread, "an observer must not wait for the thread it runs in"
        job = Job(run=run, future=Future())
        self._inbox.put(job)
        return job.future.result()  # type: ignore[return-value]

    def settle(self) -> None:
        """Have what was committed brought to its place as soon as nobody waits for the writer."""
        self._settling = True

    def shrink(self, pages: int) -> int:
        """Give up to ``pages`` free pages back to the file system; how many are left."""
        return self._in_writer(lambda connection: self.database.shrink(connection, pages))

    def delete_run(self, name: str, note: Callable[[Session], object] = bool) -> bool:
        """Take a run that is over out of sight; False if there is none, ``LiveRunError`` if it goes on. The keeper
        deletes its rows. ``note`` writes down that it was done."""

        def condemned(session: Session) -> bool:
            found = condemn(session, name)
            self._ledger.clear()
            if found:
                note(session)
            return found

        found = self.write(condemned)
        if found:
            for observe in self.run_observers:
                observe(name)
        return found

    def keep_present(self, name: str) -> None:
        """Have ``present`` keep the run ``name``, which exists, from soon on."""
        if self.present.want(name):
            # A store that takes nothing any more still answers.
            with suppress(StoreError):
                self._inbox.put(Job(run=lambda connection: self.present.load(connection, name), future=Future()))

    def read(self) -> AbstractContextManager[Session]:
        """A read-only session on one snapshot."""
        assert self._reader is not None, "the store is not started"
        return self._reader.session()

    def replay(self, run_id: int, attempt: int, *, last_steps: int) -> Iterator[Observation]:
        """The observations of the last ``last_steps`` steps of an attempt, in the order of their commits."""
        with self.read() as session:
            yield from replay(session, run_id, attempt, last_steps=last_steps)

    @property
    def started(self) -> bool:
        """Whether it is open."""
        return self._thread is not None

    @property
    def writing(self) -> bool:
        """Whether the writer thread runs and its last commit succeeded."""
        return self._thread is not None and self._thread.is_alive() and not self._failing

    def now(self) -> datetime:
        """The time by the store's clock."""
        return utc(self._clock())

    def tick(self) -> None:
        """Judge the state of every run by the clock now; the writer thread does so every second."""
        self.write(self._tick_in)

    # The writer thread.

    def _main(self, opened: Future[None]) -> None:
        try:
            with self.database.writer() as connection:
                with self.database.understood():
                    self._load_meta(connection)
                self.present.watch(connection)
                opened.set_result(None)
                self._loop(connection)
        except BaseException as error:  # noqa: BLE001 - logged, or handed to whoever opens
            if not opened.done():
                opened.set_exception(error)
                return
            self.given_up = True
            _log.error("the store's writer has ended: %s", error, exc_info=not isinstance(error, StoreError))
        finally:
            self._end()
            if self.given_up:
                self.on_given_up()

    def _end(self) -> None:
        """Answer what nobody will take up any more."""
        self.present.forget()
        for item in (*self._in_hand, *self._inbox.rest()):
            if isinstance(item, Job):
                item.future.set_exception(StoreError("the store's writer has ended; the server's log says why"))
            elif not item.answered:
                self._postpone(item, "stopping", "the server cannot write any more")

    def _load_meta(self, connection: Connection) -> None:
        with connection.begin(), Session(connection) as session:
            self.epoch = settled_epoch(session, self.database.place(connection))
            self._ledger.numbers.start(session)
            session.commit()
        self._started_at = self._clock()

    def _loop(self, connection: Connection) -> None:
        committed = 0.0
        ticked = checkpointed = time.monotonic()
        while True:
            first = self._inbox.first(ticked + _TICK_S)
            if first is None and self._inbox.closed:
                return
            if time.monotonic() - ticked >= _TICK_S:
                ticked = time.monotonic()
                self._tick(connection)
                if self._failing:
                    self._probe(connection)
                if ticked - checkpointed >= _CHECKPOINT_S:
                    checkpointed = ticked
                    self.database.checkpoint(connection)
            if isinstance(first, Job):
                job = self._inbox.job()
                assert job is first
                self._run_job(connection, first)
            elif first is not None:
                self._inbox.gather(committed + self.settings.commit_interval_s)
                self._hold_back(connection)
                self._in_hand = self._inbox.take()
                self._commit(connection, self._in_hand)
                self._in_hand = []
                committed = time.monotonic()
            if self._settling and not self._inbox:
                self._settling = False
                checkpointed = time.monotonic()
                self.database.checkpoint(connection)

    def _hold_back(self, connection: Connection) -> None:
        end = time.monotonic() + _HELD_BACK_S
        while self.lagging() and not self._inbox.closed and (left := end - time.monotonic()) > 0:
            job = self._inbox.job(left)
            if job is not None:
                self._run_job(connection, job)

    def _run_job(self, connection: Connection, job: Job) -> None:
        try:
            result = job.run(connection)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the result
            job.future.set_exception(error)
        else:
            job.future.set_result(result)

    def _probe(self, connection: Connection) -> None:
        """Find out whether the disk can be written again: agents that were told to wait may all be silent."""
        try:
            with connection.begin(), Session(connection) as session:
                session.merge(Meta(key="probe", value=self.now().isoformat()))
                session.commit()
        except DBAPIError:
            return
        self._failing = self._complained = False

    def _tick(self, connection: Connection) -> None:
        try:
            with connection.begin(), Session(connection) as session:
                changed = self._tick_in(session)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - logged
            self._ledger.clear()
            self.present.forget()
            if trouble(error) is None:
                _log.exception("the state of the runs could not be written")
            else:
                self._failing = True
                self._complain(f"the server cannot write: {reason(error)}")
        else:
            self.present.proved()
            self._announce(changed, set())

    def _tick_in(self, session: Session) -> set[str]:
        self._ledger.forget_silent(self._clock() - self.settings.lost_after_s)
        running = session.exec(select(Run.name).where(col(Run.state).not_in(ENDED))).all()
        batch = self._batch(session)
        before: dict[str, str] = {}
        for name in running:
            run = self._ledger.run(session, name)
            if run is not None:
                before[name] = run.state
                batch.judge(run)
        changed = {run.name for run in batch.changed.values() if run.state != before.get(run.name)}
        batch.changed = {key: run for key, run in batch.changed.items() if run.name in changed}
        batch.flush()
        return changed

    def _batch(self, session: Session) -> Batch:
        connection = session.connection()
        return Batch(
            connection,
            session,
            self._ledger,
            self.settings,
            now=self._clock(),
            started_at=self._started_at,
            credit=_CREDIT,
        )

    def _commit(self, connection: Connection, messages: list[Incoming]) -> None:
        try:
            self._settle(connection)
            with connection.begin(), Session(connection) as session:
                batch = self._batch(session)
                for item in messages:
                    self._apply(batch, session, item)
                batch.flush()
                numbers = self.present.numbers(connection, batch)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever failed, the agent must be told
            # What the ledger learned in this transaction was never stored.
            self._ledger.clear()
            self.present.forget()
            self.counters.failed_commits += 1
            found = trouble(error)
            self._failing = found is not None
            if found is Trouble.LOST:
                for writer in {item.writer for item in messages if not isinstance(item.message, wire.Hello)}:
                    self._doubtful.setdefault(writer, self._committed.get(writer, 0))
            if found is not None:
                self._postpone_all(messages, found, error)
            elif len(messages) > 1:
                for item in messages:
                    self._commit(connection, [item])
            else:
                _log.exception("a message could not be stored")
                self._give_up(connection, messages[0])
            return
        self._failing = self._complained = False
        self.counters.commits += 1
        self.counters.blocks += len(batch.observations)
        self.counters.frames += batch.frames
        self._answer(batch, numbers)
        self._tell(batch.observations)
        self._announce({run.name for run in batch.changed.values()}, batch.relayered)

    def _answer(self, batch: Batch, numbers: Sequence[int]) -> None:
        """It is committed, its frames with ``numbers``."""
        try:
            self.present.committed(batch, numbers)
        except Exception:  # noqa: BLE001 - logged: the database has it, and what is committed must be acknowledged
            self.present.forget()
            _log.exception("what runs have come to cannot be kept in memory")
        self._committed.update(batch.last_seqs())
        self.layers_version += bool(batch.relayered)
        for reply, answer in batch.replies:
            reply(answer)

    def _settle(self, connection: Connection) -> None:
        """Tell the observers of what was committed after all when its agent was told to send it again: it is not
        stored twice, and so would not come to them otherwise."""
        if not self._doubtful:
            return
        with connection.begin(), Session(connection) as session:
            found = [o for writer, seq in self._doubtful.items() for o in replay_since(session, writer, seq)]
        self._doubtful.clear()
        self._tell(found)
        runs = {observation.run for observation in found}
        self._announce(runs, runs)

    def _tell(self, observations: Iterable[Observation]) -> None:
        for observation in observations:
            for observe in self.observers:
                guarded(observe, observation)

    def _announce(self, changed: set[str], relayered: set[str]) -> None:
        for name in changed:
            for observe in self.run_observers:
                guarded(observe, name)
        for name in relayered:
            for observe in self.layer_observers:
                guarded(observe, name)

    def _apply(self, batch: Batch, session: Session, item: Incoming) -> None:
        if not isinstance(item.message, wire.Hello):
            batch.apply(item.writer, item.message, item.answer)
            return
        now = self._clock()
        answer: wire.ServerMessage | None = refusal(item.message)
        if answer is None:
            known = greet(batch, session, self._ledger, self.settings, item.message, now=now)
            if isinstance(known, wire.Refused):
                answer = known
            else:
                answer = wire.Welcome(
                    protocol=wire.PROTOCOL,
                    epoch=self.epoch,
                    last_seq=known.last_seq,
                    attempt=known.attempt,
                    credit=_CREDIT,
                    wall_ns=int(now * 1e9),
                    read=read_by(session, batch.events, known),
                )
        batch.replies.append((item.answer, answer))

    def _postpone_all(self, messages: list[Incoming], found: Trouble, error: Exception) -> None:
        """Nothing of this transaction is stored."""
        full = found is Trouble.FULL
        code = "storage_full" if full else "storage_error"
        text = "the server's disk is full" if full else f"the server cannot write: {reason(error)}"
        self._complain(f"{text}; agents keep their data and try again")
        for item in messages:
            self._postpone(item, code, text)

    def _complain(self, text: str) -> None:
        """Once for each time of trouble: agents come again every few seconds."""
        if not self._complained:
            _log.error("%s", text)
        self._complained = True

    def _postpone(self, item: Incoming, code: str, text: str) -> None:
        """The agent keeps it and sends it again, with all that came before it and is not on disk either."""
        item.answer(later(item.message, code, text, self._committed.get(item.writer, 0) + 1))

    def _give_up(self, connection: Connection, item: Incoming) -> None:
        """A message that breaks the server is refused for good, or it would come again for ever."""
        if isinstance(item.message, wire.Hello):
            hint = "see the server's log; this is a mistake in floatscope: report it"
            item.answer(wire.Refused(code="internal", message="the server failed on this hello", hint=hint))
            return
        if not isinstance(item.message, wire.Block | wire.Gap):
            self._postpone(item, "internal", "the server failed on this message")
            return
        seq = item.message.seq
        message = wire.Gap(seq=seq, first=0, last=0, count=1, reason="the server failed on it")
        refused = wire.Nack(seq=seq, code="internal", message="the server failed on this batch", expected=seq + 1)
        try:
            with connection.begin(), Session(connection) as session:
                batch = self._batch(session)
                batch.apply(item.writer, message, lambda _: item.answer(refused))
                batch.flush()
                numbers = self.present.numbers(connection, batch)
        except Exception as error:  # noqa: BLE001 - logged, and the agent is told to keep the batch
            self._ledger.clear()
            self.present.forget()
            self._failing = True
            if (found := trouble(error)) is not None:
                self._postpone_all([item], found, error)
            else:
                _log.exception("that a message could not be stored could not be stored either")
                self._postpone(item, "internal", "the server failed on this batch")
            return
        self._answer(batch, numbers)
