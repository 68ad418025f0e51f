"""A long training with a server that is not there: memory stays where it was."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import floatscope

_STEPS = 20_000
_WARM = 4_000
_PAGE = 4096


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6


@pytest.mark.long
def test_memory_is_flat_over_twenty_thousand_steps(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "floatscope")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, labels = torch.randn(64, 32), torch.randint(0, 8, (64,))
    warm = 0.0
    with floatscope.watch(model, optimizer, run="long", server="http://127.0.0.1:9") as scope:
        for step in range(_STEPS):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scope.step(loss=loss)
            if step == _WARM:
                warm = _resident_mb()
        grown = _resident_mb() - warm
    # The outbox may fill to its limit of 24 MiB meanwhile; anything beyond is ours to find.
    assert grown <= 32
