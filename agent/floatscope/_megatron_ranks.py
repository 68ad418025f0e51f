"""What the parameters and gradients of a rank are to the other ranks under Megatron's data and tensor parallelism.

Megatron is not imported: its wrapper is known by its class, and says which groups it reduces over.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

__all__ = [
    "Shared",
    "is_a_stage",
    "pipeline_group",
    "shared_parameters",
    "tensor_group",
    "wrappers",
    "wrappers_around",
]

_WRAPPER = "megatron.core.distributed.distributed_data_parallel", "DistributedDataParallel"

wrappers: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Those whose model is watched without them."""


class Shared(NamedTuple):
    """A parameter, as ``(spread, copy_of)`` its weight and its gradient: whether ranks have parts of it, and the rank
    that this one's part is a copy of, -1 where it is none. ``partial``: other ranks hold other parameters."""

    parameter: torch.Tensor
    weight: tuple[bool, int]
    gradient: tuple[bool, int]
    partial: bool


def wrappers_around(model: nn.Module | None) -> list[Any]:
    """Megatron's wrappers in ``model``, and those around a part of it."""
    cls = getattr(sys.modules.get(_WRAPPER[0]), _WRAPPER[1], None)
    if cls is None or model is None:
        return []
    within = [module for module in model.modules() if isinstance(module, cls)]
    own = set(model.parameters())
    return [*within, *(w for w in wrappers if w not in within and any(p in own for p in w.parameters()))]


def is_a_stage(wrapper: Any) -> bool:  # noqa: ANN401 (Megatron's)
    """Whether the model is one of several stages, each of which numbers its layers from 0."""
    return bool(pipeline_group(wrapper).size() > 1)


def pipeline_group(wrapper: Any) -> Any:  # noqa: ANN401 (Megatron's; a process group)
    """The ranks that have the stages of the model of ``wrapper``."""
    return _group(wrapper, "pp_group", "get_pipeline_model_parallel_group")


def tensor_group(wrapper: Any) -> Any:  # noqa: ANN401 (Megatron's; a process group)
    """The ranks over which its matrices are divided."""
    return _group(wrapper, "tp_group", "get_tensor_model_parallel_group")


def _group(wrapper: Any, name: str, of_all: str) -> Any:  # noqa: ANN401
    # Wrappers before Megatron Core 0.13 have no groups of their own: those of the process are theirs.
    if hasattr(wrapper, name):
        return getattr(wrapper, name)
    return getattr(sys.modules["megatron.core.parallel_state"], of_all)()


def shared_parameters(wrapper: Any, rank: int, world: int) -> Iterator[Shared]:  # noqa: ANN401 (Megatron's)
    """Those that the data-parallel ranks of ``wrapper`` share, on ``rank``; experts are not among them, as ranks give
    one name to different ones."""
    spread = bool(wrapper.ddp_config.use_distributed_optimizer)
    tensor = torch.distributed.get_process_group_ranks(tensor_group(wrapper))
    for buffer in wrapper.buffers:
        data = torch.distributed.get_process_group_ranks(buffer.data_parallel_group)
        for parameter in buffer.params:
            parted = len(tensor) > 1 and bool(getattr(parameter, "tensor_model_parallel", False))
            yield Shared(
                parameter,
                _place(data, tensor, rank, over_data=False, over_tensor=parted),
                _place(data, tensor, rank, over_data=spread, over_tensor=parted),
                len(data) * len(tensor) < world,
            )


def _place(
    data: Sequence[int], tensor: Sequence[int], rank: int, *, over_data: bool, over_tensor: bool
) -> tuple[bool, int]:
    """Ranks lie on a grid of ``data`` and ``tensor`` groups. Where they do not share out, the first one counts."""
    counting = rank + (0 if over_data else data[0] - rank) + (0 if over_tensor else tensor[0] - rank)
    return over_data or over_tensor, -1 if counting == rank else counting
