"""The command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["Command"]

_DEADLINE_S = 60.0


class Command:
    """A ``floatscope`` process."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "floatscope", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def address(self) -> str:
        """Where a server listens; it fails if the process ends without saying so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "listening on http://" in line:
                return line.rsplit("http://", 1)[1].strip()
        raise AssertionError(self.finish())

    def finish(self) -> tuple[int, str, str]:
        """Exit status, standard output and error."""
        out, err = self.process.communicate(timeout=_DEADLINE_S)
        return self.process.returncode, out, err
