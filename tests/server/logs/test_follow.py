"""`floatscope follow`: files that grow, rotate, shrink and are replaced; restarts of either side; standard input."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from floatscope._spool._spooler import SpoolPlace
from floatscope_server.logs.tail import Pace, piped
from floatscope_server.senders import Senders

if TYPE_CHECKING:
    from tests.server.logs.conftest import Following, LogServer

DEADLINE_S = 60.0
CASES = Path(__file__).parents[2] / "cases" / "logs"

Follows = Callable[..., "Following"]


def line(step: int, loss: float = 2.0) -> str:
    return json.dumps({"current_steps": step, "loss": loss - step / 10_000, "lr": 1e-5}) + "\n"


def lines(first: int, last: int) -> str:
    return "".join(line(step) for step in range(first, last + 1, 10))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def steps(points: list[list[Any]]) -> list[int]:
    """As the log counts them: those that are done."""
    return [step + 1 for step, _ in points]


def test_a_file_that_is_not_there_yet_and_grows(follows: Follows, log_server: LogServer, tmp_path: Path) -> None:
    file = tmp_path / "trainer_log.jsonl"
    one = follows(file, "grows")
    until(lambda: one.told, "a word on what is missing")
    assert "is not there yet" in one.told[0]
    append(file, line(10))
    log_server.wait("grows", 1)
    append(file, lines(20, 50) + line(60)[:20])
    log_server.wait("grows", 5)
    append(file, line(60)[20:] + line(70))
    found = log_server.wait("grows", 7)
    assert steps(found) == list(range(10, 80, 10))
    assert found[5][1] == pytest.approx(1.994)
    assert log_server.ask("grows")["state"] == "live"
    follower = one.end()
    assert (follower.records, follower.unread, follower.left) == (7, 0, 0)
    assert log_server.run("grows")["state"] == "finished"
    assert log_server.figures("grows") == {"loss": 7, "lr": 7}


def test_its_own_restart_loses_and_doubles_nothing(follows: Follows, log_server: LogServer, tmp_path: Path) -> None:
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(lines(10, 400))
    follows(file, "restarted").end()
    append(file, lines(410, 450) + line(460)[:15])
    for points in (45, 45):
        one = follows(file, "restarted")
        log_server.wait("restarted", points)
        one.end()
    append(file, line(460)[15:])
    one = follows(file, "restarted")
    found = log_server.wait("restarted", 46)
    assert log_server.ask("restarted")["state"] == "live"
    assert one.end().records == 1
    assert steps(found) == list(range(10, 470, 10))
    assert log_server.figures("restarted") == {"loss": 46, "lr": 46}
    assert [attempt["n"] for attempt in log_server.run("restarted")["attempts"]] == [1]


def test_of_two_followers_of_a_file_the_newer_one_goes_on(
    follows: Follows, log_server: LogServer, tmp_path: Path
) -> None:
    """Each counts blocks from what the server had: side by side the one's would pass for the other's."""
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(lines(10, 500))
    old = follows(file, "two")
    log_server.wait("two", 50)
    new = follows(file, "two")
    for step in range(510, 1010, 10):
        append(file, line(step))
        log_server.wait("two", step // 10)
    old.thread.join(DEADLINE_S)
    (error,) = old.errors
    assert "another process has begun to send the same log" in str(error)
    assert steps(log_server.wait("two", 100)) == list(range(10, 1010, 10))
    new.end()
    assert not new.errors
    assert log_server.figures("two")["loss"] == 100


def test_who_was_superseded_may_not_come_back() -> None:
    senders = Senders()
    assert senders.greet("w", "a")
    assert senders.greet("w", "a")
    assert senders.greet("w", "b")
    assert not senders.may_speak("w", "a")
    assert not senders.greet("w", "a")
    assert senders.may_speak("w", "b")
    assert senders.greet("v", "a")
    for number in range(30_000):
        assert senders.greet(f"{number}", "c")
        assert senders.greet(f"{number}", "d")
    assert senders.greet("w", "a")


def test_what_was_followed_is_known_to_an_import(
    follows: Follows, log_server: LogServer, imports: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(lines(10, 200))
    one = follows(file, "both")
    log_server.wait("both", 20)
    one.end()
    append(file, lines(210, 220))
    assert imports(file, "--run", "both", "--json").json["files"][0]["records"] == 2
    assert log_server.figures("both") == {"loss": 22, "lr": 22}


def test_rotated_while_nobody_followed(
    follows: Follows, log_server: LogServer, imports: Callable[..., Any], tmp_path: Path
) -> None:
    """After a rotation and a restart of either kind nothing is there twice, and what was missed can be imported."""
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(lines(10, 100))
    one = follows(file, "away")
    log_server.wait("away", 10)
    file.rename(tmp_path / "trainer_log.jsonl.1")
    append(file, lines(110, 150))
    log_server.wait("away", 15)
    one.end()
    append(file, lines(160, 200))
    one = follows(file, "away")
    log_server.wait("away", 20)
    one.end()
    one = follows(file, "away")
    append(file, lines(210, 220))
    log_server.wait("away", 22)
    one.end()
    append(file, lines(230, 250))
    rotated = tmp_path / "trainer_log.jsonl.2.gz"
    rotated.write_bytes(gzip.compress(file.read_bytes()))
    answer = imports(rotated, "--run", "away", "--json")
    assert [(f["state"], f["records"]) for f in answer.json["files"]] == [("grown", 3)]
    assert steps(log_server.series("away")["loss"]) == list(range(10, 260, 10))
    assert log_server.figures("away") == {"loss": 25, "lr": 25}
    assert [attempt["n"] for attempt in log_server.ask("away")["attempts"]] == [1]


@pytest.mark.parametrize("how", ["rename", "copytruncate"])
def test_rotation(how: str, follows: Follows, log_server: LogServer, tmp_path: Path) -> None:
    file = tmp_path / "trainer_log.jsonl"
    run = f"rotated-{how}"
    one = follows(file, run)
    append(file, lines(10, 100))
    log_server.wait(run, 10)
    if how == "rename":
        file.rename(tmp_path / "trainer_log.jsonl.1")
        append(tmp_path / "trainer_log.jsonl.1", line(110))
        log_server.wait(run, 11)
    else:
        append(file, line(110))
        log_server.wait(run, 11)
        os.truncate(file, 0)
        until(lambda: one.follower.tail is not None and one.follower.tail.truncations, "the truncation to be seen")
    append(file, lines(120, 200))
    found = log_server.wait(run, 20)
    follower = one.end()
    assert follower.tail is not None
    assert (follower.tail.rotations, follower.tail.truncations) == ((1, 0) if how == "rename" else (0, 1))
    assert steps(found) == list(range(10, 210, 10))
    assert log_server.figures(run) == {"loss": 20, "lr": 20}


@pytest.mark.parametrize("made", ["folder", "pipe", "forbidden"])
def test_what_cannot_be_read_after_a_rotation_is_waited_for(
    made: str, follows: Follows, log_server: LogServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(lines(10, 100))
    one = follows(file, made)
    log_server.wait(made, 10)
    there = tmp_path / "there"
    if made == "folder":
        there.mkdir()
    elif made == "pipe":
        os.mkfifo(there)
    else:
        there.write_text(lines(110, 150))
        opened = os.open

        def denied(path: Any, *rest: Any, **options: Any) -> int:  # noqa: ANN401 - os.open's
            if path == file:
                raise PermissionError(13, "Permission denied")
            return opened(path, *rest, **options)

        monkeypatch.setattr("floatscope_server.logs.tail.os.open", denied)
    file.rename(tmp_path / "trainer_log.jsonl.1")
    there.rename(file)
    until(lambda: one.told, "a word on what is there")
    assert "waiting for a file" in one.told[-1]
    monkeypatch.undo()
    if made != "forbidden":
        file.rename(there)
        file.write_text(lines(110, 150))
    assert steps(log_server.wait(made, 15)) == list(range(10, 160, 10))
    assert len(one.told) == 1
    assert one.end().tail is not None
    assert not one.errors


def test_a_log_that_is_written_over_is_another_attempt(follows: Follows, log_server: LogServer, tmp_path: Path) -> None:
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(lines(10, 100))
    one = follows(file, "over")
    log_server.wait("over", 10)
    # Longer than before: no size tells.
    file.write_text("".join(line(step, loss=5.0) for step in range(10, 210, 10)))
    until(lambda: len(log_server.ask("over")["attempts"]) == 2, "another attempt")
    log_server.wait("over", 20)
    one.end()
    assert log_server.series("over")["loss"][0] == [9, 4.999]


def test_a_state_file_that_is_replaced(follows: Follows, log_server: LogServer, tmp_path: Path) -> None:
    file = tmp_path / "trainer_state.json"

    def save(history: list[dict[str, float]]) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(json.dumps({"best_metric": None, "log_history": history}, indent=2))
        fresh.replace(file)

    history = [{"step": step, "loss": 2.0 - step / 1000} for step in range(10, 210, 10)]
    save(history[:10])
    one = follows(file, "saved")
    log_server.wait("saved", 10)
    file.write_text('{"best_metric": null, "log_history": [{"step": 10, "lo')
    save(history[:15])
    log_server.wait("saved", 15)
    one.end()
    assert log_server.figures("saved") == {"loss": 15}
    save(history)
    one = follows(file, "saved")
    log_server.wait("saved", 20)
    assert log_server.figures("saved") == {"loss": 20}
    save([*history[:12], {"step": 130, "loss": 0.5}])
    until(lambda: len(log_server.ask("saved")["attempts"]) == 2, "another attempt")
    until(lambda: log_server.series("saved")["loss"][-1] == [129, 0.5], "its last step")
    one.end()
    save([*history[:12], {"step": 130, "loss": 0.5}, {"step": 140, "loss": 0.4}])
    one = follows(file, "saved")
    until(lambda: log_server.series("saved")["loss"][-1] == [139, 0.4], "what came after")
    one.end()
    assert [attempt["n"] for attempt in log_server.run("saved")["attempts"]] == [1, 2]


def test_a_folder_of_events_gets_another_file(follows: Follows, log_server: LogServer, tmp_path: Path) -> None:
    from tensorboardX import SummaryWriter

    folder = tmp_path / "runs"
    one = follows(folder, "events")
    for first in (0, 50):
        with SummaryWriter(str(folder), filename_suffix=f".{first}") as writer:
            for step in range(first, first + 50):
                writer.add_scalar("train/loss", 2.0 - step / 100, step)
                writer.add_scalar("train/learning_rate", 1e-5, step)
        found = log_server.wait("events", first + 50)
    assert [step for step, _ in found] == list(range(100))
    one.end()
    follows(folder, "events").end()
    wanted = dict.fromkeys(("loss", "lr", "train/loss", "train/learning_rate"), 100)
    assert log_server.figures("events") == wanted


def test_the_server_restarts(
    follows: Follows, serving: Callable[..., AbstractContextManager[LogServer]], tmp_path: Path
) -> None:
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(lines(10, 100))
    with serving(tmp_path / "data") as server:
        one = follows(file, "outlives", server=server.url)
        server.wait("outlives", 10)
        port = int(server.url.rpartition(":")[2])
    append(file, lines(110, 200))
    with serving(tmp_path / "data", port) as server:
        append(file, lines(210, 250))
        found = server.wait("outlives", 25)
        one.end()
        assert steps(found) == list(range(10, 260, 10))
        assert server.figures("outlives") == {"loss": 25, "lr": 25}


def test_only_what_is_new_is_told(follows: Follows, log_server: LogServer, tmp_path: Path) -> None:
    """The NaN that the log held is not, the one that comes is."""
    file = tmp_path / "trainer_log.jsonl"
    broken = json.dumps({"current_steps": 310, "loss": math.nan}) + "\n"
    file.write_text(lines(10, 300) + broken + lines(320, 600))
    made = log_server.post("/api/v1/endpoints", {"url": "https://example.org/hook", "min_severity": "info"})
    one = follows(file, "told")
    log_server.wait("told", 60)
    append(file, broken.replace("310", "610") + lines(620, 630))
    log_server.wait("told", 63)
    one.end()
    alerts = [a for a in log_server.run("told")["alerts"] if a["kind"] == "nonfinite"]
    assert [(a["first_step"], a["detail"].get("imported", False)) for a in alerts] == [(309, True), (609, False)]
    events = log_server.get("/api/v1/deliveries")
    assert {event["alert"] for event in events} == {alerts[1]["id"]}
    log_server.delete(f"/api/v1/endpoints/{made['id']}")


def test_standard_input_is_passed_on_as_it_is(follows: Follows, log_server: LogServer, tmp_path: Path) -> None:
    content = (CASES / "case-06-hf-console.log").read_bytes() + b"\r 50%|###\x00\xff no end"
    source, feed = os.pipe()
    drain, target = os.pipe()
    one = follows(lambda pace: piped(source, target, pace), "input", spool=SpoolPlace(directory=tmp_path / "spool"))
    passed = b""
    for start in range(0, len(content), 1000):
        os.write(feed, content[start : start + 1000])
        while len(passed) < min(start + 1000, len(content)):
            passed += os.read(drain, 1 << 16)
    assert passed == content
    os.close(feed)
    one.thread.join(DEADLINE_S)
    assert not one.thread.is_alive()
    wanted = log_server.run("input")
    assert wanted["scalars"]["loss"]["n"] == 4
    assert list((tmp_path / "spool").iterdir()) == []
    for descriptor in (source, drain, target):
        os.close(descriptor)


def test_a_server_that_is_gone_does_not_hold_up_standard_input(follows: Follows, tmp_path: Path) -> None:
    """What it could not take is on the disk; nobody reads what is passed on."""
    content = (CASES / "case-06-hf-console.log").read_bytes()
    source, feed = os.pipe()
    drain, target = os.pipe()
    os.close(drain)
    spool = SpoolPlace(directory=tmp_path / "spool")
    one = follows(lambda pace: piped(source, target, pace), "gone", server="http://127.0.0.1:9", spool=spool)
    os.write(feed, content)
    os.close(feed)
    one.thread.join(DEADLINE_S)
    assert not one.thread.is_alive()
    assert one.follower.left >= 4
    assert [path for path in (tmp_path / "spool").rglob("*") if path.stat().st_size > 1000]
    for descriptor in (source, target):
        os.close(descriptor)


@pytest.mark.parametrize("made", ["pipe", "packed"])
def test_what_cannot_be_followed(made: str, follows: Follows, tmp_path: Path) -> None:
    path = tmp_path / made
    if made == "pipe":
        os.mkfifo(path)
        words = "follow - < "
    else:
        path.write_bytes(gzip.compress(lines(10, 50).encode()))
        words = "floatscope import"
    one = follows(path, "never")
    one.thread.join(DEADLINE_S)
    (error,) = one.errors
    assert words in str(error)


def test_nothing_known_yet_is_said(follows: Follows, log_server: LogServer, tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text("loading\n")
    one = follows(file, "later-known")
    until(lambda: one.told, "a word")
    assert "no record of a known format yet" in one.told[0]
    append(
        file, "{'loss': 1.5, 'learning_rate': 1e-05, 'step': 1}\n{'loss': 1.25, 'learning_rate': 1e-05, 'step': 2}\n"
    )
    append(file, "{'loss': 1.0, 'learning_rate': 1e-05, 'step': 3}\n")
    log_server.wait("later-known", 2)
    one.end()
    assert log_server.series("later-known")["loss"] == [[0, 1.5], [1, 1.25], [2, 1.0]]


def test_poll_is_bounded() -> None:
    waits: list[float] = []
    pace = Pace(lambda: len(waits) == 3, lambda: None, poll_s=0.5, sleep=waits.append)
    while pace.wait():
        pass
    assert waits == [0.5] * 3


def test_an_interrupt_ends_it_with_0(log_server: LogServer, tmp_path: Path) -> None:
    file = tmp_path / "trainer_log.jsonl"
    file.write_text(lines(10, 100))
    code = (
        "import argparse, sys; from floatscope_server.commands import follow; p = argparse.ArgumentParser(); "
        "follow.configure(p); sys.exit(follow.run(p.parse_args(sys.argv[1:])))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(file), "--run", "interrupted", "--server", log_server.url],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        log_server.wait("interrupted", 10)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 0, told
    assert "llamafactory-trainer-log, 10 records sent" in told
    assert "Traceback" not in told
