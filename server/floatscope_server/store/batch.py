"""One transaction of telemetry: applies messages in order, then writes what they add up to."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Connection, bindparam, insert, update
from sqlmodel import Session, SQLModel, select

from floatscope import wire
from floatscope_server.database import append, upsert, utc
from floatscope_server.declared import executed
from floatscope_server.jsontext import plain
from floatscope_server.models import (
    CONTINUED,
    NONFINITE,
    Attempt,
    Gap,
    Run,
    StepEvent,
    Stream,
    StreamState,
    WalFrame,
    Writer,
)
from floatscope_server.observation import ALL_RANKS, Observation
from floatscope_server.settings import Settings
from floatscope_server.store.caps import note_devices, within_caps
from floatscope_server.store.dumps import store_dump
from floatscope_server.store.framed import framed
from floatscope_server.store.layermap import LayerMap
from floatscope_server.store.ledger import KnownRun, KnownSeries, KnownWriter, Ledger
from floatscope_server.store.left_out import LeftOut
from floatscope_server.store.lifecycle import ENDED, Sign, state_of_run
from floatscope_server.store.naming import named_apart, upsert_layers
from floatscope_server.store.packed import pack
from floatscope_server.store.parts import (
    MAX_STEP,
    NANOSECONDS,
    acceptable_layer,
    any_nonfinite,
    bounded,
    check_body,
    fit_cost,
)
from floatscope_server.store.series_rows import write_series
from floatscope_server.store.waiting import forget_waiting, together_of

__all__ = ["Batch", "Reply"]

Reply = Callable[[wire.ServerMessage], None]

_MAX_REASON = 200

_RUN_DELETED = wire.Refused(
    code="run_deleted",
    message="the run was deleted on the server",
    hint="start the training again to have it observed, or under another name (FLOATSCOPE_RUN)",
)

# Made once, of tables and not of models: a quarter of the writer's CPU where each block has one step.
_WRITERS, _RUNS, _ATTEMPTS = (SQLModel.metadata.tables[model.__tablename__] for model in (Writer, Run, Attempt))
_INSERT_EVENTS = insert(SQLModel.metadata.tables[str(StepEvent.__tablename__)])
_UPDATE_WRITER = update(_WRITERS).where(_WRITERS.c.id == bindparam("of_id"))
_UPDATE_RUN = update(_RUNS).where(_RUNS.c.id == bindparam("of_id"))
_UPDATE_ATTEMPT = update(_ATTEMPTS).where(_ATTEMPTS.c.run_id == bindparam("of_run"), _ATTEMPTS.c.n == bindparam("of_n"))


class Batch:
    """Collects the rows of one transaction and, for after the commit, replies and observations."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        ledger: Ledger,
        settings: Settings,
        *,
        now: float,
        started_at: float,
        credit: int,
    ) -> None:
        self.replies: list[tuple[Reply, wire.ServerMessage]] = []
        self.observations: list[Observation] = []
        self.changed: dict[int, KnownRun] = {}
        self.relayered: set[str] = set()
        self.frames = 0
        self._connection = connection
        self._session = session
        self._ledger = ledger
        self._settings = settings
        self._now = now
        self._started_at = started_at
        self._credit = credit
        self.rows: list[dict[str, Any]] = []
        """Of wal_frame, in the order in which they are written."""
        self.parts: list[wire.Summaries | None] = []
        """What each of them holds, of summaries."""
        self.renewed: dict[int, dict[tuple[int, int, str], KnownSeries]] = {}
        """Series by run, attempt, rank and name that have been written."""
        self.events: list[dict[str, Any]] = []
        self._writers: dict[str, KnownWriter] = {}
        self._mapped: set[str] = set()
        self._left_out = LeftOut(session)

    def apply(self, writer_id: str, message: wire.AgentMessage, reply: Reply) -> None:
        """Take in a message of a writer that has said hello."""
        known = self._ledger.of_writer(self._session, writer_id)
        if known is None:
            self.replies.append((reply, _RUN_DELETED))
            return
        run, writer = known
        writer.seen_at = self._now
        self.touch(run, writer)
        if isinstance(message, wire.Block):
            self._block(run, writer, message, reply)
        elif isinstance(message, wire.Gap):
            self._gap(run, writer, message, reply)
        elif isinstance(message, wire.Beat):
            writer.queue_bytes = bounded(message.queue_bytes)
            writer.spool_bytes = bounded(message.spool_bytes)
            writer.dropped = max(writer.dropped, bounded(message.dropped))
            writer.overhead_s = message.overhead_s if np.isfinite(message.overhead_s) else 0.0
            writer.cost = fit_cost(message.cost) or writer.cost
            self.replies.append((reply, wire.Beat()))
        elif isinstance(message, wire.Bye):
            writer.bye = message.reason[:_MAX_REASON]
            self._ack(writer, reply)

    def last_seqs(self) -> dict[str, int]:
        """The newest seq of each writer that this transaction has heard of."""
        return {writer.id: writer.last_seq for writer in self._writers.values()}

    def writers_of(self, run: KnownRun) -> list[KnownWriter]:
        """Those of ``run`` whose rows it writes."""
        return [writer for number, writer in self._writers.items() if number in run.writers]

    def touch(self, run: KnownRun, writer: KnownWriter) -> None:
        """Note that both rows are to be written."""
        self.changed[run.id] = run
        self._writers[writer.id] = writer

    def _ack(self, writer: KnownWriter, reply: Reply) -> None:
        self.replies.append((reply, wire.Ack(seq=writer.last_seq, credit=self._credit)))

    def _expected(self, writer: KnownWriter, seq: int, reply: Reply) -> bool:
        """Whether ``seq`` is the next one; answers it if not."""
        if seq <= writer.last_seq:
            self._ack(writer, reply)
            return False
        if seq > writer.last_seq + 1:
            expected = writer.last_seq + 1
            nack = wire.Nack(
                seq=seq,
                code="hole",
                message=f"batch {seq} came before batch {expected}",
                expected=expected,
                retryable=True,
            )
            self.replies.append((reply, nack))
            return False
        return True

    def _gap(self, run: KnownRun, writer: KnownWriter, gap: wire.Gap, reply: Reply) -> None:
        if not self._expected(writer, gap.seq, reply):
            return
        writer.last_seq = gap.seq
        first = min(max(gap.first, 0), MAX_STEP)
        row = Gap(
            run_id=run.id,
            rank=writer.rank,
            first=first,
            last=min(max(gap.last, first), MAX_STEP),
            count=bounded(gap.count),
            reason=gap.reason[:_MAX_REASON],
        )
        self._session.add(row)
        writer.declared = min(writer.declared + row.count, MAX_STEP)
        self._ack(writer, reply)

    def _refuse(self, run: KnownRun, writer: KnownWriter, seq: int, code: str, text: str, reply: Reply) -> None:
        """Give up on batch ``seq`` for good: it counts as taken, so that the next one can come."""
        writer.last_seq = seq
        self._left_out.note(run, writer, writer.last_step + 1, writer.last_step + 1, text[:_MAX_REASON], 1)
        self.replies.append((reply, wire.Nack(seq=seq, code=code, message=text, expected=seq + 1)))

    def _block(self, run: KnownRun, writer: KnownWriter, block: wire.Block, reply: Reply) -> None:
        if not self._expected(writer, block.seq, reply):
            return
        if len(block.body) > wire.MAX_BLOCK_BYTES:
            text = f"block {block.seq} has {len(block.body)} bytes; {wire.MAX_BLOCK_BYTES} are allowed"
            self._refuse(run, writer, block.seq, "too_large", text, reply)
            return
        try:
            body = wire.decode_body(block)
        except wire.WireError as error:
            if zlib.crc32(block.body) != block.crc and writer.damaged_seq != block.seq:
                # Damage on the way heals when it is sent again; damage in the agent's spool does not.
                writer.damaged_seq = block.seq
                nack = wire.Nack(seq=block.seq, code="damaged", message=str(error), expected=block.seq, retryable=True)
                self.replies.append((reply, nack))
                return
            self._refuse(run, writer, block.seq, "damaged", str(error), reply)
            return
        if body.dump is not None:
            writer.last_seq = block.seq
            newest = run.attempts[writer.attempt][1]
            reasons = store_dump(
                self._connection,
                run,
                writer,
                body.dump,
                self._map_of(writer),
                newest,
                self._now,
                self._settings.dump_bytes,
            )
            for reason in reasons:
                self._left_out.note(run, writer, max(writer.last_step, 0), max(writer.last_step, 0), reason, 1)
            self._ack(writer, reply)
            return
        named = self._layers(run, writer, body.layers)
        checked = check_body(body, self._map_of(writer), run.attempts[writer.attempt][1])
        capped, too_many = within_caps(run, writer, checked.body)
        body = msgspec.structs.replace(capped, layers=named)
        writer.last_seq = block.seq
        last = body.first_step + body.steps - 1
        if body.steps:
            writer.last_step = max(writer.last_step, last)
            run.progressed(writer.attempt, body.first_step, last, self._now)
        for reason, count in (checked.dropped + too_many).items():
            self._left_out.note(run, writer, body.first_step, max(last, body.first_step), reason, count)
        world = run.worlds[writer.attempt]
        concluded = together_of(self._session, run, writer.attempt).take(writer.rank, world, body, run.layers)
        body = msgspec.structs.replace(body, events=(*body.events, *concluded.events))
        self._store(run, writer, block.seq, body, concluded.scalars)
        if writer.attempt == run.attempt:
            run.glance.add(body, run.layers, rank=writer.rank, merged=concluded.scalars)
        self.observations.append(
            Observation(
                run_id=run.id,
                run=run.name,
                attempt=writer.attempt,
                rank=writer.rank,
                writer=writer.id,
                seq=block.seq,
                world=world,
                body=body,
                layers=run.layers,
                merged=concluded.scalars,
            )
        )
        self._ack(writer, reply)

    def name_layers(self, run: KnownRun, writer: KnownWriter, layers: Sequence[wire.Layer]) -> None:
        """Take in the layer table of a hello."""
        self._layers(run, writer, layers)

    def _map_of(self, writer: KnownWriter) -> LayerMap:
        if writer.layer_map is None:
            stored = self._session.exec(select(Writer.layer_map).where(Writer.id == writer.id)).one()
            writer.layer_map = LayerMap.of(stored)
        return writer.layer_map

    def _layers(self, run: KnownRun, writer: KnownWriter, layers: Sequence[wire.Layer]) -> tuple[wire.Layer, ...]:
        """Give new layers the run's numbers; returns those that are new or changed, renumbered."""
        if not layers:
            return ()
        most = self._settings.max_layers
        table = dict(run.layers)
        changed: list[wire.Layer] = []
        known = self._map_of(writer)
        numbers: dict[int, int] = {}
        for given in layers:
            fits = acceptable_layer(given) is None
            layer = named_apart(run, writer, given, table, self._map_of) if fits else given
            reason = acceptable_layer(layer)
            if reason is None and layer.name not in run.names and len(table) >= most:
                reason = f"more than {most} layers in one run"
            if reason is None and layer.index not in numbers and len(known) + len(numbers) >= 2 * most:
                reason = f"more than {2 * most} layer numbers from one agent"
            if reason is not None:
                self.omit(run, writer, reason)
                continue
            index = run.names.setdefault(layer.name, len(table))
            ours = msgspec.structs.replace(layer, index=index)
            if table.get(index) != ours:
                if index not in table and layer is not given:
                    self._kept_apart(run, writer, given.name, layer.name)
                table[index] = ours
                changed.append(ours)
            numbers[layer.index] = index
        layer_map = known.named(numbers)
        if layer_map is not known:
            writer.layer_map = layer_map
            self._mapped.add(writer.id)
        if changed:
            run.layers = MappingProxyType(table)
            run.glance.executed = executed(table.values())
            self.relayered.add(run.name)
            upsert_layers(self._connection, run, changed)
        return tuple(changed)

    def _kept_apart(self, run: KnownRun, writer: KnownWriter, given: str, name: str) -> None:
        """Say that a layer has another name than its rank gave it."""
        step = max(writer.last_step, 0)
        event = wire.Event(step=step, kind="layer_apart", detail={"layer": given, "name": name})
        self._add_events(run, writer, 0, [event])

    def omit(self, run: KnownRun, writer: KnownWriter, reason: str) -> None:
        """Declare that a part of a hello was not kept."""
        step = max(writer.last_step, 0)
        self._left_out.note(run, writer, step, step, reason, 1)

    def _store(
        self, run: KnownRun, writer: KnownWriter, seq: int, body: wire.Body, merged: tuple[wire.Scalars, ...]
    ) -> None:
        more = CONTINUED if body.continued else 0

        def add(
            stream: str,
            first: int,
            n: int,
            flags: int,
            data: bytes,
            rank: int = writer.rank,
            part: wire.Summaries | None = None,
        ) -> None:
            self.parts.append(part)
            self.rows.append(
                {
                    "stream_id": self._stream(run, writer.attempt, stream),
                    "attempt": writer.attempt,
                    "first": first,
                    "n": n,
                    "rank": rank,
                    "writer": writer.number,
                    "seq": seq,
                    "flags": flags | more,
                    "data": framed(data),
                }
            )

        for summary in body.summaries:
            flags = NONFINITE if any_nonfinite(summary) else 0
            add(f"layer/{summary.kind}", summary.first_step, summary.steps, flags, pack(summary), part=summary)
        for histogram in body.histograms:
            add(f"hist/{histogram.kind}", histogram.first_step, histogram.steps, 0, wire.encode(histogram))
        for rank, scalars in ((writer.rank, body.scalars), (ALL_RANKS, merged)):
            if not scalars:
                continue
            steps = [np.frombuffer(series.steps, "<i8") for series in scalars]
            for series, points in zip(scalars, steps, strict=True):
                kept = run.series_of(writer.attempt, rank, series.name)
                kept.add(points, np.frombuffer(series.values, "<f8"))
            first = min(int(s.min()) for s in steps)
            last = max(int(s.max()) for s in steps)
            finite = all(np.isfinite(np.frombuffer(series.values, "<f8")).all() for series in scalars)
            flags = 0 if finite else NONFINITE
            add("scalar", first, last - first + 1, flags, msgspec.msgpack.encode(scalars), rank)
        if body.devices:
            note_devices(self._connection, run, writer, body.devices)
            seconds = [device.time_ns // NANOSECONDS for device in body.devices]
            add("gpu", min(seconds), max(seconds) - min(seconds) + 1, 0, msgspec.msgpack.encode(body.devices))
        self._add_events(run, writer, seq, body.events)

    def _add_events(self, run: KnownRun, writer: KnownWriter, seq: int, events: Iterable[wire.Event]) -> None:
        for event in events:
            self.events.append(
                {
                    "run_id": run.id,
                    "attempt": writer.attempt,
                    "step": event.step,
                    "rank": writer.rank,
                    "writer": writer.number,
                    "seq": seq,
                    "kind": event.kind,
                    "detail": plain(event.detail),
                }
            )

    def _stream(self, run: KnownRun, attempt: int, name: str) -> int:
        if name not in run.streams:
            stream = Stream(id=self._ledger.numbers.next(self._session, Stream), run_id=run.id, name=name)
            self._session.add(stream)
            self._session.flush()
            assert stream.id is not None
            run.streams[name] = stream.id
        stream_id = run.streams[name]
        if (stream_id, attempt) not in run.opened:
            statement = upsert(self._connection, StreamState).values(
                stream_id=stream_id, attempt=attempt, sealed=0, epoch=0, appends=0
            )
            self._connection.execute(statement.on_conflict_do_nothing())
            run.opened.add((stream_id, attempt))
        return stream_id

    def flush(self) -> None:
        """Write everything collected; the caller commits."""
        self.frames = len(self.rows)
        append(self._connection, WalFrame, self.rows)
        if self.events:
            self._connection.execute(_INSERT_EVENTS, self.events)
        self._left_out.write()
        for writer in self._writers.values():
            self._write_writer(writer)
        for run in self.changed.values():
            self._write_run(run)
            if run.renewed:
                self.renewed[run.id] = dict(run.renewed)
            write_series(self._connection, run)
            forget_waiting(run)
        self._session.flush()

    def _write_writer(self, writer: KnownWriter) -> None:
        values: dict[str, Any] = {
            "last_seq": writer.last_seq,
            "last_step": writer.last_step,
            "last_seen_at": utc(writer.seen_at),
            "dropped": writer.dropped,
            "declared": writer.declared,
            "left_out": writer.left_out,
            "queue_bytes": writer.queue_bytes,
            "spool_bytes": writer.spool_bytes,
            "overhead_s": writer.overhead_s,
            "cost": writer.cost,
            "bye": writer.bye,
        }
        if writer.id in self._mapped:
            values["layer_map"] = self._map_of(writer).stored()
        self._connection.execute(_UPDATE_WRITER, {"of_id": writer.id, **values})

    def judge(self, run: KnownRun) -> None:
        """Decide the state of ``run`` now."""
        self.changed[run.id] = run
        run.state = state_of_run(
            [
                # While the server was down, silence was not the agents'.
                Sign(seen_at=max(writer.seen_at, self._started_at), bye=writer.bye)
                for writer in run.writers.values()
                if writer.attempt == run.attempt
            ],
            progress_at=max(run.progress_at, self._started_at),
            now=self._now,
            stalled_after_s=max(self._settings.stalled_after_s, 10 * run.seconds_per_step),
            lost_after_s=self._settings.lost_after_s,
        )

    def _write_run(self, run: KnownRun) -> None:
        self.judge(run)
        current = [writer for writer in run.writers.values() if writer.attempt == run.attempt]
        ended = run.state in ENDED
        seen = max(writer.seen_at for writer in current)
        run.glance.note_cost([writer.cost for writer in current])
        reasons = {writer.bye for writer in current if writer.bye is not None}
        self._connection.execute(
            _UPDATE_RUN,
            {
                "of_id": run.id,
                "state": run.state,
                "attempt": run.attempt,
                "world": run.world,
                "steps": run.steps,
                "glance": run.glance.stored(),
                "heartbeat_at": utc(seen),
                "progress_at": utc(run.progress_at),
                "seconds_per_step": run.seconds_per_step,
                "finished_at": utc(seen) if ended else None,
            },
        )
        for attempt in {
            run.attempt,
            *(writer.attempt for writer in run.writers.values() if writer.id in self._writers),
        }:
            first, last = run.attempts[attempt]
            values: dict[str, Any] = {"first_step": first, "last_step": last, "world": run.worlds[attempt]}
            if attempt == run.attempt:
                values["ended_at"] = utc(seen) if ended else None
                values["end_reason"] = (", ".join(sorted(reasons)) or run.state) if ended else None
            self._connection.execute(_UPDATE_ATTEMPT, {"of_run": run.id, "of_n": attempt, **values})
