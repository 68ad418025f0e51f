"""A server's runs as numpy arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy.typing as npt

from floatscope._address import DEFAULT_SERVER
from floatscope._client._block import MEDIA_TYPE, parse
from floatscope._client._errors import ClientError
from floatscope._client._results import HeatMap, Histogram, Latest, LayerSeries, Series
from floatscope._client._transport import HTTPTransport, Reply, Transport, error_of

if TYPE_CHECKING:
    from floatscope._client._figures import Figures

__all__ = ["Client"]


class Client:
    """Reads the runs of a floatscope server.

    ``server`` is its address, by default that in ``FLOATSCOPE_SERVER`` or else ``http://127.0.0.1:6160``; ``token`` a
    read token, by default that in ``FLOATSCOPE_TOKEN``. ``transport`` asks something else in a server's place. Every
    method raises ``ClientError`` if there is no answer within ``timeout_s`` seconds or the server refuses; steps
    ``first`` to ``last`` are inclusive, all of the run by default.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        transport: Transport | None = None,
    ) -> None:
        if transport is None:
            server = server or os.environ.get("FLOATSCOPE_SERVER") or DEFAULT_SERVER
            transport = HTTPTransport(server, token or os.environ.get("FLOATSCOPE_TOKEN") or None, timeout_s)
        self._transport = transport

    def runs(self, *, archived: bool = False) -> list[dict[str, Any]]:
        """All runs, newest first, as ``GET /api/v1/runs`` lists them; with ``archived`` also those that are."""
        found: list[dict[str, Any]] = self._json("/api/v1/runs", {"archived": "true" if archived else None})
        return found

    def run(self, name: str) -> dict[str, Any]:
        """One run as one object, as ``floatscope show NAME --json`` prints it."""
        found: dict[str, Any] = self._json(_path(name))
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
        """Scalars by name, all of them or ``names``, in at most ``points`` cells each."""
        query = {"names": _listed(names), "from": first, "to": last, "points": points}
        meta, arrays = self._block(_path(run, "scalars"), query)
        keys = ("steps", "values", "min", "max")
        return {
            of["name"]: Series.of(of, {key: arrays[f"{of['name']}/{key}"] for key in keys}) for of in meta["series"]
        }

    def heatmap(
        self,
        run: str,
        *,
        kind: str = "grad",
        metric: str = "headroom",
        format: str = "auto",  # noqa: A002 - the word of the HTTP API
        first: int | None = None,
        last: int | None = None,
        columns: int = 600,
        rows: int | None = None,
        layers: Sequence[str] | None = None,
    ) -> HeatMap:
        """Layers by at most ``columns`` columns of steps, each with the worst step in it.

        ``format`` "auto" measures each layer against the format that it meets. ``rows``: only the worst so many layers;
        ``layers``: only these.
        """
        query = {
            "kind": kind,
            "metric": metric,
            "format": format,
            "from": first,
            "to": last,
            "columns": columns,
            "rows": rows,
            "layers": _listed(layers),
        }
        meta, arrays = self._block(_path(run, "heatmap"), query)
        return HeatMap.of(meta, arrays["values"])

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
        """Exponent histograms of a layer: a row for each that was taken, or at most ``columns`` sums of them."""
        query = {"layer": layer, "kind": kind, "from": first, "to": last, "columns": columns}
        return Histogram.of(self._json(_path(run, "histogram"), query))

    def alerts(self, run: str) -> list[dict[str, Any]]:
        """The alerts of a run in the order in which they opened."""
        found: list[dict[str, Any]] = self._json(_path(run, "alerts"))
        return found

    def layer(
        self,
        run: str,
        layer: str,
        *,
        kind: str = "grad",
        metrics: Sequence[str] | None = None,
        format: str = "auto",  # noqa: A002 - the word of the HTTP API
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
    ) -> LayerSeries:
        """Metrics of a layer, all of them or ``metrics``, in at most ``points`` cells each."""
        query = {
            "layer": layer,
            "kind": kind,
            "metrics": _listed(metrics),
            "format": format,
            "from": first,
            "to": last,
            "points": points,
        }
        return LayerSeries.of(*self._block(_path(run, "series"), query))

    def latest(
        self,
        run: str,
        *,
        kind: str = "grad",
        metrics: Sequence[str] | None = None,
        format: str = "auto",  # noqa: A002 - the word of the HTTP API
    ) -> Latest:
        """The newest values of each layer in the present attempt."""
        query = {"kind": kind, "metrics": _listed(metrics), "format": format}
        return Latest.of(*self._block(_path(run, "latest"), query))

    def devices(self, run: str, *, seconds: float = 600.0) -> list[dict[str, Any]]:
        """Readings of the cards in the last ``seconds`` before the newest, newest last."""
        found: list[dict[str, Any]] = self._json(_path(run, "devices"), {"seconds": seconds})
        return found

    def figure(
        self,
        run: str,
        *,
        scalars: Sequence[str] | None = None,
        kind: str = "grad",
        metric: str = "headroom",
        format: str = "auto",  # noqa: A002 - the word of the HTTP API
        first: int | None = None,
        last: int | None = None,
        layers: Sequence[str] | None = None,
    ) -> Any:  # noqa: ANN401 - plotly has no types here
        """A plotly ``Figure``: ``figures.scalars`` of ``scalars``, or without them ``figures.heat_map`` of a metric.

        ``ModuleNotFoundError`` without plotly.
        """
        if scalars is not None:
            return self.figures.scalars(run, scalars, first=first, last=last)
        return self.figures.heat_map(
            run, kind=kind, metric=metric, format=format, first=first, last=last, layers=layers
        )

    @property
    def figures(self) -> Figures:
        """Plotly figures: ``scalars``, ``heat_map``, ``layer``, ``histogram``, ``compare``."""
        from floatscope._client._figures import Figures

        return Figures(self)

    def report(self, run: str, *, language: str = "en") -> bytes:
        """The report of a run: one HTML file (UTF-8) that needs nothing else; ``language`` "en" or "zh"."""
        return self._get(_path(run, "report"), {"language": language}, "text/html").body

    def _json(self, path: str, query: Mapping[str, object] | None = None) -> Any:  # noqa: ANN401 - JSON
        reply = self._get(path, query or {}, "application/json")
        try:
            return json.loads(reply.body)
        except ValueError as error:
            raise error_of(reply) from error

    def _block(self, path: str, query: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        reply = self._get(path, query, MEDIA_TYPE)
        try:
            return parse(reply.body)
        except ValueError as error:
            raise error_of(reply) from error

    def _get(self, path: str, query: Mapping[str, object], accept: str) -> Reply:
        asked = {name: value for name, value in query.items() if value is not None}
        reply = self._transport.get(path, asked, accept)
        if reply.status != 200:
            raise error_of(reply)
        return reply


def _path(run: str, what: str = "") -> str:
    return f"/api/v1/runs/{quote(run, safe='')}" + (f"/{what}" if what else "")


def _listed(names: Sequence[str] | None) -> str | None:
    if names is None:
        return None
    if isinstance(names, str):
        raise TypeError(f"give a list of names, such as [{names!r}]")
    if comma := next((name for name in names if "," in name), None):
        raise ClientError("invalid", f"the server cannot be asked for a name with a comma: {comma!r}", "leave it out")
    return ",".join(names)
