"""``floatscope demo`` around its trainings: order of events, clean ends, clear refusals."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floatscope import _cli
from floatscope._demo import orchestrate, processes
from floatscope._demo.api import Api
from floatscope._demo.story import Story
from floatscope.commands import demo

DOUBLE = [str(Path(__file__).with_name("demo_server_double.py")), "--port", "0"]
SLEEPER = ["-c", "import time; time.sleep(600)"]


def until(condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def children(pid: int) -> set[int]:
    """Processes whose parent is ``pid``, that have not ended."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.add(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def plan(folder: Path, *, seconds: float | None = 60.0, server: list[str] = DOUBLE) -> orchestrate.Plan:
    trainings = {"demo": SLEEPER, "demo-sane": ["-c", ""]}
    return orchestrate.Plan(data=folder, port=0, seconds=seconds, server=server, trainings=trainings)


def test_tells_the_story_once_and_leaves_nothing_running(tmp_path: Path) -> None:
    before = children(os.getpid())
    lines: list[str] = []
    addresses: list[str] = []
    wanted = {
        "time to first chart:",
        "alert critical",
        "webhook msg_a",
        "webhook msg_b",
        "training demo-sane has ended",
    }

    def say(line: str) -> None:
        lines.append(line)
        if all(any(line.startswith(start) for line in lines) for start in wanted):
            signal.raise_signal(signal.SIGINT)  # which only says that it is enough

    orchestrate.run(plan(tmp_path, seconds=200.0), say, addresses.append)
    assert children(os.getpid()) == before
    assert [a.rpartition(":")[0] for a in addresses] == ["http://127.0.0.1"]
    first_chart = [line for line in lines if line.startswith("time to first chart: ")]
    assert len(first_chart) == 1
    assert float(first_chart[0].split()[4]) > 0
    assert [line for line in lines if line.startswith("alert ")] == [
        "alert info loss_spike run=demo step=12: up",
        "alert warning limit_crossed run=demo step=30 layer=blocks.0.mlp.down: above 240",
        "alert critical limit_crossed run=demo step=30 layer=blocks.0.mlp.down: above 240",
    ]
    assert "webhook msg_a signature=valid" in lines
    assert "webhook msg_b signature=valid" in lines
    assert "training demo-sane has ended" in lines
    told, _, look = lines[-2].partition("; look first at: ")
    assert told == "demo: 70 steps, 2 skipped (first at step 31)"
    assert look == "critical nonfinite run=demo step=31 layer=blocks.3.mlp.down"
    assert lines[-1] == "demo-sane: no step arrived"


def test_ends_by_itself_after_its_seconds(tmp_path: Path) -> None:
    before = children(os.getpid())
    lines: list[str] = []
    orchestrate.run(plan(tmp_path, seconds=0.2), lines.append, lines.append)
    assert children(os.getpid()) == before
    assert lines[-1] == "demo-sane: no step arrived"


@pytest.mark.parametrize(
    ("alerts", "look"),
    [
        (["warning loss_spike 5", "critical limit_crossed 30", "critical nonfinite 90"], "critical nonfinite 90"),
        (["critical nonfinite 91", "critical nonfinite 90", "info nonfinite 2"], "critical nonfinite 90"),
        (
            ["warning loss_spike 5", "critical limit_crossed 31", "critical limit_crossed 30"],
            "critical limit_crossed 30",
        ),
        (["warning nonfinite 7", "info loss_spike 5"], "info loss_spike 5"),
        ([], None),
    ],
)
def test_where_to_look_first_is_what_broke_the_training(alerts: list[str], look: str | None) -> None:
    class Answers(Api):
        def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
            words = enumerate(alert.split() for alert in alerts)
            found = [
                {"id": i, "run": "demo", "severity": severity, "kind": kind, "first_step": int(step), "layer": "a"}
                for i, (severity, kind, step) in words
            ]
            return {"steps": 100, "skipped_steps": [], "alerts": found}

    lines: list[str] = []
    Story(Answers("http://127.0.0.1:1"), lines.append, started=0.0).summary(["demo"])
    if look is None:
        assert lines == ["demo: 100 steps, 0 skipped; no alert"]
    else:
        severity, kind, step = look.split()
        expected = f"{severity} {kind} run=demo step={step} layer=a"
        assert lines == [f"demo: 100 steps, 0 skipped; look first at: {expected}"]


def test_server_that_does_not_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    failing = ["-c", "print('first'); print('cannot open the store'); raise SystemExit(2)"]
    with pytest.raises(orchestrate.DemoError, match="the server did not start: cannot open the store"):
        orchestrate.run(plan(tmp_path, server=failing), print, print)
    assert not list(tmp_path.glob("demo*.log"))


