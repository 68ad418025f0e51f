"""What the command answers: exit status, JSON, text, files that cannot be read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.check.conftest import Checks

CASES = Path(__file__).parents[2] / "cases" / "logs"
HEALTHY = "".join(
    json.dumps({"current_steps": step, "loss": 2.0 - step / 1000, "lr": 1e-5}) + "\n" for step in range(10, 200, 10)
)
BROKEN = HEALTHY + '{"current_steps": 200, "loss": NaN, "lr": 1e-05}\n'


def test_exit_status_and_json(checks: Checks) -> None:
    answer = checks(HEALTHY)
    assert (answer.status, answer.err) == (0, "")
    assert answer.content["alerts"] == []
    assert answer.content["records"] == 19
    assert answer.content["series"]["loss"][0] == [10, 1.99]
    assert answer.content["canonical"] == {"loss": "loss", "lr": "lr"}
    assert "devices" not in answer.content
    answer = checks(BROKEN)
    assert answer.status == 1
    assert answer.content["series"]["loss"][-1] == [200, "NaN"]
    (alert,) = answer.content["alerts"]
    assert alert["kind"] == "nonfinite"
    assert (alert["first_step"], alert["last_step"], alert["since_step"]) == (200, 200, 200)
    assert (alert["row"], alert["line"]) == (19, 20)
    assert (alert["layer"], alert["rank"], alert["device"], alert["format"]) == (None, None, None, None)
    assert "step 200" in alert["message"]
    assert "200" in alert["message_zh"]


def test_several_files_are_an_array(checks: Checks) -> None:
    answer = checks(HEALTHY, BROKEN)
    assert answer.status == 1
    assert [len(result["alerts"]) for result in answer.content] == [0, 1]
    answer = checks(HEALTHY, "nothing to see\n", BROKEN)
    assert answer.status == 2
    assert len(answer.content) == 2
    assert answer.err.count("\n") == 1


def test_text(checks: Checks) -> None:
    answer = checks(BROKEN + '{"current_steps": 210, "lo', as_json=False)
    head, unread, alert = answer.out.splitlines()
    assert head.endswith("llamafactory-trainer-log, 20 records, steps 10 to 200")
    assert "line 21" in unread
    assert alert.startswith("  critical nonfinite at step 200 (line 20): ")
    assert checks(HEALTHY, as_json=False).out.splitlines()[1] == "  no alerts"


def test_text_counts_in_words_and_names_records_where_there_are_no_lines(checks: Checks) -> None:
    events = checks(next(CASES.glob("case-18-*")), as_json=False).out.splitlines()
    assert events[1].startswith("  info grad_norm_spike at step 164000 (record 1313): ")
    card = checks(CASES / "case-20-rocm-smi.json", as_json=False).out.splitlines()[0]
    assert card.endswith("rocm-smi-json, 1 record, 1 card")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1: the file is empty"),
        (b"\n \n", "line 1: the file is empty"),
        (b"\n\nHello\nworld\n", "line 3: no record of a known format here or below; it begins 'Hello'"),
        (bytes(range(256)) * 100, "line 1: binary data of no known format"),
        (b'{"model": "x", "layers": 3}', "line 1: no record of a known format"),
        (b"a,b,c\n1,2,3\n", "line 1: no record of a known format"),
        (b'{"best_model_checkpoint": null, "log_hist', "line 1:"),
        (b'\n{"card0": {"GPU use (%)": "7"', "line 2: the JSON does not end"),
        (b'{"current_steps": 10, "loss": 1', "line 1: the JSON of a record"),
        (b"step,layer,tensor,dtype,absmax\n", "line 1:"),
    ],
)
def test_what_cannot_be_read(checks: Checks, content: bytes, words: str) -> None:
    answer = checks(content)
    assert (answer.status, answer.out) == (2, "")
    assert words in answer.err
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err


def test_files_that_are_not_there(checks: Checks, tmp_path: Path) -> None:
    answer = checks(tmp_path / "missing")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"floatscope: {tmp_path / 'missing'}: No such file or directory; ")
    assert "--data DIR or --server URL" in answer.err
    assert answer.err.count("\n") == 1
    folder = checks(tmp_path)
    assert folder.status == 2
    assert "Is a directory; name the files in it" in folder.err


def test_devices_and_series_of_several_cards(checks: Checks) -> None:
    answer = checks(
        "device,GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B)\n" + "card0,1,9,2\ncard1,7,9,3\n" * 2
    )
    assert answer.status == 0
    assert [card["index"] for card in answer.content["devices"]] == [0, 1]
    assert answer.content["devices"][1] == {
        "index": 1,
        "pci": None,
        "name": None,
        "vram_used_bytes": 3,
        "vram_total_bytes": 9,
        "busy_percent": 7.0,
        "memory_busy_percent": None,
        "power_watts": None,
        "temperature_celsius": None,
    }
    assert answer.content["series"]["card1/GPU use (%)"] == [[0, 7.0], [1, 7.0]]


def test_an_alert_of_a_card_says_which_and_when(checks: Checks) -> None:
    text = "timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n"
    for i in range(20):
        text += f"2025/03/21 10:00:{i:02d}.000, 1, 97 %, {50000 if i < 12 else 80000} MiB, 81559 MiB\n"
    (alert,) = checks(text).content["alerts"]
    assert (alert["kind"], alert["severity"], alert["device"]) == ("vram_near_oom", "warning", "card1")
    assert (alert["first_step"], alert["last_step"], alert["row"], alert["line"]) == (12, 19, 12, 14)


def test_uncorrectable_errors_of_a_card(checks: Checks) -> None:
    card = {"gpu": 0, "usage": {"gfx_activity": {"value": 9, "unit": "%"}}, "ecc": {"total_uncorrectable_count": 1}}
    answer = checks(json.dumps([card]))
    assert answer.status == 1
    assert answer.kinds("critical") == ["gpu_fault"]


def test_a_hang_names_the_rank_of_the_log(checks: Checks) -> None:
    bar = "  1%|   | 24/1752 [01:08<1:22:56, 2.88s/it]"
    (alert,) = checks(f"{bar}\n{bar}[rank5]: [Rank 5] Watchdog caught collective operation timeout\n").content["alerts"]
    assert (alert["kind"], alert["rank"], alert["first_step"], alert["line"]) == ("stalled", 5, 24, 2)


def test_a_training_started_anew_is_judged_by_itself(checks: Checks) -> None:
    """The NaN of the first attempt stays, the level of its losses does not count for the second."""
    first = [{"step": step, "loss": 0.5} for step in range(10, 300, 10)] + [{"step": 300, "loss": math.nan}]
    second = [{"step": step, "loss": 3.0} for step in range(100, 400, 10)]
    answer = checks(json.dumps({"best_model_checkpoint": None, "log_history": first + second}))
    assert [(a["kind"], a["first_step"]) for a in answer.content["alerts"]] == [("nonfinite", 300)]
    series = answer.content["series"]["loss"]
    assert [step for step, _ in series] == list(range(10, 400, 10))
    assert dict(series)[200] == 3.0


def test_interleaved_writers_keep_what_is_not_finite(checks: Checks) -> None:
    lines = []
    for step in range(10, 310, 10):
        lines.append(json.dumps({"current_steps": step, "loss": 2.0, "lr": 1e-5}))
        late = step - 20
        if late > 0:
            lines.append(json.dumps({"current_steps": late, "loss": math.nan if late == 150 else 1.9, "lr": 1e-5}))
    answer = checks("\n".join(lines))
    assert [(a["kind"], a["first_step"]) for a in answer.content["alerts"]] == [("nonfinite", 150)]
    assert len(answer.content["series"]["loss"]) == 30


def test_layers_by_name_and_format(checks: Checks) -> None:
    text = (
        "step,layer,tensor,dtype,absmax\n0,a,act,fp16,60000\n1,a,act,fp16,inf\n1,b,act,bf16,9e9\n2,c,weight,fp32,1e30\n"
    )
    answer = checks(text)
    found = [(a["kind"], a["first_step"], a["layer"], a["format"]) for a in answer.content["alerts"]]
    assert ("limit_near", 0, "a", "fp16") in found
    assert ("limit_crossed", 1, "a", "fp16") in found
    assert {layer for _, _, layer, _ in found} == {"a"}
