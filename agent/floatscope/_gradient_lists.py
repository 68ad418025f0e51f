"""Lists of parameters whose gradients are read step after step: what can be known of them once is not asked again.

A step of a large model has hundreds of gradients, and a microsecond for each would be noticed.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import is_, itemgetter
from typing import Any, NamedTuple

import torch

from floatscope._device_rows import Part, PartList
from floatscope._placement import Placement
from floatscope._readable import PLAIN, local_part, stored_format, why_not
from floatscope._recorder import Recorder
from floatscope._tensor_refs import TensorRef

__all__ = ["GradientList", "GradientLists", "OnDevice"]

_LISTS = 8
_LOOKED_AT = 4
"""Gradients of a list whose dtype and device are looked at in one step, in turn: all of them would cost more than the
rest. Whatever has another address is looked at by the variant anyway."""

_Pick = Callable[[Sequence[Any]], tuple[Any, ...]]


class _Known(NamedTuple):
    """A gradient when it was looked at."""

    layer: int
    dtype: torch.dtype
    device: torch.device
    placement: Placement


class OnDevice(NamedTuple):
    """Gradients of one device: ``tensors[i]`` goes to row ``at[i]``; what is known of these rows."""

    device: torch.device
    at: tuple[int, ...]
    tensors: Sequence[torch.Tensor]
    rows: PartList


class GradientList:
    """Parameters, known by their identity, that had plain dense gradients when they were last looked at one by one.

    ``known`` are those, by their place among ``parameters``. ``loss_scaled``: the gradients carry the loss scale.
    """

    def __init__(
        self, recorder: Recorder, parameters: Sequence[torch.Tensor], known: dict[int, _Known], *, loss_scaled: int
    ) -> None:
        self.ids = list(map(id, parameters))
        self.all = frozenset(self.ids)
        self.known = known
        self.loss_scaled = loss_scaled
        # An identity may come again once its owner is gone. What is called then does not refer to the list, which goes
        # without the garbage collector.
        self._validity = [True]
        self._alive = [TensorRef(parameter, self._validity.clear) for parameter in parameters]
        ours = [i for i, p in enumerate(parameters) if recorder.table.layer_of(p) is not None]
        others = [i for i in ours if i not in known]
        self._chosen = _picking(list(known)) if len(known) < len(parameters) else None
        self._others = _picking(others) if others else None
        self._chosen_ids = [self.ids[i] for i in known]
        chosen = frozenset(self._chosen_ids)
        self.whole = self.all if chosen == self.all else chosen
        """Identities of those that had a gradient; the same object as ``all`` where that is so of all."""
        facts = list(known.values())
        self._looks = [(fact.dtype, fact.device) for fact in facts]
        self._turn = 0
        first = parameters[next(iter(known))].grad
        self._distributed = first is not None and type(first) not in PLAIN
        self._devices = [
            (_on_device(recorder, device, facts, loss_scaled=loss_scaled), _places(facts, device))
            for device in dict.fromkeys(fact.device for fact in facts)
        ]

    @property
    def valid(self) -> bool:
        """Whether the parameters are the ones that were looked at."""
        return bool(self._validity)

    def invalidate(self) -> None:
        """Have them looked at one by one the next time."""
        self._validity.clear()

    def complete(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether none of ``parameters``, which are the list's, has a gradient but those that had one."""
        return self._others is None or all(p.grad is None for p in self._others(parameters))

    def gradients(self, parameters: Sequence[torch.Tensor]) -> tuple[list[OnDevice], frozenset[int]] | None:
        """Those of ``parameters``, which are the list's, and the identities of the parameters that have one.

        None when they are not what they were.
        """
        ours = parameters if self._chosen is None else self._chosen(parameters)
        found: list[Any] = [gradient for p in ours if (gradient := p.grad) is not None]
        if not self.complete(parameters):
            return None
        if len(found) < len(ours):
            return self._some([p.grad for p in ours])
        if self._distributed:
            # What ``to_local`` returns without autograd, for a tenth of its time.
            found = [gradient._local_tensor for gradient in found]
            if not set(PLAIN).issuperset(map(type, found)):
                return None
        turn, count = self._turn, len(found)
        self._turn = turn + _LOOKED_AT if turn + _LOOKED_AT < count else 0
        for place in (0, *range(turn, min(turn + _LOOKED_AT, count)), count - 1):
            if not self._as_known(place, found):
                return None
        if len(self._devices) == 1:
            return [self._devices[0][0]._replace(tensors=found)], self.whole
        return [whole._replace(tensors=[found[i] for i in places]) for whole, places in self._devices], self.whole

    def _some(self, found: Sequence[Any]) -> tuple[list[OnDevice], frozenset[int]] | None:
        """The same where some have no gradient, as experts that no token was sent to."""
        present = [i for i, gradient in enumerate(found) if gradient is not None]
        local = [None if g is None else g._local_tensor if self._distributed else g for g in found]
        if not all(type(local[i]) in PLAIN and self._as_known(i, local) for i in present):
            return None
        some = []
        for whole, places in self._devices:
            here = [(row, tensor) for row, i in zip(whole.at, places, strict=True) if (tensor := local[i]) is not None]
            if here:
                at, tensors = zip(*here, strict=True)
                parts = {row: whole.rows.parts[row] for row in at}
                some.append(OnDevice(whole.device, at, tensors, PartList.of(parts)))
        return some, frozenset(self._chosen_ids[i] for i in present)

    def _as_known(self, place: int, found: Sequence[Any]) -> bool:
        gradient = found[place]
        return (gradient.dtype, gradient.device) == self._looks[place] and gradient.layout == torch.strided


