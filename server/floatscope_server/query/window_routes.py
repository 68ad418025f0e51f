"""Layers, the newest values, and several runs at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from sqlmodel import Session

from floatscope_server.blocks import MEDIA_TYPE, pack
from floatscope_server.models import Run
from floatscope_server.query.answers import Tagged, newest_tag, window_tag
from floatscope_server.query.compare import compared_heat_maps, compared_scalars, runs_named
from floatscope_server.query.heatmap import HeatQuestion
from floatscope_server.query.layers import Reading, latest_values, layer_series, tail_values
from floatscope_server.query.line import BadQueryError, run_named
from floatscope_server.query.ratio import others_of
from floatscope_server.query.routes import BLOCK, Accept, FromStep, Known, OfDump, OfRank, ToStep, dumped, split
from floatscope_server.responses import JSONText
from floatscope_server.services import Running
from floatscope_server.store.parts import MAX_STEP

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["runs"], default_response_class=JSONText)

Metrics = Annotated[str | None, Query(description="By commas; all without it.")]
Layers = Annotated[str | None, Query(description="Layer names or indices by commas.")]
Format = Annotated[str, Query(alias="format", description="auto: the one that each layer meets.")]
OneAttempt = Annotated[int | None, Query(ge=1, description="This one alone, with what was trained again.")]


def _response(accept: str, found: Reading) -> Response:
    if MEDIA_TYPE in accept:
        return Response(pack(found.meta, found.arrays), media_type=MEDIA_TYPE)
    return JSONText(found.content())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Of one layer."""

    kind: str
    metrics: tuple[str, ...] | None
    chosen: str
    attempt: int | None
    first: int | None
    last: int | None
    points: int
    dump: str | None
    rank: int | None


async def _asked(
    kind: str = "grad",
    metrics: Metrics = None,
    format_: Format = "auto",
    attempt: OneAttempt = None,
    first: FromStep = None,
    last: ToStep = None,
    points: Annotated[int, Query(ge=1, le=20_000)] = 1000,
    dump: OfDump = None,
    rank: OfRank = None,
) -> _Asked:
    # A coroutine: FastAPI calls a plain function in a thread, and there may be none free.
    return _Asked(
        kind=kind,
        metrics=split(metrics),
        chosen=format_,
        attempt=attempt,
        first=first,
        last=last,
        points=points,
        dump=dump,
        rank=rank,
    )


OfLayer = Annotated[_Asked, Depends(_asked)]


@router.get("/runs/{run}/series", responses=BLOCK)
async def series_by_name(
    run: str, layer: str, services: Running, asked: OfLayer, accept: Accept = "", known: Known = ""
) -> Response:
    """As the next one, for names that no path can hold, such as ``..`` or one with a line break."""
    return await series(run, layer, services, asked, accept, known)


@router.get("/runs/{run}/layers/{layer:path}/series", responses=BLOCK)
async def series(
    run: str, layer: str, services: Running, asked: OfLayer, accept: Accept = "", known: Known = ""
) -> Response:
    """Metrics of a layer over the steps; a cell of several steps has their mean, and the least and the largest."""
    key = ("series", run, layer, asked, MEDIA_TYPE in accept)

    def question(session: Session) -> Tagged:
        of = run_named(session, run)
        held = dumped(session, of, asked.dump, kind=asked.kind, rank=asked.rank)
        tag, settled = window_tag(
            session,
            of,
            store=services.store.epoch,
            question=(key, held and held.size),
            kind=asked.kind,
            also=others_of(*(asked.metrics or ())),
            attempt=asked.attempt,
            first=asked.first,
            last=asked.last,
        )

        def make() -> Response:
            found = layer_series(
                session,
                services.reader,
                of,
                layer=layer,
                kind=asked.kind,
                metrics=asked.metrics,
                chosen=asked.chosen,
                attempt=asked.attempt,
                first=asked.first,
                last=asked.last,
                points=asked.points,
                dump=held,
            )
            return _response(accept, found)

        return Tagged(tag=tag, settled=settled, make=make)

    return await services.shared(key, known, question)


@router.get("/runs/{run}/latest", responses=BLOCK)
async def latest(
    run: str,
    services: Running,
    kind: str = "grad",
    metrics: Metrics = None,
    format_: Format = "auto",
    layers: Layers = None,
    accept: Accept = "",
    known: Known = "",
) -> Response:
    """The newest values of each layer and of each scalar; a step of -1 is none."""
    asked = ("latest", run, kind, metrics, format_, layers, MEDIA_TYPE in accept)

    def question(session: Session) -> Tagged:
        of = run_named(session, run)
        streams = (f"layer/{kind}", "scalar")
        tag = newest_tag(session, [of], store=services.store.epoch, question=asked, streams=streams)

        def make() -> Response:
            found = latest_values(
                session,
                services.reader,
                of,
                kind=kind,
                metrics=split(metrics),
                chosen=format_,
                names=split(layers),
                tails=services.tails,
            )
            return _response(accept, found)

        return Tagged(tag=tag, settled=False, make=make)

    return await services.newest(run, asked, known, question)


