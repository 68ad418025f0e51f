"""The commands, as a shell runs them."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

from floatscope import wire

pytestmark = pytest.mark.engines("sqlite")

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.server.conftest import Make, MakeAgent, Reply, Running
    from tests.server.programs import Command


def _server(command: Callable[..., Command], data: Path, *options: str) -> Command:
    return command("server", "--port", "0", "--data", str(data), *options)


def test_a_server_says_one_line_and_ends_gracefully(command: Callable[..., Command], tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        one = _server(command, tmp_path)
        address = one.address()
        assert address.startswith("127.0.0.1:")
        one.process.send_signal(number)
        assert one.finish() == (0, "", "")


def test_what_cannot_be_served_is_one_line_and_2(command: Callable[..., Command], tmp_path: Path) -> None:
    running = _server(command, tmp_path / "data")
    address = running.address()
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    with closing(sqlite3.connect(tmp_path / "foreign" / "floatscope.db")) as raw:
        raw.execute("CREATE TABLE other (id INT)")
    cases = {
        ("--data", str(tmp_path / "other"), "--port", address.rpartition(":")[2]): "Address already in use",
        ("--data", str(tmp_path / "data"), "--port", "0"): "another floatscope server is using",
        ("--data", str(tmp_path / "file" / "x"), "--port", "0"): "cannot write in the data folder",
        ("--host", "0.0.0.0"): "--token-file",
        ("--db", "mysql://a:b@c/d"): "'mysql' is not supported",
        ("--port", "99999"): "port 99999",
        ("--webhook-allow", "a/b"): "neither a host name nor a network",
        ("--webhook-allow", " "): "neither a host name nor a network",
        ("--db", "sqlite:///"): "names no file",
        ("--host", "a..b", "--token-file", str(tmp_path / "t")): "cannot listen on a..b",
        ("--data", str(tmp_path / "foreign"), "--port", "0"): "another program's",
        ("--token-file", str(tmp_path / "file"), "--port", "0"): "holds no token",
        ("--host", "203.0.113.1", "--token-file", str(tmp_path / "t"), "--port", "0"): "cannot listen",
    }
    started = {words: command("server", *words) for words in cases}
    for words, message in cases.items():
        status, out, err = started[words].finish()
        assert status == 2, words
        assert message in err
        assert err.count("\n") == 1
        assert "Traceback" not in err + out


def test_fresh_tokens_are_printed_once(
    command: Callable[..., Command], tmp_path: Path, http: Callable[..., Reply]
) -> None:
    path = tmp_path / "tokens"
    options = ("--host", "0.0.0.0", "--token-file", str(path))
    one = _server(command, tmp_path / "data", *options)
    port = one.address().rpartition(":")[2]
    tokens = dict(line.split() for line in path.read_text().splitlines())
    url = f"http://127.0.0.1:{port}/api/v1/runs"
    assert http(url).status == 401
    assert http(url, headers={"Authorization": f"Bearer {tokens['read']}"}).status == 200
    one.process.terminate()
    assert one.finish()[0] == 0
    again = _server(command, tmp_path / "data", *options)
    again.address()
    again.process.terminate()
    _, out, err = again.finish()
    assert not any(token in out + err for token in tokens.values())


def test_runs_and_show_read_a_server_or_its_folder(
    command: Callable[..., Command], agent: MakeAgent, make: Make, tmp_path: Path
) -> None:
    data = tmp_path / "cli"
    running = _server(command, data)
    address = running.address()
    one = agent(address=address, run="my run", layers=[make.layer(0, "a", ("grad", "fp16"))])
    nans = np.ones((1, 1), np.int64)
    one.deliver(
        wire.Body(
            summaries=(make.summaries("grad", 0, [[1.0]], nans=nans),),
            scalars=(make.scalars("loss", 0, [float("nan")]),),
            events=(wire.Event(step=0, kind="skipped"),),
        )
    )

    def shown(*words: str) -> object:
        status, out, err = command(*words).finish()
        assert (status, err) == (0, "")
        return json.loads(out)

    over_http = shown("show", "my run", "--json", "--server", f"http://{address}")
    beside = shown("show", "my run", "--json", "--data", str(data))
    assert over_http == beside
    running.process.terminate()
    assert running.finish()[0] == 0
    alone = shown("show", "my run", "--json", "--data", str(data))
    assert alone == beside
    assert isinstance(alone, dict)
    assert alone["skipped_steps"] == [{"step": 0, "layer": "a", "rank": 0, "optimizers": [], "scales": []}]
    assert alone["scalars"]["loss"]["last"] == "NaN"
    runs = shown("runs", "--json", "--data", str(data))
    assert isinstance(runs, list)
    assert runs[0]["name"] == "my run"
    for words in (("runs",), ("show", "my run")):
        status, out, _ = command(*words, "--data", str(data)).finish()
        assert status == 0
        assert "my run" in out


def test_an_unknown_run_lists_those_that_are_known(
    command: Callable[..., Command], agent: MakeAgent, tmp_path: Path
) -> None:
    running = _server(command, tmp_path / "cli")
    address = running.address()
    agent(address=address, run="known")
    for where in (("--server", f"http://{address}"), ("--data", str(tmp_path / "cli"))):
        status, out, err = command("show", "none", "--json", *where).finish()
        assert (status, out) == (2, "")
        assert err == "floatscope: there is no run 'none'; there are: known\n"
    running.process.terminate()
    running.finish()
    for words in (("runs", "--server", f"http://{address}"), ("runs", "--data", str(tmp_path / "none"))):
        status, _, err = command(*words).finish()
        assert status == 2
        assert err.startswith("floatscope: ")
        assert err.count("\n") == 1
        if "--data" in words:
            assert "--server http://127.0.0.1:6160" in err
        else:
            assert ": Connection refused; start it with `floatscope server`" in err


def test_names_and_texts_cannot_speak_to_the_terminal(
    command: Callable[..., Command], agent: MakeAgent, make: Make, tmp_path: Path
) -> None:
    data = tmp_path / "cli"
    running = _server(command, data)
    address = running.address()
    evil = "\x1b]0;owned\x07\n\x9b31m\u202ereversed\U000e0041\u6ea2\u51fa"
    one = agent(address=address, run="run", layers=[make.layer(0, evil, ("grad", "fp16"))])
    one.deliver(
        wire.Body(
            summaries=(make.summaries("grad", 0, [[1.0]], nans=np.ones((1, 1), np.int64)),),
            events=(wire.Event(step=0, kind="skipped"),),
        )
    )
    one.ask(wire.Gap(seq=2, first=0, last=0, count=1, reason=evil))
    for where in (("--server", f"http://{address}"), ("--data", str(data))):
        for words in (("runs",), ("show", "run"), ("show", evil), ("runs", "--json"), ("show", "run", "--json")):
            status, out, err = command(*words, *where).finish()
            assert status == (2 if evil in words else 0), err
            assert all(line.isprintable() for line in (out + err).split("\n"))
            if "--json" in words:
                content = json.loads(out)
                if "show" in words:
                    assert content["layers"][0]["name"] == evil
            else:
                assert "1b]0;owned" in out + err
                assert "\u6ea2\u51fa" in out + err


def test_a_reader_that_has_enough_is_no_mistake(
    command: Callable[..., Command], agent: MakeAgent, make: Make, tmp_path: Path
) -> None:
    running = _server(command, tmp_path / "cli")
    address = running.address()
    layers = [make.layer(i, f"{i}." + "a" * 400) for i in range(500)]
    agent(address=address, layers=layers)
    show = command("show", "run", "--json", "--server", f"http://{address}")
    assert show.process.stdout is not None
    show.process.stdout.readline()
    show.process.stdout.close()
    assert show.process.wait(60) == 128 + signal.SIGPIPE
    assert show.process.stderr is not None
    assert show.process.stderr.read() == ""


def test_a_token_for_this_machine_goes_past_any_proxy(server: Running, command: Callable[..., Command]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.0)
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        environment = {"http_proxy": address, "HTTP_PROXY": address, "no_proxy": "", "FLOATSCOPE_TOKEN": "secret"}
        status, out, err = command("runs", "--json", "--server", server.url, **environment).finish()
        assert (status, json.loads(out)) == (0, []), err
        with pytest.raises(BlockingIOError):
            proxy.accept()
