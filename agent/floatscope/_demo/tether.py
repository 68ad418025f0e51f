"""``python -m floatscope._demo.tether PARENT ARGUMENTS...``: become ``python ARGUMENTS...`` and die with PARENT.

The kernel sends SIGKILL when the parent ends, however it ends; the setting survives exec. So nothing that the demo has
started can outlive it. Linux only, as is the package.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, arguments = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have ended before the call above; then no signal will come.
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
