"""What an optimizer is set to, against the format of the weights that it updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from floatscope._doctor._verdict import Verdict, warning
from floatscope._formats import formats

__all__ = ["optimizer_verdicts"]


def optimizer_verdicts(told: Mapping[str, object]) -> Iterator[Verdict]:
    """Of a run's configuration as the agent tells it.

    Adam and its relatives divide by sqrt(v) + eps. Except in fused kernels they add in the format of the weights, where
    fp16 has nothing below 2^-24: 1e-8 is 0, and a parameter whose gradients were 0 so far becomes 0 / 0.
    """
    dtypes, optimizers = told.get("trainable"), told.get("optimizer")
    if not isinstance(dtypes, Mapping) or "float16" not in dtypes or not isinstance(optimizers, Mapping):
        return
    smallest = formats["fp16"].zero_at_or_below
    for name, options in optimizers.items():
        if not isinstance(options, Mapping) or options.get("fused") is True:
            continue
        eps = options.get("eps")
        values = [one for one in (eps if isinstance(eps, list) else [eps]) if isinstance(one, float)]
        if any(0 < value <= smallest for value in values):
            yield warning(
                f"{name} eps",
                f"{min(values):g}",
                f"up to {smallest:.3g} numbers are 0 in the weights' fp16: where gradients vanish, updates are 0 / 0",
                "keep the weights in fp32 and train under autocast (fp16: true, not pure fp16), or eps=1e-6",
            )
