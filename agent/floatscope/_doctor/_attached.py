"""The verdicts that go with a run: those that cost nothing and ask no device."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from floatscope._doctor._ask_torch import ask
from floatscope._doctor._examine import examine
from floatscope._doctor._look import look_in_time
from floatscope._doctor._verdict import as_json

__all__ = ["verdicts_of_this_process"]

_TIMEOUT_S = 5.0
"""For which a driver that hangs delays the first record; it waits in the agent's queue or on the disk."""


def verdicts_of_this_process() -> list[dict[str, str]]:
    """What ``floatscope doctor`` would say here, as plain data, without what takes time: searching compiled packages,
    AMD SMI, products and copies on a card.

    For a background thread. Starts no CUDA context: cards are asked only where the training has one. No host
    synchronisation.
    """
    from floatscope._selftest._history import History

    torch = sys.modules.get("torch")
    site = [Path(folder) for folder in dict.fromkeys(sys.path) if folder]
    last = History.of_user(os.environ).last()
    machine, hung = look_in_time(
        _TIMEOUT_S,
        environment=os.environ,
        torch=None if torch is None else ask(torch, cards=torch.cuda.is_initialized()),
        site=site,
        libraries=False,
        tested_with=None if last is None else last.stack,
    )
    return as_json([*hung, *examine(machine)])
