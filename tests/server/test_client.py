"""``floatscope.Client`` against a real server, and against what is none."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

import floatscope
from floatscope import wire
from floatscope._client._block import parse
from floatscope_server.blocks import pack
from tests.needs import needs

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakeAgent, Running

pytestmark = pytest.mark.engines("sqlite")

DOCUMENT = Path(__file__).parents[2] / "docs" / "client.md"
ABSMAX = np.array([[1.0, 2.0], [4.0, 8.0], [16.0, 65504.0]], np.float32)


def histograms(make: Callable[[], list[tuple[int, int, list[int]]]], first_step: int) -> wire.Histograms:
    """One of each (layer, first bin, counts)."""
    rows = make()
    return wire.Histograms(
        kind="grad",
        first_step=first_step,
        steps=1,
        layers=np.array([row[0] for row in rows], "<u4").tobytes(),
        first=np.array([row[1] for row in rows], "<u2").tobytes(),
        length=np.array([len(row[2]) for row in rows], "<u2").tobytes(),
        sampled=np.array([sum(row[2]) for row in rows], "<i8").tobytes(),
        counts=np.array([count for row in rows for count in row[2]], "<u8").tobytes(),
    )


@pytest.fixture
def client(server: Running, agent: MakeAgent, make: Make) -> floatscope.Client:
    """Of a server with one run: two layers in fp16, three steps, of which the second was not observed in layer b."""
    one = agent(layers=[make.layer(0, "a", ("grad", "fp16")), make.layer(1, "b", ("grad", "fp16"))])
    count = np.array([[100, 100], [100, 0], [100, 100]])
    one.deliver(
        wire.Body(
            first_step=0,
            steps=3,
            summaries=(make.summaries("grad", 0, ABSMAX, count=count),),
            scalars=(
                make.scalars("loss", 0, [2.0, float("nan"), float("inf")]),
                make.scalars("lr", 0, [0.1, 0.1, 0.2]),
            ),
            histograms=(histograms(lambda: [(0, 254, [3, 5]), (1, 250, [1])], 1),),
        )
    )
    return floatscope.Client(server.url)


def test_runs_are_listed_and_one_is_described(client: floatscope.Client) -> None:
    (run,) = client.runs()
    assert (run["name"], run["steps"]) == ("run", 3)
    assert [layer["name"] for layer in client.run("run")["layers"]] == ["a", "b"]


def test_scalars_come_as_arrays_and_nan_and_infinity_are_what_they_were(client: floatscope.Client) -> None:
    found = client.scalars("run", ["loss"])
    assert list(found) == ["loss"]
    loss = found["loss"]
    assert loss.steps.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(loss.values, [2.0, np.nan, np.inf])
    assert not loss.missing.any()
    assert set(client.scalars("run")) >= {"loss", "lr"}
    assert client.scalars("run", ["lr"], first=2, last=2)["lr"].values.tolist() == [0.2]


def test_a_heat_map_says_what_was_not_observed(client: floatscope.Client) -> None:
    found = client.heatmap("run", metric="absmax")
    assert (found.layers, found.formats, found.cell) == (("a", "b"), ("fp16", "fp16"), 1)
    assert found.steps.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found.values, [[1, 4, 16], [2, np.nan, 65504]])
    np.testing.assert_array_equal(found.missing, [[False] * 3, [False, True, False]])
    headroom = client.heatmap("run", layers=["b"], first=2)
    np.testing.assert_array_equal(headroom.values, [[0.0]])
    assert (headroom.metric, headroom.unit) == ("headroom", "bits")


def test_a_histogram_has_edges_for_its_counts(client: floatscope.Client) -> None:
    found = client.histogram("run", "a")
    assert found.counts.tolist() == [[3, 5]]
    # Bins 254 to 256 begin at 1, 1.5 and 2.
    assert found.edges.tolist() == [1.0, 1.5, 2.0]
    assert (found.first_steps.tolist(), found.sampled.tolist()) == ([1], [8])
    assert client.histogram("run", "a", last=0).counts.shape == (0, 0)


def test_pandas_gets_frames(client: floatscope.Client) -> None:
    needs(_installed("pandas"), "pandas")
    frame = client.heatmap("run", metric="absmax").to_pandas()
    assert frame.loc["b"].isna().tolist() == [False, True, False]
    assert client.scalars("run", ["lr"])["lr"].to_pandas()["value"].tolist() == [0.1, 0.1, 0.2]
    assert client.histogram("run", "a").to_pandas().loc[1].tolist() == [3, 5]


def test_figures_are_plotly_s(client: floatscope.Client) -> None:
    lines = client.figure("run", scalars=["loss", "lr"])
    assert [trace.name for trace in lines.data] == ["loss", "not finite", "lr"]
    assert lines.data[1].x.tolist() == [1, 2]
    (heat,) = client.figure("run", metric="absmax").data
    assert list(heat.y) == ["a", "b"]
    np.testing.assert_array_equal(np.asarray(heat.z), [[1, 4, 16], [2, np.nan, 65504]])


def test_a_layer_is_series_on_common_steps(client: floatscope.Client) -> None:
    found = client.layer("run", "b", metrics=["absmax", "headroom"])
    assert (found.formats["headroom"], found.units["headroom"]) == ("fp16", "bits")
    np.testing.assert_array_equal(found.metrics["absmax"].values, [2, np.nan, 65504])
    np.testing.assert_allclose(found.metrics["headroom"].min, [np.log2(65504 / 2), np.nan, 0], atol=1e-6)


def test_figures_of_a_layer_have_the_limit_of_its_format(client: floatscope.Client) -> None:
    lines = client.figures.layer("run", "b", metrics=["headroom", "absmax"])
    assert [trace.name for trace in lines.data] == ["headroom", "absmax"]
    assert [(shape.y0, shape.y1) for shape in lines.layout.shapes if shape.name == "limit"] == [(0, 0)]
    shares, *bands = client.figures.histogram("run", "a").data
    assert [trace.name for trace in bands] == ["fp16 max", "fp16 smallest normal", "fp16 rounds to zero"]
    assert [float(trace.y[0]) for trace in bands] == pytest.approx([np.log2(65504), -14, -25], abs=1e-6)
    assert np.asarray(shares.z)[:, 0].tolist() == pytest.approx([(3 / 8) ** 0.5, (5 / 8) ** 0.5])
    assert np.asarray(shares.y).tolist() == pytest.approx([0, np.log2(1.5), 1])


def test_a_heat_map_of_headroom_has_the_limit_in_its_scale(client: floatscope.Client) -> None:
    (heat,) = client.figures.heat_map("run").data
    assert (heat.zmin, heat.zmax) == (-4, 16)
    assert dict(zip(heat.colorbar.tickvals, heat.colorbar.ticktext, strict=True))[0] == "0 = limit"
    assert [round(at, 2) for at, colour in heat.colorscale if colour == "#000000"] == [0.2, 0.2]


def test_runs_are_compared_in_one_chart_each(client: floatscope.Client) -> None:
    both = client.figures.compare(["run", "run"], ["loss", "lr"])
    assert [(trace.name, trace.yaxis) for trace in both.data] == [("run", "y"), ("run", "y2")]


def test_figures_without_plotly_say_what_to_install(client: floatscope.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    for ask in (client.figures.scalars, client.figures.heat_map, client.figure):
        with pytest.raises(ModuleNotFoundError, match=r'pip install "floatscope\[notebook\]"'):
            ask("run")


def test_what_the_server_refuses_is_one_exception(client: floatscope.Client) -> None:
    cases: list[tuple[Callable[[], object], str, int]] = [
        (lambda: client.run("other"), "unknown_run", 404),
        (lambda: client.heatmap("other?kind=grad"), "unknown_run", 404),
        (lambda: client.histogram("run", "no such"), "unknown_layer", 404),
        (lambda: client.heatmap("run", metric="beauty"), "invalid", 422),
        (lambda: client.scalars("run", points=0), "invalid", 422),
    ]
    for ask, code, status in cases:
        with pytest.raises(floatscope.ClientError) as caught:
            ask()
        assert (caught.value.code, caught.value.status) == (code, status)
        assert caught.value.hint
        assert caught.value.message in str(caught.value)
    with pytest.raises(TypeError, match="list of names"):
        client.scalars("run", "loss")


def test_a_token_is_sent_and_a_wrong_one_refused(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read the-reading-token-of-this-test\n")
    one = start(token_file=tokens)
    monkeypatch.setenv("FLOATSCOPE_SERVER", one.url)
    assert floatscope.Client(token="the-reading-token-of-this-test").runs() == []
    with pytest.raises(floatscope.ClientError) as caught:
        floatscope.Client().runs()
    assert caught.value.status == 401
    monkeypatch.setenv("FLOATSCOPE_TOKEN", "the-reading-token-of-this-test")
    assert floatscope.Client().runs() == []


def test_an_address_that_is_none_is_a_mistake() -> None:
    for server in ("127.0.0.1:6160", "ftp://a", "http://"):
        with pytest.raises(ValueError, match="write http"):
            floatscope.Client(server)


def test_who_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = floatscope.Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
        with pytest.raises(floatscope.ClientError, match=r"within 0\.05 s") as caught:
            client.runs()
        assert (caught.value.code, caught.value.status) == ("unreachable", None)
    with pytest.raises(floatscope.ClientError) as caught:
        client.runs()
    assert caught.value.code == "unreachable"
    assert caught.value.message.endswith(": Connection refused")
    assert "floatscope server" in caught.value.hint


class _Foreign(BaseHTTPRequestHandler):
    """Some other server; ``asked`` are the headers that came."""

    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.asked.append(self.headers["Authorization"])
        if self.path == "/api/v1/runs":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")
        else:
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as in the base
        pass


@pytest.fixture
def foreign() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Foreign) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_another_server_is_told_from_ours_and_leads_nowhere(foreign: str) -> None:
    client = floatscope.Client(foreign, "secret")
    for ask in (client.runs, lambda: client.run("a"), lambda: client.heatmap("a")):
        with pytest.raises(floatscope.ClientError) as caught:
            ask()
        assert caught.value.code == "no_answer"
    assert _Foreign.asked == ["Bearer secret"] * 3


def test_blocks_are_read_to_the_bit_and_damaged_ones_refused() -> None:
    values: npt.NDArray[np.float32] = np.array([0x7FC00001, 0x7FC00000, 0x7F800000, 0], np.uint32).view(np.float32)
    block = pack({"a": 1}, {"x": values, "y": np.arange(3), "z": np.empty((0, 2))})
    meta, arrays = parse(block)
    assert meta == {"a": 1}
    assert arrays["x"].view(np.uint32).tolist() == [0x7FC00001, 0x7FC00000, 0x7F800000, 0]
    assert arrays["y"].tolist() == [0, 1, 2]
    assert arrays["z"].shape == (0, 2)
    for damaged in (b"", b"FSB2" + block[4:], block[:20], block[:-16]):
        with pytest.raises(ValueError):
            parse(damaged)


def test_a_token_that_is_none_is_refused_and_not_said() -> None:
    with pytest.raises(ValueError, match=r"^token: character 7 of 7 is none of printable ASCII") as refused:
        floatscope.Client("http://127.0.0.1:9", "secret\n")
    assert "secret" not in str(refused.value)


def test_the_example_of_the_documents_runs(
    client: floatscope.Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    own = partial(floatscope.Client, transport=client._transport)
    monkeypatch.setattr(floatscope, "Client", own)
    names: dict[str, Any] = {}
    exec("\n".join(blocks), names)  # the document's own
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["2 inf", "2 layers, 0.0 bits of headroom at the least"]
    assert len(names["figure"].data) == 1


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
