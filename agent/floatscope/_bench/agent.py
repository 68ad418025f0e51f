"""``floatscope bench agent``: every recorder of a plan on every model of it, as one object."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median, quantiles
from typing import Any

import torch

import floatscope
from floatscope._bench.catalogue import MODELS, RECORDERS, Plan
from floatscope._bench.compiled import MODES, Compilation, compile_now, compiled_in_turns, forget
from floatscope._bench.host import HostCost, host_cost
from floatscope._bench.machine import describe, version_of
from floatscope._bench.method import Series, measure, run_steps
from floatscope._bench.peers import PEERS
from floatscope._bench.recorders import OURS, Recorder
from floatscope._bench.traffic import copy_bandwidth, count_bytes
from floatscope._bench.training import Training

__all__ = ["run"]

_SETTLE = 3
"""Steps after which the optimizer has its state and the allocator its blocks."""
_SLOW_MS = 5e3
"""A recorder that adds more to a step is not run again for the host's figures."""

Row = dict[str, Any]


def run(plan: Plan, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure ``plan``; ``report`` is told what is done. On a CPU torch has one thread meanwhile."""
    began = time.perf_counter()
    device = torch.device(plan.device)
    with _one_thread(device), _quiet():
        bandwidth = copy_bandwidth(device)
        report(f"copy bandwidth {bandwidth / 1e12:.3f} TB/s")
        modes = MODES[plan.device] if plan.compiled else ("",)
        results = [_Bench(plan, model, mode, bandwidth, report).run() for model in plan.models for mode in modes]
        return {
            "bench": "agent",
            "machine": describe(device),
            "copy_bytes_per_s": bandwidth,
            "seconds": time.perf_counter() - began,
            "results": results,
        }


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _quiet() -> Iterator[None]:
    """The agent warns of a server that cannot be reached, as it should, each time it is attached."""
    logger = logging.getLogger("floatscope")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Bench:
    """One model, eager (``mode`` "") or compiled in ``mode``."""

    def __init__(self, plan: Plan, model: str, mode: str, bandwidth: float, report: Callable[[str], None]) -> None:
        self._plan, self._model, self._mode = plan, model, mode
        self._bandwidth, self._report = bandwidth, report
        self._device = torch.device(plan.device)

    def run(self) -> dict[str, Any]:
        training = Training(self._model, self._device)
        run_steps(training, Recorder(1), _SETTLE)
        self._bytes = count_bytes(training)
        parameters = [parameter.numel() for parameter in training.model.parameters()]
        if self._mode:
            del training
            rows = self._compiled_rows()
        else:
            rows = [self._row(name, partial(self._eager, training, name)) for name in self._plan.recorders]
            del training
        self._free()
        return {
            "model": self._model,
            "about": MODELS[self._model].about,
            "compile": self._mode or None,
            "parameters": sum(parameters),
            "tensors": len(parameters),
            "bytes": self._bytes,
            "recorders": rows,
        }

    def _row(self, name: str, figures: Callable[[], Row]) -> Row:
        spec = RECORDERS[name]
        row: Row = {"name": name, "about": spec.about, "version": _version(spec.package)}
        if missing := spec.missing():
            return {**row, "status": "not installed", "install": f"pip install {missing}"}
        try:
            row |= {"status": "measured", **figures()}
        except Exception as error:  # noqa: BLE001 (a peer may raise anything, and the others are still of interest)
            row |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        self._report(f"{self._where()}: {spec.about}: {_said(row)}")
        return row

    def _where(self) -> str:
        return f"{self._model}, compiled ({self._mode})" if self._mode else self._model

    def _eager(self, training: Training, name: str) -> Row:
        make, spec = _maker(name), RECORDERS[name]
        series = measure(training, make, spec, self._plan.pairs)
        host = None
        if name != "nobody" and spec.period == 1 and median(series.added) < _SLOW_MS:
            recorder = make(1)
            try:
                host = host_cost(training, recorder)
            finally:
                recorder.close()
        self._free()
        return {**self._figures(name, series), **_host_figures(host)}

    def _compiled_rows(self) -> list[Row]:
        make = partial(Training, self._model, self._device, self._mode)
        base = make()
        without = compile_now(base, Recorder(1))
        rows = [self._row(name, partial(self._compiled, make, base, without, name)) for name in self._plan.recorders]
        del base
        forget()
        return rows

    def _compiled(self, make: Callable[[], Training], base: Training, without: Compilation, name: str) -> Row:
        recorder, watched = _maker(name)(1), make()
        begin = time.perf_counter()
        recorder.attach(watched)
        try:
            compilation = compile_now(watched, recorder)
            series = compiled_in_turns(base, watched, recorder, self._plan.pairs, RECORDERS[name].seconds)
            later = Compilation.since(begin)
        finally:
            recorder.detach()
            recorder.close()
        del watched
        self._free()
        return {
            **self._figures(name, series),
            "graph_breaks_added": later.graph_breaks - without.graph_breaks,
            "compilations_added": later.compilations - without.compilations,
            "compile_s": compilation.seconds,
        }

    def _figures(self, name: str, series: Series) -> Row:
        base, added = median(series.base), median(series.added)
        # "inclusive" keeps the quartiles of a few values among them.
        low, _, high = quantiles(series.added, n=4, method="inclusive") if len(series.added) > 1 else [added] * 3
        spec = RECORDERS[name]
        reads = spec.reads_compiled if self._mode and spec.reads_compiled else spec.reads
        limit = 1e3 * sum(self._bytes.get(group, 0) for group in reads) / self._bandwidth if reads else None
        return {
            "form": series.form,
            "base_ms": base,
            "added_ms": added,
            "added_ms_quartiles": [low, high],
            "percent": 100 * added / base,
            "limit_ms": limit,
            "x_limit": None if limit is None else added / limit,
            "pairs": len(series.added),
            "steps": series.steps,
            "peak_gib": None if series.peak_bytes is None else series.peak_bytes / (1 << 30),
        }

    def _free(self) -> None:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _version(package: str) -> str | None:
    # The sources may be in use without being installed.
    return floatscope.__version__ if package == "floatscope" else version_of(package) if package else None


def _said(row: Row) -> str:
    if row["status"] != "measured":
        return f"{row['status']}: {row['error']}"
    low, high = row["added_ms_quartiles"]
    return f"{row['added_ms']:.3f} ms [{low:.3f}, {high:.3f}], {row['percent']:.2f} % of {row['base_ms']:.2f} ms"


def _maker(name: str) -> Callable[[int], Recorder]:
    return OURS[name] if name in OURS else PEERS[name]


def _host_figures(host: HostCost | None) -> Row:
    return {
        "host_us": None if host is None else host.step_us,
        "forward_hook_us": None if host is None else host.forward_hook_us,
        "syncs_per_step": None if host is None else host.syncs,
    }
