"""``floatscope bench ingest`` and ``query``: small sizes, every figure there, and the data what it claims to be."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from floatscope import wire
from floatscope_server.bench.data import FIELDS, Synthetic, samples
from floatscope_server.bench.measure import Plan
from floatscope_server.bench.report import GOALS
from floatscope_server.commands import bench_ingest, bench_query
from floatscope_server.settings import Settings
from tests.needs import needs

PROMISED = (
    *("heatmap_p50_ms", "heatmap_p99_ms", "scalars_p99_ms", "layer_p99_ms", "latest_p99_ms", "tail_p99_ms"),
    *("ingest_samples_per_s", "bytes_per_sample", "reopen_s", "rss_mb"),
)
SMALL = ("--steps", "700", "--layers", "20", "--batch", "20")


def bench(command: ModuleType, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    status: int = command.run(parser.parse_args(arguments))
    return status


def fields(part: wire.Summaries) -> dict[str, Any]:
    return {each.name: np.frombuffer(each.data, each.dtype).reshape(part.steps, -1) for each in part.fields}


def test_the_data_are_the_same_for_a_seed_and_no_pass_repeats_another() -> None:
    one, other = Synthetic(layers=5, kinds=2), Synthetic(layers=5, kinds=2)
    assert wire.encode(one.body(1000, 50)) == wire.encode(other.body(1000, 50))
    assert wire.encode(Synthetic(layers=5, kinds=2, seed=1).body(0, 5)) != wire.encode(one.body(0, 5))
    window = one._window
    first, again = (fields(one.body(start, 4).summaries[0])["absmax"] for start in (0, window))
    assert not np.any(first == again)
    np.testing.assert_allclose(first, again, rtol=0.5)


def test_a_block_that_crosses_a_pass_is_what_its_halves_are() -> None:
    data = Synthetic(layers=3, kinds=1)
    start = data._window - 2
    whole = fields(data.body(start, 4).summaries[0])
    halves = [fields(data.body(start + at, 2).summaries[0]) for at in (0, 2)]
    for name, _ in FIELDS:
        np.testing.assert_array_equal(whole[name], np.concatenate([half[name] for half in halves]))


def test_magnitudes_scatter_as_described() -> None:
    data = Synthetic(layers=200, kinds=1)
    of = fields(data.body(0, data._window).summaries[0])
    octaves = np.log2(np.sqrt(of["sumsq"] / of["count"]))
    around = octaves - np.median(octaves, axis=0)
    assert 0.5 < np.median(around.std(axis=0)) < 0.65
    assert 0.85 < np.corrcoef(around[1:, 0], around[:-1, 0])[0, 1] < 0.95
    assert np.all(of["absmax"] >= of["absmin"])
    assert np.all((of["zeros"] >= 0) & (of["zeros"] < of["count"]))
    assert not of["infs"].any()


def test_every_rank_sends_numbers_of_its_own() -> None:
    data = Synthetic(layers=3, kinds=2, ranks=2)
    first, other = (fields(data.body(0, 4, rank).summaries[0])["absmax"] for rank in range(2))
    assert not np.any(first == other)
    assert [part.placement for part in data.body(0, 4, 1).summaries] == ["shard", "data"]
    hello = data.hello("run", "0" * 32, 1)
    assert (hello.identity.rank, hello.identity.world) == (1, 2)


@pytest.mark.parametrize("over", ["process", "websocket"])
def test_all_ranks_are_acknowledged(over: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(bench_ingest, "--steps", "40", "--layers", "10", "--ranks", "3", "--over", over, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["results"]["samples"] == samples(steps=40, layers=10, kinds=2, ranks=3) == 3 * 40 * 10 * 2 * 8


def test_a_query_bench_has_every_figure_and_says_what_misses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    assert bench(bench_query, *SMALL, "--questions", "5", "--json", "--data", str(folder)) == 0
    found = json.loads(capsys.readouterr().out)
    results = found["results"]
    assert all(results[name] > 0 for name in PROMISED)
    assert results["samples"] == samples(steps=700, layers=20, kinds=2)
    assert results["sealed_steps"] == 256
    assert (found["steps"], found["layers"], found["over"]) == (700, 20, "process")
    judged = [row for row in found["goals"] if row["goal"]]
    assert all(isinstance(row["met"], bool) for row in judged)
    assert {"heatmap_p99_ms", "layer_p99_ms", "reopen_s"} <= {row["figure"] for row in judged}
    # What is there already is nobody's to measure in.
    assert bench(bench_query, *SMALL, "--data", str(folder)) == 2
    assert "has a store already" in capsys.readouterr().err


def test_ingest_over_a_websocket_is_a_server_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(bench_ingest, "--steps", "40", "--layers", "10", "--over", "websocket", "--json") == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["ingest_samples_per_s"] > 0
    assert list(results["cpu_s_by_thread"]) == ["server"]


def test_people_get_a_table_with_the_goals(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(bench_ingest, "--steps", "40", "--layers", "10") == 0
    text = capsys.readouterr().out
    assert "40 steps x 10 layers x 2 kinds x 8 statistics" in text
    assert ">= 5.00e6" in text
    assert "goals met" in text


def test_growth_is_a_line_for_each_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(bench_query, "--layers", "5", "--growth", "20,1e2", "--questions", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["steps", "20", "100"]


def test_a_verdict_follows_the_size_and_the_engine() -> None:
    goal = next(goal for goal in GOALS if goal.figure == "heatmap_p99_ms")
    small = Plan(steps=1, layers=300, settings=Settings())
    assert goal.verdict(small, 25.0) == ("<= 25", True)
    assert goal.verdict(small, 25.1) == ("<= 25", False)
    assert goal.verdict(Plan(steps=1, layers=2000, settings=Settings()), 49.0) == ("<= 50", True)
    postgres = Plan(steps=1, layers=300, settings=Settings(db="postgresql://x/y"))
    assert goal.verdict(postgres, 49.0) == ("<= 50", True)


def test_a_step_that_fits_no_block_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(bench_ingest, "--steps", "10", "--layers", "20000") == 2
    assert "does not fit in one block" in capsys.readouterr().err


def test_peers_hold_the_same_data_and_answer_or_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    arguments = ("--steps", "40", "--layers", "10", "--questions", "2", "--peers", "--json")
    assert bench(bench_query, *arguments) == 0
    rows, duckdb, *_ = json.loads(capsys.readouterr().out)["peers"]
    assert rows["steps"] == 40
    assert {"heatmap_p50_ms", "layer_p99_ms", "bytes_per_sample", "ingest_samples_per_s"} <= set(rows["results"])
    assert duckdb == {"name": "duckdb", "missing": "duckdb is missing; type: pip install duckdb"}


def test_duckdb_answers_as_rows_do(tmp_path: Path) -> None:
    needs(find_spec("duckdb"), "duckdb")
    from floatscope_server.bench.peers import _columns, _DuckDB, _Rows

    data = Synthetic(layers=7, kinds=2)
    found = []
    for make in (_Rows, _DuckDB):
        peer = make(tmp_path, data)
        for part in data.body(0, 30).summaries:
            peer.append(part.kind, _columns(part))
        peer.commit()
        found.append((peer.heat_map("grad", 3, 28, 4), peer.layer("act", 2, 3, 28, 4)))
        peer.close()
    assert found == [(7 * 8, 8)] * 2
