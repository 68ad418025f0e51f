"""HTTP: what is kept how long, and deleting runs."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session, col, delete

from floatscope_server.audit import Actor, record
from floatscope_server.models import Retention
from floatscope_server.query.line import UnknownRunError, run_named
from floatscope_server.responses import JSONText, Refusal
from floatscope_server.services import Running
from floatscope_server.store.dropping import keeping_of, set_keeping
from floatscope_server.store.removal import LiveRunError

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["retention"], default_response_class=JSONText)

_ALL_RUNS = 0

Days = Annotated[float | None, Field(ge=0, le=36_500, allow_inf_nan=False)]


class RetentionIn(BaseModel):
    """What is to change; what is left out stays as it is. Null: for ever, or as much as there is.

    ``raw`` is level 0 of the tiles, every step; ``level1`` are cells of 8 steps (4 with many layers); ``hist`` are
    histograms as they were taken, ``hist_level1`` their sums; ``gpu`` readings of cards every second, ``gpu_level1``
    every 8 seconds. Whatever is coarser is kept for ever, and so are scalars and alerts.
    """

    model_config = ConfigDict(extra="forbid")

    raw_keep_days: Days = None
    raw_keep_steps: Annotated[int | None, Field(ge=0, lt=1 << 62)] = None
    level1_keep_days: Days = None
    hist_keep_days: Days = None
    hist_level1_keep_days: Days = None
    gpu_keep_days: Days = None
    gpu_level1_keep_days: Days = None
    pin_alerts: bool = True
    max_bytes_per_run: Annotated[int | None, Field(ge=0, lt=1 << 62)] = None


_FINE_TO_COARSE = (
    ("raw_keep_days", "level1_keep_days"),
    ("hist_keep_days", "hist_level1_keep_days"),
    ("gpu_keep_days", "gpu_level1_keep_days"),
)


@router.get("/retention")
async def retention(services: Running) -> Response:
    """What is kept of runs that have no settings of their own."""
    return JSONText(await services.answer(lambda session: _shown(session, _ALL_RUNS)))


@router.put("/retention")
async def set_retention(wanted: RetentionIn, services: Running, actor: Actor) -> Response:
    """Change it. What has been dropped does not come back."""
    return JSONText(await _set(services, actor, None, wanted))


@router.delete("/retention")
async def reset_retention(services: Running, actor: Actor) -> Response:
    """Go back to what is built in."""
    return JSONText(await _set(services, actor, None, None))


@router.get("/runs/{run}/retention")
async def run_retention(run: str, services: Running) -> Response:
    """What is kept of the run."""
    return JSONText(await services.answer(lambda session: _shown(session, run_named(session, run).id or 0)))


@router.put("/runs/{run}/retention")
async def set_run_retention(run: str, wanted: RetentionIn, services: Running, actor: Actor) -> Response:
    """Change it for this run. What has been dropped does not come back."""
    return JSONText(await _set(services, actor, run, wanted))


@router.delete("/runs/{run}/retention")
async def reset_run_retention(run: str, services: Running, actor: Actor) -> Response:
    """Go back to what holds for all runs."""
    return JSONText(await _set(services, actor, run, None))


@router.delete("/runs/{run}", status_code=202)
async def delete_run(run: str, services: Running, actor: Actor) -> Response:
    """Delete a run that is over, for good: it is out of sight at once, and its rows go in the background."""
    try:
        found = await asyncio.to_thread(
            services.store.delete_run, run, lambda session: record(session, actor, "run.delete", run)
        )
    except LiveRunError:
        raise Refusal(
            409,
            "run_is_live",
            "the run still goes on, or its agents were heard of a moment ago",
            "end the training first; a run whose agents are silent is over after a minute",
        ) from None
    if not found:
        raise UnknownRunError(run)
    services.keeper.run_deleted()
    return JSONText({"run": run, "state": "deleted"}, status_code=202)


async def _set(services: Running, actor: str, run: str | None, wanted: RetentionIn | None) -> dict[str, object]:
    def write(session: Session) -> dict[str, object]:
        run_id = _ALL_RUNS if run is None else run_named(session, run).id or 0
        subject = "all runs" if run is None else run
        if wanted is None:
            record(session, actor, "retention.reset", subject)
            session.execute(delete(Retention).where(col(Retention.run_id) == run_id))
        else:
            changed = {**keeping_of(session, run_id).model_dump(), **wanted.model_dump(exclude_unset=True)}
            _check(changed)
            set_keeping(session, run_id, changed)
            record(session, actor, "retention.set", subject, wanted.model_dump(exclude_unset=True))
        return _shown(session, run_id)

    shown = await asyncio.to_thread(services.store.write, write)
    services.keeper.retention_changed()
    return shown


def _check(values: dict[str, Any]) -> None:
    for fine, coarse in _FINE_TO_COARSE:
        short, long = (math.inf if values[name] is None else values[name] for name in (fine, coarse))
        if short > long:
            raise Refusal(
                422,
                "invalid",
                f"{coarse} ({long:g} days) is less than {fine} ({'for ever' if math.isinf(short) else f'{short:g}'})",
                "keep what is coarser at least as long as what is finer",
            )


def _shown(session: Session, run_id: int) -> dict[str, object]:
    """``own``: set here, and not for all runs or by nobody."""
    own = session.get(Retention, run_id) is not None
    return {**keeping_of(session, run_id).model_dump(exclude={"run_id"}), "own": own}
