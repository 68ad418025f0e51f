"""What the pages of scalers and devices read beside series and alerts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from floatscope_server.query.line import run_named
from floatscope_server.query.operands import operand_history, scaled_operands
from floatscope_server.query.routes import FromStep, ToStep
from floatscope_server.query.scaler import scaler_state
from floatscope_server.query.steptimes import step_times
from floatscope_server.responses import JSONText
from floatscope_server.services import Running

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["runs"], default_response_class=JSONText)

Points = Annotated[int, Query(ge=1, le=20_000, description="At most.")]


@router.get("/runs/{run}/scaler")
async def scaler(
    run: str,
    services: Running,
    first: FromStep = None,
    last: ToStep = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Skipped steps.")] = 500,
) -> Response:
    """The loss scaler at the newest step, and the steps that it skipped, newest first."""
    return await services.answer(
        lambda session: JSONText(
            scaler_state(session, services.reader, run_named(session, run), first=first, last=last, limit=limit)
        )
    )


@router.get("/runs/{run}/operands")
async def operands(run: str, services: Running) -> Response:
    """Operands that are cast under a scale of their own, each with its newest scale and amax."""
    return await services.answer(
        lambda session: JSONText(scaled_operands(session, services.reader, run_named(session, run)))
    )


@router.get("/runs/{run}/operand")
async def operand(
    run: str,
    layer: str,
    services: Running,
    kind: str = "act_in",
    first: FromStep = None,
    last: ToStep = None,
    points: Points = 800,
) -> Response:
    """One of them over the steps."""
    return await services.answer(
        lambda session: JSONText(
            operand_history(
                session,
                services.reader,
                run_named(session, run),
                layer=layer,
                kind=kind,
                first=first,
                last=last,
                points=points,
            ).content()
        )
    )


@router.get("/runs/{run}/step_times")
async def times_of_steps(run: str, services: Running, points: Points = 400) -> Response:
    """When steps ended, by the clock of the machine whose cards were read."""
    return await services.answer(lambda session: JSONText(step_times(session, run_named(session, run), points=points)))
