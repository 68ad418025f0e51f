"""A trainer that is killed, a real server and what the spool brings there: all that is older than 1 s, once."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import create_engine, text

from floatscope_server.store.framed import scalars_of
from floatscope_server.tiles.points import Points
from tests.faults import FaultProxy

TRAINER = Path(__file__).parents[1] / "agent" / "sender" / "spooling_trainer.py"


class RealServer:
    """``floatscope server`` as a process of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        command = [sys.executable, "-m", "floatscope", "server", "--port", "0", "--data", str(data)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+", self.process.stdout.readline())
        assert address is not None
        self.url = address[0]

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)

    def get(self, path: str) -> object:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as answer:
            return json.load(answer)

    def steps(self, writer: str) -> list[int]:
        """The steps of "loss" that ``writer`` has on the server: those that are sealed already, then those of
        frames that are not, in the order of their batches."""
        engine = create_engine(f"sqlite:///{self.data / 'floatscope.db'}")
        found: list[int] = []
        with engine.connect() as connection:
            chunks = connection.execute(
                text(
                    "SELECT c.data, s.ordered FROM scalar_chunk c JOIN scalar_series s ON s.id = c.series_id "
                    "JOIN writer a ON a.run_id = s.run_id AND a.attempt = s.attempt "
                    "WHERE a.id = :id AND s.name = 'loss' AND c.level = 0 ORDER BY c.first_step"
                ),
                {"id": writer},
            ).all()
            for data, ordered in chunks:
                assert ordered, "a step came twice"
                points = Points.decoded(data)
                assert (points.values == points.steps / 8).all(), "0 corrupt accepted"
                found += points.steps.tolist()
            rows = connection.execute(
                text(
                    "SELECT w.seq, w.data FROM wal_frame w JOIN stream s ON s.id = w.stream_id "
                    "JOIN writer a ON a.number = w.writer WHERE a.id = :id AND s.name = 'scalar' ORDER BY w.seq"
                ),
                {"id": writer},
            )
            for _, data in rows:
                for series in scalars_of(data) or ():
                    if series.name == "loss":
                        steps = np.frombuffer(series.steps, "<i8")
                        assert (np.frombuffer(series.values, "<f8") == steps / 8).all(), "0 corrupt accepted"
                        found += steps.tolist()
        engine.dispose()
        return found


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealServer]:
    server = RealServer(tmp_path / "data")
    yield server
    server.stop()


def killed_trainer(directory: Path, url: str, after_s: float) -> tuple[str, dict[int, float], float]:
    """The writer, when it handed over each step, and when it was killed."""
    command = [sys.executable, str(TRAINER), str(directory), url, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        writer = process.stdout.readline().strip()
        first = process.stdout.readline()
        time.sleep(after_s)
        killed_at = time.time()
        process.kill()
        lines = [first, *process.stdout.read().splitlines()]
    handed_over = dict(line.split() for line in lines if len(line.split()) == 2)
    return writer, {int(step): float(at) for step, at in handed_over.items()}, killed_at


def sync(directory: Path, url: str) -> int:
    command = [sys.executable, "-m", "floatscope", "sync", str(directory), "--server", url]
    return subprocess.run(command, timeout=120, stdout=subprocess.DEVNULL, check=False).returncode


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_a_killed_trainer_loses_at_most_a_second(tmp_path: Path, real: RealServer, kills: int) -> None:
    rng = random.Random(5)
    proxy = FaultProxy(real.url)
    worst = 0.0
    try:
        for number in range(kills):
            # The server is there, gone, or silent.
            proxy.fault = ("", "refuse", "blackhole")[number % 3]
            directory = tmp_path / "spool"
            writer, handed_over, killed_at = killed_trainer(directory, proxy.url, rng.uniform(0.2, 2.5))
            proxy.fault = ""
            proxy.cut_all()
            assert sync(directory, real.url) == 0  # a record that the kill cut in two is declared
            assert not (directory / writer).exists()
            steps = real.steps(writer)
            assert steps == list(range(len(steps))), "0 doubled, in order"
            missing = [at for step, at in handed_over.items() if step >= len(steps)]
            # While it stood still, or the machine did, it could write nothing either.
            said = sorted([*handed_over.values(), killed_at])
            still = max(after - before for before, after in pairwise(said))
            worst = max([worst, *(killed_at - at - still for at in missing)])
    finally:
        proxy.close()
    assert worst <= 1.0
    runs = real.get("/api/v1/runs")
    assert isinstance(runs, list)
    assert runs[0]["state"] == "failed"


_NO_STEP = """
import faulthandler, sys, time
faulthandler.dump_traceback_later(60)
import floatscope, torch
model = torch.nn.Linear(2, 2)
scope = floatscope.watch(model, run="no-step", server=sys.argv[1], spool_dir=sys.argv[2])
time.sleep(600)
"""


def test_a_run_killed_before_its_first_step_is_listed_as_failed(tmp_path: Path, real: RealServer) -> None:
    spool = tmp_path / "spool"
    with subprocess.Popen([sys.executable, "-c", _NO_STEP, "http://127.0.0.1:9", str(spool)]) as process:
        try:
            end = time.monotonic() + 90
            while not list(spool.glob("[0-9a-f]*/about")):
                assert process.poll() is None, "it ended by itself"
                assert time.monotonic() < end, "it never began to spool"
                time.sleep(0.05)
        finally:
            process.kill()
    assert sync(spool, real.url) == 0
    assert list(spool.glob("[0-9a-f]*")) == []
    deadline = time.monotonic() + 60
    while True:
        runs = real.get("/api/v1/runs")
        assert isinstance(runs, list)
        if runs and runs[0]["state"] == "failed":
            break
        assert time.monotonic() < deadline, runs
        time.sleep(0.05)
    assert (runs[0]["name"], runs[0]["steps"]) == ("no-step", 0)


@pytest.mark.parametrize("at", [2000, 20_000])
def test_a_flipped_byte_on_the_way_is_noticed(tmp_path: Path, real: RealServer, at: int) -> None:
    writer, _, _ = killed_trainer(tmp_path / "spool", "http://127.0.0.1:9", 1.0)
    proxy = FaultProxy(real.url, fault="flip", at=at)
    try:
        while (tmp_path / "spool" / writer).exists():
            sync(tmp_path / "spool", proxy.url)
            proxy.fault = ""
    finally:
        proxy.close()
    steps = real.steps(writer)
    assert steps == list(range(len(steps)))
    assert len(steps) > 100
