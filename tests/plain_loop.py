"""The demo's training by a plain loop with ordinary hooks and no statistics of ours: the judge of what we report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn import functional

import floatscope
from floatscope._demo.fp8 import Fp8Linear, roll_scales
from floatscope._demo.model import GPT
from floatscope._demo.schedule import learning_rate
from floatscope._demo.text import batches, corpus
from floatscope._memory import MemorySink

__all__ = ["LIMITS", "Findings", "Recorder", "plain_loop"]

LIMITS = {"act_in": 240.0, "weight": 240.0, "act_grad": 57344.0}


@dataclass
class Findings:
    losses: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    headroom: dict[tuple[int, str, str], float] = field(default_factory=dict)
    """(step, layer, kind) -> bits left, for finite operands."""
    broken: list[tuple[int, str]] = field(default_factory=list)
    """(step, layer) whose output was not finite, in execution order."""

    def first_below(self, bits: float) -> tuple[int, str, str] | None:
        return next((where for where, left in self.headroom.items() if left < bits), None)


class Recorder(MemorySink):
    """Takes the agent's records in place of its sender."""

    def headroom(self) -> dict[tuple[int, str, str], float]:
        """(step, layer, kind) -> bits left, of finite operands that are cast."""
        names: dict[int, str] = {}
        casts: set[tuple[str, str]] = set()
        found: dict[tuple[int, str, str], float] = {}
        for record in self.records():
            names.update((layer.index, layer.name) for layer in record.layers)
            casts |= {(one.name, o.kind) for one in record.layers for o in one.operands if o.role == "cast"}
            for rows in record.summaries:
                fields = rows.fields
                for at, layer in enumerate(rows.layers.tolist()):
                    amax = float(fields["absmax"][at]) * float(fields["scale"][at])
                    finite = fields["nans"][at] == fields["infs"][at] == 0
                    if (names[layer], rows.kind) in casts and finite and amax > 0:
                        found[record.step, names[layer], rows.kind] = math.log2(LIMITS[rows.kind] / amax)
        return found


def plain_loop(schedule: str, steps: int, *, until_broken: bool = False, recorder: Recorder | None = None) -> Findings:
    """Train as the demo does, looking at every FP8 layer's operands with forward and tensor hooks.

    With a ``recorder`` the agent watches as well.
    """
    found = Findings()
    step = 0

    def look(name: str, kind: str, layer: Fp8Linear, tensor: torch.Tensor) -> None:
        amax = tensor.detach().abs().max().item() * layer.scales[kind].scale.item()
        if math.isfinite(amax) and amax > 0:
            found.headroom[step, name, kind] = math.log2(LIMITS[kind] / amax)

    def before(name: str, layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(layer, Fp8Linear)
        look(name, "act_in", layer, inputs[0])
        look(name, "weight", layer, layer.weight)

    def after(name: str, layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        assert isinstance(layer, Fp8Linear)
        if not output.isfinite().all():
            found.broken.append((step, name))
        output.register_hook(partial(look, name, "act_grad", layer))  # type: ignore[no-untyped-call]

    torch.manual_seed(0)
    model = GPT()
    for name, module in model.named_modules():
        if isinstance(module, Fp8Linear):
            module.register_forward_pre_hook(partial(before, name))
            module.register_forward_hook(partial(after, name))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu")
    data = batches(corpus(), batch=4, context=model.context, seed=0)
    scope = None
    if recorder is not None:
        scope = floatscope.watch(
            model,
            optimizer,
            scaler=scaler,
            run="test",
            _sink=recorder,
            activations_every=1,
            weights_every=1,
            overhead_budget=0,
        )
    while step < steps and not (until_broken and found.broken):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(schedule, step)
        tokens, targets = next(data)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before_update = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < before_update:
            found.skipped.append(step)
        found.losses.append(loss.item())
        if scope is not None:
            scope.step(loss=loss)
        roll_scales(model)
        step += 1
    if scope is not None:
        scope.close()
    return found
