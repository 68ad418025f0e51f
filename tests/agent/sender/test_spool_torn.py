"""What ``sync`` says of a spool whose end was cut off in the writing, and of one that is really damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from floatscope import _cli, wire
from floatscope._spool._format import HEADER_BYTES
from floatscope._spool._home import About, Folder
from floatscope._spool._segments import Segments
from floatscope._spool._spooler import SpoolPlace
from tests.agent.sender.spooling import WRITER, spool

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble

BATCHES = 20
MAGIC = bytes.fromhex("f50d5350")
CUT = "its last record was cut off in the writing, as when a process is killed"
Damage = Callable[[bytes], bytes]
Left = Callable[[Damage], Path]
Sync = Callable[[], tuple[int, str, dict[str, Any]]]


@pytest.fixture
def left(place: SpoolPlace, server: IngestDouble) -> Left:
    """Leaves the spool of a killed process (steps 0 to 19, 10 as a gap), with damage to the bytes of one segment."""

    def leave(damage: Damage, *, segment_bytes: int = 1 << 20, which: int = -1) -> Path:
        place.directory.mkdir()
        folder = Folder.create(place.directory, WRITER)
        about = About(server=server.url, agent="floatscope 1", identity=wire.Identity(run="r", writer=WRITER))
        folder.write_about(about.encoded())
        spool(folder.path, BATCHES, size=300, segment_bytes=segment_bytes)
        folder.close()
        path = sorted(folder.path.glob("*.spool"))[which]
        path.write_bytes(damage(path.read_bytes()))
        return path

    return leave


@pytest.fixture
def sync(place: SpoolPlace, capsys: pytest.CaptureFixture[str]) -> Sync:
    """Its status, what it printed, and what it would have printed as JSON."""

    def run() -> tuple[int, str, dict[str, Any]]:
        status = _cli.main(["sync", str(place.directory), "--json"])
        [told] = json.loads(capsys.readouterr().out)["spools"]
        assert told["complete"] is (status == 0)
        return status, str(told), told

    return run


def _steps(server: IngestDouble) -> list[int]:
    bodies = [wire.decode_body(message) for message in server.kept if isinstance(message, wire.Block)]
    return [body.first_step for body in bodies if body.scalars]


@pytest.mark.parametrize(
    ("damage", "torn"),
    [
        pytest.param(lambda data: data[:-1], True, id="all but one byte"),
        pytest.param(lambda data: data[:-250], True, id="half a payload"),
        pytest.param(lambda data: data + data[data.rindex(MAGIC) :][:HEADER_BYTES], True, id="a header alone"),
        pytest.param(lambda data: data + data[:10], True, id="half a header"),
        pytest.param(lambda data: data + bytes(5000), True, id="zeros"),
        pytest.param(lambda data: data[:-10] + b"\xff" + data[-9:], False, id="a flip in the last record"),
        pytest.param(lambda data: data + bytes(5000) + b"x" * 100, False, id="something else"),
        pytest.param(lambda data: data[:2000] + b"\xff\xff" + data[2002:], False, id="a flip in the middle"),
        pytest.param(lambda data: data[:2000] + b"\xff\xff" + data[2002:-1], False, id="a flip and a cut"),
    ],
)
def test_a_torn_end_is_no_failure_and_damage_is(
    server: IngestDouble, place: SpoolPlace, left: Left, capsys: pytest.CaptureFixture[str], damage: Damage, torn: bool
) -> None:
    left(damage)
    status = _cli.main(["sync", str(place.directory)])
    [line] = capsys.readouterr().out.splitlines()
    assert status == (0 if torn else 1)
    assert CUT in line or not torn
    assert ("lost (spool_damaged)" in line and "damaged" in line) is not torn
    assert len(_steps(server)) >= BATCHES - 4
    gaps = [message for message in server.kept if isinstance(message, wire.Gap)]
    assert "spool_damaged" in {gap.reason for gap in gaps}, "it is declared either way"
    assert not (place.directory / WRITER).exists()


def test_json_tells_them_apart(left: Left, sync: Sync) -> None:
    left(lambda data: data[:-7])
    status, _, told = sync()
    assert (status, told["lost"], told["damaged_bytes"]) == (0, {}, 0)
    assert told["torn_bytes"] > 0


def test_only_the_last_segment_can_be_torn(left: Callable[..., Path], sync: Sync) -> None:
    """The one after it was begun when it was complete."""
    left(lambda data: data[:-7], segment_bytes=2000, which=1)
    status, _, told = sync()
    assert (status, told["lost"]["spool_damaged"], told["torn_bytes"]) == (1, 1, 0)


def test_a_cut_in_the_record_that_says_who_writes_costs_nothing(tmp_path: Path) -> None:
    spool(tmp_path / "s", 5, size=100)
    [path] = (tmp_path / "s").iterdir()
    (tmp_path / "s" / f"{6:016d}.spool").write_bytes(path.read_bytes()[: HEADER_BYTES + 2])
    contents = Segments(tmp_path / "s", 1).load()
    assert contents.torn_bytes == contents.damaged_bytes == HEADER_BYTES + 2
    assert contents.torn is None
