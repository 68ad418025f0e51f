"""A process that spools ``STEPS`` steps, or goes on until it is killed: ``DIR URL STEPS``. Prints its writer."""

from __future__ import annotations

import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from floatscope import wire
from floatscope._record import StepRecord
from floatscope._sender import Limits, Sender
from floatscope._spool._spooler import SpoolPlace


@dataclass
class Record:
    """A step whose numbers are there at once."""

    step: int
    nbytes: int = 100
    layers: tuple[wire.Layer, ...] = ()

    def ready(self) -> bool:
        return True

    def resolve(self) -> StepRecord:
        scalars = {"loss": self.step / 8, "handed_over_ns": float(time.time_ns())}
        return StepRecord(step=self.step, scalars=scalars, summaries=())


def tell(line: str) -> None:
    """To whoever started this process, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(directory: str, url: str, steps: int) -> None:
    writer = uuid.uuid4().hex
    sender = Sender(
        wire.Identity(run="r", writer=writer),
        url,
        limits=Limits(flush_s=1.0),
        spool=SpoolPlace(directory=Path(directory)),
    )
    tell(writer)
    step = 0
    while steps <= 0 or step < steps:
        sender.put(Record(step))
        if steps <= 0:
            # When each step was handed over is known to whoever kills this process.
            tell(f"{step} {time.time()}")
            time.sleep(0.002)
        step += 1
    spooler = sender._spooler
    assert spooler is not None
    while spooler.outbox.counts().waiting < steps or spooler._written_to < spooler.outbox.last_seq:
        time.sleep(0.01)
    tell("written")
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
