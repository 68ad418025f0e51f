"""A server that is killed while it seals loses nothing that it has acknowledged, and doubles nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
from sqlmodel import func, select

from floatscope_server.models import ScalarChunk
from floatscope_server.query.line import run_named
from floatscope_server.query.series import raw_series, scalar_series
from floatscope_server.settings import Settings
from floatscope_server.store import Store

_CHILD = """
import sys, threading
from pathlib import Path
import numpy as np
from floatscope import wire
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from floatscope_server.store.series_thread import SeriesThread

store = Store(Settings(data=Path(sys.argv[1]), commit_interval_s=1e-6))
store.start()
answers = []
arrived = threading.Event()
def reply(message):
    answers.append(message)
    arrived.set()
def ask(message):
    arrived.clear()
    store.submit("0" * 32, message, reply)
    arrived.wait()
    return answers[-1]
identity = wire.Identity(run="run", writer="0" * 32, started_ns=1, attempt=1)
welcome = ask(wire.Hello(protocol_min=1, protocol_max=1, agent="t", identity=identity, wall_ns=1, monotonic_ns=0))
sealer = SeriesThread(store)
def seal():
    while True:
        sealer.seal(everything=True)
threading.Thread(target=seal, daemon=True).start()
seq = welcome.last_seq
while True:
    steps = np.arange(20 * seq, 20 * seq + 20, dtype="<i8")
    seq += 1
    series = wire.Scalars(name="loss", steps=steps.tobytes(), values=np.sin(steps).tobytes())
    assert isinstance(ask(wire.make_block(seq, wire.Body(scalars=(series,)))), wire.Ack)
    print(20 * seq, flush=True)
"""


def test_kill_9_loses_no_acknowledged_point_and_doubles_none(tmp_path: Path) -> None:
    acknowledged = 0
    for blocks in (40, 1, 60):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_CHILD), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(blocks):
            acknowledged = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split("\n")
        child.wait()
        child.stdout.close()
        acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
        store = Store(Settings(data=tmp_path))
        store.start()
        try:
            with store.read() as session:
                run = run_named(session, "run")
                steps, values = raw_series(session, run.id or 0, ["loss"], 0, 1 << 40)["loss"]
                (shown,) = scalar_series(session, run, names=["loss"], first=None, last=None, points=1)
                sealed = session.exec(select(func.sum(ScalarChunk.n)).where(ScalarChunk.level == 0)).one()
        finally:
            store.stop()
        assert len(steps) >= acknowledged
        assert len(steps) % 20 == 0
        assert steps.tolist() == list(range(len(steps)))
        assert values.tolist() == np.sin(steps).tolist()
        assert shown.n == len(steps)
        assert (shown.max[0], shown.min[0]) == (values.max(), values.min())
        assert (sealed or 0) <= len(steps)
    assert sealed
