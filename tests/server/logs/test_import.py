"""`floatscope import`: again, longer, several at once, and what cannot be read."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from floatscope_server.logs.channel import Channel, ChannelError

if TYPE_CHECKING:
    from tests.server.logs.conftest import Command, LogServer

CASES = Path(__file__).parents[2] / "cases" / "logs"


def records(last: int, *, first: int = 10, loss: float = 2.0) -> str:
    return "".join(
        json.dumps({"current_steps": step, "loss": loss - step / 10_000, "lr": 1e-5}) + "\n"
        for step in range(first, last + 1, 10)
    )


def state(last: int, *, loss: float = 2.0) -> str:
    """A ``trainer_state.json`` at step ``last``."""
    history = [{"step": step, "loss": loss - step / 10_000, "learning_rate": 1e-5} for step in range(10, last + 1, 10)]
    return json.dumps({"best_metric": None, "global_step": last, "log_history": history}, indent=2)


def said(answer: Any) -> tuple[str, int]:  # noqa: ANN401 - JSON
    (file,) = answer.json["files"]
    return file["state"], file["records"]


@pytest.mark.parametrize(
    "name",
    [
        "case-02-trainer_log.jsonl",
        "case-06-hf-console.log",
        "case-10-megatron-fp16-overflow.log",
        "case-07-deepspeed-overflow.log",
        "case-18-events.out.tfevents.1742826235.host0.1.0",
        "case-26-layer-extremes.csv",
        "case-27-nvidia-smi.csv",
    ],
)
def test_a_longer_version_adds_what_is_new(name: str, imports: Command, log_server: LogServer, tmp_path: Path) -> None:
    """Cut anywhere, also within a record, as of a training that runs."""
    content = (CASES / name).read_bytes()
    whole, grown = f"whole-{name}", f"grown-{name}"
    assert imports(CASES / name, "--run", whole).status == 0
    file = tmp_path / name
    for share in (0.31, 0.62, 0.83, 1.0):
        file.write_bytes(content[: int(share * len(content))])
        assert imports(file, "--run", grown).status == 0
    wanted, found = log_server.run(whole), log_server.run(grown)
    assert log_server.series(grown) == log_server.series(whole)
    assert [a["n"] for a in found["attempts"]] == [a["n"] for a in wanted["attempts"]]
    assert log_server.figures(grown) == log_server.figures(whole)
    assert [layer["name"] for layer in found["layers"]] == [layer["name"] for layer in wanted["layers"]]


def test_each_version_of_a_state_file_adds_what_is_new(imports: Command, log_server: LogServer, tmp_path: Path) -> None:
    file = tmp_path / "trainer_state.json"
    file.write_text(state(100))
    assert said(imports(file, "--run", "state", "--json")) == ("new", 10)
    file.write_text(state(250))
    assert said(imports(file, "--run", "state", "--json")) == ("grown", 15)
    file.write_text(state(100))
    assert said(imports(file, "--run", "state", "--json")) == ("shorter", 0)
    assert log_server.figures("state") == {"loss": 25, "learning_rate": 25, "lr": 25}


def test_a_log_that_went_on_otherwise_is_another_attempt(
    imports: Command, log_server: LogServer, tmp_path: Path
) -> None:
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(records(200))
    assert imports(file, "--run", "forked").status == 0
    file.write_text(records(100) + records(300, first=110, loss=1.0))
    assert said(imports(file, "--run", "forked", "--json")) == ("new", 30)
    assert said(imports(file, "--run", "forked", "--json")) == ("known", 0)
    run = log_server.run("forked")
    assert [attempt["n"] for attempt in run["attempts"]] == [1, 2]
    assert dict(map(tuple, log_server.series("forked")["loss"]))[149] == pytest.approx(0.985)


def test_steps_that_go_back_are_another_attempt(imports: Command, log_server: LogServer, tmp_path: Path) -> None:
    file = tmp_path / "trainer_state.json"
    entries = [{"step": s, "loss": 2.0} for s in range(10, 310, 10)] + [{"step": s, "loss": 1.5} for s in (100, 110)]
    file.write_text(json.dumps({"best_metric": None, "log_history": entries}))
    for told in ("new", "known"):
        assert said(imports(file, "--run", "back", "--json"))[0] == told
    run = log_server.run("back")
    assert [(a["n"], a["first_step"], a["last_step"]) for a in run["attempts"]] == [(1, 9, 299), (2, 99, 109)]


def test_files_of_one_run(imports: Command, log_server: LogServer, tmp_path: Path) -> None:
    """Cards by their own time, extremes as layers, and a loss that the page finds under the agent's name."""
    log, cards, extremes = tmp_path / "trainer_log.jsonl", tmp_path / "smi.csv", tmp_path / "extremes.csv"
    log.write_text(records(300))
    cards.write_text("device,GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B)\n" + "card0,7,9,2\n" * 20)
    rows = "10,h.0,act_in,fp8_e4m3fn,3.0\n20,h.0,act_in,fp8_e4m3fn,700\n"
    extremes.write_text(f"step,layer,tensor,dtype,absmax\n{rows}")
    assert imports(cards, extremes, log, "--run", "three").status == 0
    run = log_server.run("three")
    assert [attempt["n"] for attempt in run["attempts"]] == [1]
    assert run["steps"] == 300
    assert len(run["writers"]) == 3
    assert {"loss", "lr", "h.0/act_in"} == run["scalars"].keys()
    assert [layer["name"] for layer in run["layers"]] == ["h.0"]
    assert ("limit_crossed", 19) in {(a["kind"], a["first_step"]) for a in run["alerts"]}
    assert [(d["backend"], d["index"], d["busy_percent"]) for d in run["devices"]][-1] == ("rocm-smi", 0, 7.0)
    assert imports(cards, extremes, log, "--run", "three", "--json").status == 0
    assert log_server.figures("three") == {"loss": 30, "lr": 30, "h.0/act_in": 2}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