@router.get("/runs/{run}/tail", responses=BLOCK)
async def tail(
    run: str,
    services: Running,
    kind: str = "grad",
    metric: str = "headroom",
    format_: Format = "auto",
    since: Annotated[int | None, Query(ge=-1, le=MAX_STEP, description="Steps after this one.")] = None,
    commit: Annotated[str | None, Query(description="What came after the answer that gave this.")] = None,
    most: Annotated[int, Query(ge=1, le=4000, description="Steps, the newest.")] = 600,
    layers: Layers = None,
    accept: Accept = "",
    known: Known = "",
) -> Response:
    """What is newest, step by step, of the present attempt: what came since a step or since an earlier answer."""
    asked = ("tail", run, kind, metric, format_, since, commit, most, layers, MEDIA_TYPE in accept)

    def question(session: Session) -> Tagged:
        of = run_named(session, run)
        tag = newest_tag(session, [of], store=services.store.epoch, question=asked, streams=(f"layer/{kind}",))

        def make() -> Response:
            found = tail_values(
                session,
                services.reader,
                of,
                kind=kind,
                metric=metric,
                chosen=format_,
                since=since,
                commit=commit,
                most=most,
                names=split(layers),
            )
            return _response(accept, found)

        return Tagged(tag=tag, settled=False, make=make)

    return await services.newest(run, asked, known, question)


@router.get("/compare", responses=BLOCK)
async def compare(
    services: Running,
    runs: Annotated[str | None, Query(description="Names by commas, at most 8.")] = None,
    run: Annotated[list[str] | None, Query(description="One name, once for each: names may hold commas.")] = None,
    what: Annotated[str, Query(description="heatmap or scalars.")] = "heatmap",
    kind: str = "grad",
    metric: str = "headroom",
    format_: Format = "auto",
    agg: Annotated[str, Query(description="worst, max, min or mean of the steps of a cell.")] = "worst",
    names: Annotated[str | None, Query(description="Scalars by commas; all without it.")] = None,
    layers: Layers = None,
    rows: Annotated[int | None, Query(ge=1, description="Only the worst so many layers of each.")] = None,
    first: FromStep = None,
    last: ToStep = None,
    columns: Annotated[int, Query(ge=1, le=4000, description="Or points of a scalar.")] = 600,
    accept: Accept = "",
    known: Known = "",
) -> Response:
    """Heat maps or scalars of several runs in cells of the same steps, in the order of ``runs``."""
    if what not in ("heatmap", "scalars"):
        raise BadQueryError(f"unknown what {what[:40]!r}; known are heatmap, scalars")
    asked = HeatQuestion(
        kind=kind,
        metric=metric,
        chosen=format_,
        agg=agg,
        first=first,
        last=last,
        columns=columns,
        rows=rows,
        names=split(layers),
    )

    wanted = (*(split(runs) or ()), *(run or ()))
    key = ("compare", wanted, what, asked, names, MEDIA_TYPE in accept)
    streams = (
        ("scalar",)
        if what == "scalars"
        else (*(f"layer/{each}" for each in (kind, *others_of(metric))), f"hist/{kind}")
    )

    def question(session: Session) -> Tagged:
        found = runs_named(session, wanted)
        tag = newest_tag(session, found, store=services.store.epoch, question=key, streams=streams)
        return Tagged(tag=tag, settled=False, make=lambda: answer(session, found))

    def answer(session: Session, found: list[Run]) -> Response:
        if what == "heatmap":
            maps = compared_heat_maps(session, services.reader, found, asked)
            metas = [{"run": run.name, **of.meta()} for run, of in zip(found, maps, strict=True)]
            arrays = {f"{place}/values": of.values for place, of in enumerate(maps)}
            if MEDIA_TYPE in accept:
                return Response(pack({"runs": metas}, arrays), media_type=MEDIA_TYPE)
            return JSONText([{**meta, "values": of.values} for meta, of in zip(metas, maps, strict=True)])
        compared = compared_scalars(
            session, found, names=split(names), first=first, last=last, points=columns, tails=services.tails
        )
        if MEDIA_TYPE in accept:
            series_of = [
                {"run": run.name, "series": [one.meta() for one in of]} for run, of in zip(found, compared, strict=True)
            ]
            numbers = {
                f"{place}/{one.name}/{key}": array
                for place, of in enumerate(compared)
                for one in of
                for key, array in one.arrays().items()
            }
            return Response(pack({"runs": series_of}, numbers), media_type=MEDIA_TYPE)
        return JSONText(
            [
                {"run": run.name, "series": [{**one.meta(), **one.arrays()} for one in of]}
                for run, of in zip(found, compared, strict=True)
            ]
        )

    return await services.shared(key, known, question)
