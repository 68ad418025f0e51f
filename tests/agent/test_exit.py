"""The end of a program with several scopes and no server."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import atexit, os, signal, sys, threading, time
import torch, floatscope
atexit.register(lambda: print("flushed", time.monotonic() - end, flush=True))
scopes = []
models = [torch.nn.Linear(2, 2) for _ in range(4)]
for number, model in enumerate(models):
    scopes.append(floatscope.watch(model, server="http://127.0.0.1:9", run=f"r{number}"))
    scopes[-1].step(loss=1.0)
def interrupt():
    scopes[0]._sink._closing.wait()
    os.kill(os.getpid(), signal.SIGINT)
if sys.argv[1] == "interrupt":
    threading.Thread(target=interrupt, daemon=True).start()
if sys.argv[1] == "collected":
    del model, models
end = time.monotonic()
sys.exit(3)
"""


@pytest.mark.parametrize("how", ["end", "interrupt", "collected"])
def test_scopes_flush_together_and_can_be_interrupted(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
    # One after another they would take 20 s; each alone takes 5 s.
    assert float(done.stdout.split()[1]) < 12
    assert done.stderr.count("1 record waits in") == (0 if how == "interrupt" else 4)
    assert "could not be delivered" not in done.stderr
