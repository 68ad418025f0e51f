"""The overview of a run in a real browser, over a server that was told by agents' frames."""

from __future__ import annotations

import io
import json
import math
import re
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, expect

from floatscope import wire
from tests.chromium import Visit, visiting
from tests.e2e.scaled_runs import tell
from tests.pages import serving
from tests.server.bodies import layer, scalars, summaries

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

STEPS, SPIKE = 100_000, 77_777
CALM_LOSS, SPIKE_LOSS = 2.0, 40.0
FULL = 600
"""Steps of the run that reports everything."""
SPIKES = range(150, 160)
"""Steps whose loss makes an alert."""
CLIP = 1.0
CHARTS = ("Loss", "Gradient norm", "Learning rate", "Loss scale", "Throughput", "Step time")
TABLE = (layer(0, "blocks.0", ("grad", "fp16")),)


def _long(address: str) -> None:
    """100,000 steps with a single one whose loss, norm and time are far from all others."""
    wave = 0.01 * np.sin(np.arange(STEPS))
    series = {
        "loss": CALM_LOSS + wave,
        "grad_norm": 1.0 + wave,
        "lr": np.full(STEPS, 1e-4),
        "loss_scale": np.full(STEPS, 2.0**16),
        "step_time_s": 0.5 + wave,
    }
    for name, value in (("loss", SPIKE_LOSS), ("grad_norm", 1e3), ("step_time_s", 60.0)):
        series[name][SPIKE] = value
    blocks = [
        wire.Body(
            first_step=first,
            steps=10_000,
            scalars=tuple(
                scalars(name, first, values[first : first + 10_000].tolist()) for name, values in series.items()
            ),
        )
        for first in range(0, STEPS, 10_000)
    ]
    tell(address, "long", blocks, layers=TABLE)


def _full(address: str) -> None:
    """A run that reports whatever there is: micro-batches, clipping, tokens, checkpoints, and that has gone wrong."""
    rng = np.random.default_rng(0)
    loss = 2.0 + 3 * np.exp(-np.arange(FULL) / 120) + 0.05 * rng.standard_normal(FULL)
    loss[SPIKES] = 30.0
    norm = np.exp(rng.normal(-0.3, 0.35, FULL))
    series: dict[str, Sequence[float]] = {
        "loss": loss.tolist(),
        "raw_loss_max": (loss * 1.2).tolist(),
        "grad_norm": norm.tolist(),
        "grad_norm/clipped": np.minimum(norm, CLIP).tolist(),
        "clip_norm": [CLIP] * FULL,
        "lr": [3e-4 * min(1.0, (step + 1) / 60) * (0.55 + 0.45 * math.cos(step / FULL * 3)) for step in range(FULL)],
        "loss_scale": [2.0 ** (15 + step // 200) for step in range(FULL)],
        "step_time_s": (0.5 + 0.03 * rng.random(FULL) + 0.4 * (np.arange(FULL) % 100 == 99)).tolist(),
        "tokens": [4096.0 * (step + 1) for step in range(FULL)],
    }
    events = [
        wire.Event(step=step, kind="checkpoint", detail={"path": f"out/step-{step + 1}", "steps": step + 1})
        for step in range(99, FULL, 100)
    ]
    grads = summaries("grad", 0, 0.01 + 0.001 * rng.random((FULL, 1)))
    values = tuple(scalars(name, 0, value) for name, value in series.items())
    body = wire.Body(steps=FULL, summaries=(grads,), scalars=values, events=tuple(events))
    tell(address, "full", [body], layers=TABLE)


def _bare(address: str) -> None:
    """One step, a loss and nothing else."""
    tell(address, "bare", [wire.Body(steps=1, scalars=(scalars("loss", 0, [1.5]),))], layers=TABLE)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("overview") / "data") as url:
        address = url.removeprefix("http://")
        _long(address)
        _full(address)
        _bare(address)
        yield url


@pytest.fixture(scope="module")
def visit(url: str, program: Callable[[str], str]) -> Iterator[Visit]:
    with visiting(program("chromium"), url) as visit:
        yield visit
