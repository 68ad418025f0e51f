"""What ``runs`` and ``show`` say to people."""

from __future__ import annotations

from typing import Any

import pytest

from floatscope_server.commands.text import counted, run_lines, runs_lines

NONE = {"critical": 0, "warning": 0, "info": 0}
UNKNOWN = dict.fromkeys(("share", "mean", "budget", "limit", "every"))


def series(high: float | str, *, low: float | str = 0.0, n: int = 8) -> dict[str, Any]:
    return {"n": n, "last_step": 7, "last": high, "min": low, "max": high}


def run(**parts: object) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "run": "r",
        "state": "finished",
        "steps": 8,
        "attempts": [{}],
        "ranks": [0],
        "layers": [],
        "coverage": {"observed": {}},
        "overhead": UNKNOWN,
        "scalars": {},
        "skipped_steps": [],
        "alerts": [],
        "gaps": [],
        "config": {},
        "doctor": {"hosts": [], "differ": []},
    }
    return empty | parts


def listed(**parts: object) -> dict[str, Any]:
    return {
        "name": "r",
        "state": "live",
        "steps": 1,
        "last": {"loss": "NaN"},
        "worst": None,
        "alerts": NONE,
        "alerts_past": NONE,
        "archived_at": None,
    } | parts


def shown(**parts: object) -> list[str]:
    return list(run_lines(run(**parts)))


@pytest.mark.parametrize(
    ("opened", "past", "said"),
    [
        ({}, {}, "no alerts"),
        ({}, {"critical": 1, "info": 1}, "no open alerts, 2 resolved"),
        ({"critical": 1, "warning": 3}, {}, "1 critical, 3 warning"),
        ({"critical": 1}, {"warning": 1}, "1 critical, 1 resolved"),
    ],
)
def test_the_list_tells_resolved_alerts_from_none(opened: dict[str, int], past: dict[str, int], said: str) -> None:
    (line,) = runs_lines([listed(alerts=NONE | opened, alerts_past=NONE | past)])
    assert line.endswith(f"  {said}")
    assert " 1 step  " in line


def test_the_list_says_what_is_archived() -> None:
    (line,) = runs_lines([listed(archived_at="2026-03-01T00:00:00Z")])
    assert line.endswith("  no alerts, archived")


@pytest.mark.parametrize(
    ("headroom", "said"), [(0.5, "0.5 bits in a"), ("-Infinity", "NaN or Inf in a"), ("Infinity", "Infinity bits in a")]
)
def test_the_list_has_no_bits_of_what_is_not_finite(headroom: float | str, said: str) -> None:
    (line,) = runs_lines([listed(worst={"headroom": headroom, "layer": "a"})])
    assert f"worst headroom {said}  " in line


def test_an_alert_says_whether_it_is_over() -> None:
    alert = {"severity": "critical", "kind": "nonfinite", "first_step": 91, "message": "NaN in a."}
    firing = alert | {"state": "firing", "resolved_reason": None}
    resolved = alert | {"state": "resolved", "resolved_reason": "superseded"}
    assert shown(alerts=[firing, resolved])[-2:] == [
        "critical nonfinite at step 91, firing: NaN in a.",
        "critical nonfinite at step 91, resolved (superseded): NaN in a.",
    ]


def test_scalars_of_many_layers_are_one_line_with_the_worst() -> None:
    layers = [f"h.{i}.a/b" for i in range(6)]
    scalars = {"loss": series(2.0, n=1)}
    scalars |= {f"swallowed/{layer}": series(i / 10) for i, layer in enumerate(layers)}
    scalars[f"swallowed/{layers[5]}"] = series("NaN", low="NaN")
    scalars |= {f"blocks/grad/{layer}/exponent_min": series(9.0, low=-i) for i, layer in enumerate(layers)}
    scalars |= {f"blocks/grad/{layer}/worst_flushed": series(0.0) for layer in layers}
    scalars |= {f"few/{layer}": series(1.0) for layer in layers[:4]}
    scalars |= {f"other/{i}": series(1.0) for i in range(6)}
    lines = [line for line in shown(layers=[{"name": n} for n in layers], scalars=scalars) if line.startswith("  ")]
    assert lines[:4] == [
        "  loss: 2 at step 7 (between 0 and 2, 1 point)",
        "  swallowed/*: 6 layers, highest 0.4 in h.4.a/b, 0.3 in h.3.a/b, 0.2 in h.2.a/b",
        "  blocks/grad/*/exponent_min: 6 layers, lowest -5 in h.5.a/b, -4 in h.4.a/b, -3 in h.3.a/b",
        "  blocks/grad/*/worst_flushed: 6 layers, highest 0 in each",
    ]
    assert len(lines) == 4 + 4 + 6, "what are few, or no layers, have a line each"


