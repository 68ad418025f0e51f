"""A sender with a spool: an outage, a kill, a full disk, a fork, and what the next start or ``sync`` makes of it."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from floatscope import wire
from floatscope._conversation import Timing
from floatscope._sender import Limits, Sender
from floatscope._spool import _segments
from floatscope._spool._home import Folder
from floatscope._spool._leftovers import deliver
from floatscope._spool._outbox import SpooledOutbox
from floatscope._spool._spooler import SpoolPlace
from tests.agent.sender.spooling import WRITER, assert_numbered, end, on_disk, sync
from tests.faults import FaultProxy

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble, Pending

    MakeStep = Callable[..., Pending]
    Until = Callable[..., None]

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def delivered(place: SpoolPlace) -> int:
    folder = Folder.adopt(place.directory / WRITER)
    assert folder is not None
    return deliver(folder, server=None, token=None, patience_s=60.0).delivered


def put_on_disk(sender: Sender, count: int, step: MakeStep, until: Until) -> None:
    for n in range(count):
        sender.put(step(n))
    until(lambda: on_disk(sender, count))


def assert_delivered(place: SpoolPlace, count: int, server: IngestDouble) -> None:
    """``sync`` sends the records of the first steps to the server, which is back."""
    server.start()
    assert delivered(place) == count
    assert server.steps() == list(range(count))


def test_nothing_is_left_once_the_server_has_it_all(
    server: IngestDouble, spooling: Callable[..., Sender], place: SpoolPlace, step: MakeStep, until: Until
) -> None:
    sender = spooling(server.url, place)
    until(lambda: (place.directory / WRITER / "lock").exists())
    assert (place.directory.stat().st_mode & 0o777) == 0o700
    for n in range(100):
        sender.put(step(n, rows=3))
    end(sender)
    assert server.steps() == list(range(100))
    assert sender.stats().waiting == 0
    assert list(place.directory.iterdir()) == []


@pytest.mark.parametrize("local_rank", [0, 1])
def test_one_rank_of_a_host_says_that_records_wait(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    step: MakeStep,
    until: Until,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    local_rank: int,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    server.stop()
    sender = spooling(server.url, place, limits=Limits(flush_s=1.0))
    put_on_disk(sender, 1, step, until)
    end(sender)
    said = [record.levelname for record in caplog.records if "waits in" in record.message]
    assert said == ([] if local_rank else ["WARNING"])


def test_what_a_dead_server_did_not_take_waits_and_sync_sends_it(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    step: MakeStep,
    until: Until,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.stop()
    sender = spooling(server.url, place, limits=Limits(flush_s=1.0))
    layer = wire.Layer(index=7, name="head", module_type="Linear")
    for n in range(100):
        sender.put(step(n, layers=(layer,) if n == 0 else ()))
    until(lambda: on_disk(sender, 100))
    end(sender)
    assert f"100 records wait in {place.directory}; `floatscope sync` sends them" in caplog.text
    assert "lost" not in caplog.text
    server.start()
    assert sync(place, "--json") == 0
    [told] = json.loads(capsys.readouterr().out)["spools"]
    assert (told["run"], told["delivered"], told["waiting"], told["complete"]) == ("r", 100, 0, True)
    assert server.steps() == list(range(100))
    assert server.layers() == {7: "head"}
    assert_numbered(server.kept)
    assert server.seen[-1] == wire.Bye(seq=server.last_seq, reason="finished")
    assert sync(place) == 0
    assert "nothing waits" in capsys.readouterr().out


def test_a_disk_that_takes_long_to_be_durable_is_not_taken_for_a_loss(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    step: MakeStep,
    until: Until,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.stop()
    durable = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: durable.wait(60.0))
    sender = spooling(server.url, place, limits=Limits(flush_s=0.5))
    put_on_disk(sender, 20, step, until)
    sender.close()
    assert f"20 records wait in {place.directory}" in caplog.text
    assert "are lost" not in caplog.text
    durable.set()
    for thread in sender._spool_threads:
        thread.join(60.0)
    assert_delivered(place, 20, server)


def test_what_was_on_disk_before_it_failed_is_told_apart_from_what_is_lost(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    step: MakeStep,
    until: Until,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.stop()
    sender = spooling(server.url, place, limits=Limits(flush_s=1.0))
    put_on_disk(sender, 20, step, until)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for n in range(20, 30):
        sender.put(step(n))
    until(lambda: sender.stats().spool_off == "disk_full")
    end(sender)
    monkeypatch.undo()
    assert f"20 records wait in {place.directory}" in caplog.text
    assert "10 records could not be delivered" in caplog.text
    assert sender._spooler is not None
    sender._spooler.forget_descriptors()  # as at the end of the process, which held the folder to read it back
    assert_delivered(place, 20, server)


def test_files_that_somebody_removes_are_noticed(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    step: MakeStep,
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.stop()
    sender = spooling(server.url, place)
    put_on_disk(sender, 20, step, until)
    for file in (place.directory / WRITER).glob("*.spool"):
        file.unlink()
    until(lambda: sender.stats().spool_off is not None)
    assert "somebody removed files of it" in caplog.text
    server.start()
    until(lambda: server.steps() == list(range(20)))  # memory had them still


def test_sync_says_what_it_cannot_do(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    step: MakeStep,
    until: Until,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sync(place) == 2
    assert "cannot read" in capsys.readouterr().err
    server.stop()
    sender = spooling(server.url, place, limits=Limits(flush_s=1.0))
    put_on_disk(sender, 1, step, until)
    assert sync(SpoolPlace(directory=place.directory.parent), "--server", "ftp://nowhere") == 2
    end(sender)
    assert f"1 record waits in {place.directory}; `floatscope sync` sends it" in caplog.text
    with monkeypatch.context() as impatient:
        impatient.setattr("floatscope.commands.sync._PATIENCE_S", 0.2)
        assert sync(place) == 1
    assert "0 records delivered; 1 waits for http://127.0.0.1:" in capsys.readouterr().out
    server.start()
    server.refusal = wire.Refused(code="unauthorized", message="no token", hint="give one")
    assert sync(place) == 1
    said = capsys.readouterr().out
    assert "the server refused: no token (give one)" in said
    assert "until that server answers and takes it" in said
    server.refusal = None
    assert sync(place) == 0
    assert ": 1 record delivered\n" in capsys.readouterr().out
    assert server.steps() == [0]


@pytest.mark.parametrize("code", ["unauthorized", "protocol", "too_many_runs"])
def test_what_is_recorded_waits_until_a_refusal_is_put_right(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    step: MakeStep,
    until: Until,
    caplog: pytest.LogCaptureFixture,
    code: str,
) -> None:
    server.refusal = wire.Refused(code=code, message="not you", hint="change it")
    sender = spooling(server.url, place, timing=Timing(mend_s=0.01))
    put_on_disk(sender, 20, step, until)
    until(lambda: sum(isinstance(message, wire.Hello) for message in server.seen) > 3)
    assert caplog.text.count("refused: not you (change it). Training goes on, and what is recorded waits in") == 1
    server.refusal = None
    until(lambda: sender.stats().acknowledged == 20)
    assert server.steps() == list(range(20))
    assert sender.stats().lost == {}


def test_what_was_refused_to_the_end_is_for_sync(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    step: MakeStep,
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.refusal = wire.Refused(code="unauthorized", message="no token", hint="give one")
    sender = spooling(server.url, place, limits=Limits(flush_s=1.0))
    put_on_disk(sender, 20, step, until)
    end(sender)
    assert f"20 records wait in {place.directory}" in caplog.text
    server.refusal = None
    assert delivered(place) == 20
    assert server.seen[-1] == wire.Bye(seq=server.last_seq, reason="finished")


def test_no_record_waits_for_a_server_that_will_never_take_it(
    server: IngestDouble, spooling: Callable[..., Sender], place: SpoolPlace, step: MakeStep, until: Until
) -> None:
    server.refusal = wire.Refused(code="writer", message="another one goes on", hint="end")
    sender = spooling(server.url, place)
    until(lambda: sender.stats().failure)
    sender.put(step(0))
    assert sender.stats().lost == {"not_sending": 1}


def test_a_long_outage_passes_through_the_disk(
    server: IngestDouble, spooling: Callable[..., Sender], place: SpoolPlace, step: MakeStep, until: Until
) -> None:
    server.stop()
    sender = spooling(server.url, place, limits=Limits(outbox_bytes=1 << 20, flush_s=60.0))
    for n in range(60):
        sender.put(step(n, rows=1000, hist=True, nbytes=1 << 20))
        # What waits for the disk is bounded too, and the disk may be slow.
        until(lambda n=n: on_disk(sender, n + 1) if n % 6 == 5 else True)
    until(lambda: sender.stats().waiting_bytes < (5 << 20))
    assert sender._beat().spool_bytes > 2 << 20
    server.start()
    end(sender)
    assert server.steps() == list(range(60))
    assert server.gaps() == []
    assert_numbered(server.kept)


def test_a_full_spool_gives_up_the_oldest_history_and_says_so(
    server: IngestDouble, spooling: Callable[..., Sender], tmp_path: Path, step: MakeStep, until: Until
) -> None:
    place = SpoolPlace(directory=tmp_path / "spool", max_bytes=1 << 20)
    server.stop()
    sender = spooling(server.url, place)
    skipped = (wire.Event(step=3, kind="skipped"),)
    for n in range(400):
        sender.put(step(n, rows=100, hist=True, events=skipped if n == 3 else ()))
        until(lambda n=n: not len(sender._queue) if n % 50 == 0 else True)
    outbox = sender._outbox
    assert isinstance(outbox, SpooledOutbox)
    until(lambda: not (sender._queue.nbytes or outbox._unwritten or outbox._writing))
    used = sum(path.stat().st_size for path in place.directory.rglob("*"))
    assert used <= place.max_bytes
    server.start()
    end(sender)
    arrived = server.steps()
    # What was being sent while the last steps came in was no longer the spool's to give up.
    assert arrived == sorted(set(arrived))
    assert arrived[0] > 0
    assert arrived[-100:] == list(range(300, 400))
    assert {gap.reason for gap in server.gaps()} == {"spool_full"}
    assert sum(gap.count for gap in server.gaps()) == 400 - len(arrived) == sender.stats().lost["spool_full"]
    assert [event.step for body in server.bodies() for event in body.events] == [3]
    assert_numbered(server.kept)


@pytest.mark.parametrize(
    ("code", "reason"), [(errno.ENOSPC, "disk_full"), (errno.EIO, "io_error"), (errno.EROFS, "read_only")]
)
def test_a_disk_that_refuses_switches_the_spool_off(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    step: MakeStep,
    until: Until,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    reason: str,
) -> None:
    server.stop()
    sender = spooling(server.url, place)
    sender.put(step(0))
    until(lambda: on_disk(sender, 1))

    def refuse(descriptor: int, buffers: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(_segments, "_write_all", refuse)
    for n in range(1, 50):
        sender.put(step(n))
    until(lambda: sender.stats().spool_off == reason)
    server.start()
    end(sender)
    assert server.steps() == list(range(50))
    assert caplog.text.count("the spool in") == 1
    assert_numbered(server.kept)


def test_a_folder_that_cannot_be_made_costs_the_spool_only(
    server: IngestDouble, spooling: Callable[..., Sender], tmp_path: Path, step: MakeStep, until: Until
) -> None:
    (tmp_path / "file").write_text("")
    sender = spooling(server.url, SpoolPlace(directory=tmp_path / "file" / "spool"))
    sender.put(step(0))
    until(lambda: sender.stats().spool_off)
    end(sender)
    assert server.steps() == [0]


def test_a_disk_that_hangs_stops_neither_packing_nor_sending(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    step: MakeStep,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    goes_on = threading.Event()
    write = _segments._write_all

    def hang(descriptor: int, buffers: Any) -> int:  # noqa: ANN401
        goes_on.wait()
        return write(descriptor, buffers)

    monkeypatch.setattr(_segments, "_write_all", hang)
    sender = spooling(server.url, place)
    for n in range(300):
        sender.put(step(n))
    until(lambda: sender.stats().acknowledged == 300)
    goes_on.set()
    end(sender)
    assert server.steps() == list(range(300))


def test_server_restored_from_a_backup_gets_what_the_disk_still_holds(
    server: IngestDouble, spooling: Callable[..., Sender], place: SpoolPlace, step: MakeStep, until: Until
) -> None:
    sender = spooling(server.url, place)
    for n in range(3):
        sender.put(step(n))
        until(lambda n=n: sender.stats().acknowledged == n + 1)
    until(lambda: sender._spooler is not None and sender._spooler._written_to == 3)
    server.stop()
    server.last_seq, server.epoch, server.kept = 1, "after the restore", server.kept[:1]
    server.start()
    sender.put(step(3))
    end(sender)
    assert server.steps() == [0, 1, 2, 3]
    assert server.gaps() == []
    assert sender.stats().lost == {}


@pytest.mark.parametrize("fault", ["refuse", "blackhole", "reset", "truncate", "half-close", "trickle"])
def test_every_fault_of_the_network_ends_with_everything_there(
    server: IngestDouble, spooling: Callable[..., Sender], place: SpoolPlace, step: MakeStep, until: Until, fault: str
) -> None:
    proxy = FaultProxy(server.url)
    try:
        sender = spooling(proxy.url, place)
        sender.put(step(0))
        until(lambda: sender.stats().acknowledged == 1)
        proxy.fault, proxy.at = fault, 2000
        if fault == "refuse":
            proxy.cut_all()
        n = 1
        while proxy.faults == 0:
            sender.put(step(n))
            n += 1
            time.sleep(0.001)
        proxy.fault = ""
        proxy.cut_all()
        end(sender)
    finally:
        proxy.close()
    assert server.steps() == list(range(n))
    assert_numbered(server.kept)
