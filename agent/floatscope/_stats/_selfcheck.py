"""Checks a variant in a process of its own: ``python -m floatscope._stats._selfcheck triton cuda:0``.

A kernel that reads where there is no memory ends the process that launched it, which no handler can prevent. Prints
what is wrong, or ``ok``.
"""

from __future__ import annotations

import faulthandler
import subprocess
import sys

import torch

from floatscope._leash import end, interpreter, leashed
from floatscope._stats._golden import difference
from floatscope._stats._triton import TritonVariant

__all__ = ["verdict_of_child"]

_SECONDS = 900
"""Triton builds some forty kernels for it the first time, two seconds each."""


def verdict_of_child(name: str, device: str) -> bytes | None:
    """ "ok" or what is wrong with the variant, found by a child process. None if it ran out of time."""
    command = [interpreter(), "-m", "floatscope._stats._selfcheck", name, device]
    with leashed(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            said, errors = child.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            end(child)
            return None
    if child.returncode == 0:
        return said.strip()
    last = errors.strip().splitlines()[-1:] or [b""]
    return b"the check ended with status %d: %s" % (child.returncode, last[0])


def main(name: str, device: str) -> None:
    """Check one variant on one device."""
    faulthandler.dump_traceback_later(_SECONDS, exit=True)  # when nobody is waiting any more
    for every in (1, 16):
        found = difference(TritonVariant(torch.device(device), every=every), torch.device(device))
        if found is not None:
            sys.stdout.write(f"{name} has wrong results: {found}\n")
            return
    sys.stdout.write("ok\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
