"""What the tensors of this rank are to those of the other ranks: parts, copies, values of its own, or not known.

Nothing here communicates. DTensors say it themselves; for plain tensors it follows from the wrapper that reduces their
gradients.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from floatscope._megatron_ranks import is_a_stage, shared_parameters, wrappers_around
from floatscope._tensor_refs import TensorRef
from floatscope._zero import group_of, is_spread

__all__ = [
    "DATA",
    "LOCAL",
    "WHOLE",
    "Placement",
    "Ranks",
    "dtensor_placement",
    "full_sizes",
    "group_placement",
    "rank_and_world",
]


class Placement(NamedTuple):
    """``kind`` and ``copy_of`` as in ``wire.Summaries``; this rank's values count unless they are a copy."""

    kind: str = ""
    copy_of: int = -1

    @property
    def counts(self) -> bool:
        """Whether the values of this rank are the ones that count."""
        return self.copy_of < 0


WHOLE = Placement()
DATA = Placement("data")
LOCAL = Placement("local")

_UNKNOWN = "not merged over ranks: nothing says how its parameters are spread (no DDP, FSDP or DTensor)"
_STAGES = "not merged over ranks: stages of Megatron's pipeline give one name to different layers"
_PARTIAL = "not merged over ranks: partial DTensors, which a reduction has yet to finish"
_ENGINE = "deepspeed.runtime.engine"

engines: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""DeepSpeed engines whose model is watched without them: they know which ranks hold the same."""


def group_placement(kind: str, members: Sequence[int], rank: int) -> Placement:
    """``members`` are the ranks that hold the same as ``rank``, itself among them: the first one's counts."""
    return Placement(kind, -1 if members[0] == rank else members[0])


def dtensor_placement(placements: Sequence[Any], coordinate: Sequence[int] | None, ranks: torch.Tensor) -> Placement:
    """Of a DTensor on a mesh of ``ranks`` (int64, one dimension for each of ``placements``).

    Along dimensions that replicate, coordinate 0 counts. ``coordinate`` is None on a rank outside of the mesh, whose
    local tensor is empty. Partial values merge with nothing: their sum has other statistics than they.
    """
    if coordinate is None:
        return Placement("shard")
    if any(placement.is_partial() for placement in placements):
        return LOCAL
    # A strided shard says of itself that it is no shard.
    replicated = [placement.is_replicate() for placement in placements]
    counting = tuple(0 if same else at for same, at in zip(replicated, coordinate, strict=True))
    original, own = int(ranks[counting]), int(ranks[tuple(coordinate)])
    return Placement("replica" if all(replicated) else "shard", -1 if original == own else original)


class _Wrapped(NamedTuple):
    """A parameter that a wrapper has, and what that makes of its values and of its gradient."""

    parameter: TensorRef
    weight: Placement
    gradient: Placement


