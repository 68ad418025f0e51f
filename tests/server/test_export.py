"""``floatscope export``, read back by the readers that people have."""

from __future__ import annotations

import argparse
import csv
import errno
import math
import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from floatscope import Client, wire
from floatscope_server.commands import export
from floatscope_server.export import rows
from tests.needs import needs
from tests.server.bodies import histogram

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakeAgent, Running

sqlite = pytest.mark.engines("sqlite")

ABSMAX = np.array([[1.0, 0.1], [4.0, 8.0], [16.0, 3e38], [2.0**-149, np.inf]], np.float32)
COUNT = np.array([[100, 100], [100, 0], [100, 100], [100, 100]])
LOSS = [2.0, math.nan, math.inf, 0.1]


@pytest.fixture
def run(agent: MakeAgent, make: Make) -> None:
    """Four steps of two layers, of which b was not observed in step 1; the last two of a second attempt."""
    layers = [make.layer(0, "a", ("grad", "fp16")), make.layer(1, "b, with a comma", ("grad", "fp16"))]
    for first in (0, 2):
        one = agent(layers=layers)
        stretch = slice(first, 4)
        one.deliver(
            wire.Body(
                first_step=first,
                steps=4 - first,
                summaries=(
                    make.summaries("grad", first, ABSMAX[stretch], count=COUNT[stretch]),
                    make.summaries("act", first, ABSMAX[stretch]),
                ),
                scalars=(make.scalars("loss", first, LOSS[stretch]),),
                histograms=(histogram(first, 254, [3, 5]),),
            )
        )


Exported = Callable[..., int]


@pytest.fixture
def exported(server: Running, run: None, monkeypatch: pytest.MonkeyPatch) -> Exported:
    """Runs the command on the store of a running server; with ``asked=True`` it asks the server."""
    settings = server.services.settings
    store: tuple[str, ...] = ("--data", str(settings.data))
    if settings.db is not None:
        store = ()
        monkeypatch.setenv("FLOATSCOPE_DB", settings.db)

    def command(*arguments: str, name: str = "run", asked: bool = False) -> int:
        parser = argparse.ArgumentParser()
        export.configure(parser)
        return export.run(parser.parse_args([name, *(("--server", server.url) if asked else store), *arguments]))

    return command


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_has_what_was_sent(exported: Exported, tmp_path: Path) -> None:
    target = tmp_path / "run.csv"
    assert exported("--to", str(target)) == 0
    found = _read(target)
    grad = [row for row in found if row["kind"] == "grad"]
    keys = [(row["step"], row["attempt"], row["layer"]) for row in grad]
    a, b = "a", "b, with a comma"
    assert keys == [
        *(("0", "1", a), ("0", "1", b), ("1", "1", a)),
        *(("2", "2", a), ("2", "2", b), ("3", "2", a), ("3", "2", b)),
    ]
    observed = ABSMAX.astype(np.float32)[COUNT > 0]
    np.testing.assert_array_equal([np.float32(row["absmax"]) for row in grad], observed)
    assert {row["run"] for row in found} == {"run"}
    scalars = [row for row in found if row["kind"] == "scalar" and row["name"] == "loss"]
    np.testing.assert_array_equal([float(row["value"]) for row in scalars], LOSS)
    assert [row["absmax"] for row in scalars] == [""] * 4
    assert sum(row["kind"] == "act" for row in found) == 8
    other = tmp_path / "asked.csv"
    assert exported("--to", str(other), asked=True) == 0
    assert other.read_bytes() == target.read_bytes()


@sqlite
def test_what_is_chosen_is_all_there_is(exported: Exported, tmp_path: Path) -> None:
    target = tmp_path / "run.csv"
    chosen = ("--kinds", "grad,scalar", "--metrics", "rms,headroom", "--layers", "a", "--from", "1", "--until", "2")
    assert exported("--to", str(target), *chosen) == 0
    found = _read(target)
    assert list(found[0]) == ["run", "attempt", "step", "kind", "layer", "rms", "headroom", "name", "value"]
    assert [(row["kind"], row["step"], row["layer"]) for row in found if row["kind"] != "scalar"] == [
        ("grad", "1", "a"),
        ("grad", "2", "a"),
    ]
    assert {row["step"] for row in found} == {"1", "2"}


