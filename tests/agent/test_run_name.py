"""Names of runs that were given none: one for all ranks of a job, and another for the next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from floatscope import wire
from floatscope._run_name import run_name


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/finetune.py"])


NO_PROC = Path("/nonexistent")


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"TORCHELASTIC_RUN_ID": "exp7", "SLURM_JOB_ID": "77"}, "finetune-exp7"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2"}, "finetune-77.2"),
        ({"SLURM_JOB_ID": "77", "MASTER_PORT": "29500"}, "finetune-77.batch"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, "finetune-n1-29500"),
        ({}, "finetune-job-0"),
    ],
)
def test_across_machines_the_scheduler_or_the_master_names_the_job(environment: dict[str, str], name: str) -> None:
    assert run_name(16, {"LOCAL_WORLD_SIZE": "8", **environment}, proc=NO_PROC) == name
    assert run_name(16, {"LOCAL_WORLD_SIZE": "8", **environment}) == name


def test_any_identifier_and_any_script_make_a_name_that_a_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for script, job in (("a", "team/exp 1"), ("\n\\ x", "y"), ("x" * 500, "y"), ("-c", "y" * 500), ("", "\t")):
        monkeypatch.setattr(sys, "argv", [script])
        assert wire.is_run_name(run_name(2, {"TORCHELASTIC_RUN_ID": job})), (script, job)
        assert wire.is_run_name(run_name(1, {}))


def test_processes_alone_have_names_of_their_own() -> None:
    names = {run_name(1, {}) for _ in range(20)}
    assert len(names) > 15
    assert all(name.startswith("finetune-2") for name in names)


PRINT_NAME = "import os; from floatscope._run_name import run_name; print(run_name(2, os.environ), flush=True)"
LAUNCHER = """
import os, subprocess, sys
code, wrapped = sys.argv[1:]
for rank in (0, 1):
    command = [sys.executable, "-c", code]
    if wrapped == "wrapped" and rank == 1:
        command = ["/bin/sh", "-c", '"$0" -c "$1"; true', sys.executable, code]
    subprocess.run(command, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", **eval(os.environ["MORE"])})
"""


def launch(wrapped: str, more: Mapping[str, str]) -> list[str]:
    """The names that two ranks of one launcher print."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, PRINT_NAME, wrapped],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "MORE": repr(dict(more))},
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "more",
    [
        {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"},
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
        {"SLURM_JOB_ID": "77", "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_on_one_machine_the_launcher_names_the_job(more: Mapping[str, str]) -> None:
    first, second = launch("wrapped", more), launch("", more)
    assert len(first) == len(second) == 2
    assert len(set(first)) == len(set(second)) == 1, "the ranks agree, also behind a shell"
    assert first[0] != second[0], "two jobs differ though all their variables are the same"
    assert first[0].startswith("run-")


FIRST_RANK = """
import os, subprocess, sys
os.environ |= {"LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
others = {**os.environ, "LOCAL_RANK": "1"}
other = subprocess.Popen([sys.executable, "-c", sys.argv[1] + "; input()"], stdin=subprocess.PIPE, env=others)
worker = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE)
exec(sys.argv[1])
other.communicate(b"\\n")
worker.communicate(b"\\n")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_that_launches_the_others_itself_has_their_name() -> None:
    # As Lightning does: what makes it a rank is not in the environment that it was started with.
    jobs = [
        subprocess.run([sys.executable, "-c", FIRST_RANK, PRINT_NAME], check=True, capture_output=True, text=True)
        for _ in range(2)
    ]
    (first, other), (again, _) = (job.stdout.split() for job in jobs)
    assert first == other
    assert first != again
