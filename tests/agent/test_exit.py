"""The end of a program with several scopes and no server."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import atexit, os, signal, sys, time
import torch, floatscope
from floatscope._sender import Sender
ends = {"finish": [], "abandon": []}
# Called last: nobody else has registered anything yet.
atexit.register(lambda: print(max(ends["finish"]) < min(ends["abandon"]), len(ends["finish"])))

def noted(name, method):
    def call(sender, *rest):
        if name == "abandon" or sender._finished_at is None:
            ends[name].append(time.monotonic())
        method(sender, *rest)
    setattr(Sender, name, call)

noted("finish", Sender.finish)
noted("abandon", Sender.abandon)

class Interrupting:
    "Whoever waits for it is interrupted, as somebody would who loses patience."
    def join(self, timeout):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

scopes = []
models = [torch.nn.Linear(2, 2) for _ in range(4)]
for number, model in enumerate(models):
    scopes.append(floatscope.watch(model, server="http://127.0.0.1:9", run=f"r{number}"))
    scopes[-1].step(loss=1.0)
for scope in scopes:
    # What the disk has is not lost when somebody does not want to wait.
    while scope._sink._spooler.kept != 1:
        time.sleep(0.01)
if sys.argv[1] == "interrupt":
    scopes[0]._sink._threads.insert(0, Interrupting())
if sys.argv[1] == "collected":
    del model, models
sys.exit(3)
"""


@pytest.mark.parametrize("how", ["end", "interrupt", "collected"])
def test_scopes_flush_together_and_can_be_interrupted(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
    # All have begun to flush before the first has given up: together they take no longer than one.
    assert done.stdout.split() == ["True", "4"]
    assert done.stderr.count("1 record waits in") == (0 if how == "interrupt" else 4)
    assert "could not be delivered" not in done.stderr
