"""The list of runs: a fixed number of questions, however many runs there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import func
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from floatscope_server.alerts.views import alert_tallies, no_alerts
from floatscope_server.declared import unmet
from floatscope_server.models import Attempt, DeviceFacts, Run, Writer
from floatscope_server.query.ranks import Reach
from floatscope_server.store.glance import Glance
from floatscope_server.store.lifecycle import DELETED

__all__ = ["run_list"]


def run_list(session: Session, names: Sequence[str] | None = None, *, archived: bool = False) -> list[dict[str, Any]]:
    """All runs, newest first, with ``archived`` also those that are; or the ones called ``names``, archived or not."""
    query = select(Run).where(Run.state != DELETED).order_by(col(Run.id).desc()).options(defer(Run.config))  # type: ignore[arg-type]
    if names is not None:
        query = query.where(col(Run.name).in_(names))
    elif not archived:
        query = query.where(col(Run.archived_at).is_(None))
    runs = session.exec(query).all()
    # One by one they are asked for by number, of the whole list everything: a list of thousands makes no condition.
    ids = None if names is None else [run.id for run in runs if run.id is not None]
    tallies, reaches, cards = alert_tallies(session, ids), _reaches(session, runs, ids), _cards(session, ids)
    return [
        _item(run, tallies.get(run.id or 0) or no_alerts(), reaches[run.id or 0], cards.get(run.id or 0, Counter()))
        for run in runs
    ]


def _item(run: Run, tally: dict[str, Any], reach: Reach, cards: Counter[str]) -> dict[str, Any]:
    glance = Glance(run.glance)
    declared = glance.declared.get("precision")
    chips = [{"name": name, "count": count} for name, count in cards.most_common()]
    if not chips and glance.declared.get("cpu"):
        chips = [{"name": "CPU", "count": len(reach.last_step) or 1}]
    return {
        "name": run.name,
        "state": run.state,
        "attempt": run.attempt,
        "steps": run.steps,
        "max_steps": glance.declared.get("max_steps"),
        "pace": glance.pace.mean(),
        "started_at": run.started_at,
        "heartbeat_at": run.heartbeat_at,
        "finished_at": run.finished_at,
        "last": {name: glance.last[name][1] if name in glance.last else None for name in Glance.SHOWN},
        "worst": glance.worst,
        **tally,
        "sparkline": glance.sparkline,
        "overhead": glance.cost,
        "world": reach.world,
        "missing_ranks": reach.missing,
        "chips": chips,
        "precision": {
            "declared": declared,
            "executed": glance.executed.get("formats", {}),
            "unmet": unmet(declared, glance.executed),
        },
        "tags": run.tags,
        "archived_at": run.archived_at,
    }


def _of(query: Any, ids: Collection[int] | None) -> Any:  # noqa: ANN401 - a statement with any columns
    return query if ids is None else query.where(col(Run.id).in_(ids))


def _reaches(session: Session, runs: Sequence[Run], ids: Collection[int] | None) -> dict[int, Reach]:
    """As ``query.ranks.reach_of`` has it, of the present attempt of each."""
    present = (col(Attempt.run_id) == col(Run.id)) & (col(Attempt.n) == col(Run.attempt))
    asked: Any = select(col(Run.id), Attempt.world).join(Attempt, present)
    worlds: dict[int, int] = dict(session.connection().execute(_of(asked, ids)).all())
    last_steps: dict[int, dict[int, int]] = {}
    present = (col(Writer.run_id) == col(Run.id)) & (col(Writer.attempt) == col(Run.attempt))
    asked = select(col(Run.id), Writer.rank, func.max(Writer.last_step)).join(Writer, present)
    asked = asked.where(col(Writer.last_step) >= 0).group_by(col(Run.id), col(Writer.rank))
    for run, rank, last in session.execute(_of(asked, ids)):
        last_steps.setdefault(run, {})[rank] = last
    return {
        run.id or 0: Reach(world=worlds.get(run.id or 0, run.world), last_step=last_steps.get(run.id or 0, {}))
        for run in runs
    }


def _cards(session: Session, ids: Collection[int] | None) -> dict[int, Counter[str]]:
    """How many cards of each name the present attempt reads; each rank reads its own."""
    present = (col(DeviceFacts.run_id) == col(Run.id)) & (col(DeviceFacts.attempt) == col(Run.attempt))
    asked: Any = select(col(Run.id), DeviceFacts.name, func.count()).join(DeviceFacts, present)
    asked = asked.where(col(DeviceFacts.name).is_not(None)).group_by(col(Run.id), col(DeviceFacts.name))
    found: dict[int, Counter[str]] = {}
    for run, name, count in session.execute(_of(asked, ids)):
        found.setdefault(run, Counter())[name] += count
    return found