class _OfOptimizer(NamedTuple):
    """The list of all parameters of an optimizer, which keeps them alive itself."""

    generation: int
    groups: list[list[torch.Tensor]]
    parameters: list[torch.Tensor]
    listed: GradientList


class GradientLists:
    """The lists that were read lately."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # A scaler has the gradients of one step looked at with the loss scale, and without it.
        self._optimizers: defaultdict[int, weakref.WeakKeyDictionary[torch.optim.Optimizer, _OfOptimizer]]
        self._optimizers = defaultdict(weakref.WeakKeyDictionary)
        self._lists: dict[tuple[int, int, int, int], GradientList] = {}

    def clear(self) -> None:
        """Forget all of them."""
        self._optimizers.clear()
        self._lists.clear()

    def of(
        self, optimizer: torch.optim.Optimizer, *, loss_scaled: int
    ) -> tuple[list[torch.Tensor], GradientList | None]:
        """The parameters of ``optimizer``, and the list that they are known as."""
        optimizers = self._optimizers[loss_scaled]
        known = optimizers.get(optimizer)
        groups = optimizer.param_groups
        if (
            known is not None
            and known.generation == self._recorder.generation
            and known.listed.valid
            and len(groups) == len(known.groups)
            and all(_same(group["params"], known.groups[i]) for i, group in enumerate(groups))
        ):
            return known.parameters, known.listed
        optimizers.pop(optimizer, None)
        parameters = [parameter for group in groups for parameter in group["params"]]
        listed = self.find(parameters, loss_scaled=loss_scaled)
        if listed is not None:
            copies = [list(group["params"]) for group in groups]
            optimizers[optimizer] = _OfOptimizer(self._recorder.generation, copies, parameters, listed)
        return parameters, listed

    def find(self, parameters: Sequence[torch.Tensor], *, loss_scaled: int) -> GradientList | None:
        """The list of exactly these parameters."""
        if not parameters:
            return None
        known = self._lists.get(self._key(parameters, loss_scaled))
        return known if known is not None and known.valid and known.ids == list(map(id, parameters)) else None

    def learn(self, parameters: Sequence[torch.Tensor], *, loss_scaled: int) -> None:
        """Keep the list, if its gradients are dense ones that a variant can take as they are.

        Those without one now are taken as they were before.
        """
        if not parameters:
            return
        before = self.find(parameters, loss_scaled=loss_scaled)
        known = dict(before.known) if before is not None else {}
        kinds = set()
        placements: dict[int, Placement] = {}
        for place, parameter in enumerate(parameters):
            if parameter.grad is None or self._recorder.table.layer_of(parameter) is None:
                continue
            fact = self._look(parameter)
            if fact is None:
                return
            known[place] = fact
            if placements.setdefault(fact.layer, fact.placement) != fact.placement:
                return  # rows of one layer that are kept apart
            kinds.add(type(parameter.grad) in PLAIN)
        if len(kinds) != 1:
            return
        if len(self._lists) >= _LISTS:
            self._lists.pop(next(iter(self._lists)))
        if before is not None:
            before.invalidate()
        known = dict(sorted(known.items()))
        listed = GradientList(self._recorder, parameters, known, loss_scaled=loss_scaled)
        self._lists[self._key(parameters, loss_scaled)] = listed

    def _key(self, parameters: Sequence[torch.Tensor], loss_scaled: int) -> tuple[int, int, int, int]:
        recorder = self._recorder
        return recorder.generation + recorder.ranks.revision, id(parameters[0]), len(parameters), loss_scaled

    def _look(self, parameter: torch.Tensor) -> _Known | None:
        gradient, layer = parameter.grad, self._recorder.table.layer_of(parameter)
        assert gradient is not None, "the caller has asked"
        assert layer is not None, "the caller has asked"
        distributed = sys.modules.get("torch.distributed.tensor")
        if type(gradient) not in PLAIN and (distributed is None or type(gradient) is not distributed.DTensor):
            return None
        if self._recorder.is_read_alone("grad", layer):
            return None
        if gradient.layout != torch.strided or self._recorder.table.elements(layer) > self._recorder.row_elements:
            return None
        placement, unmerged = self._recorder.ranks.of("grad", gradient, parameter)
        if unmerged:
            self._recorder.table.unseen(layer, unmerged)
        tensor = local_part(gradient)
        if type(tensor) not in PLAIN or why_not(tensor):
            return None
        return _Known(layer, tensor.dtype, tensor.device, placement)


def _same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    # Equality of lists would compare tensors where they are not the same.
    return len(some) == len(others) and all(map(is_, some, others))


def _picking(places: list[int]) -> _Pick:
    if len(places) == 1:
        only = places[0]
        return lambda items: (items[only],)
    return itemgetter(*places)


def _places(facts: list[_Known], device: torch.device) -> list[int]:
    return [i for i, fact in enumerate(facts) if fact.device == device]


def _on_device(recorder: Recorder, device: torch.device, facts: list[_Known], *, loss_scaled: int) -> OnDevice:
    rows = recorder.rows_on(device)
    at: list[int] = []
    parts: dict[int, Part] = {}
    for fact in (facts[i] for i in _places(facts, device)):
        stored = stored_format(fact.dtype)
        assert stored is not None, "a known gradient has a known format"
        row = rows.place("grad", fact.layer)
        at.append(row)
        bound = recorder.table.elements(fact.layer)
        parts.setdefault(row, Part("grad", fact.layer, row, stored, loss_scaled, placement=fact.placement, bound=bound))
    return OnDevice(device, tuple(at), (), PartList.of(parts))
