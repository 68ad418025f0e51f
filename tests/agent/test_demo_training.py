"""The demo's trainings do what they claim, judged by a plain loop with ordinary hooks and no statistics of ours."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from floatscope._demo.fp8 import DelayedScale, Fp8Linear
from floatscope._demo.model import GPT
from floatscope._demo.text import batches, corpus
from tests.plain_loop import Findings, Recorder, plain_loop


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def hot() -> Findings:
    torch.set_num_threads(1)
    return plain_loop("hot", 80)


def test_model_has_between_one_and_three_million_parameters() -> None:
    assert 1e6 <= sum(p.numel() for p in GPT().parameters()) <= 3e6


def test_hot_run_breaks_where_a_limit_was_near_and_then_crossed(hot: Findings) -> None:
    crossed = hot.first_below(0.0)
    assert crossed is not None
    assert 20 <= crossed[0] <= 80
    step, layer = hot.broken[0]
    assert hot.skipped[0] == step >= crossed[0]
    # From 248 on a value rounds to NaN; from 240 to there it still rounds to 240.
    nan_from = math.log2(240 / 248)
    over = [k for (s, name, k), left in hot.headroom.items() if (s, name) == (step, layer) and left <= nan_from]
    assert over
    for name, kind in (crossed[1:], (layer, over[0])):
        lefts = {s: left for (s, n, k), left in hot.headroom.items() if (n, k) == (name, kind) and s <= step}
        near = min(s for s, left in lefts.items() if 0 <= left < 1)
        assert near < min(s for s, left in lefts.items() if left < 0)


def test_hot_run_loses_what_it_had_learnt(hot: Findings) -> None:
    finite = [loss for loss in hot.losses if math.isfinite(loss)]
    assert len(finite) < len(hot.losses)
    best = min(finite)
    assert sum(finite[-10:]) / 10 > best + 1.0


def test_agent_sees_what_plain_hooks_see_and_changes_nothing(hot: Findings) -> None:
    recorder = Recorder()
    watched = plain_loop("hot", 80, until_broken=True, recorder=recorder)
    assert watched.losses[:-1] == hot.losses[: len(watched.losses) - 1]
    assert watched.headroom == {w: left for w, left in hot.headroom.items() if w[0] < len(watched.losses)}
    assert recorder.headroom() == pytest.approx(watched.headroom, abs=1e-6)


def test_hot_run_repeats(hot: Findings) -> None:
    again = plain_loop("hot", 80, until_broken=True)
    assert again.broken == [b for b in hot.broken if b[0] == hot.broken[0][0]]
    assert again.first_below(0.0) == hot.first_below(0.0)
    assert again.headroom == {w: left for w, left in hot.headroom.items() if w[0] < len(again.losses)}


def test_sane_run_stays_quiet() -> None:
    sane = plain_loop("sane", 80)
    assert sane.skipped == []
    assert sane.broken == []
    assert min(sane.headroom.values()) > 1.0
    assert sane.losses[-1] < 4.8 < sane.losses[0]


@pytest.mark.parametrize(
    ("dtype", "largest", "beyond"), [(torch.float8_e4m3fnuz, 247.0, 248.0), (torch.float8_e5m2fnuz, 61439.0, 61440.0)]
)
def test_casts_are_real(dtype: torch.dtype, largest: float, beyond: float) -> None:
    values = DelayedScale(dtype, margin=0).quantise(torch.tensor([largest, beyond, -beyond, 1.0]))
    assert values[0] == torch.finfo(dtype).max
    assert values[1:3].isnan().all()
    assert values[3] == 1.0


def test_scale_follows_the_history_with_its_margin() -> None:
    delayed = DelayedScale(torch.float8_e4m3fnuz, margin=2, history=2, interval=2)
    delayed.quantise(torch.tensor([3.0, float("nan")]))
    delayed.roll()
    assert delayed.scale == 1.0  # a NaN amax is not recorded, and nothing else was seen
    delayed.quantise(torch.tensor([-30.0, 1.0]))
    assert delayed.scale == 1.0
    delayed.roll()
    assert delayed.scale == 2.0  # 240 / 30 = 8, less two bits
    delayed.quantise(torch.tensor([0.5]))
    delayed.roll()
    delayed.quantise(torch.tensor([0.5]))
    delayed.roll()
    assert delayed.scale == 64.0  # 30 has left the history: 240 / 0.5 = 480, down to 256, less two bits


def test_backward_multiplies_the_quantised_operands() -> None:
    torch.manual_seed(1)
    layer = Fp8Linear(5, 3)
    x = torch.randn(2, 4, 5, requires_grad=True)
    gradient = torch.randn(2, 4, 3)
    layer(x).backward(gradient)
    quantised = gradient.to(torch.float8_e5m2fnuz).float()
    weight, inputs = (t.detach().to(torch.float8_e4m3fnuz).float() for t in (layer.weight, x))
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    torch.testing.assert_close(x.grad, quantised @ weight)
    torch.testing.assert_close(layer.weight.grad, torch.einsum("bto,bti->oi", quantised, inputs))
    torch.testing.assert_close(layer.bias.grad, gradient.sum((0, 1)))


def test_text_does_without_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no Python sources"):
        corpus(tmp_path)
    (tmp_path / "b.py").write_bytes(b"b" * 9_000)
    (tmp_path / "a.py").write_bytes(b"a" * 9_000)
    (tmp_path / "c.txt").write_bytes(b"c" * 9_000)
    text = corpus(tmp_path, limit=10_000)
    assert bytes(text.tolist()) == b"a" * 9_000 + b"b" * 1_000
    tokens, targets = next(batches(text, batch=3, context=16, seed=0))
    assert tokens.shape == targets.shape == (3, 16)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