def test_training_that_fails_ends_the_demo(tmp_path: Path) -> None:
    before = children(os.getpid())
    broken = replace(plan(tmp_path), trainings={"demo": ["-c", "raise SystemExit('no such thing')"]})
    with pytest.raises(orchestrate.DemoError, match=r"demo failed: no such thing; its output is in .*demo\.log"):
        orchestrate.run(broken, print, print)
    assert children(os.getpid()) == before


def test_server_that_dies_ends_the_demo(tmp_path: Path) -> None:
    source = Path(DOUBLE[0]).read_text()
    brief = source.replace("type(self).polls += 1", "os._exit(1)").replace("import json", "import json\nimport os", 1)
    (tmp_path / "brief.py").write_text(brief)
    server = [str(tmp_path / "brief.py"), "--port", "0"]
    before = children(os.getpid())
    with pytest.raises(orchestrate.DemoError, match=r"stopped answering: .*; its output is in .*server\.log"):
        orchestrate.run(plan(tmp_path, server=server), print, print)
    assert children(os.getpid()) == before


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ending_the_demo_ends_everything(tmp_path: Path, end: signal.Signals) -> None:
    server = json.dumps(DOUBLE)
    script = f"""
from dataclasses import replace
from pathlib import Path
from floatscope._demo import orchestrate
sleeper = {SLEEPER!r}
plan = orchestrate.Plan(data=Path({str(tmp_path)!r}), port=0, seconds=None, server={server},
                        trainings={{"demo": sleeper, "demo-sane": sleeper}})
orchestrate.run(plan, print, print)
"""
    demo = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
    try:
        until(lambda: len(children(demo.pid)) == 3, "server and two trainings run")
        started = children(demo.pid)
        demo.send_signal(end)
        status = demo.wait(60)
    finally:
        demo.kill()
        demo.wait()
    assert status == (-end if end == signal.SIGKILL else 0)
    until(lambda: not any(alive(pid) for pid in started), "the children end with the demo")


def test_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)"
    child = processes.start(["-c", f"{deaf}; time.sleep(600)"], log)
    assert processes.wait_for_line(child, log, "ready", timeout_s=60) == ""
    processes.stop([child], grace_s=0.2)
    assert child.returncode == -signal.SIGKILL


def test_children_do_not_see_the_users_settings_nor_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATSCOPE_SERVER", "http://elsewhere:1")
    log = tmp_path / "log"
    monkeypatch.setenv("FLOATSCOPE_DIR", "elsewhere")
    seen = "[os.environ.get(f'FLOATSCOPE_{name}') for name in ('SERVER', 'DIR')]"
    child = processes.start(["-c", f"import os; print('seen', {seen})"], log)
    assert processes.wait_for_line(child, log, "seen ", timeout_s=60) == str([None, str(tmp_path / "spool")])
    assert child.wait() == 0


def test_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert _cli.main(["demo", "--port", str(port), "--no-browser"]) == 2
    error = capsys.readouterr().err
    assert error == f"floatscope demo: port {port} is in use; choose another with --port, or 0 for any\n"


def test_unwritable_data_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert _cli.main(["demo", "--port", "0", "--no-browser", "--data", str(tmp_path / "file" / "data")]) == 2
    assert "choose another folder with --data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hidden", "extras"), [("torch", "torch"), ("fastapi", "server"), ("fastapi torch", "server,torch")]
)
def test_missing_extra(hidden: str, extras: str) -> None:
    # As in an environment without the package: its finder does not find it.
    script = f"""
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {hidden.split()!r} else find_spec(name, *rest)
from floatscope._cli import main
sys.exit(main(["demo", "--no-browser"]))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert (
        ended.stderr
        == f'floatscope demo: this needs more than is installed; type: pip install "floatscope[{extras}]"\n'
    )


@pytest.mark.parametrize("wrong", [["--seconds", "0"], ["--seconds", "nan"], ["--port", "65536"]])
def test_options_out_of_range(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        _cli.main(["demo", *wrong])
    assert refused.value.code == 2
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("called", "path", "typed"),
    [
        ("{bin}/floatscope", "{bin}", "floatscope"),
        ("{bin}/floatscope", "/nowhere", "{bin}/floatscope"),
        ("{bin}/../floatscope/__main__.py", "{bin}", "{python} -m floatscope"),
    ],
)
def test_the_program_is_named_as_it_can_be_typed(
    called: str, path: str, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "floatscope"
    program.touch(mode=0o755)
    places = {"bin": str(tmp_path), "python": shlex.quote(sys.executable)}
    monkeypatch.setattr(sys, "argv", [called.format(**places)])
    monkeypatch.setenv("PATH", path.format(**places))
    assert demo._program() == typed.format(**places)
