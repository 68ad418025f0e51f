"""Where an export reads: a server, or the folder of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

from sqlmodel import Session

from floatscope._client._results import HeatMap, Histogram, Series
from floatscope_server.database import Reader, database_of
from floatscope_server.jsontext import plain
from floatscope_server.models import Run
from floatscope_server.query.heatmap import HeatQuestion, heat_map
from floatscope_server.query.histogram import layer_histogram
from floatscope_server.query.layertable import LayerTables
from floatscope_server.query.line import run_named
from floatscope_server.query.series import scalar_series
from floatscope_server.query.show import show
from floatscope_server.query.window import TileReader
from floatscope_server.settings import Settings

__all__ = ["Source", "folder", "of_session"]

_T = TypeVar("_T")

_CACHE_BYTES = 32 << 20


class Source(Protocol):
    """What an export asks; ``floatscope.Client`` is one."""

    def run(self, name: str) -> dict[str, Any]: ...

    def scalars(
        self,
        run: str,
        names: Sequence[str] | None = None,
        *,
        first: int | None = None,
        last: int | None = None,
        points: int = ...,
    ) -> dict[str, Series]: ...

    def heatmap(
        self,
        run: str,
        *,
        kind: str = ...,
        metric: str = ...,
        first: int | None = None,
        last: int | None = None,
        columns: int = ...,
        layers: Sequence[str] | None = None,
    ) -> HeatMap: ...

    def histogram(
        self,
        run: str,
        layer: str,
        *,
        kind: str = ...,
        first: int | None = None,
        last: int | None = None,
        columns: int = ...,
    ) -> Histogram: ...


@contextmanager
def folder(settings: Settings) -> Iterator[Source]:
    """The store that ``settings`` name, beside a running server or without one; ``StoreError`` if there is none."""
    database = database_of(settings)
    reader = database.reader()
    try:
        reader.check()
        with database.understood():
            yield _Questions(_snapshots(reader), TileReader(_CACHE_BYTES))
    finally:
        reader.close()


def of_session(session: Session, reader: TileReader) -> Source:
    """What a server that runs answers in one ``session``, whose layers are attached."""
    return _Questions(lambda: nullcontext(session), reader)


def _snapshots(store: Reader) -> Callable[[], AbstractContextManager[Session]]:
    """Each question reads a snapshot of its own: one that is held for an hour would keep a server beside it from
    bringing its log into the database. The layers are those of the first question."""
    layers = LayerTables(lambda: 0, shared=False)

    @contextmanager
    def snapshot() -> Iterator[Session]:
        with store.session() as session:
            layers.attach(session, 0)
            yield session

    return snapshot


class _Questions:
    """Asks the store itself, each question in a session of ``sessions``."""

    def __init__(self, sessions: Callable[[], AbstractContextManager[Session]], reader: TileReader) -> None:
        self._sessions = sessions
        self._reader = reader

    def run(self, name: str) -> dict[str, Any]:
        found = plain(self._ask(name, lambda session, run: show(session, self._reader, run)))
        assert isinstance(found, dict)
        return found

    def scalars(
        self,
        run: str,
        names: Sequence[str] | None = None,
        *,
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
    ) -> dict[str, Series]:
        found = self._ask(
            run, lambda session, of: scalar_series(session, of, names=names, first=first, last=last, points=points)
        )
        return {each.name: Series.of(each.meta(), each.arrays()) for each in found}

    def heatmap(
        self,
        run: str,
        *,
        kind: str = "grad",
        metric: str = "headroom",
        first: int | None = None,
        last: int | None = None,
        columns: int = 600,
        layers: Sequence[str] | None = None,
    ) -> HeatMap:
        asked = HeatQuestion(
            kind=kind,
            metric=metric,
            first=first,
            last=last,
            columns=columns,
            names=None if layers is None else tuple(layers),
        )
        found = self._ask(run, lambda session, of: heat_map(session, self._reader, of, asked))
        return HeatMap.of(found.meta(), found.values)

    def histogram(
        self,
        run: str,
        layer: str,
        *,
        kind: str = "grad",
        first: int | None = None,
        last: int | None = None,
        columns: int = 600,
    ) -> Histogram:
        found = self._ask(
            run,
            lambda session, of: layer_histogram(
                session, of, layer=layer, kind=kind, first=first, last=last, columns=columns
            ),
        )
        return Histogram.of(found)

    def _ask(self, name: str, question: Callable[[Session, Run], _T]) -> _T:
        with self._sessions() as session:
            return question(session, run_named(session, name))
