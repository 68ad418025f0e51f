"""What processes that are gone have left in the spool: the next start and ``sync`` send it, once."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from floatscope import wire
from floatscope._sender import Sender
from floatscope._spool import _leftovers, _spooler
from floatscope._spool._home import About, Folder
from floatscope._spool._leftovers import Delivery, deliver
from floatscope._spool._spooler import SpoolPlace
from tests.agent.sender.spooling import WRITER, assert_numbered, end, sync

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble, Pending

    MakeStep = Callable[..., Pending]
    Until = Callable[..., None]

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def _killed_trainer(place: SpoolPlace, url: str, steps: int) -> str:
    """The writer of a process that was killed once ``steps`` steps were on disk."""
    program = Path(__file__).with_name("spooling_trainer.py")
    with subprocess.Popen(
        [sys.executable, str(program), str(place.directory), url, str(steps)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        writer = process.stdout.readline().strip()
        assert process.stdout.readline() == "written\n"
        process.kill()
    return writer


def _point_at(place: SpoolPlace, writer: str, url: str) -> None:
    folder = Folder.adopt(place.directory / writer)
    assert folder is not None
    about = folder.about()
    assert about is not None
    folder.write_about(msgspec.structs.replace(about, server=url).encoded())
    folder.close()


def test_the_next_start_sends_what_a_killed_process_left(
    server: IngestDouble, spooling: Callable[..., Sender], place: SpoolPlace, step: MakeStep, until: Until
) -> None:
    killed = _killed_trainer(place, "http://127.0.0.1:9", 50)
    _point_at(place, killed, server.url)
    sender = spooling(server.url, place, writer="1" * 32)
    until(lambda: server.seen and isinstance(server.seen[-1], wire.Bye))
    hellos = [message.identity.writer for message in server.seen if isinstance(message, wire.Hello)]
    assert hellos == ["1" * 32, killed]
    assert server.seen[-1] == wire.Bye(seq=server.last_seq, reason="killed")
    assert not any(isinstance(message, wire.Beat) for message in server.seen)  # it would know no figures
    assert server.steps() == list(range(50))
    until(lambda: not (place.directory / killed).exists())
    end(sender)


def test_a_process_killed_before_its_first_step_still_has_an_end(
    server: IngestDouble,
    place: SpoolPlace,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place.directory.mkdir()
    folder = Folder.create(place.directory, WRITER)
    about = About(server=server.url, agent="floatscope 1", identity=wire.Identity(run="r", writer=WRITER))
    folder.write_about(about.encoded())
    folder.close()
    server.stop()
    with monkeypatch.context() as impatient:
        impatient.setattr("floatscope.commands.sync._PATIENCE_S", 0.2)
        assert sync(place) == 1
    assert "r, rank 0: 0 records delivered; its end waits for http://127.0.0.1:" in capsys.readouterr().out
    server.start()
    assert sync(place) == 0
    hello, bye = server.seen
    assert isinstance(hello, wire.Hello)
    assert (hello.identity.run, hello.gone, bye) == ("r", True, wire.Bye(seq=0, reason="killed"))
    assert list(place.directory.iterdir()) == []


def test_a_server_that_does_not_answer_is_waited_for_once(place: SpoolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    place.directory.mkdir()
    for writer, port in (("1" * 32, 8), ("2" * 32, 8), ("3" * 32, 9)):
        folder = Folder.create(place.directory, writer)
        identity = wire.Identity(run="r", writer=writer)
        folder.write_about(About(server=f"http://127.0.0.1:{port}", agent="x", identity=identity).encoded())
        folder.close()
    waited: dict[str, float] = {}

    def noting(folder: Folder, **options: Any) -> Delivery:  # noqa: ANN401 (those of the real one)
        waited[folder.path.name[0]] = options["patience_s"]
        return deliver(folder, **options)

    monkeypatch.setattr(_leftovers, "deliver", noting)
    monkeypatch.setattr("floatscope.commands.sync._PATIENCE_S", 0.5)
    monkeypatch.setattr("floatscope.commands.sync._LITTLE_PATIENCE_S", 0.1)
    assert sync(place) == 1
    assert waited == {"1": 0.5, "2": 0.1, "3": 0.5}


def test_leftovers_for_another_server_stay(
    server: IngestDouble, spooling: Callable[..., Sender], place: SpoolPlace, step: MakeStep, until: Until
) -> None:
    killed = _killed_trainer(place, "http://127.0.0.1:9", 5)
    sender = spooling(server.url, place, writer="1" * 32)
    until(lambda: sender._leftovers._thread is not None)
    thread = sender._leftovers._thread
    assert thread is not None
    thread.join(60.0)
    assert not thread.is_alive()
    end(sender)
    assert (place.directory / killed).exists()
    assert len([message for message in server.seen if isinstance(message, wire.Hello)]) == 1


def test_two_syncs_at_once_double_nothing(server: IngestDouble, place: SpoolPlace) -> None:
    killed = _killed_trainer(place, "http://127.0.0.1:9", 200)
    command = [sys.executable, "-m", "floatscope", "sync", str(place.directory), "--server", server.url]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for one in both:
        one.communicate(timeout=120)
        assert one.returncode == 0
    assert server.steps() == list(range(200))
    assert_numbered(server.kept)
    assert not (place.directory / killed).exists()


def test_a_lock_that_somebody_holds_is_respected(place: SpoolPlace, server: IngestDouble) -> None:
    killed = _killed_trainer(place, "http://127.0.0.1:9", 5)
    with (place.directory / killed / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sync(place, "--server", server.url) == 0
        assert server.seen == []
    folder = Folder.adopt(place.directory / killed)
    assert folder is not None
    assert deliver(folder, server=server.url, token=None, patience_s=60.0).complete
    assert server.steps() == list(range(5))
    assert _spooler.SpoolPlace(directory=place.directory).segment_bytes == 8 << 20
