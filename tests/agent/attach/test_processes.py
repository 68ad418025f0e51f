"""Programs that fork, daemonise, spawn or are killed while they are attached."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

# One process imports torch for all: each program runs in a child of its own, as if it had been started so. A child's
# trainings are its own, whoever has imported what.
STARTER = """
import json, os, pathlib, sys, time, torch
torch.set_num_threads(1)

def train(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    return model

def wait_for_runs(number):
    "Who ends at once takes along what is not on the disk yet."
    while len(list(pathlib.Path(os.environ["FLOATSCOPE_DIR"]).glob("*/about"))) < number:
        time.sleep(0.01)

if sys.argv[1:] == ["again"]:
    train(3)
    sys.exit()
# What each would take a second for.
import floatscope._attach.attachment, floatscope._doctor._attached, floatscope._sending
folder, *programs = map(pathlib.Path, sys.argv[1:])
pids = {}
for program in programs:
    said = (folder / f"{program.stem}.said").open("w")
    pid = os.fork()
    if not pid:
        os.dup2(said.fileno(), 2)
        os.environ["FLOATSCOPE_DIR"] = str(folder / program.stem)
        exec(compile(program.read_text(), program, "exec"))
        sys.exit()
    pids[program.stem] = pid
# Together: each waits some seconds for a server that is not there.
statuses = {name: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for name, pid in pids.items()}
(folder / "statuses").write_text(json.dumps(statuses))
"""


class Program(NamedTuple):
    body: str
    status: int = 0
    runs: int = 1


PROGRAMS = {
    "trains": Program("train(3)"),
    "forks": Program(
        """
        if os.fork():
            _, status = os.wait()
            sys.exit(os.waitstatus_to_exitcode(status))
        train(3)
        """,
    ),
    "trains_another_model_in_a_child": Program(
        """
        model = train(3)
        if os.fork():
            _, status = os.wait()
            sys.exit(os.waitstatus_to_exitcode(status) + 5)
        train(2)
        wait_for_runs(2)
        os._exit(0)
        """,
        status=5,
        runs=2,
    ),
    "trains_in_processes_that_it_forks": Program(
        """
        import multiprocessing
        children = [multiprocessing.get_context("fork").Process(target=train, args=(3,)) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        """,
        runs=2,
    ),
    "daemonises": Program(
        """
        end, other_end = os.pipe()
        if os.fork():
            os.close(other_end)
            os.read(end, 1)  # for the test alone: nothing else tells when a daemon is done
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        train(3)
        """,
    ),
    "spawns_a_worker_for_its_data": Program(
        """
        from torch.utils.data import DataLoader
        loader = DataLoader(torch.ones(6, 4), batch_size=2, num_workers=1)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
        """,
    ),
    "execs_another": Program("os.execv(sys.executable, [sys.executable, sys.argv[0], 'again'])"),
    "is_killed": Program(
        """
        model = train(3)
        wait_for_runs(1)
        os.kill(os.getpid(), 9)
        """,
        status=-signal.SIGKILL,
    ),
}


class Done(NamedTuple):
    folder: Path
    said: str
    statuses: dict[str, int]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("processes")
    starter = folder / "starter.py"
    starter.write_text(STARTER)
    programs = []
    for name, program in PROGRAMS.items():
        programs.append(folder / f"{name}.py")
        programs[-1].write_text(textwrap.dedent(program.body))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLOATSCOPE_SERVER": "http://127.0.0.1:1"}
    line = [sys.executable, "-m", "floatscope", "run", "--", sys.executable, str(starter), str(folder)]
    started = subprocess.run(
        [*line, *map(str, programs)], capture_output=True, text=True, env=environment, timeout=240, check=False
    )
    assert started.returncode == 0, started.stderr
    return Done(folder, started.stderr, json.loads((folder / "statuses").read_text()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_are_more_than_one_process(done: Done, name: str) -> None:
    said = (done.folder / f"{name}.said").read_text()
    assert done.statuses[name] == PROGRAMS[name].status, said
    assert "Traceback" not in said
    assert "cannot reach" not in said
    assert len(list((done.folder / name).glob("*/about"))) == PROGRAMS[name].runs, said


def test_that_no_server_answers_is_said_once_for_all_of_them(done: Done) -> None:
    said = [done.said, *(path.read_text() for path in done.folder.glob("*.said"))]
    assert "".join(said).count("no server answers") == 1
