"""What Prometheus reads, and that the dashboard and the documents speak of nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakeAgent, Running

from floatscope import wire

DOCS = Path(__file__).parents[2] / "docs"
SAMPLE = re.compile(r'(floatscope_\w+)(?:\{(\w+)="(\w+)"\})? (\d+)')


def samples(text: str) -> dict[tuple[str, str], int]:
    """Metric and value of its label ("" without one) -> number."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        found[match[1], match[3] or ""] = int(match[4])
    return found


@pytest.fixture
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DOCS / "grafana-dashboard.json").read_text())
    return loaded


def test_alerts_that_fire_are_counted(
    server: Running,
    agent: MakeAgent,
    make: Make,
    wait_for: Callable[..., None],
) -> None:
    assert samples(server.get("/metrics").body.decode())["floatscope_alerts", "critical"] == 0
    one = agent(run="broken", layers=[make.layer(0, "a", ("grad", "fp16"))])
    one.deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.0, float("nan"), float("nan")]),)))
    wait_for(lambda: samples(server.get("/metrics").body.decode())["floatscope_alerts", "critical"] >= 1, "the alert")


def test_every_metric_has_a_type_and_a_help(server: Running) -> None:
    text = server.get("/metrics").body.decode()
    names = {name for name, _ in samples(text)}
    assert names == set(re.findall(r"^# TYPE (\w+) (?:gauge|counter)$", text, re.MULTILINE))
    assert names == set(re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE))
    assert all(name.endswith("_total") == (f"# TYPE {name} counter" in text) for name in names)


def test_dashboard_shows_every_metric_and_no_other(server: Running, dashboard: dict[str, Any]) -> None:
    known = {name for name, _ in samples(server.get("/metrics").body.decode())}
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {name for expression in expressions for name in re.findall(r"floatscope_\w+", expression)} == known
    # A counter means something by its rate only, a gauge by itself only.
    for expression in expressions:
        assert ("_total{" in expression) == expression.startswith("rate("), expression
    documented = set(re.findall(r"`(floatscope_\w+)`", (DOCS / "deployment.md").read_text()))
    assert documented == known


def test_panels_of_the_dashboard_fit_together(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)\}?", json.dumps(panels))) <= names


def test_manifests_of_the_documents_are_yaml() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (DOCS / "deployment.md").read_text(), re.MULTILINE | re.DOTALL)
    scrape, pod = (yaml.safe_load(block) for block in blocks)
    assert scrape["scrape_configs"][0]["job_name"] == "floatscope"
    (container,) = pod["spec"]["containers"]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert {variable["name"] for variable in container["env"]} >= {"FLOATSCOPE_SERVER", "FLOATSCOPE_TOKEN"}
