"""Damaged, endless and mixed files."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from floatscope import wire
from floatscope_server.check.points import Points
from floatscope_server.check.report import UnreadableError, check
from floatscope_server.jsontext import encode_json
from floatscope_server.readers import Broken, Reading, detect
from floatscope_server.rules import RuleParameters

if TYPE_CHECKING:
    from tests.server.check.conftest import Checks

CASES = Path(__file__).parents[2] / "cases" / "logs"
FILES = sorted(path for path in CASES.glob("case-*") if path.suffix != ".yaml")
WORDS = (b"nan", b"inf", b"-5", b"1e400", b"9" * 30, b"{", b"}", b'"', b"'", b"|", b"\r", b"\n", b"\0", b"[", b",")


def _damaged(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randrange(1, 8)):
        at = chance.randrange(len(out) + 1)
        end = at + chance.randrange(200)
        match chance.randrange(5):
            case 0:
                out[at:end] = chance.randbytes(end - at)
            case 1:
                del out[at:end]
            case 2:
                out[at:at] = out[chance.randrange(len(out) + 1) :][:300]
            case 3:
                out[at:at] = chance.choice(WORDS)
            case _:
                del out[at + 500 :]
    return bytes(out)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_damaged_files_are_read_or_refused(path: Path, tmp_path: Path) -> None:
    chance = random.Random(path.name)
    data = path.read_bytes()[:6000]
    for _ in range(3):
        file = tmp_path / "log"
        file.write_bytes(_damaged(data, chance))
        with Points() as points:
            try:
                report = check(file, RuleParameters(), points)
            except UnreadableError:
                continue
            for name in points.names:
                steps, values = points.of(name)
                assert (steps[1:] > steps[:-1]).all()
                assert len(steps) == len(values)
            for fired in report.alerts:
                assert fired.describe(report.framework)["message"]


_DEEP = "[" * 10_000 + "]" * 10_000
_LONG = "9" * 5000
_RECORD = "{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': 1.0}"


@pytest.mark.parametrize(
    ("sound", "line"),
    [
        *(
            ('{"current_steps": 1, "loss": 1.0}', f'{{"current_steps": 2, "x": {content}}}')
            for content in (_DEEP, "9" * 400, _LONG, f'"{_LONG} days, 0:00:00"', '"\\ud800", "\\ud800": NaN')
        ),
        ('{"current_steps": 1, "loss": 1.0}', f'{{"current_steps": {_LONG}, "loss": 1.0}}'),
        *(
            ('{"step": 1, "loss": 1.0}', f'{{"step": 2, "loss": {content}}}')
            for content in (_DEEP, "9" * 400, _LONG, '"\\ud800", "\\ud800": NaN')
        ),
        ('{"log_history": [{"step": 1, "loss": 1.0}', f', {{"step": 2, "loss": {_DEEP}}}]}}'),
        ('{"log_history": [{"step": 1, "loss": 1.0}', f', {{"step": 2, "loss": {"9" * 400}, "\\ud800": NaN}}]}}'),
        ("step,loss\n1,1.0", f'2,"{"x" * 200_000}"\n{_LONG},1.0\n2,{"9" * 400}'),
        ("step,layer,tensor,dtype,absmax\n1,a,act,fp16,5", f'2,"{"x" * 200_000}",act,fp16,{_LONG}'),
        *(
            ('[{"gpu": 0, "gfx_activity": 3}]', content)
            for content in (
                f'{{"gpu": 0, "usage": {_DEEP}}}',
                '{"gpu": 0, "gfx_activity": 5, "x": ' + '{"a": ' * 900 + "1" + "}" * 901,
                '{"gpu_data": ' * 900 + '{"gpu": 0, "gfx_activity": 5}' + "}" * 900,
                f'{{"gpu": {"9" * 30}, "timestamp": "1e300", "gfx_activity": 3}}',
                '{"gpu": 0, "timestamp": "inf", "gfx_activity": 3, "bdf": ["x"], "market_name": "\\ud800"}',
                '{"gpu": 0, "timestamp": "9999-12-31", "used_vram": 1e18, "total_vram": 1e18}',
            )
        ),
        ("gpu,gfx_activity,timestamp\n0,1,2", f'0,"{"x" * 200_000}",3\n0,1,1e300\n0,1,inf'),
        ('{"card0": {"GPU use (%)": "5"}}', f'{{"card{_LONG}": {{"GPU use (%)": "5", "x": {_DEEP}}}}}'),
        ("device,GPU use (%)\ncard0,5", f'card{_LONG},5\ncard0,"{"x" * 200_000}"'),
        ("index, timestamp, utilization.gpu [%]\n0, 1, 5 %", f'0, 1e300, 5 %\n0, "{"x" * 200_000}", 5 %'),
        *(
            (_RECORD, line)
            for line in (
                "{'loss': tensor(" + "1" * 100_000,
                f"100%|##| {_LONG}/{_LONG} [{_LONG}:00<00:00, {_LONG}s/it]",
                "100%|##| 1/2 [00:00<00:00, 1.2.3s/it]",
                f" iteration {_LONG}/ 10 | lm loss: 1E400 | loss scale: {_LONG} | ",
                " iteration 9000000000/ 10 | number of skipped iterations: 1e15 | ",
                " iteration 5/ 10 | number of skipped iterations: nan | hip mem usage: nan | hip mem total: 1e400 | ",
                " iteration 5/ 9 | loss scale: inf |\n iteration 6/ 9 | loss scale: 1.0 |",
                f"[rank{_LONG}] Watchdog caught collective operation timeout",
                f"[2026-99-99 25:61:61,000] step={_LONG}, skipped={_LONG}, lr=[1]",
                f"logging_steps={_LONG}",
                f"INFO - l_activation_amax iteration={_LONG} value={_LONG}",
                f"step:{_LONG} - loss:1.0",
            )
        ),
    ],
)
def test_a_line_of_malice_is_refused_alone(sound: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(f"{sound}\n{line}\n")
    with Points() as points:
        report = check(file, RuleParameters(), points)
        assert report.records >= 1
        for name in points.names:
            encode_json({name: points.of(name)[1].tolist()})
    encode_json(report.device_list())
    for device in report.devices.values():
        assert wire.decode_body(wire.make_block(1, wire.Body(first_step=0, steps=0, devices=(device,)))).devices


def test_a_compressed_log_is_read_and_one_that_grows_without_end_takes_no_memory(
    checks: Checks, tmp_path: Path
) -> None:
    sound = b'{"current_steps": 1, "loss": 1.0}\n' * 100
    packed = gzip.compress(sound)
    assert checks(packed).content["records"] == 100
    assert checks(packed[:-4]).content["records"] == 100
    bomb = tmp_path / "bomb"
    bomb.write_bytes(gzip.compress(b"\0" * (30 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError):
            check(bomb, RuleParameters(), None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_pretty_printed_documents_take_no_square_of_their_length() -> None:
    chunks = (b"[\n", *(b'{"gpu": 0,\n"gfx_activity": 3\n},\n' for _ in range(20_000)))
    assert len(list(detect(b'{"gpu": 0, "gfx_activity": 3}').read(iter(chunks)))) == 1
    mixed = b'[INFO] here it comes\n{"gpu": 0, "gfx_activity": "]"}\n[1, \n'
    assert [type(item) for item in detect(mixed).read(iter([mixed]))] == [Reading, Broken]


@pytest.mark.parametrize(
    ("kind", "length", "most"), [("console", 4, 1), ("jsonl", 4, 1), ("state", 4, 1), ("nothing to split", 12, 5)]
)
def test_a_long_file_takes_no_more_memory(kind: str, length: int, most: int) -> None:
    """``length`` MB through a reader: less than ``most`` MiB at any time."""
    pieces = {
        "console": "2026-01-01 INFO nothing\n" * 2000 + "{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': 1.0}\n",
        "jsonl": '{"current_steps": 10, "loss": 1.5, "lr": 1e-05}\n' * 1000,
        "state": '{"loss": 1.5, "step": 10},\n' * 1500,
        "nothing to split": "x" * 50_000,
    }
    head = {"state": '{"best_model_checkpoint": null, "log_history": ['}.get(kind, "")
    piece = pieces[kind].encode()

    def chunks() -> Iterator[bytes]:
        yield head.encode()
        for _ in range(length * 1_000_000 // len(piece)):
            yield piece

    log_format = detect(head.encode() + piece)
    tracemalloc.start()
    try:
        for _ in log_format.read(chunks()):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most << 20


def test_series_that_do_not_fit_go_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatscope_server.check.points._MOST", 10)
    with Points() as points:
        for step in range(25):
            points.add("a", step, step / 2)
            points.add("b", 30 - step, step)
        steps, values = points.of("a")
        assert steps.tolist() == list(range(25))
        assert values.tolist() == [step / 2 for step in range(25)]
        steps, values = points.of("b")
        assert steps.tolist() == list(range(6, 31))
        assert values.tolist() == [30 - step for step in range(6, 31)]


def test_formats_in_one_file(checks: Checks) -> None:
    """A training's output with the tools' in between, and LLaMA-Factory's lines in it."""
    text = "nvidia-smi\n| 0 NVIDIA | 90% |\n"
    for step in range(10, 110, 10):
        text += (
            f"  1%|   | {step}/900 [00:10<1:00:00,  1.00s/it]{{'loss': 2.0, 'learning_rate': 1e-05, 'epoch': 0.1}}\n"
        )
    for step in range(110, 210, 10):
        text += json.dumps({"current_steps": step, "loss": 1.9, "lr": 1e-5}) + "\n"
    text += " iteration      300/     900 | lm loss: 1.8E+00 | grad norm: 1.0 | number of nan iterations:   0 |\n"
    answer = checks(text)
    assert answer.status == 0
    assert answer.content["format"] == "megatron-console"
    assert answer.content["records"] == 21


def test_windows_and_colours(checks: Checks) -> None:
    line = "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}\r\n"
    answer = checks(f"\x1b[32m{line}\x1b[0m".encode("utf-16"))
    assert answer.kinds("critical") == ["nonfinite"]
