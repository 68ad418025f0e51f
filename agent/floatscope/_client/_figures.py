"""Figures of what the client answers, as plotly's."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from floatscope._client._results import HeatMap, Histogram, LayerSeries, Series
from floatscope._figures.lines import compare_figure, layer_figure, scalar_figure
from floatscope._figures.maps import Limit, heat_map_figure, histogram_figure
from floatscope._figures.marks import Spec

__all__ = ["Figures"]

_SHOWN = ("headroom", "absmax", "rms", "underflow")
"""Metrics of a layer without a choice."""


class _Questions(Protocol):
    def run(self, name: str) -> dict[str, Any]: ...
    def scalars(
        self, run: str, names: Sequence[str] | None = None, *, first: int | None = None, last: int | None = None
    ) -> dict[str, Series]: ...
    def alerts(self, run: str) -> list[dict[str, Any]]: ...
    def heatmap(
        self,
        run: str,
        *,
        kind: str = ...,
        metric: str = ...,
        format: str = ...,  # noqa: A002 - the word of the HTTP API
        first: int | None = None,
        last: int | None = None,
        layers: Sequence[str] | None = None,
    ) -> HeatMap: ...
    def layer(
        self,
        run: str,
        layer: str,
        *,
        kind: str = ...,
        metrics: Sequence[str] | None = None,
        format: str = ...,  # noqa: A002 - the word of the HTTP API
        first: int | None = None,
        last: int | None = None,
    ) -> LayerSeries: ...
    def histogram(
        self, run: str, layer: str, *, kind: str = ..., first: int | None = None, last: int | None = None
    ) -> Histogram: ...


class Figures:
    """Plotly ``Figure`` objects of a server's runs, for notebooks: ``client.figures``.

    Steps ``first`` to ``last`` are inclusive, all of the run by default. Each method raises what the questions of the
    client raise, and ``ModuleNotFoundError`` without plotly.
    """

    def __init__(self, client: _Questions) -> None:
        self._client = client

    def scalars(
        self,
        run: str,
        names: Sequence[str] = ("loss", "grad_norm", "loss_scale", "lr"),
        *,
        first: int | None = None,
        last: int | None = None,
    ) -> Any:  # noqa: ANN401 - plotly has no types here
        """A chart for each scalar with its envelope, the alerts about it and the steps that the scaler skipped."""
        plotly = _plotly()
        found = self._client.scalars(run, names, first=first, last=last)
        shown = {name: found[name] for name in names if name in found}
        skipped = [one["step"] for one in self._client.run(run)["skipped_steps"]]
        return _made(
            plotly, scalar_figure(run, shown, alerts=_between(self._client.alerts(run), first, last), skipped=skipped)
        )

    def heat_map(
        self,
        run: str,
        *,
        kind: str = "grad",
        metric: str = "headroom",
        format: str = "auto",  # noqa: A002 - the word of the HTTP API
        first: int | None = None,
        last: int | None = None,
        layers: Sequence[str] | None = None,
    ) -> Any:  # noqa: ANN401 - plotly has no types here
        """A metric of all layers, or of ``layers``, over the steps; headroom with its limit as a line in the scale."""
        plotly = _plotly()
        found = self._client.heatmap(
            run, kind=kind, metric=metric, format=format, first=first, last=last, layers=layers
        )
        return _made(
            plotly,
            heat_map_figure(
                f"{run}: {found.metric} of {found.kind}",
                metric=found.metric,
                unit=found.unit,
                steps=found.steps,
                layers=found.layers,
                values=found.values,
                missing=found.missing,
            ),
        )

    def layer(
        self,
        run: str,
        layer: str,
        *,
        kind: str = "grad",
        metrics: Sequence[str] = _SHOWN,
        format: str = "auto",  # noqa: A002 - the word of the HTTP API
        first: int | None = None,
        last: int | None = None,
    ) -> Any:  # noqa: ANN401 - plotly has no types here
        """A chart for each metric of a layer, with the layer's alerts."""
        plotly = _plotly()
        found = self._client.layer(run, layer, kind=kind, metrics=metrics, format=format, first=first, last=last)
        about = [alert for alert in self._client.alerts(run) if alert["layer"] == layer]
        title = f"{run}: {layer}, {kind}"
        return _made(plotly, layer_figure(title, found.metrics, units=found.units, alerts=_between(about, first, last)))

    def histogram(
        self,
        run: str,
        layer: str,
        *,
        kind: str = "grad",
        format: str = "auto",  # noqa: A002 - the word of the HTTP API
        first: int | None = None,
        last: int | None = None,
    ) -> Any:  # noqa: ANN401 - plotly has no types here
        """Magnitudes of a layer over the steps under the range of a format, at the scale that was active."""
        plotly = _plotly()
        found = self._client.histogram(run, layer, kind=kind, first=first, last=last)
        series = self._client.layer(
            run, layer, kind=kind, metrics=("headroom", "absmax"), format=format, first=first, last=last
        )
        return _made(
            plotly,
            histogram_figure(
                f"{run}: magnitudes of {layer}, {kind}",
                first_steps=found.first_steps,
                steps=found.steps,
                edges=found.edges,
                counts=found.counts,
                format_name=series.formats["headroom"],
                limit=Limit.of(series.metrics["headroom"], series.metrics["absmax"]),
            ),
        )

    def compare(
        self,
        runs: Sequence[str],
        names: Sequence[str] = ("loss", "grad_norm"),
        *,
        first: int | None = None,
        last: int | None = None,
    ) -> Any:  # noqa: ANN401 - plotly has no types here
        """A chart for each scalar with a line for each of ``runs``."""
        plotly = _plotly()
        found: dict[str, dict[str, Series]] = {}
        for run in runs:
            lines = self._client.scalars(run, names, first=first, last=last)
            found[run] = {name: lines[name] for name in names if name in lines}
        return _made(plotly, compare_figure(", ".join(runs), found))


def _between(alerts: list[dict[str, Any]], first: int | None, last: int | None) -> list[dict[str, Any]]:
    return [
        alert
        for alert in alerts
        if (first is None or alert["first_step"] >= first) and (last is None or alert["first_step"] <= last)
    ]


def _made(plotly: Any, spec: Spec) -> Any:  # noqa: ANN401 - plotly has no types here
    return plotly.Figure(spec)


def _plotly() -> Any:  # noqa: ANN401 - plotly has no types here
    try:
        return import_module("plotly.graph_objects")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'figures need plotly; type: pip install "floatscope[notebook]"', name="plotly"
        ) from error