class Ranks:
    """Placements of one model's tensors on ``rank`` of ``world``; decided when a tensor is first met."""

    def __init__(self, model: nn.Module, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self._model = weakref.ref(model)
        self._ddp: list[weakref.ref[nn.Module]] = []
        self._known: dict[tuple[int, bool], tuple[TensorRef, Placement, str]] = {}
        self._meshes: dict[tuple[int, tuple[Any, ...]], tuple[Any, Placement]] = {}
        self._wrapped: dict[int, _Wrapped] | None = None
        self._partial_groups = False
        self._is_a_stage = any(map(is_a_stage, wrappers_around(model)))
        self.revision = 0
        """Grows when something was learned that changes placements."""
        self.gradients: set[str] = set()
        """Kinds of placement that gradients have had."""

    @property
    def norm(self) -> str:
        """What the norm of the gradients on this rank is: the model's ("grad_norm"), a share of the sum of squares of
        it ("grad_sumsq_share"), this rank's alone ("grad_norm/local"), or nothing of use ("")."""
        if "local" in self.gradients:
            return "grad_norm/local" if self.gradients == {"local"} else ""
        return "grad_sumsq_share" if "shard" in self.gradients or self._partial_groups else "grad_norm"

    @property
    def activations(self) -> Placement:
        """Of plain tensors that a forward or backward pass makes."""
        return WHOLE if self.world == 1 else LOCAL if self._is_a_stage else DATA

    def let_go(self) -> None:
        """Forget what is known of single parameters, and refer to none of them."""
        self._known.clear()
        self._wrapped = {}

    def in_forward(self) -> None:
        """The watched model runs: a DDP that wraps it shows itself now, and only now."""
        if self.world == 1 or not torch.distributed.is_available():
            return
        active = nn.parallel.DistributedDataParallel._active_ddp_module
        if active is not None and not any(known() is active for known in self._ddp):
            self._ddp.append(weakref.ref(active))
            self._known.clear()
            self._wrapped = None
            self.revision += 1

    def of(self, kind: str, tensor: torch.Tensor, parameter: torch.Tensor | None) -> tuple[Placement, str]:
        """Of ``tensor``, which is ``parameter`` or its gradient, or an activation without one; and why it will not be
        merged, empty when it will."""
        if self.world == 1:
            return WHOLE, ""
        found, why = self._of(tensor, parameter, gradient=kind == "grad")
        if kind == "grad":
            self.gradients.add(found.kind)
        return found, why

    def _of(self, tensor: torch.Tensor, parameter: torch.Tensor | None, *, gradient: bool) -> tuple[Placement, str]:
        # Importing DTensor takes over a second; without the import there is none.
        distributed = sys.modules.get("torch.distributed.tensor")
        if distributed is not None and isinstance(tensor, distributed.DTensor):
            place = self._on_mesh(tensor)
            return place, _PARTIAL if place == LOCAL else ""
        if parameter is None or self._is_a_stage:
            return self.activations, _STAGES if self._is_a_stage else ""
        known = self._known.get((id(parameter), gradient))
        if known is None or known[0].get() is not parameter:
            place, why = self._of_parameter(parameter, gradient=gradient)
            self._known[id(parameter), gradient] = known = (TensorRef(parameter), place, why)
        return known[1], known[2]

    def _on_mesh(self, tensor: Any) -> Placement:  # noqa: ANN401 - a DTensor, whose import is the user's
        mesh, placements = tensor.device_mesh, tensor.placements
        key = (id(mesh), placements)
        known = self._meshes.get(key)
        if known is None:
            place = dtensor_placement(placements, mesh.get_coordinate(), mesh.mesh)
            known = self._meshes[key] = (mesh, place)  # the mesh with it, so that its id stays its own
            self._partial_groups |= place.kind == "replica" and mesh.mesh.numel() < self.world
        return known[1]

    def _of_parameter(self, parameter: torch.Tensor, *, gradient: bool) -> tuple[Placement, str]:
        if is_spread(parameter):
            members, whole = group_of(parameter)
            self._partial_groups |= len(members) < self.world
            if gradient or not whole:
                return Placement("shard"), ""
            return group_placement("replica", members, self.rank), ""
        if self._wrapped is None:
            self._wrapped = dict(self._find_wrapped())
        known = self._wrapped.get(id(parameter))
        if known is None or known.parameter.get() is not parameter:
            return LOCAL, _UNKNOWN
        return known.gradient if gradient else known.weight, ""

    def _find_wrapped(self) -> Iterator[tuple[int, _Wrapped]]:
        """By id, every parameter that a wrapper has, and what that makes of it."""
        for group, parameters in self._wrappers():
            members = group if isinstance(group, list) else torch.distributed.get_process_group_ranks(group)
            self._partial_groups |= len(members) < self.world
            place = group_placement("replica", members, self.rank)
            yield from ((id(p), _Wrapped(TensorRef(p), place, place)) for p in parameters)
        model = self._model()
        for wrapper in wrappers_around(model):
            for shared in shared_parameters(wrapper, self.rank, self.world):
                self._partial_groups |= shared.partial
                places = (
                    Placement("shard" if spread else "replica", of) for spread, of in (shared.weight, shared.gradient)
                )
                yield id(shared.parameter), _Wrapped(TensorRef(shared.parameter), *places)
        for strategy, handle, wrapper in _flat(model) if model is not None else ():
            place = self._flat_placement(strategy, wrapper)
            yield from ((id(p), _Wrapped(TensorRef(p), place, place)) for p in _held(handle))

    def _wrappers(self) -> Iterator[tuple[Any, Iterable[torch.Tensor]]]:
        """Process group, or ranks, and parameters of each wrapper that has all of them hold the same."""
        model = self._model()
        modules: list[Any] = [*model.modules()] if model is not None and torch.distributed.is_available() else []
        engine: Any = getattr(sys.modules.get(_ENGINE), "DeepSpeedEngine", ())
        for module in [*modules, *(module for known in self._ddp if (module := known()) is not None), *engines]:
            if isinstance(module, nn.parallel.DistributedDataParallel):
                yield module.process_group, module._module_parameters
            elif isinstance(module, engine):
                yield module.seq_data_parallel_group, module.module.parameters()
        parameters = list(model.parameters()) if model is not None else []
        spread = next((p for p in parameters if is_spread(p)), None)
        if spread is not None:
            # Without the engine, which is what has the frozen ones that DeepSpeed leaves as they are.
            yield group_of(spread)[0], parameters

    def _flat_placement(self, strategy: str, wrapper: Any) -> Placement:  # noqa: ANN401 - of FSDP1
        if strategy == "NO_SHARD":
            members = torch.distributed.get_process_group_ranks(wrapper.process_group)
            self._partial_groups |= len(members) < self.world
            return group_placement("replica", members, self.rank)
        if not strategy.startswith(("HYBRID", "_HYBRID")):
            return Placement("shard")
        return group_placement("shard", torch.distributed.get_process_group_ranks(wrapper._inter_node_pg), self.rank)


def _flat(model: nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """Sharding strategy, handle and wrapper of each flat parameter of FSDP1."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for module in model.modules():
        if isinstance(module, fsdp.FullyShardedDataParallel) and module._handle is not None:
            yield module.sharding_strategy.name, module._handle, module


def _held(handle: Any) -> Sequence[torch.Tensor]:  # noqa: ANN401 - of FSDP1
    """The flat parameter, and with ``use_orig_params`` the views of this rank's part of it."""
    flat = handle.flat_param
    return (flat, *(flat._params or ()))


def full_sizes(model: nn.Module) -> dict[int, int]:
    """Elements over all ranks, by id, of those parameters whose own number says less (FSDP1, ZeRO-3)."""
    sizes: dict[int, int] = {}
    for _, handle, _ in _flat(model):
        flat = handle.flat_param
        sizes[id(flat)] = flat._unpadded_unsharded_size.numel()
        sizes.update((id(p), shape.numel()) for p, shape in zip(flat._params or (), flat._shapes, strict=False))
    sizes.update({id(p): int(p.ds_numel) for p in model.parameters() if hasattr(p, "ds_numel")})
    return sizes


def rank_and_world() -> tuple[int, int]:
    """From torch.distributed where it runs, else from what its launchers set."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _number("RANK", 0), _number("WORLD_SIZE", 1)


def _number(variable: str, default: int) -> int:
    value = os.environ.get(variable, "").strip() or str(default)
    if not value.isdecimal():
        raise ValueError(f"{variable} in the environment: expected a number, got {value!r}; set or unset it")
    return int(value)
