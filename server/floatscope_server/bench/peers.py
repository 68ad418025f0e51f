"""Other stores with the same data and the same questions, each the package itself, where it is installed.

They are asked at rest, without ingest beside, and hold fewer steps where they could not follow: both in their favour.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from floatscope import wire
from floatscope_server.bench.data import FIELDS, Synthetic, layer_name, samples
from floatscope_server.bench.measure import Plan

__all__ = ["measure_peers"]

_COLUMNS = 600
_SHORTEST = 300
_NAMES = tuple(name for name, _ in FIELDS)

Columns = dict[str, npt.NDArray[Any]]


class _Peer(Protocol):
    """A store in an empty folder. A row is one kind of one layer at one step, with all statistics."""

    title: str
    most_cells: int
    """Layers times steps that it is given at most."""

    def append(self, kind: str, columns: Columns) -> None:
        """Rows: step, layer and each statistic."""

    def commit(self) -> None:
        """What was appended is on disk."""

    def heat_map(self, kind: str, first: int, last: int, cell: int) -> int:
        """The largest absmax of each layer in each cell; returns how many cells there were."""

    def layer(self, kind: str, layer: int, first: int, last: int, cell: int) -> int:
        """The extremes of every statistic of a layer in each cell."""

    def close(self) -> None: ...


class _Rows:
    """Plain rows in SQLite by ``executemany``, as durable as ours."""

    title = f"rows in SQLite {sqlite3.sqlite_version}"
    most_cells = 2_400_000

    def __init__(self, folder: Path, data: Synthetic) -> None:
        self._connection = sqlite3.connect(folder / "rows.db")
        self._connection.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
            f"CREATE TABLE sample (kind TEXT, step INT, layer INT, {', '.join(_NAMES)},"
            " PRIMARY KEY (kind, step, layer)) WITHOUT ROWID;"
        )

    def append(self, kind: str, columns: Columns) -> None:
        rows = zip(*(columns[name].tolist() for name in ("step", "layer", *_NAMES)), strict=True)
        marks = ", ".join("?" * (3 + len(_NAMES)))
        self._connection.executemany(f"INSERT INTO sample VALUES ({marks})", ((kind, *row) for row in rows))  # noqa: S608

    def commit(self) -> None:
        self._connection.commit()

    def heat_map(self, kind: str, first: int, last: int, cell: int) -> int:
        return _asked(self._connection, _HEAT_MAP, (cell, kind, first, last))

    def layer(self, kind: str, layer: int, first: int, last: int, cell: int) -> int:
        return _asked(self._connection, _LAYER, (cell, kind, layer, first, last))

    def close(self) -> None:
        self._connection.close()


_HEAT_MAP = (
    "SELECT layer, step / ? AS cell, max(absmax) FROM sample WHERE kind = ? AND step BETWEEN ? AND ? GROUP BY 1, 2"
)
_EXTREMES = ", ".join(f"max({name}), min({name})" for name in _NAMES)
_LAYER = (
    f"SELECT step / ? AS cell, {_EXTREMES} FROM sample "  # noqa: S608 - our own names
    "WHERE kind = ? AND layer = ? AND step BETWEEN ? AND ? GROUP BY 1"
)


def _asked(connection: Any, statement: str, values: tuple[object, ...]) -> int:  # noqa: ANN401 - of either package
    return len(connection.execute(statement, values).fetchall())


class _DuckDB:
    most_cells = 60_000_000

    def __init__(self, folder: Path, data: Synthetic) -> None:
        duckdb = import_module("duckdb")
        self.title = f"DuckDB {version('duckdb')}"
        self._connection = duckdb.connect(str(folder / "rows.duckdb"), config={"threads": 2})
        types = ", ".join(f"{name} {'BIGINT' if dtype == '<i8' else 'FLOAT'}" for name, dtype in FIELDS)
        self._connection.execute(f"CREATE TABLE sample (kind VARCHAR, step INTEGER, layer SMALLINT, {types})")
        self._connection.execute("BEGIN")

    def append(self, kind: str, columns: Columns) -> None:
        self._connection.register("batch", columns)
        self._connection.execute(
            f"INSERT INTO sample SELECT ?, step, layer, {', '.join(_NAMES)} FROM batch",  # noqa: S608 - our own names
            [kind],
        )

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")

    def heat_map(self, kind: str, first: int, last: int, cell: int) -> int:
        return len(
            self._connection.execute(_HEAT_MAP.replace("/", "//"), [cell, kind, first, last]).fetchnumpy()["cell"]
        )

    def layer(self, kind: str, layer: int, first: int, last: int, cell: int) -> int:
        found = self._connection.execute(_LAYER.replace("/", "//"), [cell, kind, layer, first, last]).fetchnumpy()
        return len(found["cell"])

    def close(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.close()


class _Pulsegrad:
    """The store of pulsegrad: what its sessions write statistics with, and its table. It does not wait for the disk
    and drops steps that come too fast, so each batch is waited for."""

    most_cells = 60_000

    def __init__(self, folder: Path, data: Synthetic) -> None:
        schemas = import_module("pulsegrad_schemas")
        self._rows = import_module("pulsegrad._stats.rows")
        self._step = schemas.StepMeta
        self.title = f"pulsegrad {version('pulsegrad')}"
        self._sink = import_module("pulsegrad._store").make_sink("sqlite", "run", folder)
        self._sink.start(schemas.RunMeta(run_id="run", created_at=0, status="running"))
        self._reader = sqlite3.connect(folder / "db.sqlite")
        self._pending: dict[int, list[Any]] = {}

    def append(self, kind: str, columns: Columns) -> None:
        for step, layer, count, zeros, nans, infs, absmax, absmin, total, square in zip(
            *(columns[name].tolist() for name in ("step", "layer", *_NAMES)), strict=True
        ):
            values = {"n": count, "zeros": zeros, "nan_count": nans, "inf_count": infs, "max": absmax, "min": absmin}
            values |= {"sum": total, "sumsq": square}
            row = self._rows.FlatStatRow(step=step, module_id=layer_name(layer), kind=kind, values=values)
            self._pending.setdefault(step, []).append(row)

    def commit(self) -> None:
        for step, rows in self._pending.items():
            payload = self._rows.StatPayload(rows=[], flat=rows)
            self._sink.push_step(self._step(run_id="run", step=step, t_wall=float(step)), payload)
        newest = max(self._pending)
        self._pending = {}
        end = time.monotonic() + 60
        while self._reader.execute("SELECT max(step) FROM steps").fetchone()[0] != newest:
            if time.monotonic() > end:
                raise TimeoutError("pulsegrad has not written a batch within 60 s")
            time.sleep(0.001)

    def heat_map(self, kind: str, first: int, last: int, cell: int) -> int:
        statement = (
            "SELECT module_id, step / ?, max(max) FROM stats "
            "WHERE run_id = 'run' AND kind = ? AND step BETWEEN ? AND ? GROUP BY 1, 2"
        )
        return _asked(self._reader, statement, (cell, kind, first, last))

    def layer(self, kind: str, layer: int, first: int, last: int, cell: int) -> int:
        columns = ("n", "zeros", "nan_count", "inf_count", "max", "min", "sum", "sumsq")
        extremes = ", ".join(f"max({name}), min({name})" for name in columns)
        statement = (
            f"SELECT step / ?, {extremes} FROM stats "  # noqa: S608 - our own names
            "WHERE run_id = 'run' AND kind = ? AND module_id = ? AND step BETWEEN ? AND ? GROUP BY 1"
        )
        return _asked(self._reader, statement, (cell, kind, layer_name(layer), first, last))

    def close(self) -> None:
        self._reader.close()
        self._sink.close()


_PEERS: tuple[tuple[str, Callable[[Path, Synthetic], _Peer]], ...] = (
    ("rows in SQLite", _Rows),
    ("duckdb", _DuckDB),
    ("pulsegrad", _Pulsegrad),
)


def measure_peers(plan: Plan, say: Callable[[str], None], *, questions: int) -> list[dict[str, Any]]:
    """Each that is installed; of the others how to install them."""
    found: list[dict[str, Any]] = []
    for name, make in _PEERS:
        with tempfile.TemporaryDirectory(prefix="floatscope-bench-") as folder:
            try:
                found.append(_measure(plan, make, Path(folder), questions))
            except ModuleNotFoundError as error:
                missing = f"{error.name} is missing; type: pip install {error.name}"
                found.append({"name": name, "missing": missing})
        say(f"{name}: {found[-1].get('missing', 'measured')}")
    return found


def _measure(plan: Plan, make: Callable[[Path, Synthetic], _Peer], folder: Path, questions: int) -> dict[str, Any]:
    data = plan.data
    peer = make(folder, data)
    steps = max(plan.batch, min(plan.steps, peer.most_cells // (plan.layers * plan.kinds)))
    spent = cpu = 0.0
    for first in range(0, steps, plan.batch):
        batch = [(part.kind, _columns(part)) for part in data.body(first, min(plan.batch, steps - first)).summaries]
        begin, began = time.perf_counter(), time.process_time()
        for kind, columns in batch:
            peer.append(kind, columns)
        peer.commit()
        spent, cpu = spent + time.perf_counter() - begin, cpu + time.process_time() - began
    written = samples(steps=steps, layers=plan.layers, kinds=plan.kinds)
    results: dict[str, float] = {"ingest_samples_per_s": written / spent, "cpu_s_per_1e9_samples": 1e9 * cpu / written}
    rng = np.random.default_rng(2)
    asked: tuple[tuple[str, Callable[[int, int, int], int]], ...] = (
        ("heatmap", lambda *range_: peer.heat_map(data.kinds[rng.integers(plan.kinds)], *range_)),
        ("heatmap_whole", lambda *_: peer.heat_map(data.kinds[0], 0, steps - 1, _cell(steps))),
        ("layer", lambda *range_: peer.layer(data.kinds[0], int(rng.integers(plan.layers)), *range_)),
    )
    # A store whose answer takes a second is asked less often.
    for name, ask in asked if questions else ():
        took: list[float] = []
        end = time.perf_counter() + 20
        for first, last in _stretches(rng, steps, questions):
            begin = time.perf_counter()
            assert ask(first, last, _cell(last - first + 1)), "no cells"
            took.append(1e3 * (time.perf_counter() - begin))
            if time.perf_counter() > end:
                break
        results |= {f"{name}_p50_ms": float(np.median(took)), f"{name}_p99_ms": float(np.percentile(took, 99))}
    peer.close()
    results["bytes_per_sample"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / written
    return {"name": peer.title, "steps": steps, "results": results}


def _columns(part: wire.Summaries) -> Columns:
    layers = np.frombuffer(part.layers, "<u4").astype(np.int16)
    columns: Columns = {
        "step": np.repeat(np.arange(part.first_step, part.first_step + part.steps, dtype=np.int32), len(layers)),
        "layer": np.tile(layers, part.steps),
    }
    return columns | {field.name: np.frombuffer(field.data, field.dtype) for field in part.fields}


def _cell(steps: int) -> int:
    cell = 1
    while cell * _COLUMNS < steps:
        cell *= 2
    return cell


def _stretches(rng: np.random.Generator, steps: int, count: int) -> Iterator[tuple[int, int]]:
    for _ in range(count):
        span = int(np.exp(rng.uniform(np.log(min(_SHORTEST, steps)), np.log(steps))))
        first = int(rng.integers(0, steps - span + 1))
        yield first, first + span - 1
