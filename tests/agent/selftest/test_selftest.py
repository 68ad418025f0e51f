"""The self-test passes here, notices what is planted, keeps its history and compares."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from floatscope import _cli
from floatscope._formats import formats
from floatscope._fp8_probe import multiplies
from floatscope._selftest import _bounds, _measure
from floatscope._selftest._history import Entry, History, Line, changes
from floatscope._selftest._measure import Result, measure

CPU = torch.device("cpu")


def failed(results: list[Result]) -> set[tuple[str, str]]:
    return {(r.format, r.stage) for r in results if not r.passed}


def test_this_processor_passes_in_every_format() -> None:
    results = list(measure(CPU))
    assert failed(results) == set()
    assert {r.format for r in results} == {"bf16", "fp16", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"}
    assert {r.stage for r in results if r.format == "bf16"} == {
        *("linear forward", "linear backward, input", "linear backward, weight", "update", "attention forward"),
        *("attention backward, q", "attention backward, k", "attention backward, v"),
    }
    assert {r.stage for r in results if r.format == "e5m2"} == {
        *("cast", "linear backward, input", "linear backward, weight", "update"),
    }


def test_torchs_own_settings_are_as_before() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    results = measure(CPU)
    next(results)
    assert matmul.allow_bf16_reduced_precision_reduction is False
    results.close()  # type: ignore[attr-defined]
    assert matmul.allow_bf16_reduced_precision_reduction == before


def test_bounds_are_not_generous() -> None:
    """One rounding is most of a product's error in 16 bits: a correct device comes close to the bound."""
    tight = [r.ratio for r in measure(CPU, "gfx1100") if r.stage.startswith("linear") and r.format in ("bf16", "fp16")]
    assert min(tight) > 0.5


@pytest.mark.parametrize(
    ("chip", "variants"),
    [
        ("gfx942", {"e4m3fnuz", "e5m2fnuz"}),
        ("gfx950", {"e4m3fn", "e5m2"}),
        ("sm_90", {"e4m3fn", "e5m2"}),
        ("gfx90a", {"e4m3fn", "e5m2"}),
    ],
)
def test_fp8_is_the_chips_variant(chip: str, variants: set[str]) -> None:
    assert {r.format for r in measure(CPU, chip)} - {"bf16", "fp16"} == variants


def test_without_the_instruction_the_product_is_emulated_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_measure, "multiplies", lambda *_: False)
    results = [r for r in measure(CPU, "gfx90a") if r.format in ("e4m3fn", "e5m2") and r.stage != "cast"]
    assert len(results) == 4
    assert all(r.passed and "no such instruction" in r.how for r in results)


def test_the_wrong_variant_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits read as the other variant are off by a factor of two."""

    def as_fnuz(a: tuple[torch.Tensor, float], b: tuple[torch.Tensor, float], *, real: bool) -> torch.Tensor:
        halves = [
            t.view(torch.uint8).view(torch.float8_e4m3fnuz).float() for t in (a[0].contiguous(), b[0].contiguous())
        ]
        return (halves[0] @ halves[1]) / (a[1] * b[1])

    monkeypatch.setattr(_measure, "_product", as_fnuz)
    assert ("e4m3fn", "linear forward") in failed(list(measure(CPU, "sm_90")))


def test_a_coarser_accumulator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that are rounded to BF16 every 16 products, as reduced-precision reductions do, exceed the bound of fp32."""

    def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape[0], w.shape[0], dtype=x.dtype)
        for start in range(0, x.shape[1], 16):
            total = total + x[:, start : start + 16] @ w[:, start : start + 16].T
        return total

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    assert ("bf16", "linear forward") in failed(list(measure(CPU, "gfx90a")))


