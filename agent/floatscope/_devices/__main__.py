"""The sidecar: reads every card once a second and writes it to its standard output until its parent ends."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from floatscope._devices._count import count_cards
from floatscope._devices._figures import Unavailable
from floatscope._devices._lines import NoDevices, Sample, encode_line
from floatscope._devices._sampler import Sampler
from floatscope._leash import die_with_parent


def _sample_until_parent_ends(out: int, sampler: Callable[[], Sampler], period_s: float) -> None:
    parent = os.getppid()
    try:
        opened = sampler()
        due = time.monotonic()
        while os.getppid() == parent:
            os.write(out, encode_line(Sample(devices=tuple(opened.read()))))
            due = max(due + period_s, time.monotonic())
            # Standard input never carries anything; it ends with the parent.
            if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
                return
    except Unavailable as finding:
        os.write(out, encode_line(NoDevices(reason=str(finding))))


def main() -> None:
    """Run the sidecar with the options of the command line; does not return."""
    parser = argparse.ArgumentParser(prog="python -m floatscope._devices", description=__doc__)
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"), help="where the kernel's files are")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between readings")
    parser.add_argument("--timeout", type=float, default=2.5, help="seconds that one source may take")
    parser.add_argument("--files-only", action="store_true", help="leave the vendors' libraries alone")
    parser.add_argument("--parent", type=int, help="process that this one must not outlive (default: its parent)")
    parser.add_argument("--count", action="store_true", help="say how many cards AMD SMI shows, and end")
    options = parser.parse_args()
    # Ctrl-C goes to the whole terminal; the agent still wants readings while it says goodbye.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Named, because a parent that was killed while this process started has been replaced as the parent.
    die_with_parent(options.parent or os.getppid())
    # Vendor libraries print; the pipe is for readings alone. pyrsmi logs an error for every figure a card lacks.
    out = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(BrokenPipeError):
        if options.count:
            os.write(out, msgspec.json.encode(count_cards(options.sysfs, options.timeout)))
            os._exit(0)
        sampler = partial(Sampler, options.sysfs, options.timeout, files_only=options.files_only)
        _sample_until_parent_ends(out, sampler, options.period)
    # No clean-up: vendor libraries are known to crash in theirs, and a reading that hangs would hold us.
    os._exit(0)


if __name__ == "__main__":
    main()
