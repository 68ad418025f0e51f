"""The result of ``floatscope bench agent`` as Markdown: ``python -m floatscope._bench.table FILE.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["markdown"]

_COLUMNS = ("recorder", "added ms [quartiles]", "of a step", "x limit", "of")
_EAGER = ("host µs", "µs a hook", "waits", "peak GiB")
_COMPILED = ("graph breaks", "compilations", "compile s")


def markdown(report: dict[str, Any]) -> str:
    """A table for each model; "-" where a figure has no meaning."""
    machine = report["machine"]
    where = [f"{machine['gpu']} ({machine['multiprocessors']} multiprocessors)"] if machine["gpu"] else []
    where.append(f"{machine['cpu']}, {machine['cores']} cores, torch with {machine['threads']} thread(s)")
    where += [f"{name} {machine[name]}" for name in ("python", "torch", "triton", "floatscope") if machine[name]]
    lines = ["; ".join(where) + f". Copy bandwidth {report['copy_bytes_per_s'] / 1e12:.3f} TB/s."]
    for result in report["results"]:
        lines += ["", *_model(result)]
    return "\n".join(lines) + "\n"


def _model(result: dict[str, Any]) -> list[str]:
    compiled = result["compile"]
    measured = [row for row in result["recorders"] if row["status"] == "measured"]
    title = f"**{result['model']}**: {result['about']}"
    title += f", {result['parameters'] / 1e6:.1f} M parameters in {result['tensors']} tensors"
    title += f", compiled ({compiled})" if compiled else ""
    title += f"; a step takes {measured[0]['base_ms']:.2f} ms" if measured else ""
    columns = (*_COLUMNS, *(_COMPILED if compiled else _EAGER))
    lines = [title, "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_cells(row, compiled is not None))} |" for row in measured]
    left_out = [row for row in result["recorders"] if row["status"] != "measured"]
    if left_out:
        lines.append("")
    lines += [f"- {row['about']}: {row['status']} ({row.get('install') or row.get('error')})" for row in left_out]
    return lines


def _cells(row: dict[str, Any], compiled: bool) -> list[str]:
    low, high = row["added_ms_quartiles"]
    name = row["about"] if row["version"] is None else f"{row['about']} ({row['version']})"
    cells = [
        name,
        f"{row['added_ms']:.3f} [{low:.3f}, {high:.3f}]",
        f"{row['percent']:.2f} %",
        _number(row["x_limit"], 2),
        f"{row['pairs']} {row['form']}",
    ]
    if compiled:
        return [*cells, str(row["graph_breaks_added"]), str(row["compilations_added"]), f"{row['compile_s']:.1f}"]
    figures = ((row["host_us"], 0), (row["forward_hook_us"], 1), (row["syncs_per_step"], 1), (row["peak_gib"], 2))
    return [*cells, *(_number(value, digits) for value, digits in figures)]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.stdout.write(markdown(json.loads(Path(sys.argv[1]).read_text())))