def test_layers_beside_a_log_have_its_steps(
    imports: Command, log_server: LogServer, tmp_path: Path, *, at_once: bool
) -> None:
    log, extremes = tmp_path / "trainer_log.jsonl", tmp_path / "extremes.csv"
    log.write_text(records(30))
    extremes.write_text("step,layer,tensor,dtype,absmax\n" + "".join(f"{n},h,act,fp16,3.0\n" for n in (10, 20, 30)))
    run = f"layers-{at_once}"
    for files in [[log, extremes]] if at_once else [[log], [extremes]]:
        assert imports(*files, "--run", run).status == 0
    log_server.run(run)
    series = log_server.series(run)
    assert [step for step, _ in series["h/act"]] == [step for step, _ in series["loss"]] == [9, 19, 29]


def test_layers_beside_what_numbers_from_0_are_as_written(
    imports: Command, log_server: LogServer, tmp_path: Path
) -> None:
    metrics, extremes = tmp_path / "metrics.csv", tmp_path / "extremes.csv"
    metrics.write_text("epoch,step,train_loss\n" + "".join(f"0,{step},2.5\n" for step in (0, 10, 20)))
    extremes.write_text("step,layer,tensor,dtype,absmax\n" + "".join(f"{n},h,act,fp16,3.0\n" for n in (0, 10, 20)))
    assert imports(metrics, extremes, "--run", "as-written").status == 0
    log_server.run("as-written")
    assert [step for step, _ in log_server.series("as-written")["h/act"]] == [0, 10, 20]


def test_cards_go_to_a_training_that_is_there(imports: Command, log_server: LogServer, tmp_path: Path) -> None:
    log, cards = tmp_path / "trainer_log.jsonl", tmp_path / "smi.csv"
    log.write_text(records(100))
    cards.write_text("device,GPU use (%)\n" + "card0,7\n" * 3)
    assert imports(log, "--run", "later").status == imports(cards, "--run", "later").status == 0
    run = log_server.run("later")
    assert [attempt["n"] for attempt in run["attempts"]] == [1]
    assert run["steps"] == 100
    assert {(d["backend"], d["index"]) for d in run["devices"]} == {("rocm-smi", 0)}
    assert set(run["scalars"]) == {"loss", "lr"}


