"""Frames of ``floatscope top``: pure text of what is known and of the size."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from floatscope._top.cells import fitted, plain_signs, readable, rendered, width_of
from floatscope._top.frames import Known, LayerBits, frame

HOSTILE = "\x1b[31mx\x07\u202e\n\x9b2J"


def run(name: str = "run", **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {
        "name": name,
        "state": "live",
        "steps": 101,
        "last": {"loss": "NaN", "grad_norm": 2.5, "loss_scale": None},
        "worst": {"headroom": "-Infinity", "layer": "a.b", "kind": "grad", "step": 7},
        "alerts": {"critical": 1, "warning": 0, "info": 2},
        "overhead": {"share": 0.008},
        **fields,
    }


def alert(severity: str, step: int, state: str = "firing") -> dict[str, Any]:
    of = {"severity": severity, "kind": "limit_crossed", "first_step": step, "last_step": step, "state": state}
    return {**of, "message": "it left the range of fp16 " * 9}


CARD = {
    "backend": "amd",
    "index": 3,
    "rank": 3,
    "name": "MI300X",
    "busy_percent": 97.2,
    "vram_used_bytes": 64 << 30,
    "vram_total_bytes": 192 << 30,
    "power_watts": 540.0,
    "temperature_celsius": None,
}

OPENED = Known(
    server="http://h:1",
    runs=[run()],
    opened="run",
    layers=[
        LayerBits(layer=f"model.layers.{n}.mlp.down_proj", kind="act_in", format="e4m3fnuz", bits=bits)
        for n, bits in enumerate((-math.inf, -0.03, 0.5, 3.0, 40.0, math.inf))
    ],
    alerts=[alert("info", 3), alert("critical", 9), alert("warning", 2, "resolved")],
    devices=[CARD] * 8,
)


def text(known: Known, width: int = 80, height: int = 24, chosen: int = 0) -> list[str]:
    return rendered(frame(known, chosen, width, height), width, styled=False, coloured=False)


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 10), (20, 5)])
@pytest.mark.parametrize("opened", [None, "run", "no such"])
def test_a_frame_fits_its_terminal(size: tuple[int, int], opened: str | None) -> None:
    lines = text(replace(OPENED, runs=[run(f"r{n}") for n in range(90)] + [run()], opened=opened), *size, chosen=80)
    assert len(lines) == size[1]
    assert all(width_of(line) <= size[0] for line in lines)
    assert lines[-1].startswith("q quit")


def test_a_run_shows_its_layers_alerts_and_cards() -> None:
    lines = text(OPENED)
    assert lines[1] == "live  step 100  loss NaN  grad norm 2.5  cost 0.8 %"
    assert lines[2] == "worst headroom lately NaN/Inf bits  a.b, grad, step 7"
    rows = [line for line in lines if "down_proj" in line]
    assert [row.split()[3] for row in rows] == ["NaN/Inf", "−0.03", "0.5", "3.0", "40.0", "all"]
    bars = [row.split()[-1] for row in rows]
    assert len({len(bar) for bar in bars}) == 1
    assert set(bars[0]) == set(bars[1]) == {"▒"}
    assert bars[3].count("█") == 14
    assert set(bars[4]) == {"·"}
    at = lines.index("OPEN ALERTS 2")
    assert [line[0] for line in lines[at + 1 : at + 3]] == ["▲", "●"]
    assert lines[at + 1].endswith("…")
    assert any(line.startswith("8 GPUs, ") for line in lines)
    assert any("amd 3, rank 3" in line and "97 %    64.0/192 GiB  540 W" in line and "–" in line for line in lines)


def test_the_chosen_run_is_in_view_and_marked() -> None:
    runs = [run(f"run-{n}") for n in range(100)]
    lines = frame(Known(server="s", runs=runs), 77, 80, 24)
    marked = [line[0][0].strip() for line in lines if line and line[0][1] == "reverse"]
    assert marked == ["run-77"]


def test_what_is_not_there_yet_is_said() -> None:
    assert text(Known(server="http://h:1"))[1] == "asking http://h:1"
    assert "no runs yet" in text(Known(server="s", runs=[]))[2]
    lost = text(replace(OPENED, trouble="cannot reach it", age_s=12.4))
    assert "no link for 12 s, trying again: cannot reach it" in lost[0]
    assert lost[1:] == text(OPENED)[1:]
    first = run(worst=None, last=dict.fromkeys(("loss", "grad_norm", "loss_scale")), overhead={"share": None}, steps=0)
    bare = text(Known(server="s", runs=[first], opened="run"))
    assert bare[1:3] == ["live  step 0  loss –  grad norm –", "worst headroom not known yet"]


def test_nothing_in_a_name_is_obeyed() -> None:
    names = [run(HOSTILE, worst={**run()["worst"], "layer": HOSTILE}), run()]
    known = replace(
        OPENED,
        runs=names,
        opened=HOSTILE,
        layers=[LayerBits(layer=HOSTILE, kind="grad", format="–", bits=1.0)],
        alerts=[{**alert("critical", 1), "message": HOSTILE}],
        devices=[{**CARD, "name": HOSTILE}],
        trouble=HOSTILE,
    )
    for shown in (known, replace(known, opened=None)):
        for line in text(shown, width=200):
            assert line.isprintable(), line
    assert readable(HOSTILE) == r"\u001b[31mx\u0007\u202e\u000a\u009b2J"


def test_wide_characters_take_two_cells() -> None:
    assert width_of("训练run") == 7
    assert width_of("e\u0301") == 1
    assert fitted("训练运行", 5) == "训练…"
    assert fitted("训练运行", 6) == "训练… "
    assert fitted("训练运行", 6, keep="end") == "…运行 "
    assert fitted("训练", 6, "right") == "  训练"
    lines = text(Known(server="s", runs=[run("训练运行"), run("plain")]))
    assert width_of(lines[2][: lines[2].index("live")]) == lines[3].index("live")


def test_styles_go_where_they_may() -> None:
    line = [[("a", "critical"), ("b", "bold"), ("c", "")]]
    assert rendered(line, 9, styled=True, coloured=True) == ["\x1b[31;1ma\x1b[0m\x1b[1mb\x1b[0mc"]
    assert rendered(line, 9, styled=True, coloured=False) == ["a\x1b[1mb\x1b[0mc"]
    assert rendered(line, 2, styled=False, coloured=True) == ["ab"]
    assert plain_signs("▲ −1 █▌· 训") == "! -1 #-. ?"
