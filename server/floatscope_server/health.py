"""For those who watch the watcher."""

from __future__ import annotations

from fastapi import APIRouter, Response
from sqlmodel import Session, col, func, select

from floatscope_server.alerts.models import Alert, Delivery
from floatscope_server.models import Run
from floatscope_server.responses import JSONText
from floatscope_server.services import Running
from floatscope_server.store.lifecycle import STATES

__all__ = ["router"]

SEVERITIES = ("info", "warning", "critical")
DELIVERY_STATES = ("pending", "leased", "failed", "ok", "dead")

router = APIRouter(tags=["server"])


@router.get("/healthz")
async def healthz(services: Running) -> Response:
    """200 while the store can be written, 503 otherwise; asks neither the database nor a thread."""
    healthy = services.store.writing
    return JSONText({"status": "ok" if healthy else "the store cannot be written"}, status_code=200 if healthy else 503)


def _counts(session: Session) -> dict[str, dict[str, int]]:
    """Rows by the value of one column."""
    runs = select(Run.state, func.count(col(Run.id))).group_by(Run.state)
    alerts = select(Alert.severity, func.count(col(Alert.id))).where(Alert.state == "firing").group_by(Alert.severity)
    deliveries = select(Delivery.state, func.count(col(Delivery.id))).group_by(Delivery.state)
    return {
        "runs": dict(session.exec(runs).all()),
        "alerts": dict(session.exec(alerts).all()),
        "deliveries": dict(session.exec(deliveries).all()),
    }


@router.get("/metrics")
async def metrics(services: Running) -> Response:
    """Figures of this server, and of the cards that agents tell of, in the Prometheus text format."""
    counted = await services.answer(_counts)
    counters, intake, viewers = services.store.counters, services.intake, tuple(services.live.viewers)
    lines: list[str] = []
    for name, label, text, known in (
        ("runs", "state", "Runs by state.", STATES),
        ("alerts", "severity", "Alerts that fire.", SEVERITIES),
        ("deliveries", "state", "Deliveries of webhooks that are kept.", DELIVERY_STATES),
    ):
        lines += [f"# HELP floatscope_{name} {text}", f"# TYPE floatscope_{name} gauge"]
        lines += [f'floatscope_{name}{{{label}="{value}"}} {counted[name].get(value, 0)}' for value in known]
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
    lines += services.cards.lines()
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")