def test_flushed_subnormals_are_noticed() -> None:
    values = torch.tensor([2.0**-20, 1.0]).double()
    bound = _bounds.rounding(values, formats["fp16"])
    flushed = _measure._judge(CPU, "fp16", "cast", "", "", torch.tensor([0.0, 1.0]), values, bound)
    kept = _measure._judge(CPU, "fp16", "cast", "", "", values.half(), values, bound)
    assert (flushed.passed, kept.passed) == (False, True)


def test_a_nan_is_a_failure_and_is_the_worst() -> None:
    want = torch.ones(3, dtype=torch.float64)
    result = _measure._judge(CPU, "bf16", "x", "", "", torch.tensor([1.0, float("nan"), 1.0]), want, want * 0.1)
    assert not result.passed
    assert np.isnan(result.error)


@pytest.mark.parametrize("name", ["bf16", "fp16", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"])
def test_the_bound_of_a_rounding_holds_and_is_reached(name: str) -> None:
    fmt = formats[name]
    dtype = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}.get(name) or getattr(ml_dtypes, f"float8_{name}")
    low = np.log2(fmt.min_subnormal)
    values = np.exp2(np.linspace(low, np.log2(fmt.max) - 0.1, 20_001))
    error = np.abs(values.astype(np.float32).astype(dtype).astype(np.float64) - values.astype(np.float32))
    ratio = error / _bounds.rounding(torch.from_numpy(values.astype(np.float32).astype(np.float64)), fmt).numpy()
    assert 0.4 < ratio.max() <= 1


def test_the_bound_of_a_sum_is_highams() -> None:
    assert _bounds.unit_roundoff(formats["bf16"]) == 2.0**-8
    assert _bounds.unit_roundoff(formats["e4m3fn"]) == 2.0**-4
    assert _bounds.gamma(256, 2.0**-24) == pytest.approx(256 * 2.0**-24, rel=1e-4)
    a, b = torch.ones(1, 4, dtype=torch.float64), torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], dtype=torch.float64)
    # The sum is zero; what was added is not.
    bound = _bounds.product(a, b, formats["fp32"], 2.0**-24)
    assert float(bound) == pytest.approx(4 * 4 * 2.0**-24, rel=1e-5)


