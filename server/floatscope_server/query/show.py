"""One run as one object."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import ColumnElement
from sqlmodel import Session, col, func, select

from floatscope_server.alerts.engine import alerts_of
from floatscope_server.models import Attempt, Gap, Run, StepEvent, Stream, StreamState, Writer
from floatscope_server.query.devices import newest_samples
from floatscope_server.query.doctor import doctor
from floatscope_server.query.layertable import run_layers
from floatscope_server.query.ranks import reach_of
from floatscope_server.query.series import scalar_figures
from floatscope_server.query.skipped import skipped_steps
from floatscope_server.query.window import TileReader, source_of
from floatscope_server.store.ledger import operands_json

__all__ = ["show"]

_NEWEST = 64
_CHANGES = 100


def show(session: Session, reader: TileReader, run: Run) -> dict[str, object]:
    """Everything about ``run`` that is not a long series."""
    assert run.id is not None
    writers = session.exec(
        select(Writer).where(Writer.run_id == run.id).order_by(col(Writer.attempt), col(Writer.rank))
    ).all()
    layers = run_layers(session, run.id).ordered
    return {
        "run": run.name,
        "state": run.state,
        "steps": run.steps,
        "attempts": [
            a.model_dump(exclude={"run_id"})
            for a in session.exec(select(Attempt).where(Attempt.run_id == run.id).order_by(col(Attempt.n)))
        ],
        "writers": [_writer(writer) for writer in writers],
        "ranks": sorted({writer.rank for writer in writers if writer.attempt == run.attempt}),
        **reach_of(session, run).meta(),
        "ranks_disagree": _disagreements(session, run),
        "layers": [
            {
                "name": layer.name,
                "index": layer.index,
                "module_type": layer.module_type,
                "parameters": layer.parameters,
                "order": layer.order,
                "operands": operands_json(layer),
            }
            for layer in layers
        ],
        "coverage": _coverage(session, reader, run, {layer.index: layer.parameters for layer in layers}),
        "skipped_steps": skipped_steps(session, reader, run.id),
        "checkpoints": _checkpoints(session, run),
        "checkpoints_saved": session.exec(select(func.count()).where(*_saved(run))).one(),
        "scalars": scalar_figures(session, run.id),
        "alerts": alerts_of(session, run.id),
        "overhead": {
            **_cost([writer for writer in writers if writer.attempt == run.attempt]),
            "seconds": max((writer.overhead_s for writer in writers), default=0.0),
            "dropped": sum(_lost_by_agent(writer) for writer in writers),
            "left_out": sum(writer.left_out for writer in writers),
        },
        "sampling": _sampling(session, run),
        "resolution": _resolution(session, run),
        "gaps": [
            gap.model_dump(exclude={"id", "run_id"})
            for gap in session.exec(select(Gap).where(Gap.run_id == run.id).order_by(col(Gap.id)))
        ],
        "devices": newest_samples(session, run),
        "config": run.config,
        "doctor": doctor(session, run),
        "started_at": run.started_at,
        "heartbeat_at": run.heartbeat_at,
        "finished_at": run.finished_at,
    }


def _writer(writer: Writer) -> dict[str, object]:
    return {
        "id": writer.id,
        "attempt": writer.attempt,
        "rank": writer.rank,
        "agent": writer.agent,
        "host": writer.host,
        "last_seq": writer.last_seq,
        "last_step": writer.last_step,
        "last_seen_at": writer.last_seen_at.isoformat().replace("+00:00", "Z"),
        "dropped": _lost_by_agent(writer),
        "left_out": writer.left_out,
        "overhead_s": writer.overhead_s,
        "cost": writer.cost,
        "clock_offset_ms": writer.clock_offset_ms,
        "bye": writer.bye,
    }


def _cost(writers: Sequence[Writer]) -> dict[str, object]:
    """What the agent of the rank that pays most says of its cost; null before any has said so."""
    unknown: dict[str, object] = dict.fromkeys(("share", "mean", "budget", "limit", "every"))
    costs = [writer.cost for writer in writers if writer.cost is not None]
    return unknown | max(costs, key=lambda cost: cost["share"], default={})


def _lost_by_agent(writer: Writer) -> int:
    """Its total in beats covers its gaps; a gap may come before the beat."""
    return max(writer.dropped, writer.declared)


def _coverage(session: Session, reader: TileReader, run: Run, parameters: dict[int, int]) -> dict[str, object]:
    """How many layers were seen lately, by kind, and which share of the parameters' layers sent gradients."""
    seen: dict[str, set[int]] = {}
    layers = np.array(sorted(parameters), np.intp)
    for name in session.exec(
        select(Stream.name)
        .where(Stream.run_id == run.id, col(Stream.name).startswith("layer/"))
        .order_by(col(Stream.name))
    ):
        source = source_of(session, run.id or 0, name)
        assert source is not None
        latest = reader.latest(session, source, run.attempt, wanted=(), layers=layers)
        seen[name.removeprefix("layer/")] = set(layers[latest.steps >= 0].tolist())
    weighted = {index for index, count in parameters.items() if count}
    share = len(weighted & seen.get("grad", set())) / len(weighted) if weighted else None
    return {
        "layers": len(parameters),
        "layers_with_parameters": len(weighted),
        "observed": {kind: len(layers) for kind, layers in seen.items()},
        "gradient_share": share,
        **_told_coverage(session, run),
    }


