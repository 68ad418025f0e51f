"""HTTP: look closer at a run that is being trained, and at what flight recorders held."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from floatscope import wire
from floatscope_server.query.dumps import DumpTooLargeError, UnknownDumpError, dump_content, dump_list
from floatscope_server.query.line import run_named
from floatscope_server.responses import JSONText, Refusal
from floatscope_server.services import Running
from floatscope_server.store.parts import MAX_RANK

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run}", tags=["focus"])


class FocusIn(BaseModel):
    """For how many steps everything is read."""

    steps: int = Field(ge=1, le=wire.MAX_FOCUS_STEPS)


class FocusOut(BaseModel):
    """How many agents were told; each says in an event "focus" when it begins."""

    agents: int
    steps: int


@router.post("/focus")
async def focus(run: str, wanted: FocusIn, services: Running) -> FocusOut:
    """Have every connected agent of the run read everything in each of its next steps, whatever that costs."""
    # What an earlier attempt left behind comes over a connection too, and has no step to look closer at.
    attempt = await services.answer(lambda session: run_named(session, run).attempt)
    told = services.agents.tell(run, wire.Focus(steps=wanted.steps), attempt=attempt)
    if not told:
        raise Refusal(
            409,
            "no_agent",
            "no agent of this run is connected, so nobody can look closer",
            "ask while the training runs and its agent reaches this server",
        )
    return FocusOut(agents=told, steps=wanted.steps)


@router.get("/dumps", response_class=JSONText)
async def dumps(run: str, services: Running) -> Response:
    """What the flight recorders of the run held when something broke, oldest first."""
    return await services.answer(lambda session: JSONText(dump_list(session, run_named(session, run))))


@router.get("/dumps/{dump}", response_class=JSONText)
async def one_dump(
    run: str,
    dump: str,
    services: Running,
    kind: Annotated[str | None, Query(description="Statistics of this kind of tensor only; of all without it.")] = None,
    rank: Annotated[int | None, Query(ge=0, lt=MAX_RANK, description="Of this rank only; of all without it.")] = None,
) -> Response:
    """One dump as one object: scalars, statistics, histograms and events of every step in it, by rank."""
    try:
        return await services.answer(
            lambda session: JSONText(dump_content(session, run_named(session, run), dump, kind=kind, rank=rank))
        )
    except UnknownDumpError:
        raise Refusal(
            404, "unknown_dump", f"the run has no dump {dump[:60]!r}", "GET the run's dumps to list them"
        ) from None
    except DumpTooLargeError:
        raise Refusal(
            413,
            "dump_too_large",
            "what the dump holds of this does not fit one answer",
            "ask for one `rank`, for one `kind`, or for both",
        ) from None