@pytest.mark.parametrize("answer", [16.0, 32.0, None])
def test_the_probe_wants_the_right_product(monkeypatch: pytest.MonkeyPatch, answer: float | None) -> None:
    def scaled_mm(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        if answer is None:
            raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0")
        return torch.full((a.shape[0], b.shape[1]), answer)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    assert multiplies(CPU, "e4m3fn", "e4m3fn") == (answer == 16.0)


def entry(time: str, stack: str = "torch 2.13.0", **ratios: float) -> Entry:
    lines = tuple(
        Line(device="cpu", format=name, stage="cast", how="torch cast", ratio=ratio, passed=ratio <= 1)
        for name, ratio in ratios.items()
    )
    return Entry(time=time, stack=stack, chips=(), lines=lines)


def test_history_keeps_the_newest_and_survives_damage(tmp_path: Path) -> None:
    history = History(tmp_path / "deeper/selftest.jsonl")
    assert history.last() is None
    for number in range(203):
        history.add(entry(str(number), bf16=0.5))
    assert [e.time for e in history.entries()][::199] == ["3", "202"]
    with history.path.open("ab") as file:
        file.write(b'{"time": "half')
    last = history.last()
    assert last is not None
    assert last.time == "202"
    history.add(on_a_card(entry("203", bf16=0.1)))
    assert [e.time for e in (history.last(), history.last(())) if e is not None] == ["203", "202"]


def test_a_history_that_is_no_file_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    """Nobody writes into the pipe, and the device has no end; a link keeps leading to what it led to."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    endless = tmp_path / "endless"
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless):
        assert History(path).entries() == []
        with pytest.raises(OSError, match="no file"):
            History(path).add(entry("1", bf16=0.5))
    assert (pipe.is_fifo(), endless.is_symlink()) == (True, True)
    link = tmp_path / "link"
    link.symlink_to("file")
    History(link).add(entry("1", bf16=0.5))
    assert (link.is_symlink(), len(History(tmp_path / "file").entries())) == (True, 1)


def on_a_card(one: Entry) -> Entry:
    return Entry(time=one.time, stack=one.stack, chips=("gfx942",), lines=one.lines)


def test_changes_are_those_that_matter() -> None:
    before = entry("1", bf16=0.5, fp16=0.5, e5m2=0.9)
    now = entry("2", bf16=0.55, fp16=0.9, e5m2=1.1, e4m3fn=0.5)
    assert [(c.format, c.before, c.now) for c in changes(before, now)] == [("fp16", 0.5, 0.9), ("e5m2", 0.9, 1.1)]
    other = Line(device="cpu", format="bf16", stage="cast", how="another way", ratio=0.5, passed=True)
    assert len(changes(before, Entry(time="3", stack="", chips=(), lines=(other,)))) == 1


def test_the_command_keeps_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "history.jsonl"
    assert _cli.main(["selftest", "--json", "--history", str(file)]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["passed"] is True
    assert first["last"] is None
    assert {"device", "format", "stage", "how", "error", "bound", "ratio", "why", "passed"} == set(first["results"][0])
    assert _cli.main(["selftest", "--history", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("the same as on ")
    # Another ROCm, and a format that was better then.
    history = History(file)
    last = history.last()
    assert last is not None
    lines = tuple(
        Line(**{f: getattr(line, f) for f in line.__struct_fields__} | {"ratio": line.share / 2})
        for line in last.lines[:1]
    )
    history.add(Entry(time="2026-01-01T00:00:00+00:00", stack="rocm 6.4.1", chips=last.chips, lines=lines))
    assert _cli.main(["selftest", "--json", "--history", str(file)]) == 0
    compared = json.loads(capsys.readouterr().out)["last"]
    assert (compared["stack"], compared["stack_changed"], len(compared["changes"])) == ("rocm 6.4.1", True, 1)


def test_a_failure_is_exit_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = list(measure(CPU, "gfx90a"))
    bad = [dataclasses.replace(real[0], ratio=float("nan"), error=float("nan")), *real[1:]]
    monkeypatch.setattr(_measure, "measure", lambda *_: iter(bad))
    assert _cli.main(["selftest", "--history", str(tmp_path / "h")]) == 1
    assert "WRONG cpu" in capsys.readouterr().out
    assert _cli.main(["selftest", "--json", "--history", str(tmp_path / "h")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["results"][0]["ratio"] == "NaN"
    assert found["last"]["changes"] == [], "the failure before is in the history too"
    monkeypatch.setattr(_measure, "measure", lambda *_: iter(real))
    assert _cli.main(["selftest", "--json", "--history", str(tmp_path / "h")]) == 0
    changes = json.loads(capsys.readouterr().out)["last"]["changes"]
    assert changes, "one for each device of this machine"
    for change in changes:
        assert (change["before"], change["now"]) == ("NaN", pytest.approx(real[0].ratio))


def test_a_history_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert _cli.main(["selftest", "--history", str(tmp_path / "file/h")]) == 0
    assert "not kept in" in capsys.readouterr().err


@pytest.fixture
def card() -> Callable[[], torch.device]:
    def one() -> torch.device:
        if not torch.cuda.is_available():
            pytest.skip("needs a card")
        return torch.device("cuda", 0)

    return one


def test_a_card_passes(card: Callable[[], torch.device]) -> None:
    device = card()
    properties = torch.cuda.get_device_properties(device)
    chip = (
        str(properties.gcnArchName).partition(":")[0]
        if torch.version.hip
        else f"sm_{properties.major}{properties.minor}"
    )
    results = list(measure(device, chip))
    assert failed(results) == set()
    if chip in ("gfx942", "gfx950", "sm_90"):
        assert {r.how for r in results if r.format.startswith("e") and r.stage != "cast"} == {"torch._scaled_mm"}
