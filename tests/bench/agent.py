"""Added time of a training step on the CPU: ours and two yardsticks, by ``floatscope bench agent``."""

from __future__ import annotations

import sys

from floatscope._bench import agent, table
from floatscope._bench.catalogue import RECORDERS, Plan

_OTHERS = ("nobody", "foreach-norms", "torch-gradients")


def main() -> None:
    recorders = [name for name in RECORDERS if name in _OTHERS or name.startswith("floatscope")]
    plan = Plan.of(device="cpu", models=(), recorders=recorders, pairs=60, compiled=False)
    print(table.markdown(agent.run(plan, lambda line: print(line, file=sys.stderr))))