def test_compressed_files_and_folders_of_events(imports: Command, log_server: LogServer, tmp_path: Path) -> None:
    packed = tmp_path / "old.jsonl.gz"
    packed.write_bytes(gzip.compress(records(100).encode()))
    assert imports(packed).status == 0
    assert log_server.figures("old")["loss"] == 10
    folder = tmp_path / "events"
    folder.mkdir()
    name = "case-18-events.out.tfevents.1742826235.host0.1.0"
    (folder / name.removeprefix("case-18-")).write_bytes((CASES / name).read_bytes())
    assert imports(folder).status == 0
    assert imports(CASES / name, "--run", "one-event-file").status == 0
    assert log_server.series("events") == log_server.series("one-event-file")


def test_what_was_found_in_a_log_is_told_to_nobody(imports: Command, log_server: LogServer, tmp_path: Path) -> None:
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(records(300) + json.dumps({"current_steps": 310, "loss": math.nan}) + "\n")
    endpoint = {"url": "https://example.org/hook", "min_severity": "info"}
    made = log_server.post("/api/v1/endpoints", endpoint)
    assert imports(file, "--run", "quiet").status == 0
    (alert,) = log_server.run("quiet")["alerts"]
    assert (alert["kind"], alert["severity"], alert["detail"]["imported"]) == ("nonfinite", "critical", True)
    assert log_server.get("/api/v1/deliveries") == []
    log_server.delete(f"/api/v1/endpoints/{made['id']}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no record of a known format: LLaMA-Factory's"),
        (b"hello\nworld\n", "TensorBoard events"),
        (bytes(range(256)) * 1000, "no record of a known format"),
        (b'{"current_steps": 10, "loss": 1', "line 1: the JSON of a record"),
        (gzip.compress(b"nothing known", mtime=0), "no record of a known format"),
    ],
)
def test_what_cannot_be_read(imports: Command, tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "log"
    file.write_bytes(content)
    answer = imports(file, "--run", "unread")
    assert (answer.status, answer.out) == (2, "")
    assert words in answer.err
    assert answer.err.count("\n") == 1


def test_what_is_no_file(imports: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, words in (
        ("missing", "No such file"),
        ("pipe", "floatscope follow - < "),
        ("folder", "without TensorBoard event files"),
    ):
        answer = imports(tmp_path / name)
        assert answer.status == 2
        assert words in answer.err
    (tmp_path / "mine.jsonl").write_text(records(20))

    def denied(path: Path, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as Path.open
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert "Permission denied" in imports(tmp_path / "mine.jsonl").err


def test_a_server_that_is_not_there(imports: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatscope_server.commands.import_._PATIENCE_S", 0.2)
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(records(20))
    answer = imports(file, server="http://127.0.0.1:9")
    assert answer.status == 2
    assert "cannot reach a Floatscope server at http://127.0.0.1:9" in answer.err
    assert "start it with `floatscope server`, or name another with --server" in answer.err
    assert "expected http" in imports(file, server="x").err
    assert "cannot be a run's name" in imports(file, "--run", "a/b").err


def test_an_import_that_was_killed_goes_on(
    imports: Command, log_server: LogServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some blocks were stored; neither they nor what follows is there twice."""
    monkeypatch.setattr("floatscope_server.logs.stream._PIECES", 7)
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(records(1000))
    with monkeypatch.context() as patch:
        sent = 0
        send = Channel.send

        def some(channel: Channel, batch: Any) -> None:  # noqa: ANN401 - a batch
            nonlocal sent
            sent += 1
            if sent > 5:
                end = channel.waits
                while end():
                    pass
                raise ChannelError("killed")
            send(channel, batch)

        patch.setattr(Channel, "send", some)
        assert "killed" in imports(file, "--run", "killed").err
    assert said(imports(file, "--run", "killed", "--json"))[0] == "grown"
    assert log_server.figures("killed") == {"loss": 100, "lr": 100}
    assert [attempt["n"] for attempt in log_server.run("killed")["attempts"]] == [1]
