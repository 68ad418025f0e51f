"""Tags and the archive over HTTP, and what the list of runs leaves out."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import pytest

from floatscope import Client, wire
from floatscope_server.commands import runs
from floatscope_server.offline import read_runs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.server.conftest import Make, MakeAgent, MakePen, Reply, Running, Start

Change = Any
"""(run, change) -> Reply."""


@pytest.fixture
def change(server: Running, http: Callable[..., Reply]) -> Change:
    def send(run: str, **wanted: object) -> Reply:
        return http(
            f"{server.url}/api/v1/runs/{run}",
            method="PATCH",
            body=json.dumps(wanted).encode(),
            headers={"content-type": "application/json"},
        )

    return send


@pytest.fixture
def ended(agent: MakeAgent, make: Make) -> None:
    """A run that is over, with its agent gone."""
    one = agent(run="run")
    one.deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.0, 2.0]),)))
    one.ask(wire.Bye(seq=one.seq + 1, reason="finished"))
    one.close()


def _names(server: Running, query: str = "") -> list[str]:
    return [run["name"] for run in server.json(f"/api/v1/runs{query}")]


@pytest.mark.usefixtures("ended")
def test_tags_are_kept_and_shown_and_the_audit_log_has_each_change(server: Running, change: Change) -> None:
    assert server.json("/api/v1/runs")[0]["tags"] == []
    reply = change("run", tags=["  baseline  run ", "\u57fa\u7ebf", "baseline run"])
    assert (reply.status, reply.json["tags"]) == (200, ["baseline run", "\u57fa\u7ebf"])
    assert change("run", tags=["baseline run", "\u57fa\u7ebf"]).status == 200
    assert change("run", archived=True).json["tags"] == ["baseline run", "\u57fa\u7ebf"]
    assert change("run", tags=[], archived=False).json["tags"] == []
    log = [(line["action"], line["subject"], line["detail"]) for line in server.json("/api/v1/audit")]
    assert log == [
        ("run.unarchive", "run", {}),
        ("run.tag", "run", {"tags": []}),
        ("run.archive", "run", {}),
        ("run.tag", "run", {"tags": ["baseline run", "\u57fa\u7ebf"]}),
    ]


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({"tags": ["a,b"]}, 422),
        ({"tags": [" "]}, 422),
        ({"tags": ["x" * 41]}, 422),
        ({"tags": ["a\u202eb"]}, 422),
        ({"tags": [str(n) for n in range(17)]}, 422),
        ({"tags": "a"}, 422),
        ({"archived": "perhaps"}, 422),
        ({"name": "other"}, 422),
        ({"tags": ["<b>x</b>"], "archived": None}, 200),
        ({}, 200),
    ],
)
@pytest.mark.usefixtures("ended")
@pytest.mark.engines("sqlite")
def test_what_is_no_tag_is_refused_and_changes_nothing(
    server: Running, change: Change, wanted: dict[str, object], status: int
) -> None:
    reply = change("run", **wanted)
    assert reply.status == status
    assert server.json("/api/v1/runs")[0]["tags"] == (wanted.get("tags") or [] if status == 200 else [])
    assert change("nobody", **wanted).status == (404 if status == 200 else 422)


@pytest.mark.usefixtures("ended")
def test_an_archived_run_is_listed_only_where_it_is_asked_for(
    server: Running, agent: MakeAgent, change: Change
) -> None:
    agent(run="other")
    assert change("run", archived=True).json["archived_at"] is not None
    assert _names(server) == ["other"]
    assert _names(server, "?archived=true") == ["other", "run"]
    assert server.json("/api/v1/runs/run")["state"] == "finished"
    assert change("run", archived=False).json["archived_at"] is None
    assert _names(server) == ["other", "run"]


@pytest.mark.usefixtures("ended")
@pytest.mark.engines("sqlite")
def test_what_trains_is_never_out_of_sight(server: Running, agent: MakeAgent, change: Change) -> None:
    assert change("run", archived=True).status == 200
    agent(run="run")
    assert _names(server) == ["run"]
    refused = change("run", tags=["kept out"], archived=True)
    assert (refused.status, refused.json["error"]["code"]) == (409, "run_is_live")
    assert server.json("/api/v1/runs")[0]["tags"] == []


@pytest.mark.usefixtures("ended")
@pytest.mark.engines("sqlite")
def test_what_a_dead_process_left_behind_brings_no_run_back(server: Running, pen: MakePen, change: Change) -> None:
    change("run", archived=True)
    pen(server.services.store, gone=True)
    assert _names(server, "?archived=true") == ["run"]
    assert _names(server) == []


@pytest.mark.usefixtures("ended")
@pytest.mark.engines("sqlite")
def test_a_folder_is_read_as_its_server_lists_it(
    server: Running, change: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    change("run", archived=True)
    parser = argparse.ArgumentParser()
    runs.configure(parser)
    for more, names in (([], []), (["--archived"], ["run"])):
        assert runs.run(parser.parse_args(["--server", server.url, "--json", *more])) == 0
        assert [run["name"] for run in json.loads(capsys.readouterr().out)] == names
    client = Client(server.url)
    assert client.runs() == []
    assert [run["name"] for run in client.runs(archived=True)] == ["run"]
    settings = server.services.settings
    assert read_runs(settings) == []
    assert [run["name"] for run in read_runs(settings, archived=True)] == ["run"]


@pytest.mark.engines("sqlite")
def test_who_may_only_read_changes_nothing(start: Start, tmp_path: Path, http: Callable[..., Reply]) -> None:
    tokens = {scope: f"{scope}-0123456789abcdef" for scope in ("read", "admin")}
    listed = tmp_path / "tokens"
    listed.write_text("".join(f"{scope} {token}\n" for scope, token in tokens.items()))
    listed.chmod(0o600)
    server = start(token_file=listed)
    statuses = {
        scope: http(
            f"{server.url}/api/v1/runs/run",
            method="PATCH",
            body=b"{}",
            headers={"content-type": "application/json", "authorization": f"Bearer {token}"},
        ).status
        for scope, token in tokens.items()
    }
    assert statuses == {"read": 401, "admin": 404}