@sqlite
def test_pieces_join_without_a_seam(exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, pieces = tmp_path / "whole.csv", tmp_path / "pieces.csv"
    assert exported("--to", str(whole), "--kinds", "grad,act") == 0
    monkeypatch.setattr(rows, "_CELLS", 6)
    assert exported("--to", str(pieces), "--kinds", "grad,act") == 0
    assert pieces.read_bytes() == whole.read_bytes()


@sqlite
def test_steps_far_apart_are_found_without_asking_for_all_between(
    server: Running, agent: MakeAgent, make: Make, tmp_path: Path
) -> None:
    one = agent(run="far", layers=[make.layer(0, "a", ("grad", "fp16"))])
    far = 10**9
    starts = (0, 1000, far, far + 5_000_000)
    for first in starts:
        one.deliver(
            wire.Body(
                first_step=first,
                steps=2,
                summaries=(make.summaries("grad", first, [[1.0], [2.0]]),),
                scalars=(make.scalars("loss", first, [3.0, 4.0]),),
                histograms=(histogram(first, 254, [3, 5]),),
            )
        )
    source = _Counting(server)
    selection = rows.Selection(source, "far")
    steps = [step for first in starts for step in (first, first + 1)]
    found = [
        step
        for piece in selection.pieces()
        for step, absent in zip(piece.steps.tolist(), piece.missing["absmax"][:, 0], strict=True)
        if not absent
    ]
    assert found == steps
    logged = [part for part in selection.points() if part.name == "loss"]
    assert [step for part in logged for step in part.steps.tolist()] == steps
    kept = [first for part in selection.histograms() for first in part.first_steps.tolist()]
    assert kept == list(starts)
    assert source.asked < 1000, "10^9 steps would be 250,000 pieces of each kind and metric"


class _Counting:
    """A client that counts its questions."""

    def __init__(self, server: Running) -> None:
        self.asked = 0
        self._client = Client(server.url)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        self.asked += 1
        return getattr(self._client, name)


@sqlite
def test_parquet_has_what_the_csv_has(exported: Exported, tmp_path: Path) -> None:
    needs(find_spec("pyarrow"), "pyarrow")
    parquet, text = tmp_path / "run.parquet", tmp_path / "run.csv"
    assert exported("--to", str(parquet)) == 0
    assert exported("--to", str(text)) == 0
    found = import_module("pyarrow.parquet").read_table(parquet)
    expected = _read(text)
    assert found.column_names == list(expected[0])
    for row, other in zip(found.to_pylist(), expected, strict=True):
        for name, value in row.items():
            if value is None:
                assert other[name] == ""
            elif isinstance(value, float):
                np.testing.assert_array_equal(
                    value, float(np.float32(other[name])) if name != "value" else float(other[name])
                )
            else:
                assert str(value) == other[name]


@sqlite
def test_tensorboard_reads_its_events(exported: Exported, tmp_path: Path) -> None:
    needs(find_spec("tensorboardX") and find_spec("tensorboard"), "tensorboardX and tensorboard")
    folder = tmp_path / "events"
    assert exported("--to", str(folder)) == 0
    assert [path.name.startswith("events.out.tfevents") for path in folder.iterdir()] == [True]
    reader: Any = import_module("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    found.Reload()
    np.testing.assert_array_equal([event.value for event in found.Scalars("loss")], np.array(LOSS, np.float32))
    assert [event.step for event in found.Scalars("grad/absmax/b, with a comma")] == [0, 2, 3]
    np.testing.assert_array_equal([event.value for event in found.Scalars("grad/absmax/a")], ABSMAX[:, 0])
    first, _ = found.Histograms("grad/histogram/a")
    assert (first.step, first.histogram_value.num) == (0, 8)
    assert first.histogram_value.bucket_limit == [1.0, 1.5, 2.0]
    assert first.histogram_value.bucket == [0.0, 3.0, 5.0]


@sqlite
def test_only_a_file_is_replaced(exported: Exported, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    assert exported("--to", str(pipe), "--force") == 2
    assert pipe.is_fifo()
    link = tmp_path / "link.csv"
    link.symlink_to("file.csv")
    assert exported("--to", str(link)) == 0
    assert link.is_symlink()


@sqlite
def test_what_is_there_is_kept_unless_forced(
    exported: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "run.csv"
    target.write_text("mine")
    assert exported("--to", str(target)) == 2
    assert "add --force" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert exported("--to", str(target), "--force") == 0
    assert target.read_text().startswith("run,attempt,step")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


@sqlite
def test_event_files_are_replaced_and_nothing_else(exported: Exported, tmp_path: Path) -> None:
    needs(find_spec("tensorboardX"), "tensorboardX")
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "events.out.tfevents.1.host").write_text("old")
    (folder / "notes.txt").write_text("mine")
    assert exported("--to", str(folder)) == 2
    assert exported("--to", str(folder), "--force") == 0
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 2
    assert names[1] == "notes.txt"
    assert names[0] != "events.out.tfevents.1.host"


@sqlite
def test_a_full_disk_leaves_no_half_file(
    exported: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("floatscope_server.export.csv_file._rows", full)
    assert exported("--to", str(tmp_path / "run.csv")) == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert not list(tmp_path.glob("*run.csv*"))
    assert not list(tmp_path.glob(".*.part"))


@sqlite
def test_a_question_that_cannot_be_answered_is_one_line(
    exported: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "run.csv")
    cases: list[tuple[tuple[str, ...], str]] = [
        (("--to", target, "--kinds", "love"), "there is no kind 'love'; there are: grad"),
        (("--to", target, "--metrics", "beauty"), "there is no metric 'beauty'"),
        (("--to", target, "--layers", "c"), "there is no layer 'c'; there are: a"),
        (("--to", str(tmp_path / "run.json")), "FILE.csv, FILE.parquet"),
        (("--to", str(tmp_path / "no" / "run.csv")), "No such file or directory"),
    ]
    for arguments, said in cases:
        assert exported(*arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    for asked in (True, False):
        assert exported("--to", target, name="other", asked=asked) == 2
        assert "no run 'other'; `floatscope runs` lists them" in capsys.readouterr().err
    assert not Path(target).exists()


@sqlite
def test_a_missing_package_is_named_with_the_command(
    exported: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    monkeypatch.delitem(__import__("sys").modules, "floatscope_server.export.parquet_file", raising=False)
    assert exported("--to", str(tmp_path / "run.parquet")) == 2
    assert 'pip install "floatscope[server,export]"' in capsys.readouterr().err
