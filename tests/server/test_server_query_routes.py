"""What a page asks for, over HTTP: shapes, typed arrays, mistakes."""

from __future__ import annotations

import math
import urllib.parse
from typing import TYPE_CHECKING

import numpy as np
import pytest

from floatscope import wire
from floatscope_server.blocks import MEDIA_TYPE

if TYPE_CHECKING:
    from tests.server.bodies import Unpack
    from tests.server.conftest import Make, MakeAgent, Running

pytestmark = pytest.mark.usefixtures("kept")


def test_heat_map_and_scalars_come_as_typed_arrays_too(
    server: Running, agent: MakeAgent, make: Make, unpack: Unpack
) -> None:
    one = agent(layers=[make.layer(0, "a", ("grad", "fp16")), make.layer(1, "b")])
    one.deliver(
        wire.Body(
            summaries=(make.summaries("grad", 0, [[1.0, 2.0], [3.0, 4.0]]),),
            scalars=(make.scalars("loss", 0, [1.0, math.nan]),),
        )
    )
    path = "/api/v1/runs/run/heatmap?metric=absmax"
    content = server.json(path)
    reply = server.get(path, accept=MEDIA_TYPE)
    assert reply.headers["content-type"] == MEDIA_TYPE
    meta, arrays = unpack(reply.body)
    values = content.pop("values")
    assert meta == content
    assert arrays["values"].dtype == np.dtype("<f4")
    assert arrays["values"].tolist() == values == [[1.0, 3.0], [2.0, 4.0]]
    meta, arrays = unpack(server.get("/api/v1/runs/run/scalars", accept=MEDIA_TYPE).body)
    assert meta == {"series": [{"name": "loss", "cell": 1, "n": 2}]}
    np.testing.assert_array_equal(arrays["loss/values"], [1.0, math.nan])


def test_histograms_of_a_layer_come_column_by_column(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent(layers=[make.layer(0, "a"), make.layer(1, "block/b")])
    for step in (0, 8):
        one.deliver(
            wire.Body(
                histograms=(
                    wire.Histograms(
                        kind="grad",
                        first_step=step,
                        steps=8,
                        layers=np.array([0, 1], "<u4").tobytes(),
                        first=np.array([200, 210], "<u2").tobytes(),
                        length=np.array([2, 3], "<u2").tobytes(),
                        sampled=np.array([9, 10], "<i8").tobytes(),
                        counts=np.array([4, 5, 1, step, 3], "<u8").tobytes(),
                    ),
                )
            )
        )
    found = server.json("/api/v1/runs/run/layers/block%2Fb/histogram?kind=grad")
    assert found["first_bin"] == 210
    assert found["columns"] == [
        {"first_step": 0, "steps": 8, "first": 210, "sampled": 10, "counts": [1, 0, 3], "complete": True},
        {"first_step": 8, "steps": 8, "first": 210, "sampled": 10, "counts": [1, 8, 3], "complete": True},
    ]
    missing = server.get("/api/v1/runs/run/layers/none/histogram")
    assert missing.status == 404
    assert missing.json["error"]["code"] == "unknown_layer"


@pytest.mark.parametrize("name", ["..", "a\nb", "a/b", "histogram", "%2F"])
def test_a_layer_is_found_by_any_name(server: Running, agent: MakeAgent, make: Make, name: str) -> None:
    agent(layers=[make.layer(0, name)])
    content = server.json("/api/v1/runs/run/histogram?" + urllib.parse.urlencode({"layer": name}))
    assert (content["layer"], content["columns"]) == (name, [])


def test_devices_come_newest_last_with_their_rank(server: Running, agent: MakeAgent) -> None:
    one = agent(rank=3, world=4)
    for second in (100, 700, 701):
        one.deliver(wire.Body(devices=(wire.Device(time_ns=second * 10**9, backend="rocm", index=0, pci="0000:c1"),)))
    samples = server.json("/api/v1/runs/run/devices?seconds=60")
    assert [sample["time_ns"] for sample in samples] == [700 * 10**9, 701 * 10**9]
    assert samples[0]["rank"] == 3
    assert samples[0]["vram_used_bytes"] is None
    # What is read seldom is in those samples that have it.
    assert (set(wire.Device.__struct_fields__) | {"rank"}) - set(wire.READ_SELDOM) == set(samples[0])


def test_a_clock_that_is_ahead_hides_no_other_rank(server: Running, agent: MakeAgent) -> None:
    for rank, ahead in ((0, 0), (1, 86400), (2, 86400), (2, 0)):
        one = agent(rank=rank, world=3, attempt=1)
        for second in (100, 700, 701):
            time_ns = (second + ahead) * 10**9
            one.deliver(wire.Body(devices=(wire.Device(time_ns=time_ns, backend="rocm", index=0),)))
    samples = server.json("/api/v1/runs/run/devices?seconds=60")
    assert [sample["rank"] for sample in samples] == [0, 2, 0, 2, 1, 1]
    assert {device["rank"] for device in server.json("/api/v1/runs/run")["devices"]} == {0, 1, 2}


def test_every_shape_of_the_contract_is_there(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent(run="a run", layers=[make.layer(0, "a", ("grad", "fp16"))], config={"x": 1})
    one.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[1.0]]),), scalars=(make.scalars("loss", 0, [1.0]),)))
    assert set(server.json("/api/v1/runs")[0]) == {
        *("name", "state", "attempt", "steps", "started_at", "heartbeat_at", "finished_at"),
        *("last", "worst", "alerts", "alerts_past", "sparkline", "overhead", "world", "missing_ranks"),
        *("tags", "archived_at", "max_steps", "pace", "chips", "precision"),
    }
    shown = server.json("/api/v1/runs/a%20run")
    assert {
        *("run", "state", "steps", "attempts", "writers", "ranks", "layers", "coverage", "skipped_steps"),
        *("scalars", "alerts", "overhead", "gaps", "devices", "config"),
    } <= set(shown)
    assert shown["steps"] == 1
    assert shown["coverage"] == {
        "trainable": None,
        "reasons": {},
        "layers": 1,
        "layers_with_parameters": 1,
        "observed": {"grad": 1},
        "gradient_share": 1.0,
    }
    assert shown["scalars"]["loss"] == {"n": 1, "last_step": 0, "last": 1.0, "min": 1.0, "max": 1.0}
    assert set(server.json("/api/v1/runs/a%20run/heatmap")) == {
        *("kind", "metric", "format", "unit", "worst", "first_step", "last_step", "cell", "columns", "layers"),
        *("agg", "attempt", "resolution", "damaged", "values"),
        *("world", "complete_to", "missing_ranks"),
    }
    assert set(server.json("/api/v1/runs/a%20run/scalars")[0]) == {"name", "cell", "n", "steps", "values", "min", "max"}


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/runs/none", 404, "unknown_run"),
        ("/api/v1/runs/none/heatmap", 404, "unknown_run"),
        ("/api/v1/runs/run/heatmap?format=fp7", 422, "invalid"),
        ("/api/v1/runs/run/heatmap?columns=0", 422, "invalid"),
        ("/api/v1/runs/run/heatmap?from=x", 422, "invalid"),
        ("/api/v1/runs/run/scalars?points=1000000000", 422, "invalid"),
        ("/api/v1/runs/run/devices?seconds=nan", 422, "invalid"),
        ("/nothing", 404, "http"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(
    server: Running, agent: MakeAgent, path: str, status: int, code: str
) -> None:
    agent()
    reply = server.get(path)
    assert reply.status == status
    error = reply.json["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["hint"]
