"""kill -9 under load, of the server and of PostgreSQL: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import random
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from sqlmodel import Session, func, select
from websockets.exceptions import WebSocketException

from floatscope import wire
from floatscope_server.database import database_of
from floatscope_server.models import ScalarSeries, Stream, StreamState, Writer
from floatscope_server.query.frames import FrameCache, summary_frames
from floatscope_server.query.line import Stretch, run_named
from floatscope_server.query.series import raw_series
from floatscope_server.settings import Settings
from floatscope_server.store.parts import MAX_STEP
from floatscope_server.store.replay import WARM_UP_STEPS
from floatscope_server.store.tilestore import Place, StreamKey, read_planes
from floatscope_server.tiles.geometry import COLUMNS
from floatscope_server.tiles.statistics import Agg, Stat
from tests.needs import needs
from tests.postgres import Cluster, programs
from tests.server.conftest import Agent, Make, Reply
from tests.server.programs import Command

_RANKS = 3

_Kills = pytest.mark.parametrize("kills", [3, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])


@pytest.fixture
def cluster_on_disk() -> Iterator[Cluster]:
    """A PostgreSQL that may be killed too."""
    binaries = programs()
    needs(binaries, "PostgreSQL (initdb)")
    assert binaries is not None
    one = Cluster(binaries, fsync=True)
    yield one
    one.remove()


class Load:
    """Writers that keep sending through every fault, resume at ``last_seq + 1``, and count what was acknowledged."""

    def __init__(self, make: Make, address: str, wait_for: Callable[..., None]) -> None:
        self._make, self._address, self._wait_for = make, address, wait_for
        self.acked = [0] * _RANKS
        self.broken: list[str] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        self._threads = [threading.Thread(target=self._write, args=(rank,)) for rank in range(_RANKS)]
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def go_on(self, blocks: int) -> None:
        """Until each has had ``blocks`` more acknowledged."""
        before = list(self.acked)
        self._wait_for(
            lambda: self.broken or all(a > b + blocks for a, b in zip(self.acked, before, strict=True)), "acks"
        )

    def _write(self, rank: int) -> None:
        one = Agent(address=self._address, rank=rank, world=_RANKS, layers=[self._make.layer(0, "a")])
        try:
            while not self._stop.is_set() and not self.broken:
                try:
                    self._converse(one, rank)
                except (OSError, EOFError, WebSocketException, TimeoutError):
                    self._stop.wait(0.05)
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            self.broken.append(f"rank {rank}: {error!r}")
        finally:
            one.close()

    def _converse(self, one: Agent, rank: int) -> None:
        welcome = one.connect()
        if isinstance(welcome, wire.Refused) and welcome.retryable:
            self._stop.wait(0.05)
            return
        assert isinstance(welcome, wire.Welcome), welcome
        assert welcome.last_seq >= self.acked[rank], (welcome.last_seq, self.acked[rank])
        self._stream(one, rank)

    def _stream(self, one: Agent, rank: int) -> None:
        """Keep eight blocks in flight; block ``seq`` carries step ``seq - 1``. Return where one is to come again."""
        sent = one.seq
        while not self._stop.is_set():
            while sent < self.acked[rank] + wire.MAX_IN_FLIGHT or sent < one.seq + 1:
                sent += 1
                step = sent - 1
                body = wire.Body(
                    summaries=(self._make.summaries("grad", step, [[1.0 + step]]),),
                    scalars=(self._make.scalars("loss", step, [float(step)]),),
                )
                one.send(wire.make_block(sent, body))
            answer = one.receive()
            if isinstance(answer, wire.Nack) and answer.retryable:
                assert answer.expected > self.acked[rank], (answer, self.acked[rank])
                self._stop.wait(0.05)
                return
            assert isinstance(answer, wire.Ack), answer
            self.acked[rank] = max(self.acked[rank], answer.seq)


def _check(settings: Settings, load: Load) -> None:
    """Every block is there once, in the tail or sealed: a scalar's figures count each point that is written, and the
    elements of a layer add up over the ranks."""
    assert load.broken == []
    reader = database_of(settings).reader()
    with reader.session() as session:
        writers = session.exec(select(Writer)).all()
        series = {row.rank: row for row in session.exec(select(ScalarSeries).where(ScalarSeries.name == "loss"))}
        run = run_named(session, "run")
        assert run.id is not None
        steps, values = raw_series(session, run.id, ["loss"], 0, MAX_STEP)["loss"]
        elements, highest = _summaries(session, run.id, max(writer.last_seq for writer in writers))
    reader.close()
    assert sorted(writer.rank for writer in writers) == list(range(_RANKS))
    for writer in writers:
        kept = series[writer.rank]
        assert writer.last_seq >= load.acked[writer.rank]
        assert writer.attempt == 1
        assert (kept.n, kept.first_step, kept.last_step) == (writer.last_seq, 0, writer.last_seq - 1)
        assert kept.ordered
    last = next(writer.last_seq for writer in writers if writer.rank == 0)
    assert np.array_equal(steps, np.arange(last))
    assert np.array_equal(values, np.arange(last))
    reached = np.array([[writer.last_seq] for writer in writers])
    assert np.array_equal(elements, 100 * (np.arange(len(elements)) < reached).sum(axis=0))
    np.testing.assert_allclose(highest, 1.0 + np.arange(len(highest)), rtol=2.0**-13)


def _sealed(settings: Settings) -> int:
    """Tiles and chunks that were published so far."""
    reader = database_of(settings).reader()
    try:
        with reader.session() as session:
            return int(session.exec(select(func.sum(StreamState.epoch))).one() or 0)
    finally:
        reader.close()


def _until_sealed(settings: Settings, load: Load, before: int) -> None:
    """A first tile takes some hundred steps of load: longer than other waits on a busy machine."""
    end = time.monotonic() + 300.0
    while not load.broken and _sealed(settings) <= before:
        assert time.monotonic() < end, "nothing was sealed"
        time.sleep(0.1)


def _until_due(settings: Settings, load: Load) -> None:
    """Until all ranks are so far past what is sealed that the next tile is being made, or is about to be."""
    end = time.monotonic() + 300.0
    while not load.broken and min(load.acked) < _sealed_steps(settings) + COLUMNS + WARM_UP_STEPS:
        assert time.monotonic() < end, "no tile became due"
        time.sleep(0.02)


def _sealed_steps(settings: Settings) -> int:
    reader = database_of(settings).reader()
    try:
        with reader.session() as session:
            sealed = select(StreamState.sealed).join(Stream).where(Stream.name == "layer/grad")
            return session.exec(sealed).one_or_none() or 0
    finally:
        reader.close()


def _summaries(session: Session, run: int, end: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Of the layer, by step up to ``end``: elements over all ranks, and the largest magnitude."""
    state = session.exec(select(StreamState).join(Stream).where(Stream.name == "layer/grad")).one()
    elements, highest = np.zeros(end), np.zeros(end)
    key = StreamKey(run_id=run, stream_id=state.stream_id, attempt=1, sealed=state.sealed, epoch=state.epoch)
    for idx, planes in read_planes(session, key, Place(0, 0, 0, 0), state.sealed // COLUMNS).items():
        part = slice(idx * COLUMNS, (idx + 1) * COLUMNS)
        elements[part], highest[part] = planes[Stat.COUNT, Agg.VALUE][0], planes[Stat.ABSMAX, Agg.VALUE][0]
    everything = Stretch(attempt=1, first=0, last=MAX_STEP)
    for frame in summary_frames(session, FrameCache(0), state.stream_id, everything):
        part = slice(frame.content.first_step, frame.content.first_step + frame.content.steps)
        assert part.start >= state.sealed
        elements[part] += frame.content["count"][:, 0]
        highest[part] = np.fmax(highest[part], frame.content["absmax"][:, 0])
    return elements, highest


def _free_port() -> int:
    """One that the kernel gives to nobody by itself, while no server listens there."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first // 2, first)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@_Kills
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_killed_server_has_lost_nothing_it_acknowledged_and_doubled_nothing(
    kills: int,
    engine: str,
    command: Callable[..., Command],
    make: Make,
    tmp_path: Path,
    wait_for: Callable[[Callable[[], object], str], None],
    request: pytest.FixtureRequest,
) -> None:
    settings = Settings(data=tmp_path / "killed")
    options = ["--data", str(settings.data)]
    if engine == "postgresql":
        cluster: Cluster = request.getfixturevalue("cluster_on_disk")
        settings = Settings(db=cluster.url(cluster.create()))
        assert settings.db is not None
        options = ["--db", settings.db]
    port = _free_port()

    def serve() -> Command:
        one = command("server", "--port", str(port), *options)
        one.address()
        return one

    load = Load(make, f"127.0.0.1:{port}", wait_for)
    server = serve()
    with load.running():
        for number in range(kills):
            load.go_on(30)
            if kills > 3 and number % 10 == 0:
                # The rules tell how far they are once a second, and only what they have judged is sealed.
                before = _sealed(settings)
                _until_sealed(settings, load, before)
            elif kills > 3 and number % 2:
                # The sealer looks every half a second, and works for some ms: each of these comes elsewhere.
                _until_due(settings, load)
                time.sleep(0.6 * (number * 0.618 % 1))
            server.process.kill()
            server.finish()
            server = serve()
        load.go_on(1)
    server.process.terminate()
    assert server.finish()[0] == 0
    _check(settings, load)
    assert kills <= 3 or _sealed(settings)
    if engine == "sqlite":
        with closing(sqlite3.connect(settings.database)) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_a_killed_postgresql_has_lost_nothing_and_the_server_goes_on_by_itself(
    kills: int,
    cluster_on_disk: Cluster,
    command: Callable[..., Command],
    make: Make,
    wait_for: Callable[[Callable[[], object], str], None],
    http: Callable[..., Reply],
) -> None:
    settings = Settings(db=cluster_on_disk.url(cluster_on_disk.create()))
    assert settings.db is not None
    server = command("server", "--port", "0", "--db", settings.db)
    address = server.address()
    load = Load(make, address, wait_for)
    with load.running():
        for number in range(kills):
            load.go_on(30)
            cluster_on_disk.stop((signal.SIGKILL, signal.SIGQUIT, signal.SIGINT)[number % 3])
            wait_for(lambda: http(f"http://{address}/healthz").status == 503, "the loss to be noticed")
            cluster_on_disk.start()
        load.go_on(30)
        # Readers came back too.
        assert http(f"http://{address}/api/v1/runs/run").status == 200
    server.process.terminate()
    status, _, err = server.finish()
    assert status == 0
    assert "Traceback" not in err
    _check(settings, load)
