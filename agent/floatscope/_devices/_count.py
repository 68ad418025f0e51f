"""How many cards AMD SMI shows, asked once and in a process of its own: its library must not meet torch's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from floatscope._devices._figures import Unavailable
from floatscope._leash import interpreter, unwatched

__all__ = ["Count", "count_cards", "smi_cards"]


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """``cards``, or None and why."""

    cards: int | None = None
    reason: str | None = None


def count_cards(root: Path, timeout_s: float) -> Count:
    """For the child process: asks pyrsmi."""
    from floatscope._devices._rocm import PyrsmiCards
    from floatscope._devices._sampler import in_time

    try:
        return Count(cards=in_time(lambda: len(PyrsmiCards(root).read()), timeout_s, "pyrsmi"))
    except Unavailable as finding:
        return Count(reason=str(finding))


def smi_cards(root: Path = Path("/sys"), timeout_s: float = 5.0) -> Count:
    """What AMD SMI shows below ``root``; a reader that hangs or crashes is a reason, after ``timeout_s`` and some."""
    command = ["-P", "-m", "floatscope._devices", f"--sysfs={root}", f"--timeout={timeout_s}", "--count"]
    try:
        # A process that imports for the first time takes seconds on a busy machine.
        done = subprocess.run(
            [interpreter(), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=unwatched(),
            timeout=timeout_s + 30,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=Count)
    except subprocess.TimeoutExpired:
        return Count(reason="pyrsmi: the process that asks does not end")
    except msgspec.MsgspecError:
        return Count(reason=f"pyrsmi: the process that asks ended with status {done.returncode}")
    except OSError as error:
        return Count(reason=f"pyrsmi: {error}")
