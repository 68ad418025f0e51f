"""More questions at once than can be answered."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlmodel import Session

from floatscope import wire
from floatscope_server.models import Run
from floatscope_server.query.window import TileReader

pytestmark = pytest.mark.engines("sqlite")

if TYPE_CHECKING:
    from tests.server.conftest import MakeAgent, Reply, Running


def test_many_slow_questions_keep_neither_health_nor_ingest_waiting(
    server: Running, agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, http: Callable[..., Reply]
) -> None:
    monkeypatch.setattr("floatscope_server.services._READ_WAIT_S", 0.5)
    agent(run="run")
    release, asked = threading.Event(), threading.Semaphore(0)

    def slow(_: Session, __: TileReader, run: Run) -> dict[str, object]:
        asked.release()
        assert release.wait(60)
        return {"run": run.name}

    monkeypatch.setattr("floatscope_server.query.routes.show", slow)
    with ThreadPoolExecutor(60) as pool:
        answers = [pool.submit(http, f"{server.url}/api/v1/runs/run") for _ in range(60)]
        for _ in range(3):
            assert asked.acquire(timeout=60)
        assert server.get("/healthz").status == 200
        assert isinstance(agent(run="other").deliver(wire.Body()), wire.Ack)
        assert server.get("/api/v1/alerts").status == 200
        refused = [answer.result() for answer in islice(as_completed(answers, timeout=60), 57)]
        release.set()
        statuses = Counter(answer.result().status for answer in answers)
    assert statuses == {200: 3, 503: 57}
    assert {reply.json["error"]["code"] for reply in refused} == {"busy"}
    assert {reply.headers["retry-after"] for reply in refused} == {"2"}


def test_without_a_connection_to_read_with_the_answer_is_busy(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted() -> None:
        raise PoolTimeoutError

    monkeypatch.setattr(server.services.store, "read", exhausted)
    for path in ("/api/v1/runs", "/api/v1/alerts", "/metrics"):
        reply = server.get(path)
        assert (reply.status, reply.json["error"]["code"]) == (503, "busy")
    assert server.get("/healthz").status == 200
