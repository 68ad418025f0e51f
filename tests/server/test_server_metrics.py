"""What Prometheus reads, and that the dashboard and the documents speak of nothing else."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakeAgent, Running

from floatscope import wire
from floatscope_server import card_metrics
from floatscope_server.card_metrics import CardMetrics
from floatscope_server.observation import Observation

DOCS = Path(__file__).parents[2] / "docs"
SAMPLE = re.compile(r'(floatscope_\w+)(?:\{(\w+)="(\w+)"\})? (\d+)')
OF_CARD = re.compile(r"(floatscope_card_\w+)\{(.*)\} (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"(?:,|$)')


def samples(text: str) -> dict[tuple[str, str], int]:
    """Metric and value of its label ("" without one) -> number, of those that are not of a card."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#") or OF_CARD.fullmatch(line):
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        found[match[1], match[3] or ""] = int(match[4])
    return found


def of_cards(text: str) -> dict[tuple[str, ...], float]:
    """Metric, run, rank, card and what further label there is -> number."""
    found = {}
    for line in text.splitlines():
        if match := OF_CARD.fullmatch(line):
            labels = LABEL.findall(match[2])
            assert "".join(f'{name}="{value}",' for name, value in labels) == match[2] + ","
            assert [name for name, _ in labels][:3] == ["run", "rank", "card"]
            found[match[1].removeprefix("floatscope_card_"), *(value for _, value in labels)] = float(match[3])
    return found


def known(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\w+) (?:gauge|counter)$", text, re.MULTILINE))


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
    names = known(text)
    assert {name for name, _ in samples(text)} == {name for name in names if "_card_" not in name}
    assert len(re.findall("^# TYPE", text, re.MULTILINE)) == len(names)
    assert names == set(re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE))
    assert all(name.endswith("_total") == (f"# TYPE {name} counter" in text) for name in names)


def test_cards_show_the_newest_that_is_known(server: Running, agent: MakeAgent) -> None:
    now = time.time_ns()
    told: dict[str, Any] = {"backend": "rocm", "index": 0, "pci": "0000:c1\\"}
    readings = (
        wire.Device(
            time_ns=now,
            **told,
            vram_used_bytes=1 << 37,
            ecc_corrected=7,
            ecc_uncorrected=0,
            throttle_thermal_percent=5.0,
        ),
        wire.Device(time_ns=now + 1, **told, busy_percent=29.0, core_clock_mhz=2100.0, power_watts=float("nan")),
        wire.Device(time_ns=now - 3600 * 10**9, backend="rocm", index=1, busy_percent=1.0),  # of an import
        wire.Device(time_ns=now, backend="rocm", index=2),
    )
    agent(run='a "b"', rank=3, world=4).deliver(wire.Body(devices=readings))
    text = server.get("/metrics").body.decode()
    whose = (r"a \"b\"", "3", r"0000:c1\\")
    assert of_cards(text) == {
        ("busy_ratio", *whose): 0.29,
        ("clock_hertz", *whose, "core"): 2.1e9,
        ("ecc_errors_total", *whose, "corrected"): 7.0,
        ("ecc_errors_total", *whose, "uncorrected"): 0.0,
        ("slowed_ratio", *whose, "heat"): 0.05,
    }


def test_hostile_readings_leave_the_text_whole(server: Running, agent: MakeAgent) -> None:
    now = time.time_ns()
    readings = (
        wire.Device(time_ns=now, backend="x\0", index=0, pci='a"\n\0}\r# x\u2028', vram_used_bytes=1),
        wire.Device(time_ns=now, backend="x", index=1, pci="b", core_clock_mhz=1e305, busy_percent=float("-inf")),
        wire.Device(time_ns=now, backend="x", index=2, pci="c", power_watts=1e308),
    )
    agent(run="hostile").deliver(wire.Body(devices=readings))
    text = server.get("/metrics").body.decode()
    assert all(character.isprintable() or character == "\n" for character in text.replace("\ufffd", ""))
    assert of_cards(text) == {
        ("memory_used_bytes", "hostile", "0", 'a\\"\\n\ufffd}\ufffd# x\ufffd'): 1.0,
        ("power_watts", "hostile", "0", "c"): 1e308,
    }


def test_cards_that_nobody_tells_of_any_more_are_forgotten() -> None:
    now = 1_000_000.0
    metrics = CardMetrics(lambda: now)

    def tell(run: str, busy: float) -> None:
        device = wire.Device(time_ns=int(now * 1e9), backend="a", index=0, busy_percent=busy)
        metrics.observe(
            Observation(
                run_id=1,
                run=run,
                attempt=1,
                rank=0,
                writer="w",
                seq=1,
                world=1,
                body=wire.Body(devices=(device,)),
                layers={},
            )
        )

    def shown() -> list[str]:
        return [key[1] for key in of_cards("\n".join(metrics.lines()))]

    tell("one", 10.0)
    now += 50
    tell("two", 20.0)
    assert shown() == ["one", "two"]
    now += 11
    assert shown() == ["two"]


def test_no_more_than_so_many_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_metrics, "_MOST", 3)
    metrics = CardMetrics(lambda: 1e6)
    for index in (0, 1, 2, 0, 3):
        device = wire.Device(time_ns=10**15, backend="a", index=index, busy_percent=1.0)
        body = wire.Body(devices=(device,))
        metrics.observe(
            Observation(run_id=1, run="r", attempt=1, rank=0, writer="w", seq=1, world=1, body=body, layers={})
        )
    assert [key[3] for key in of_cards("\n".join(metrics.lines()))] == ["card2", "card0", "card3"]


def test_dashboard_shows_every_metric_and_no_other(server: Running, dashboard: dict[str, Any]) -> None:
    there = known(server.get("/metrics").body.decode())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {name for expression in expressions for name in re.findall(r"floatscope_\w+", expression)} == there
    # A counter means something by its rate only, a gauge by itself only.
    for expression in expressions:
        assert ("_total{" in expression) == expression.startswith("rate("), expression
    documented = set(re.findall(r"`(floatscope_\w+)`", (DOCS / "deployment.md").read_text()))
    assert documented == there


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
