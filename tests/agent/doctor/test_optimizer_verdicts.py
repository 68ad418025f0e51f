"""What is said of an optimizer whose eps is nothing in the format of the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from floatscope._config import Config
from floatscope._doctor._optimizer import optimizer_verdicts
from floatscope._sending import description


def told(dtype: torch.dtype = torch.float16, **options: Any) -> dict[str, object]:  # noqa: ANN401 (AdamW's)
    model = nn.Linear(2, 2).to(dtype)
    return description(model, [torch.optim.AdamW(model.parameters(), **options)], None, Config())


def test_the_default_of_adam_is_0_in_fp16() -> None:
    (verdict,) = optimizer_verdicts(told())
    assert (verdict.item, verdict.status, verdict.value) == ("AdamW eps", "warning", "1e-08")
    assert "2.98e-08" in verdict.why


def test_which_does_spoil_such_weights() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.tensor([0.0, 1.0], dtype=torch.float16)
    optimizer.step()
    assert weight.isnan().tolist() == [True, False]


@pytest.mark.parametrize("options", [{"eps": 1e-6}, {"fused": True}, {"eps": 0.0}], ids=["larger", "fused", "none"])
def test_others_are_not_mentioned(options: dict[str, Any]) -> None:
    assert list(optimizer_verdicts(told(**options))) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_formats_have_room(dtype: torch.dtype) -> None:
    assert list(optimizer_verdicts(told(dtype))) == []


def test_frozen_weights_are_not_updated() -> None:
    model = nn.Sequential(nn.Linear(2, 2).half().requires_grad_(requires_grad=False), nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model[1].parameters())
    assert list(optimizer_verdicts(description(model, [optimizer], None, Config()))) == []
