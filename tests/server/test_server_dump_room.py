"""The dumps of a run have bounds: which go, which stay, and what is said of those that went."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlmodel import Session

from floatscope import wire
from floatscope_server.alerts.models import Alert
from floatscope_server.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.conftest import Agent, Make, MakeAgent, Running, Start

SIZE = 10_000
PIECE = SIZE + 200
"""What a piece of ``SIZE`` bytes of scalars takes at most."""


def _piece(make: Make, name: str, step: int, *, part: int = 0, parts: int = 1, alert: int | None = None) -> wire.Dump:
    return wire.Dump(
        id=name,
        kind="nonfinite",
        alert=alert,
        step=step,
        first_step=step - 5,
        last_step=step,
        part=part,
        parts=parts,
        bodies=(wire.encode(wire.Body(scalars=(make.scalars("loss", step, [1.0] * (SIZE // 16)),))),),
    )


def _listed(server: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.json("/api/v1/runs/run/dumps")
    return found


def _kept(server: Running) -> list[str]:
    """The dumps that are not removed, of which the route gives the content, as long as they are the only ones."""
    for dump in _listed(server):
        reply = server.get(f"/api/v1/runs/run/dumps/{dump['id']}")
        assert reply.status == (404 if dump["removed"] else 200)
        assert dump["removed"] is (dump["bytes"] == 0)
    return [dump["id"] for dump in _listed(server) if not dump["removed"]]


def _fire(server: Running, **options: Any) -> None:  # noqa: ANN401 - columns
    """An alert of kind nonfinite that fires at a step."""

    def add(session: Session) -> None:
        row = {
            "run_id": 1,
            "run": "run",
            "attempt": 1,
            "dedupe_key": str(options),
            "kind": "nonfinite",
            "severity": "critical",
            "state": "firing",
            "first_step": 0,
            "last_step": 0,
            "since_step": 0,
            "reason": "loss",
            "message": "",
            "message_zh": "",
            "opened_at": datetime.now(UTC),
        }
        session.add(Alert(**{**row, **options}))

    server.services.store.write(add)


@pytest.fixture
def server(start: Start) -> Running:
    return start(dump_bytes=3 * PIECE)


@pytest.fixture
def one(agent: MakeAgent, make: Make) -> Agent:
    return agent(layers=[make.layer(0, "a")])


def test_the_oldest_go(server: Running, one: Agent, make: Make) -> None:
    for step in (10, 20, 30, 40, 50):
        assert isinstance(one.deliver(wire.Body(dump=_piece(make, f"d{step}", step))), wire.Ack)
    listed = _listed(server)
    assert [(dump["id"], dump["removed"]) for dump in listed] == [
        ("d10", True),
        ("d20", True),
        ("d30", False),
        ("d40", False),
        ("d50", False),
    ]
    assert 3 * SIZE < sum(dump["bytes"] for dump in listed) <= 3 * PIECE
    assert _kept(server) == ["d30", "d40", "d50"]
    assert server.json("/api/v1/runs/run")["gaps"] == []


def test_those_of_an_open_alert_go_last(server: Running, one: Agent, make: Make) -> None:
    _fire(server, id=7, since_step=1)
    _fire(server, id=8, since_step=18)
    _fire(server, id=9, since_step=28, state="resolved")
    _fire(server, id=10, since_step=28, kind="loss_zero")
    one.deliver(wire.Body(dump=_piece(make, "alert-7", 10, alert=7)))
    one.deliver(wire.Body(dump=_piece(make, "rank0-step20", 20)))
    one.deliver(wire.Body(dump=_piece(make, "alert-9", 30, alert=9)))
    one.deliver(wire.Body(dump=_piece(make, "rank0-step30", 31)))
    assert _kept(server) == ["alert-7", "rank0-step20", "rank0-step30"]
    one.deliver(wire.Body(dump=_piece(make, "d40", 40)))
    assert _kept(server) == ["alert-7", "rank0-step20", "d40"]
    _fire(server, id=11, since_step=38)
    one.deliver(wire.Body(dump=_piece(make, "d50", 50)))
    assert _kept(server) == ["rank0-step20", "d40", "d50"]


def test_what_comes_late_of_one_that_went_is_noted(server: Running, one: Agent, make: Make) -> None:
    one.deliver(wire.Body(dump=_piece(make, "d10", 10, part=0, parts=2)))
    for step in (20, 30, 40):
        one.deliver(wire.Body(dump=_piece(make, f"d{step}", step)))
    assert not _listed(server)[0]["complete"]
    one.deliver(wire.Body(dump=_piece(make, "d10", 10, part=1, parts=2)))
    first = _listed(server)[0]
    assert (first["id"], first["complete"], first["removed"], first["bytes"]) == ("d10", True, True, 0)
    assert _kept(server) == ["d20", "d30", "d40"]


def test_one_that_is_too_large_empties_nothing_in_vain(server: Running, one: Agent, make: Make) -> None:
    one.deliver(wire.Body(dump=_piece(make, "d10", 10)))
    for part in range(5):
        one.deliver(wire.Body(dump=_piece(make, "d20", 20, part=part, parts=5)))
    first, second = _listed(server)
    assert (first["removed"], second["removed"], second["complete"]) == (True, False, False)
    assert 3 * SIZE < second["bytes"] <= 3 * PIECE
    (gap,) = server.json("/api/v1/runs/run")["gaps"]
    assert gap["reason"] == f"a piece of a dump: the run's dumps may take {3 * PIECE} bytes"
    assert gap["count"] == 2


def test_without_room_none_is_kept_and_a_restart_changes_nothing(
    start: Start, agent: MakeAgent, make: Make, tmp_path: Path
) -> None:
    roomy = start(dump_bytes=3 * PIECE, data=tmp_path / "other")
    one = agent(address=roomy.address, layers=[make.layer(0, "a")])
    for step in (10, 20, 30):
        one.deliver(wire.Body(dump=_piece(make, f"d{step}", step)))
    one.close()
    roomy.stop()
    narrow = start(dump_bytes=2 * PIECE, data=tmp_path / "other")
    one.address = narrow.address
    one.connect()
    one.deliver(wire.Body(dump=_piece(make, "d40", 40)))
    assert _kept(narrow) == ["d30", "d40"]
    one.close()
    narrow.stop()
    none = start(dump_bytes=0, data=tmp_path / "other")
    one.address = none.address
    one.connect()
    one.deliver(wire.Body(dump=_piece(make, "d50", 50)))
    assert _kept(none) == ["d30", "d40"]


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="0 to keep no dumps"):
        Settings(dump_bytes=-1)
    assert Settings.from_env({"FLOATSCOPE_DUMP_BYTES": "1000"}).dump_bytes == 1000
