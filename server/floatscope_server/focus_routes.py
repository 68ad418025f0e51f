"""HTTP: look closer at a run that is being trained, and at what flight recorders held."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field
from sqlmodel import Session

from floatscope import wire
from floatscope_server.audit import Actor, record
from floatscope_server.query.dumps import dump_content, dump_list
from floatscope_server.query.histogram import UnknownLayerError
from floatscope_server.query.layertable import run_layers
from floatscope_server.query.line import run_named
from floatscope_server.responses import JSONText, Refusal
from floatscope_server.services import Running
from floatscope_server.store.parts import MAX_RANK

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run}", tags=["focus"])


_MOST_NAMES = 64

_Kind = Literal["gradients", "activations", "weights", "updates", "histograms"]
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Rank = Annotated[int, Field(ge=0, lt=MAX_RANK)]


class FocusIn(BaseModel):
    """For how many steps more is read, and of what. Lists without an entry stand for everything; ``layers`` are names
    of layers, or of modules for all layers in them, and choose whose outputs, inputs and output gradients are read."""

    steps: int = Field(ge=1, le=wire.MAX_FOCUS_STEPS)
    kinds: list[_Kind] = Field(default=[], max_length=len(wire.READINGS))
    layers: list[_Name] = Field(default=[], max_length=_MOST_NAMES)
    ranks: list[_Rank] = Field(default=[], max_length=1024)


class FocusOut(BaseModel):
    """How many agents were told; each says in an event "focus" when it begins."""

    agents: int
    steps: int


@router.post("/focus")
async def focus(run: str, wanted: FocusIn, services: Running, actor: Actor) -> FocusOut:
    """Have the connected agents of the run read more in each of their next steps, whatever that costs."""
    # What an earlier attempt left behind comes over a connection too, and has no step to look closer at.
    attempt = await services.answer(lambda session: _attempt_with(session, run, wanted.layers))
    order = wire.Focus(steps=wanted.steps, kinds=tuple(wanted.kinds), layers=tuple(wanted.layers))
    told = services.agents.tell(run, order, attempt=attempt, ranks=wanted.ranks or None)
    if not told:
        raise Refusal(
            409,
            "no_agent",
            f"no agent of {'these ranks of ' if wanted.ranks else ''}this run is connected, so nobody can look closer",
            "ask while the training runs and its agent reaches this server",
        )
    await asyncio.to_thread(
        services.store.write, lambda session: record(session, actor, "run.focus", run, wanted.model_dump())
    )
    return FocusOut(agents=told, steps=wanted.steps)


def _attempt_with(session: Session, run: str, names: list[str]) -> int:
    """The present attempt of the run; ``UnknownLayerError`` for a name that is no layer's nor a module's around one."""
    found = run_named(session, run)
    assert found.id is not None
    if names:
        known = [f"{layer.name}." for layer in run_layers(session, found.id).layers.values()]
        for name in names:
            if not any(layer.startswith(f"{name}.") for layer in known):
                raise UnknownLayerError(name)
    return found.attempt


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
    return await services.answer(
        lambda session: JSONText(dump_content(session, run_named(session, run), dump, kind=kind, rank=rank))
    )
