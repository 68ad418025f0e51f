"""The hook of the module that is compiled, which torch keeps out of the graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters

from floatscope import Scope
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]

X = torch.linspace(-1, 1, 24).reshape(3, 8)


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean()}


def test_the_compiled_model_s_own_hook_runs_and_is_no_program(attach: Attach) -> None:
    def frames(*, watching: bool) -> int:
        torch.compiler.reset()
        counters.clear()
        model = WithLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scope, sink = attach(model, optimizer) if watching else (None, MemorySink())
        compiled = torch.compile(model, backend="eager")
        for step in range(3):
            optimizer.zero_grad()
            compiled(X * (float("nan") if step == 1 else 1.0))["loss"].backward()
            optimizer.step()
            if scope is not None:
                scope.step()
        if scope is not None and hasattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy"):
            assert sink.scalar("raw_loss_nonfinite")[:2] == [0.0, 1.0]
        return int(counters["frames"]["ok"])

    assert frames(watching=True) == frames(watching=False)
