"""Which module is the model: found from what an optimizer updates, since a plain loop tells nobody."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, starmap
from typing import Any

from torch import Tensor, nn

__all__ = ["Together", "roots_of", "unwrapped"]

_WRAPPERS = {
    "DistributedDataParallel": "module",  # torch's, and Megatron's
    "DataParallel": "module",
    "Float16Module": "module",  # Megatron's
    "OptimizedModule": "_orig_mod",
}
"""Modules whose names before that of a layer tell nothing, and the attribute that holds what they wrap."""


class Together(nn.Module):
    """Several models that are trained in one loop, such as generator and discriminator, as one. Nobody calls it."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        kinds = Counter(type(model).__name__ for model in models)
        for number, model in enumerate(models):
            kind = type(model).__name__
            self.add_module(kind if kinds[kind] == 1 else f"{kind}_{number}", model)

    @property
    def training(self) -> bool:
        """Whether any of them is in training mode."""
        return any(model.training for model in self.children())

    @training.setter
    def training(self, value: bool) -> None:
        pass  # each says it for itself


def roots_of(parameters: Iterable[Tensor], called: nn.Module | None = None) -> list[nn.Module]:
    """The outermost modules that hold any of ``parameters``, in the order of these; overlapping ones only once.

    Of those that hold the same the one with ``called`` in it is taken, then the one that holds more. Looks through
    all objects of the process, which takes about 100 ns for each: for once, before the first step.
    """
    wanted = {id(p): number for number, p in enumerate(parameters)}
    modules = [module for module in _modules() if "_modules" in vars(module) and not isinstance(module, Together)]
    parents: dict[int, list[nn.Module]] = {}
    for module in modules:
        for child in module._modules.values():
            if child is not None:
                parents.setdefault(id(child), []).append(module)
    outermost: dict[int, nn.Module] = {}
    seen: set[int] = set()
    climbing = [m for m in modules if any(p is not None and id(p) in wanted for p in m._parameters.values())]
    while climbing:
        module = climbing.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        above = parents.get(id(module), [])
        climbing.extend(above)
        if not above:
            outermost[id(module)] = module
    return _apart(list(outermost.values()), wanted, called)


def _modules() -> list[nn.Module]:
    """All modules of the process, by their types alone: to ask an object for its class would wake up proxies.

    A tuple that another thread is making from an iterator is among the objects, and cannot be finished while somebody
    else holds it: ``SystemError`` (https://github.com/python/cpython/issues/39117). So objects are taken, looked
    through and let go within one call of ``list``: no bytecode runs in between, and no other thread.
    """
    types = {id(kind) for kind in _kinds(nn.Module)}
    objects: list[Any] = []
    take = filter(objects.extend, starmap(gc.get_objects, [()]))
    modules = compress(objects, map(types.__contains__, map(id, map(type, objects))))
    let_go: Iterator[Any] = filter(None, starmap(objects.clear, [()]))
    return list(chain(take, modules, let_go))


def _kinds(kind: type) -> Iterator[type]:
    yield kind
    below: type
    for below in type.__subclasses__(kind):
        yield from _kinds(below)


def _apart(roots: list[nn.Module], wanted: dict[int, int], called: nn.Module | None) -> list[nn.Module]:
    held = {id(root): {wanted[id(p)] for p in root.parameters() if id(p) in wanted} for root in roots}
    around = {id(root): called is not None and any(m is called for m in root.modules()) for root in roots}
    roots.sort(key=lambda root: (not around[id(root)], -len(held[id(root)])))
    chosen: list[nn.Module] = []
    taken: set[int] = set()
    for root in roots:
        if held[id(root)] - taken:
            chosen.append(root)
            taken |= held[id(root)]
    return sorted(chosen, key=lambda root: min(held[id(root)]))


def unwrapped(model: nn.Module) -> nn.Module:
    """What ``model`` wraps, where names of layers then are those that the program knows.

    A compiled module inside a wrapper stays wrapped: only the wrapper shows how its parameters are spread over ranks.
    """
    inside = getattr(model, _WRAPPERS.get(type(model).__name__, ""), None)
    if not isinstance(inside, nn.Module):
        return model
    if type(model).__name__ != "OptimizedModule" and type(inside).__name__ == "OptimizedModule":
        return model
    return unwrapped(inside)
