"""``python _leash.py PARENT COMMAND...``: run COMMAND and end it, with all its children, when PARENT ends.

A compiler is a driver with children of its own. However the training ends, SIGKILL included, none of them goes on: the
kernel tells this process, which is the first of their process group and kills all of it. It needs nothing but the
standard library, so that it starts wherever floatscope was imported from.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["die_with_parent", "end", "interpreter", "leashed", "unwatched"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; survives exec


def interpreter() -> str:
    """What runs Python here. ``OSError`` in a bundled application: it would run the training once more instead."""
    if getattr(sys, "frozen", False) or not sys.executable:
        raise OSError("there is no Python to start, this is an application that has it inside")
    return sys.executable


def unwatched() -> dict[str, str]:
    """The environment of a child process: should a training start in it after all, nobody watches that."""
    return os.environ | {"FLOATSCOPE_DISABLED": "1"}


def leashed(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 (those of Popen)
    """Start ``command`` on a leash, with nothing to read. The thread that does so is the parent: it has to live on.

    ``OSError`` where there is no interpreter to start.
    """
    return subprocess.Popen(
        [interpreter(), "-I", "-S", __file__, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=unwatched(),
        **options,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was started so, and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def die_with_parent(parent: int, how: int = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal ``how`` when the thread that started it ends, or its process.

    Linux only, as is the package. Exits with 1 if ``parent`` is gone already: then no signal would come.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, how, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def _end_all(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """As the module says; ends as COMMAND does."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGTERM, _end_all)
    # Who waits for it by sigwait has it blocked, and a child process inherits that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    die_with_parent(parent, signal.SIGTERM)
    this = os.getpid()
    child = os.fork()
    if child == 0:
        # Should this process be killed alone, the command at least goes too.
        die_with_parent(this)
        try:
            os.execvp(command[0], command)  # noqa: S606
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(this, -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
