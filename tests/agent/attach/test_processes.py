"""Programs that fork, daemonise, spawn or are killed while they are attached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LOOP = """
import os, pathlib, sys, time, torch
torch.set_num_threads(1)

def train(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    return model
"""

PROGRAMS = {
    "forks before it trains": (
        """
        if os.fork():
            _, status = os.wait()
            sys.exit(os.waitstatus_to_exitcode(status))
        train(3)
        """,
        0,
        1,
    ),
    "trains another model in a child": (
        """
        model = train(3)
        if os.fork():
            _, status = os.wait()
            sys.exit(os.waitstatus_to_exitcode(status) + 5)
        train(2)
        os._exit(0)
        """,
        5,
        2,
    ),
    "spawns a worker for its data": (
        """
        from torch.utils.data import DataLoader
        loader = DataLoader(torch.ones(6, 4), batch_size=2, num_workers=1)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
        """,
        0,
        1,
    ),
    "execs another": ("os.execv(sys.executable, [sys.executable, __file__, 'again'])", 0, 1),
    "is killed": (
        """
        model = train(3)
        while not list(pathlib.Path(os.environ["FLOATSCOPE_DIR"]).glob("*/*.spool")):
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
        """,
        -signal.SIGKILL,
        1,
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_programs_that_are_more_than_one_process(what: str, tmp_path: Path) -> None:
    body, status, runs = PROGRAMS[what]
    script = tmp_path / "train.py"
    again = "if sys.argv[1:]:\n    train(3)\n    sys.exit()\n"
    script.write_text(LOOP + again + textwrap.dedent(body))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "FLOATSCOPE_DIR": str(tmp_path / "spool"),
        "FLOATSCOPE_SERVER": "http://127.0.0.1:1",
    }
    line = [sys.executable, "-m", "floatscope", "run", "--", sys.executable, str(script)]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=100, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    spools = list((tmp_path / "spool").glob("*/about"))
    assert len(spools) == runs, done.stderr
    assert done.stderr.count("no server answers") == 1
    assert "cannot reach" not in done.stderr
