"""Public logs and outputs of tools: imported they are what `floatscope check` makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.server.logs.conftest import Command, LogServer

CASES = Path(__file__).parents[2] / "cases" / "logs"
LOGS = sorted(
    path
    for path in CASES.iterdir()
    if path.name.startswith("case-") and not path.name.endswith((".yaml", "limits.csv"))
)


COUNT_DONE_STEPS = (
    "llamafactory-trainer-log",
    "hf-trainer-state",
    "hf-console",
    "deepspeed-console",
    "megatron-console",
)


def kinds(alerts: list[dict[str, Any]], before: int = 0) -> Counter[tuple[str, str, int, int]]:
    return Counter((a["kind"], a["severity"], a["first_step"] - before, a["last_step"] - before) for a in alerts)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_import_agrees_with_check(
    path: Path, imports: Command, checked: Callable[[Path], Any], log_server: LogServer
) -> None:
    said = imports(path, "--run", path.name, "--json")
    assert said.status == 0, said.err
    wanted = checked(path)
    (file,) = said.json["files"]
    assert (file["format"], file["state"], file["unread"]) == (wanted["format"], "new", wanted["unread"])
    run = log_server.run(path.name)
    assert run["state"] == "finished"
    found = log_server.series(path.name)
    cards = {name.partition("/")[0] for name in found} if "devices" in wanted else set()
    prefix = f"{cards.pop()}/" if len(cards) == 1 else ""
    # A run's first step is 0; these logs call it 1.
    before = int(wanted["format"] in COUNT_DONE_STEPS)
    anew = [attempt["first_step"] for attempt in run["attempts"][1:]]
    for name, numbered in wanted["series"].items():
        points = [[max(0, step - before), value] for step, value in numbered]
        stand = found[prefix + name]
        # Where a training began anew, the server shows of the attempt before what lies before that step.
        hidden = [point for point in points if point not in stand]
        assert stand == [point for point in points if point not in hidden], name
        assert all(step >= min(anew) for step, _ in hidden), name
    assert kinds(run["alerts"]) == kinds(wanted["alerts"], before)
    for rule, name in wanted["canonical"].items():
        if rule in ("loss", "lr", "eval_loss"):
            assert found[rule][-1] == found[name][-1], rule
    assert all(alert["detail"]["imported"] for alert in run["alerts"])
    if "devices" in wanted:
        assert [d["index"] for d in run["devices"]] == [d["index"] for d in wanted["devices"]]
    figures = log_server.figures(path.name)
    assert imports(path, "--run", path.name, "--json").json["files"][0]["state"] == "known"
    assert log_server.figures(path.name) == figures


def test_there_are_logs() -> None:
    assert len(LOGS) > 31
