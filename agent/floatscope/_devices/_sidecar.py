"""The agent's end of the sidecar: start it, read its lines without waiting, end it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec

from floatscope import wire
from floatscope._devices._figures import carry
from floatscope._devices._lines import Sample, decode_line
from floatscope._leash import interpreter, unwatched
from floatscope._log import logger

__all__ = ["Sidecar"]


_LONGEST_LINE = 1 << 20


class Sidecar:
    """A child process that reads the cards. ``reason`` says why there are no readings, once that is known.

    A vendor's library may end the process it is in: then the process is started once more, without any of them.
    """

    def __init__(self, *, sysfs: Path = Path("/sys"), period_s: float = 1.0) -> None:
        self._command = [
            "-P",  # a random.py in the working directory must not become ours
            "-m",
            "floatscope._devices",
            f"--sysfs={sysfs}",
            f"--period={period_s}",
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: list[subprocess.Popen[bytes]] = []
        self._rest = b""
        self._ended = ""
        self.reason: str | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process; failing to is a ``reason``, not an error."""
        try:
            self._process = subprocess.Popen(
                [
                    interpreter(),
                    *self._command,
                    f"--parent={os.getpid()}",
                    *(["--files-only"] if self._ended else []),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=unwatched(),
            )
        except OSError as error:
            self._give_up(f"the device sidecar could not be started: {error}")
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def poll(self) -> tuple[wire.Device, ...]:
        """The newest reading of every card since the last call, () when there is none. Never blocks.

        What is read seldom is in it if any reading since the last call had it.
        """
        newest: tuple[wire.Device, ...] = ()
        self._ending = [process for process in self._ending if process.poll() is None]
        while self._process is not None and (data := self._read(self._process)) is not None:
            if not data:
                # It closes its output a moment before it ends, or is stuck inside a driver.
                status = self._process.poll()
                ended = "closed its output" if status is None else f"ended with status {status}"
                self._start_again(f"the device sidecar {ended}")
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > _LONGEST_LINE:
                self._give_up("the device sidecar wrote something else than readings")
                break
            for line in lines:
                try:
                    message = decode_line(line)
                except msgspec.MsgspecError:
                    continue
                if isinstance(message, Sample):
                    newest = carry(newest, message.devices)
                else:
                    self._give_up(f"{self._ended}; {message.reason}" if self._ended else message.reason)
        return newest

    @staticmethod
    def _read(process: subprocess.Popen[bytes]) -> bytes | None:
        """What is there: b"" at the end, None while there is nothing."""
        assert process.stdout is not None
        return process.stdout.read(65536)

    def _start_again(self, ended: str) -> None:
        """It ended and did not say why."""
        if self._ended:
            self._give_up(ended)
            return
        logger.info("%s: cards are read by the kernel's files alone", ended)
        self._ended = ended
        self._rest = b""
        self._dismiss()
        self.start()

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        logger.info("no readings of the cards: %s", reason)
        self._dismiss()

    def _dismiss(self) -> None:
        """Have the process end, without waiting for it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.kill()
        process.stdin.close()
        process.stdout.close()
        self._ending.append(process)

    def close(self) -> None:
        """End the process and collect it."""
        self._dismiss()
        for process in self._ending:
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                # Stuck inside a driver: the kernel ends it when the call returns.
                logger.debug("the device sidecar %d does not end", process.pid)
        self._ending = []

    def forget(self) -> None:
        """In a forked child: close the inherited ends, so that the sidecar sees when the parent ends."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.stdout.close()
        for inherited in (*self._ending, *([] if process is None else [process])):
            # Not our child: without this the object would complain that it still runs.
            inherited.returncode = 0
        self._ending = []
