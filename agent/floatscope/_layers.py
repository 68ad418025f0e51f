"""The layer table: which modules are observed, under which number, and what is known about them."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import TypedDict

import msgspec
import torch
from torch import nn

from floatscope import wire
from floatscope._fp8_modules import casts_operands
from floatscope._log import logger
from floatscope._placement import full_sizes
from floatscope._record import encodable
from floatscope._tensor_refs import TensorRef

__all__ = ["ROOT_NAME", "Coverage", "CoverageReport", "LayerTable"]

_NAMES_LENGTH = 400
"""Characters; a server takes no longer texts than 512."""

_Detail = str | int | float | bool | None


ROOT_NAME = "(model)"
"""The root module's qualified name is empty; a parameter of its own still needs a layer to belong to."""


class Coverage(TypedDict):
    """What of a model is seen."""

    trainable: int
    """Layers that own a parameter which requires a gradient."""
    observed: int
    """Those of them of which a gradient was read."""
    reasons: dict[str, list[str]]
    """Why something is not seen: a text, and the names of the layers that it holds for."""


class LayerTable:
    """Layers of one model: every module that owns parameters or multiplies matrices, numbered in module order.

    A parameter used by several modules (tied weights) belongs to the first of them. ``parameters`` of a layer counts
    those it owns, over all ranks. Modules and parameters are held weakly: a model that nobody else needs is free to go.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._modules: list[weakref.ref[nn.Module]] = []
        self._layer_of: dict[int, tuple[TensorRef, int]] = {}
        self._final: Coverage | None = None
        self.linear: set[int] = set()
        """Layers that multiply their input by a matrix, so that FP8 would cast their operands."""
        self.casting: set[int] = set()
        """Those of them that announce their casts, or whose casts are known (``_fp8_modules``)."""
        self._entries: list[wire.Layer] = []
        self._changed: set[int] = set()
        self._executed = 0
        self._with_gradient: set[int] = set()
        self._evaluated: set[int] = set()
        self._passed_over: set[int] = set()
        self._unseen: dict[str, set[int]] = {}
        self._refused_scales: Counter[int] = Counter()
        self._uncalled: set[int] = set()
        self._inside: tuple[tuple[str, ...], frozenset[int]] = (), frozenset()
        uncalled: set[nn.Module] = set()
        sizes = full_sizes(model)
        for name, module in model.named_modules():
            owned = [p for p in module.parameters(recurse=False) if self.layer_of(p) is None]
            if isinstance(module, nn.MultiheadAttention):
                uncalled.add(module.out_proj)
            casting = casts_operands(module)
            linear = casting or isinstance(module, nn.Linear)
            if not owned and not linear:
                continue
            index = len(self._modules)
            if linear:
                self.linear.add(index)
            if casting:
                self.casting.add(index)
            if module in uncalled:
                self._uncalled.add(index)
            self._modules.append(weakref.ref(module))
            self._layer_of.update((id(p), (TensorRef(p), index)) for p in owned)
            self._entries.append(
                wire.Layer(
                    index=index,
                    name=encodable(name) or ROOT_NAME,
                    module_type=encodable(type(module).__name__),
                    parameters=sum(sizes.get(id(p), p.numel()) for p in owned),
                )
            )
        self._changed.update(range(len(self._modules)))

    def layer_of(self, parameter: torch.Tensor) -> int | None:
        """The layer that ``parameter`` belongs to; None for one of another model."""
        known = self._layer_of.get(id(parameter))
        return known[1] if known is not None and known[0].get() is parameter else None

    def name(self, index: int) -> str:
        """Name of the layer ``index``."""
        return self._entries[index].name

    def inside(self, names: tuple[str, ...]) -> frozenset[int]:
        """The layers that ``names`` name, or that are inside a module that they name."""
        if self._inside[0] is not names:
            chosen = (
                i for i, entry in enumerate(self._entries) if any(f"{entry.name}.".startswith(f"{n}.") for n in names)
            )
            self._inside = names, frozenset(chosen)
        return self._inside[1]

    def parameters(self) -> list[torch.Tensor]:
        """All parameters that belong to a layer."""
        return [p for reference, _ in self._layer_of.values() if (p := reference.get()) is not None]

    def name_of(self, index: int) -> str:
        """The layer's name. Any thread."""
        return self._entries[index].name

    def elements(self, index: int) -> int:
        """Elements of the parameters that the layer owns."""
        return self._entries[index].parameters

    def layers_on(self, device: torch.device) -> list[int]:
        """Layers that own a parameter there, in order."""
        owned = ((reference.get(), layer) for reference, layer in self._layer_of.values())
        return sorted({layer for parameter, layer in owned if parameter is not None and parameter.device == device})

    def modules(self) -> Iterator[tuple[int, nn.Module]]:
        """Every layer that is still a part of the model."""
        model = self._model()
        present = set(model.modules()) if model is not None else set()
        for index, reference in enumerate(self._modules):
            if (module := reference()) is not None and module in present:
                yield index, module

    def observable(self) -> Iterator[tuple[int, nn.Module]]:
        """Layers whose outputs a forward hook sees: those without children, and linear-like ones."""
        return ((index, module) for index, module in self.modules() if self._is_observable(index, module))

    def _is_observable(self, index: int, module: nn.Module) -> bool:
        if isinstance(module, torch.jit.ScriptModule):
            return False
        return index in self.linear or next(module.children(), None) is None

    def owned(self, index: int, module: nn.Module) -> list[torch.Tensor]:
        """The parameters that belong to the layer ``index``, which ``module`` is."""
        return [p for p in module.parameters(recurse=False) if self.layer_of(p) == index]

    def executed(self, index: int) -> None:
        """Note that a layer ran: the first time fixes its place in execution order."""
        if self._entries[index].order < 0:
            self._replace(index, order=self._executed)
            self._executed += 1

    def has_run(self, index: int) -> bool:
        """Whether ``executed`` was told of the layer."""
        return self._entries[index].order >= 0

    def met(self, index: int, operand: wire.Operand) -> None:
        """Note a format that a tensor of the layer meets; one per kind, the latest."""
        known = self._entries[index].operands
        if operand not in known:
            others = tuple(o for o in known if o.kind != operand.kind)
            self._replace(index, operands=(*others, operand))

    def evaluated(self, index: int) -> None:
        """Note that a layer ran in eval mode, recording for a backward pass."""
        self._evaluated.add(index)

    def passed_over(self, index: int) -> None:
        """Note that no code, compiled or not, showed the layer's outputs in a step in which they were wanted."""
        self._passed_over.add(index)

    def has_gradient(self, index: int) -> None:
        """Note that a gradient of the layer was read."""
        self._with_gradient.add(index)

    def unseen(self, index: int, reason: str) -> None:
        """Note why something of the layer could not be observed."""
        self._unseen.setdefault(reason, set()).add(index)

    def refuse_scale(self, index: int, kind: str, why: str) -> None:
        """Note that a scale which the layer announced for ``kind`` makes no sense. Any thread."""
        self._refused_scales[index] += 1
        if self._refused_scales[index] == 1:
            logger.warning(
                "layer %s: the scale of its %s is left out: %s (said once a layer)",
                self._entries[index].name,
                kind,
                why,
            )
        self.unseen(index, "a scale that was announced is not one positive finite number")

    def _replace(
        self, index: int, *, order: int | None = None, operands: tuple[wire.Operand, ...] | None = None
    ) -> None:
        entry = self._entries[index]
        self._entries[index] = msgspec.structs.replace(
            entry,
            order=entry.order if order is None else order,
            operands=entry.operands if operands is None else operands,
        )
        self._changed.add(index)

    def changes(self) -> tuple[wire.Layer, ...]:
        """Entries new or changed since ``told`` was, in order of their index."""
        return tuple(self._entries[i] for i in sorted(self._changed))

    def told(self, layers: tuple[wire.Layer, ...]) -> None:
        """``layers`` are on their way."""
        self._changed.difference_update(entry.index for entry in layers if self._entries[entry.index] is entry)

    def _compiled(self, present: dict[int, nn.Module]) -> set[int]:
        """Layers inside a module that torch.compile took over, in which hooks do nothing."""
        model = self._model()
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        if model is None or dynamo is None:
            return set()
        inside = {
            part
            for module in model.modules()
            if isinstance(module, dynamo.OptimizedModule) or module._compiled_call_impl is not None
            for part in module.modules()
        }
        return {index for index, module in present.items() if module in inside}

    def _parameters_now(self) -> dict[int, list[torch.Tensor]]:
        """By layer, those of its parameters that are still in the model, in whichever module."""
        model = self._model()
        parameters: dict[int, list[torch.Tensor]] = {}
        for parameter in model.parameters() if model is not None else ():
            if (layer := self.layer_of(parameter)) is not None:
                parameters.setdefault(layer, []).append(parameter)
        return parameters

    def _changes(
        self, present: dict[int, nn.Module], parameters: dict[int, list[torch.Tensor]]
    ) -> dict[str, list[str]]:
        """What was done to the model since it is watched, by reason."""
        model = self._model()
        if model is None:
            return {}
        known = set(present.values())
        gone = [e.name for e in self._entries if e.index not in present and e.index not in parameters]
        moved = [e.name for e in self._entries if e.index not in present and e.index in parameters]
        replaced = [
            self._entries[index].name
            for index, module in present.items()
            if any(self.layer_of(p) is None for p in module.parameters(recurse=False))
        ]
        added = [
            encodable(name) or ROOT_NAME
            for name, module in model.named_modules()
            if module not in known and any(self.layer_of(p) is None for p in module.parameters(recurse=False))
        ]
        reasons = {
            "not observed: removed from the model since it is watched": gone,
            "only gradients observed: its parameters are in another module since the model is watched": moved,
            "gradients not observed: its parameters were replaced since the model is watched": replaced,
            "not observed: added to the model since it is watched": added,
        }
        return {reason: names for reason, names in reasons.items() if names}

    def let_go(self) -> None:
        """Refer to no parameter any more: nothing is read from now on, and what was seen stays what it is."""
        self._final = self.coverage()
        self._layer_of.clear()

    def coverage(self) -> Coverage:
        """What was seen so far; a layer whose outputs were never seen is listed among the reasons as well."""
        if self._final is not None:
            return self._final
        reasons: dict[str, list[str]] = {}
        trainable = []
        present, parameters = dict(self.modules()), self._parameters_now()
        compiled = self._compiled(present)
        for index in sorted({*present, *parameters}):
            module, owned = present.get(index), parameters.get(index, [])
            # Replaced parameters belong to no layer, and still to the module.
            own = module.parameters(recurse=False) if module is not None else ()
            if any(p.requires_grad for p in (*owned, *(p for p in own if self.layer_of(p) is None))):
                trainable.append(index)
                if index not in self._with_gradient:
                    reasons.setdefault("no gradient was read", []).append(self._entries[index].name)
            elif owned:
                reasons.setdefault("frozen", []).append(self._entries[index].name)
            why = None
            if module is None:
                continue
            if not self._is_observable(index, module):
                why = "the module contains others"
                if isinstance(module, torch.jit.ScriptModule):
                    why = "TorchScript takes no hooks"
            elif self._entries[index].order < 0:
                why = "its forward was never called"
                if index in self._uncalled:
                    why = "MultiheadAttention uses its weight without calling it"
                elif index in self._evaluated:
                    why = "it ran in eval mode only"
                elif index in self._passed_over and index in self._with_gradient:
                    why = "compiled before floatscope.watch; watch first, or call torch.compiler.reset() after it"
                elif index in compiled:
                    why = "it is compiled"
                elif index in self._with_gradient:
                    why = "a gradient came, but no call of it was seen, as when it is compiled"
            if why is not None:
                reasons.setdefault(f"outputs not observed: {why}", []).append(self._entries[index].name)
        for reason, names in self._changes(present, parameters).items():
            reasons.setdefault(reason, []).extend(names)
        for reason, layers in list(self._unseen.items()):
            reasons.setdefault(reason, []).extend(self._entries[index].name for index in sorted(layers))
        return {
            "trainable": len(trainable),
            "observed": len(self._with_gradient.intersection(trainable)),
            "reasons": reasons,
        }


