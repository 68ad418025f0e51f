"""What pages and programs read."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from sqlmodel import Session

from floatscope_server.blocks import MEDIA_TYPE, pack
from floatscope_server.models import Run
from floatscope_server.query.answers import Tagged, newest_tag, window_tag
from floatscope_server.query.devices import device_samples, device_series
from floatscope_server.query.dump_window import DumpWindow, dump_window
from floatscope_server.query.fields import METRICS
from floatscope_server.query.heatmap import HeatQuestion, heat_map
from floatscope_server.query.histogram import layer_histogram
from floatscope_server.query.line import BadQueryError, run_named
from floatscope_server.query.ratio import healthy, others_of
from floatscope_server.query.runs import run_list
from floatscope_server.query.series import scalar_series
from floatscope_server.query.show import show
from floatscope_server.query.summaries import step_summaries
from floatscope_server.responses import JSONText
from floatscope_server.services import Running
from floatscope_server.store.parts import MAX_RANK, MAX_STEP

__all__ = ["BLOCK", "Accept", "FromStep", "Known", "OfDump", "OfRank", "ToStep", "dumped", "router", "split"]

router = APIRouter(prefix="/api/v1", tags=["runs"], default_response_class=JSONText)

FromStep = Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP, description="First step.")]
ToStep = Annotated[int | None, Query(alias="to", ge=0, le=MAX_STEP, description="Last step, inclusive.")]
Columns = Annotated[int, Query(ge=1, le=4000, description="At most.")]
OfDump = Annotated[str | None, Query(alias="dump", description="What this flight recorder dump held instead.")]
OfRank = Annotated[int | None, Query(alias="rank", ge=0, lt=MAX_RANK, description="Of a dump: this rank only.")]
Accept = Annotated[str, Header(description=f"{MEDIA_TYPE} for typed arrays, else JSON.")]
Known = Annotated[str, Header(alias="if-none-match", description="ETags of answers that the caller has.")]

BLOCK: dict[int | str, dict[str, Any]] = {200: {"content": {MEDIA_TYPE: {}, "application/json": {}}}}


def dumped(
    session: Session, run: Run, name: str | None, *, kind: str, rank: int | None, histograms: bool = False
) -> DumpWindow | None:
    """The dump that was asked for, if any."""
    if name is None:
        if rank is not None:
            raise BadQueryError("`rank` goes with `dump`: ranks are stored as one")
        return None
    return dump_window(session, run, name, kind=kind, rank=rank, histograms=histograms)


def split(text: str | None) -> tuple[str, ...] | None:
    """The items of a list by commas."""
    return None if text is None else tuple(item for item in text.split(",") if item)


@router.get("/runs")
async def runs(
    services: Running, archived: Annotated[bool, Query(description="Those that were archived too.")] = False
) -> Response:
    """All runs that are not archived, newest first."""
    return await services.answer(lambda session: JSONText(run_list(session, archived=archived)))


@router.get("/runs/{run}")
async def one_run(run: str, services: Running) -> Response:
    """One run as one object; steps are counted from 0 and ``steps`` is their number."""
    return await services.answer(lambda session: JSONText(show(session, services.reader, run_named(session, run))))


@router.get("/runs/{run}/scalars", responses=BLOCK)
async def scalars(
    run: str,
    services: Running,
    names: Annotated[str | None, Query(description="By commas; all without it.")] = None,
    first: FromStep = None,
    last: ToStep = None,
    points: Annotated[int, Query(ge=1, le=20_000)] = 1000,
    accept: Accept = "",
    known: Known = "",
) -> Response:
    """Series of the canonical line with their envelope; a cell of more than one step shows mean, min and max."""
    asked = ("scalars", run, names, first, last, points, MEDIA_TYPE in accept)

    def question(session: Session) -> Tagged:
        of = run_named(session, run)
        tag = newest_tag(session, [of], store=services.store.epoch, question=asked, streams=("scalar",))

        def make() -> Response:
            found = scalar_series(
                session, of, names=split(names), first=first, last=last, points=points, tails=services.tails
            )
            if MEDIA_TYPE in accept:
                arrays = {f"{series.name}/{key}": array for series in found for key, array in series.arrays().items()}
                return Response(pack({"series": [series.meta() for series in found]}, arrays), media_type=MEDIA_TYPE)
            return JSONText([{**series.meta(), **series.arrays()} for series in found])

        return Tagged(tag=tag, settled=False, make=make)

    return await services.shared(asked, known, question)


@router.get("/runs/{run}/heatmap", responses=BLOCK)
async def heatmap(
    run: str,
    services: Running,
    kind: str = "grad",
    metric: str = "headroom",
    format_: Annotated[str, Query(alias="format", description="auto: the one that each layer meets.")] = "auto",
    first: FromStep = None,
    last: ToStep = None,
    columns: Columns = 600,
    rows: Annotated[int | None, Query(ge=1, description="Only the worst so many layers.")] = None,
    layers: Annotated[str | None, Query(description="Layer names or indices by commas.")] = None,
    agg: Annotated[str, Query(description="worst, max, min or mean of the steps of a cell.")] = "worst",
    attempt: Annotated[
        int | None, Query(ge=1, description="This one alone, with steps that were trained again.")
    ] = None,
    dump: OfDump = None,
    rank: OfRank = None,
    accept: Accept = "",
    known: Known = "",
) -> Response:
    """Layers in execution order by columns of steps; each cell is the worst step in it, over all ranks."""
    asked = HeatQuestion(
        kind=kind,
        metric=metric,
        chosen=format_,
        agg=agg,
        attempt=attempt,
        first=first,
        last=last,
        columns=columns,
        rows=rows,
        names=split(layers),
    )

    also = others_of(metric)
    key = ("heatmap", run, asked, dump, rank, MEDIA_TYPE in accept)

    def question(session: Session) -> Tagged:
        of = run_named(session, run)
        held = dumped(session, of, dump, kind=kind, rank=rank)
        tag, settled = window_tag(
            session,
            of,
            store=services.store.epoch,
            question=(key, held and held.size, healthy(session, of.id or 0) if also else None),
            kind=kind,
            also=also,
            attempt=attempt,
            first=first,
            last=last,
            histograms=METRICS[metric].executed and format_ != "auto",
        )

        def make() -> Response:
            found = heat_map(session, services.reader, of, asked, dump=held)
            if MEDIA_TYPE in accept:
                return Response(pack(found.meta(), {"values": found.values}), media_type=MEDIA_TYPE)
            return JSONText(found.content())

        return Tagged(tag=tag, settled=settled, make=make)

    return await services.shared(key, known, question)


@router.get("/runs/{run}/summaries")
async def summaries(
    run: str,
    services: Running,
    step: Annotated[int, Query(ge=0, le=MAX_STEP)],
    kind: str = "grad",
    layers: Annotated[str | None, Query(description="Layer names by commas.")] = None,
) -> Response:
    """The statistics of one step: ``merged`` over the ranks where that can be, else by rank."""
    return await services.answer(
        lambda session: JSONText(
            step_summaries(session, services.reader, run_named(session, run), kind=kind, step=step, names=split(layers))
        )
    )


@router.get("/runs/{run}/histogram")
async def histogram_by_name(
    run: str,
    layer: str,
    services: Running,
    kind: str = "grad",
    first: FromStep = None,
    last: ToStep = None,
    columns: Columns = 600,
    dump: OfDump = None,
    rank: OfRank = None,
) -> Response:
    """As the next one, for names that no path can hold, such as ``..`` or one with a line break."""
    return await histogram(run, layer, services, kind, first, last, columns, dump, rank)


@router.get("/runs/{run}/layers/{layer:path}/histogram")
async def histogram(
    run: str,
    layer: str,
    services: Running,
    kind: str = "grad",
    first: FromStep = None,
    last: ToStep = None,
    columns: Columns = 600,
    dump: OfDump = None,
    rank: OfRank = None,
) -> Response:
    """Exponent histograms of a layer, one column for each that was taken or, where these are more, sums of them."""

    def question(session: Session) -> Response:
        of = run_named(session, run)
        held = dumped(session, of, dump, kind=kind, rank=rank, histograms=True)
        return JSONText(
            layer_histogram(
                session,
                of,
                layer=layer,
                kind=kind,
                first=first,
                last=last,
                columns=columns,
                dump=held,
                tails=services.reader.histograms,
            )
        )

    return await services.answer(question)


@router.get("/runs/{run}/devices")
async def devices(
    run: str,
    services: Running,
    seconds: Annotated[float, Query(gt=0, le=1e9)] = 600.0,
    first: Annotated[float | None, Query(alias="from", ge=0, le=1e12, description="Seconds since 1970.")] = None,
    last: Annotated[float | None, Query(alias="to", ge=0, le=1e12, description="Seconds since 1970.")] = None,
    points: Annotated[int | None, Query(ge=1, le=20_000, description="Cells of a figure.")] = None,
    figures: Annotated[str | None, Query(description="Of the series, by commas; all without it.")] = None,
    rank: Annotated[int | None, Query(ge=0, lt=MAX_RANK, description="Of the series: this rank's only.")] = None,
) -> Response:
    """Device samples of the last ``seconds`` before the newest, newest last.

    With ``from``, ``to`` or ``points`` instead: figures of the cards as series with their envelope.
    """

    def question(session: Session) -> Response:
        found = run_named(session, run)
        if first is None and last is None and points is None:
            return JSONText(device_samples(session, found, seconds=seconds))
        series = device_series(
            session, found, first=first, last=last, points=points or 1000, figures=split(figures), rank=rank
        )
        return JSONText(series)

    return await services.answer(question)
