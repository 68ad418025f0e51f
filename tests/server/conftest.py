"""A real server on a free port and a real agent's side of the wire."""

from __future__ import annotations

import json
import queue
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from floatscope import wire
from floatscope_server.app import create_app
from floatscope_server.listener import address_of, listen
from floatscope_server.services import Services
from floatscope_server.serving import Server
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from floatscope_server.store.series_thread import SeriesThread
from tests.databases import Databases, TestDatabase
from tests.needs import needs
from tests.postgres import Cluster, programs
from tests.server.bodies import Unpack, layer, scalars, summaries, unpack
from tests.server.programs import Command

DEADLINE_S = 60.0


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Until ``condition`` holds, at most a minute."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever the server says
        return json.loads(self.body)


def http(url: str, *, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
    """One request; 4xx and 5xx are replies too."""
    request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            return Reply(status=response.status, headers=_lower(response.headers), body=response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(status=error.code, headers=_lower(error.headers), body=error.read())


def _lower(headers: Any) -> dict[str, str]:  # noqa: ANN401 - http.client's message
    return {name.lower(): value for name, value in headers.items()}


@dataclass(kw_only=True)
class Running:
    """A server in this process, on its own thread."""

    services: Services
    server: Server
    address: str
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def get(self, path: str, **headers: str) -> Reply:
        return http(self.url + path, headers=headers)

    def json(self, path: str) -> Any:  # noqa: ANN401 - whatever the server says
        reply = self.get(path)
        assert reply.status == 200, reply.body
        return reply.json

    def stop(self) -> None:
        self.server.stop()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Callable[[], Databases]]:
    """A PostgreSQL for the whole session, started when the first test asks."""
    made: list[Databases] = []

    def get() -> Databases:
        if not made:
            binaries = programs()
            needs(binaries, "PostgreSQL (initdb)")
            assert binaries is not None
            made.append(Databases(Cluster(binaries, fsync=False)))
        return made[0]

    yield get
    for databases in made:
        databases.cluster.remove()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What uses a store runs on each engine; where only its own words or the network are at stake, on one."""
    if "database" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("engines")
        metafunc.parametrize("database", ("sqlite", "postgresql") if marker is None else marker.args, indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest, cluster: Callable[[], Databases]) -> Iterator[TestDatabase]:
    """Where stores are."""
    one = TestDatabase(cluster() if request.param == "postgresql" else None)
    yield one
    one.drop()


@pytest.fixture(name="wait_for")
def wait_for_fixture() -> Callable[[Callable[[], object], str], None]:
    return wait_for


@pytest.fixture(name="http")
def http_fixture() -> Callable[..., Reply]:
    return http


@pytest.fixture
def start(tmp_path: Path, database: TestDatabase) -> Iterator[Start]:
    """Starts servers with the settings given; all are stopped at the end."""
    running: list[Running] = []

    def begin(*, clock: Callable[[], float] = time.time, **options: Any) -> Running:  # noqa: ANN401 - settings
        settings = Settings(port=0, **{**database.of(options.get("data", tmp_path / "data")), **options})
        listener = listen(settings)
        ready = threading.Event()
        app = create_app(settings, clock=clock)
        server = Server(app, listener, on_ready=ready.set)

        def serve() -> None:
            with listener:
                server.serve_forever()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = address_of(listener)
        one = Running(services=app.state.services, server=server, address=address, thread=thread)
        running.append(one)
        wait_for(lambda: ready.is_set() or not thread.is_alive(), "the server to start")
        assert ready.is_set()
        return one

    yield begin
    for one in running:
        if one.thread.is_alive():
            one.stop()


@pytest.fixture
def server(start: Start) -> Running:
    return start()


@dataclass(kw_only=True)
class Agent:
    """Speaks wire v1 over a socket, one message at a time unless told otherwise."""

    address: str
    run: str = "run"
    rank: int = 0
    world: int = 1
    attempt: int = 0
    writer: str = field(default_factory=lambda: secrets.token_hex(16))
    layers: Sequence[wire.Layer] = ()
    config: dict[str, Any] = field(default_factory=dict)
    token: str | None = None
    seq: int = 0
    told: list[wire.Focus | wire.Freeze | wire.Alert] = field(default_factory=list)
    """What the server said without having been asked."""
    _socket: ClientConnection | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def connect(self) -> wire.ServerMessage:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else None
        self.close()
        self._socket = self._stack.enter_context(
            connect(
                f"ws://{self.address}/ingest/v1",
                subprotocols=[Subprotocol(wire.SUBPROTOCOL)],
                additional_headers=headers,
                compression=None,
                close_timeout=1,
            )
        )
        answer = self.ask(self.hello())
        if isinstance(answer, wire.Welcome):
            self.seq = answer.last_seq
        return answer

    def hello(self) -> wire.Hello:
        identity = wire.Identity(
            run=self.run,
            writer=self.writer,
            rank=self.rank,
            world=self.world,
            attempt=self.attempt,
            started_ns=1,
        )
        return wire.Hello(
            protocol_min=1,
            protocol_max=1,
            agent="test",
            identity=identity,
            wall_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            layers=tuple(self.layers),
            config=self.config,
        )

    def send(self, message: wire.AgentMessage | bytes) -> None:
        assert self._socket is not None
        self._socket.send(message if isinstance(message, bytes) else wire.encode(message))

    def send_raw(self, data: bytes) -> None:
        """Bytes of the connection itself, not framed."""
        assert self._socket is not None
        self._socket.socket.sendall(data)

    def receive(self) -> wire.ServerMessage:
        """The next answer; what comes before it unasked goes to ``told``."""
        while True:
            message = self.hear()
            if not isinstance(message, wire.Focus | wire.Freeze | wire.Alert):
                return message

    def hear(self) -> wire.ServerMessage:
        """The next message of any kind."""
        assert self._socket is not None
        data = self._socket.recv(timeout=DEADLINE_S)
        assert isinstance(data, bytes)
        message = wire.decode_server(data)
        if isinstance(message, wire.Focus | wire.Freeze | wire.Alert):
            self.told.append(message)
        return message

    def ask(self, message: wire.AgentMessage | bytes) -> wire.ServerMessage:
        self.send(message)
        return self.receive()

    def deliver(self, body: wire.Body) -> wire.ServerMessage:
        self.seq += 1
        return self.ask(wire.make_block(self.seq, body))

    def close(self) -> None:
        self._socket = None
        self._stack.close()


class MakeAgent(Protocol):
    """Makes an ``Agent``; ``options`` are its fields."""

    def __call__(self, *, connected: bool = True, address: str | None = None, **options: Any) -> Agent: ...  # noqa: ANN401


class Start(Protocol):
    """Starts a server; ``options`` are fields of ``Settings``."""

    def __call__(self, *, clock: Callable[[], float] = time.time, **options: Any) -> Running: ...  # noqa: ANN401


@pytest.fixture
def agent(server: Running) -> Iterator[MakeAgent]:
    """Agents of the ``server`` fixture, connected unless ``connected=False``."""
    agents: list[Agent] = []

    def make(*, connected: bool = True, address: str | None = None, **options: Any) -> Agent:  # noqa: ANN401
        one = Agent(address=address or server.address, **options)
        agents.append(one)
        if connected:
            welcome = one.connect()
            assert isinstance(welcome, wire.Welcome), welcome
        return one

    yield make
    for one in agents:
        one.close()


class Make:
    """Builders of wire parts."""

    layer = staticmethod(layer)
    summaries = staticmethod(summaries)
    scalars = staticmethod(scalars)


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture(name="unpack")
def unpack_fixture() -> Unpack:
    return unpack


class Clock:
    """Wall-clock seconds that only move when told."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@dataclass(kw_only=True)
class Pen:
    """A writer that talks to a store without a network."""

    store: Store
    run: str = "run"
    rank: int = 0
    world: int = 1
    attempt: int = 0
    writer: str = field(default_factory=lambda: secrets.token_hex(16))
    layers: Sequence[wire.Layer] = ()
    age_s: float = 0.0
    """Seconds since it began, by a clock of its own."""
    gone: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    seq: int = 0
    answers: queue.Queue[wire.ServerMessage] = field(default_factory=queue.Queue)

    def ask(self, message: wire.AgentMessage) -> wire.ServerMessage:
        self.store.submit(self.writer, message, self.answers.put)
        return self.answers.get(timeout=DEADLINE_S)

    def hello(self) -> wire.ServerMessage:
        identity = wire.Identity(
            run=self.run,
            writer=self.writer,
            rank=self.rank,
            world=self.world,
            attempt=self.attempt,
            started_ns=1,
        )
        answer = self.ask(
            wire.Hello(
                protocol_min=1,
                protocol_max=1,
                agent="test",
                identity=identity,
                wall_ns=1 + int(1e9 * self.age_s),
                monotonic_ns=0,
                layers=tuple(self.layers),
                gone=self.gone,
                config=self.config,
            )
        )
        if isinstance(answer, wire.Welcome):
            self.seq = answer.last_seq
        return answer

    def deliver(self, body: wire.Body) -> wire.ServerMessage:
        self.seq += 1
        return self.ask(wire.make_block(self.seq, body))


class MakePen(Protocol):
    """Makes a ``Pen`` that has said hello; ``options`` are its fields."""

    def __call__(self, store: Store, **options: Any) -> Pen: ...  # noqa: ANN401


@pytest.fixture
def pen() -> MakePen:
    def make_pen(store: Store, **options: Any) -> Pen:  # noqa: ANN401
        one = Pen(store=store, **options)
        welcome = one.hello()
        assert isinstance(welcome, wire.Welcome), welcome
        return one

    return make_pen


class OpenStore(Protocol):
    """Opens a store; ``options`` are fields of ``Settings``."""

    def __call__(self, **options: Any) -> Store: ...  # noqa: ANN401


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock, database: TestDatabase) -> Iterator[OpenStore]:
    """Stores of one folder by the ``clock`` fixture; all are stopped at the end."""
    opened: list[Store] = []

    def begin(**options: Any) -> Store:  # noqa: ANN401
        store = Store(Settings(**{**database.of(options.get("data", tmp_path / "data")), **options}), clock=clock)
        store.start()
        opened.append(store)
        return store

    yield begin
    for store in opened:
        if store.started:
            store.stop()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()


@pytest.fixture(params=["tail", "sealed"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the test finds scalars, device samples and histograms: with "sealed" everything is moved to chunks before
    each question that the test itself or a route asks."""
    where: str = request.param
    if where == "sealed":
        read, ask = Store.read, Services._ask
        sealing = threading.local()
        test = threading.current_thread()

        def seal(store: Store) -> None:
            sealing.now = True
            try:
                SeriesThread(store).seal(everything=True)
            finally:
                sealing.now = False

        def read_sealed(store: Store) -> Any:  # noqa: ANN401 - as Store.read
            if threading.current_thread() is test and not getattr(sealing, "now", False):
                seal(store)
            return read(store)

        def ask_sealed(services: Services, question: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - as Services._ask
            seal(services.store)
            return ask(services, question)

        monkeypatch.setattr(Store, "read", read_sealed)
        monkeypatch.setattr(Services, "_ask", ask_sealed)
    return where


@pytest.fixture
def command() -> Iterator[Callable[..., Command]]:
    """Starts ``floatscope`` processes; what still runs at the end is killed."""
    started: list[Command] = []

    def begin(*arguments: str, **environment: str) -> Command:
        one = Command(*arguments, **environment)
        started.append(one)
        return one

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate(timeout=DEADLINE_S)