def _coverage_detail(coverage: Coverage) -> dict[str, _Detail]:
    """``coverage`` without nesting: "count/REASON" is a number of layers, "layers/REASON" the names of the first."""
    detail: dict[str, _Detail] = {"trainable": coverage["trainable"], "observed": coverage["observed"]}
    for reason, names in coverage["reasons"].items():
        shown = ", ".join(names)
        if len(shown) > _NAMES_LENGTH:
            whole, _, _ = shown[:_NAMES_LENGTH].rpartition(", ")
            shown = f"{whole}, ..." if whole else f"{shown[:_NAMES_LENGTH]}..."
        detail[f"count/{reason}"] = len(names)
        detail[f"layers/{reason}"] = shown
    return detail


class CoverageReport:
    """Tells what of a model is covered when that has changed, from the step ``first`` on."""

    _EVERY = 100
    """Steps between two looks, which take about a microsecond for each layer."""

    def __init__(self, table: LayerTable, first: int) -> None:
        self._table = table
        self._due = first
        self._sent: dict[str, _Detail] | None = None

    def events(self, step: int) -> tuple[wire.Event, ...]:
        """What is to be told with ``step``."""
        if step < self._due:
            return ()
        self._due = step + self._EVERY
        detail = _coverage_detail(self._table.coverage())
        if detail == self._sent:
            return ()
        self._sent = detail
        return (wire.Event(step=step, kind="coverage", detail=detail),)

    def was_lost(self, step: int) -> None:
        """What was told with ``step`` may not have arrived: the next step tells it again."""
        self._due, self._sent = step + 1, None

    def stop(self) -> None:
        """Look no more."""
        self._due = sys.maxsize