def _told_coverage(session: Session, run: Run) -> dict[str, object]:
    """What the agent said last: of the layers that train, how many it observes, and for each reason those that it does
    not. None and empty before it has said so."""
    detail = session.exec(
        select(StepEvent.detail)
        .where(StepEvent.run_id == run.id, StepEvent.attempt == run.attempt, StepEvent.kind == "coverage")
        .order_by(col(StepEvent.rank), col(StepEvent.step).desc(), col(StepEvent.id).desc())
        .limit(1)
    ).first()
    if detail is None:
        return {"trainable": None, "reasons": {}}
    reasons = [key.removeprefix("count/") for key in detail if key.startswith("count/")]
    return {
        "trainable": {"observed": detail.get("observed"), "total": detail.get("trainable")},
        "reasons": {
            reason: {"layers": detail[f"count/{reason}"], "names": detail.get(f"layers/{reason}")} for reason in reasons
        },
    }


def _resolution(session: Session, run: Run) -> list[dict[str, object]]:
    """Which steps are no longer kept one by one, but in cells of several; around alerts some of them still are."""
    rows = session.exec(
        select(Stream, StreamState)
        .join(StreamState, col(StreamState.stream_id) == col(Stream.id))
        .where(Stream.run_id == run.id, StreamState.raw_from > 0)
        .order_by(col(Stream.name), col(StreamState.attempt))
    )
    found: list[dict[str, object]] = []
    for stream, state in rows:
        assert stream.fan is not None
        of = {"kind": stream.name.removeprefix("layer/"), "attempt": state.attempt}
        found.append({**of, "before": state.raw_from, "cell": stream.fan})
        if state.level1_from:
            found.append({**of, "before": state.level1_from, "cell": stream.fan**2})
    return found


def _sampling(session: Session, run: Run) -> list[dict[str, object]]:
    """The newest changes of this attempt's intervals, in the order in which they came."""
    events = session.exec(
        select(StepEvent)
        .where(StepEvent.run_id == run.id, StepEvent.attempt == run.attempt, StepEvent.kind == "sampling")
        .order_by(col(StepEvent.id).desc())
        .limit(_CHANGES)
    )
    return [
        {"step": e.step, "rank": e.rank, **{name: e.detail.get(name) for name in ("kind", "every", "because")}}
        for e in reversed(events.all())
    ]


def _disagreements(session: Session, run: Run) -> list[dict[str, object]]:
    """Where this attempt's gradient norm began to differ from the framework's, or copies from one another."""
    events = session.exec(
        select(StepEvent)
        .where(
            StepEvent.run_id == run.id,
            StepEvent.attempt == run.attempt,
            col(StepEvent.kind).in_(("norm_mismatch", "replicas_differ", "layer_apart")),
        )
        .order_by(col(StepEvent.id).desc())
        .limit(_NEWEST)
    )
    return [{"kind": e.kind, "step": e.step, "rank": e.rank, "detail": e.detail} for e in reversed(events.all())]


def _saved(run: Run) -> tuple[ColumnElement[bool], ...]:
    return col(StepEvent.run_id) == run.id, col(StepEvent.kind) == "checkpoint"


def _checkpoints(session: Session, run: Run) -> list[dict[str, object]]:
    """The newest ones that were saved, of all attempts, oldest first."""
    events = session.exec(select(StepEvent).where(*_saved(run)).order_by(col(StepEvent.id).desc()).limit(_NEWEST))
    return [{"step": e.step, "attempt": e.attempt, "rank": e.rank, "detail": e.detail} for e in reversed(events.all())]