def test_an_infinite_value_is_the_worst() -> None:
    layers = list("abcde")
    scalars = {f"kind/{layer}": series(1.0) for layer in layers} | {"kind/c": series("Infinity")}
    text = shown(layers=[{"name": n} for n in layers], scalars=scalars)
    assert any(line.startswith("  kind/*: 5 layers, highest Infinity in c, ") for line in text)


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (UNKNOWN, "overhead: not told"),
        (
            {"share": 0.0062, "budget": 0.01, "limit": "", "every": {"activations": 20, "gradients": 1, "updates": 0}},
            (
                "overhead: 0.62 % of the step time, 62 % of the budget of 1 %; "
                "reads activations every 20 steps, gradients every step, updates never"
            ),
        ),
        (
            {"share": 0.02, "budget": 0.01, "limit": "a closer look", "every": {}},
            "overhead: 2 % of the step time, 200 % of the budget of 1 % (a closer look)",
        ),
        (
            {"share": 0.122, "budget": 0.01, "limit": "", "every": {}},
            "overhead: 12 % of the step time, 12 times the budget of 1 %",
        ),
        ({"share": 0.02, "budget": 0.0, "limit": "", "every": {}}, "overhead: 2 % of the step time, no budget"),
        ({"share": 1.13, "budget": 0.0, "limit": "", "every": {}}, "overhead: 110 % of the step time, no budget"),
    ],
)
def test_what_the_agent_costs_is_a_line(cost: dict[str, Any], said: str) -> None:
    assert said in shown(overhead=cost)


@pytest.mark.parametrize("state", ["live", "stalled"])
def test_what_it_costs_is_to_come_while_a_run_goes_on(state: str) -> None:
    assert "overhead: not known yet" in shown(state=state, overhead=UNKNOWN)


def test_one_is_no_plural() -> None:
    assert shown(steps=1, layers=[{"name": "a"}])[:2] == [
        "r: finished, 1 step, 1 attempt, ranks [0]",
        "1 layer; observed: nothing",
    ]
    assert shown(attempts=[{}, {}])[0] == "r: finished, 8 steps, 2 attempts, ranks [0]"
    assert [counted(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    skipped: list[dict[str, Any]] = [
        {"step": i, "layer": None, "rank": 0, "optimizers": [], "scales": []} for i in range(21)
    ]
    assert shown(skipped_steps=skipped)[-1] == "and 1 more skipped step"


def test_a_step_that_several_scalers_skipped_is_a_line() -> None:
    one = {"step": 3, "layer": "a", "rank": 0, "optimizers": [0], "scales": [2.0]}
    assert "skipped step 3: a, rank 0" in shown(skipped_steps=[one])
    both = one | {"optimizers": [0, 1], "scales": [65536.0, 2.0]}
    told = "skipped step 3: a, rank 0; optimizer 0 at scale 65536, optimizer 1 at scale 2"
    assert told in shown(skipped_steps=[both])


def test_what_is_observed_is_a_list_of_counts() -> None:
    assert shown(coverage={"observed": {"act": 40, "grad": 38}})[1] == "0 layers; observed: act 40, grad 38"


def test_what_the_doctor_found_is_said_where_it_is_bad_news() -> None:
    fine = {"item": "driver", "status": "ok", "value": "amdgpu", "why": "", "fix": ""}
    bad = {"item": "masks", "status": "warning", "value": "1", "why": "they stack", "fix": "unset one"}

    def said(*hosts: dict[str, object]) -> list[str]:
        lines = shown(attempts=[{"n": 1}, {"n": 2}], doctor={"hosts": hosts, "differ": []})
        return [line for line in lines if line.startswith("doctor")]

    one = {"attempt": 2, "host": "node-1", "verdicts": [fine, bad]}
    assert said(one) == ["doctor, warning: masks 1: they stack; unset one"]
    assert said(one | {"attempt": 1}) == []
    fine_too = {"attempt": 2, "host": "node-2", "verdicts": [fine]}
    assert said(one, fine_too) == ["doctor on node-1, warning: masks 1: they stack; unset one"]
    many = [one | {"host": f"node-{number}"} for number in range(1, 23)]
    assert said(*many)[0].startswith("doctor on node-1, node-2, ")
    assert "node-20 and 2 more, warning:" in said(*many)[0]
