"""The list of runs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlmodel import Session, col, select

from floatscope_server.alerts.views import alert_tally
from floatscope_server.models import Run
from floatscope_server.query.ranks import reach_of
from floatscope_server.store.glance import Glance
from floatscope_server.store.lifecycle import DELETED

__all__ = ["run_item", "run_list"]


def run_item(session: Session, run: Run) -> dict[str, object]:
    """What a list shows of one run."""
    assert run.id is not None
    glance = Glance(run.glance)
    reach = reach_of(session, run)
    return {
        "name": run.name,
        "state": run.state,
        "attempt": run.attempt,
        "steps": run.steps,
        "started_at": run.started_at,
        "heartbeat_at": run.heartbeat_at,
        "finished_at": run.finished_at,
        "last": {name: glance.last[name][1] if name in glance.last else None for name in Glance.SHOWN},
        "worst": glance.worst,
        **alert_tally(session, run.id),
        "sparkline": glance.sparkline,
        "overhead": glance.cost,
        "world": reach.world,
        "missing_ranks": reach.missing,
    }


def run_list(session: Session, names: Sequence[str] | None = None) -> list[dict[str, object]]:
    """All runs, or those called ``names``, newest first."""
    query = select(Run).where(Run.state != DELETED).order_by(col(Run.id).desc())
    if names is not None:
        query = query.where(col(Run.name).in_(names))
    return [run_item(session, run) for run in session.exec(query)]
