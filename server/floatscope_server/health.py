"""For those who watch the watcher."""

from __future__ import annotations

from fastapi import APIRouter, Response
from sqlmodel import col, func, select

from floatscope_server.models import Run
from floatscope_server.responses import JSONText
from floatscope_server.services import Running
from floatscope_server.store.lifecycle import STATES

__all__ = ["router"]

router = APIRouter(tags=["server"])


@router.get("/healthz")
async def healthz(services: Running) -> Response:
    """200 while the store can be written, 503 otherwise; asks neither the database nor a thread."""
    healthy = services.store.writing
    return JSONText({"status": "ok" if healthy else "the store cannot be written"}, status_code=200 if healthy else 503)


@router.get("/metrics")
async def metrics(services: Running) -> Response:
    """Figures of this server in the Prometheus text format."""
    counts = select(Run.state, func.count(col(Run.id))).group_by(Run.state)
    states = dict(await services.answer(lambda session: session.exec(counts).all()))
    counters, intake, viewers = services.store.counters, services.intake, tuple(services.live.viewers)
    lines = ["# HELP floatscope_runs Runs by state.", "# TYPE floatscope_runs gauge"]
    lines += [f'floatscope_runs{{state="{state}"}} {states.get(state, 0)}' for state in STATES]
    for name, kind, text, value in (
        ("commits_total", "counter", "Transactions of telemetry.", counters.commits),
        ("failed_commits_total", "counter", "Transactions that were rolled back.", counters.failed_commits),
        ("blocks_total", "counter", "Blocks stored.", counters.blocks),
        ("frames_total", "counter", "Parts of blocks stored.", counters.frames),
        ("received_bytes_total", "counter", "Bytes received from agents.", intake.received_bytes),
        ("received_messages_total", "counter", "Messages received from agents.", intake.received_messages),
        ("acks_total", "counter", "Messages acknowledged.", intake.acks),
        ("nacks_total", "counter", "Messages refused.", intake.nacks),
        ("agents", "gauge", "Agents connected by socket.", intake.agents),
        ("queue_bytes", "gauge", "Bytes received and not yet committed.", intake.queued_bytes),
        ("viewers", "gauge", "Browsers connected.", len(viewers)),
        ("viewer_queue_messages", "gauge", "Messages waiting for browsers.", sum(v.waiting for v in viewers)),
        ("viewer_dropped_messages", "gauge", "Messages that slow browsers missed.", sum(v.dropped for v in viewers)),
        ("cache_bytes", "gauge", "Decoded telemetry kept for queries.", services.reader.nbytes),
    ):
        lines += [f"# HELP floatscope_{name} {text}", f"# TYPE floatscope_{name} {kind}", f"floatscope_{name} {value}"]
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")
