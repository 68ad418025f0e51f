"""Where a NaN or an infinity came from: the interval between the last finite and the first non-finite recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from floatscope_server.rules.tensors import Bool, Index, LayerTable, Rows

__all__ = ["Evidence", "Producer", "enclosing", "find"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """The values left the finite range after layer ``after`` (None: nothing before was recorded) and not later than
    ``first`` (None: in what follows the last recorded output, the loss).

    ``tensor`` is the kind of the first non-finite recording. ``alone``: ``first`` itself is the producer, its inputs
    and parameters were finite; otherwise it is something in ``inside``, the innermost module around the interval.
    ``how``: module, between, parameters, loss, backward, not_later_than. ``local``: seen in values of this rank alone.
    ``certainty`` ranks findings of several ranks on one step: 3 forward, 2 act_grad, 1 reduced gradients.
    """

    first: int | None
    after: int | None
    tensor: str
    alone: bool
    inside: str | None
    how: str
    local: bool
    certainty: int
    order: int

    def detail(self, table: LayerTable) -> dict[str, Any]:
        """As an alert's ``detail.producer``."""
        return {
            "after": None if self.after is None else table.name(self.after),
            "first": None if self.first is None else table.name(self.first),
            "kind": self.tensor,
            "alone": self.alone,
            "in": self.inside,
            "how": self.how,
            "order": self.order,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One step of one rank: the rows by kind, which of them are not finite beyond their ordinary level, and of each
    layer's parameters what is known: 1 finite, 0 not finite, -1 unknown. ``reduced``: gradients are sums over ranks,
    so a broken one says nothing about this rank."""

    rows: Mapping[str, Rows]
    broken: Mapping[str, Bool]
    weights: Index
    loss_nonfinite: bool
    reduced: bool = False

    def layers(self, kind: str, *, broken: bool) -> Index:
        """The layers whose tensors of ``kind`` were seen at this step and were, or were not, broken."""
        rows = self.rows.get(kind)
        if rows is None:
            return np.zeros(0, np.int64)
        found: Index = rows.layers[rows.observed & (self.broken[kind] == broken)]
        return found

    def finite(self, kind: str, layer: int) -> bool:
        """Whether the tensor was seen and sound."""
        return layer in self.layers(kind, broken=False)


def enclosing(first: str, second: str) -> str | None:
    """The innermost module around both names; None for the whole model."""
    common = []
    for a, b in zip(first.split("."), second.split("."), strict=False):
        if a != b:
            break
        common.append(a)
    return ".".join(common) or None


def find(table: LayerTable, evidence: Evidence) -> Producer | None:
    """The producer by forward execution order; by the order of the backward pass when the forward pass was sound;
    None when no tensor of this step shows it."""
    return _forward(table, evidence) or _backward(table, evidence)


def _swept(
    table: LayerTable, evidence: Evidence, kinds: tuple[str, ...], key: Callable[[int, int], int], *, broken: bool
) -> Iterator[tuple[int, int, str]]:
    """(place, layer, kind) of each recording in the sweep."""
    for part, kind in enumerate(kinds):
        for layer in evidence.layers(kind, broken=broken).tolist():
            if table.order[layer] >= 0:
                yield key(int(table.order[layer]), part), layer, kind


def _is_inside(name: str, module: str) -> bool:
    return name.startswith(f"{module}.")


def _forward(table: LayerTable, evidence: Evidence) -> Producer | None:
    def place(order: int, part: int) -> int:
        return 2 * order + part

    broken = sorted(_swept(table, evidence, ("act_in", "act"), place, broken=True))
    sound = sorted(_swept(table, evidence, ("act_in", "act"), place, broken=False))
    if not broken:
        outputs = [layer for _, layer, kind in sound if kind == "act"]
        if not (evidence.loss_nonfinite and outputs):
            return None
        return Producer(
            first=None,
            after=outputs[-1],
            tensor="loss",
            alone=False,
            inside=None,
            how="loss",
            local=True,
            certainty=3,
            order=int(table.order[outputs[-1]]) + 1,
        )
    at, first, kind = broken[0]
    while kind == "act":
        # A container's output is broken because something inside it is, whichever of the two is numbered first.
        inner = [item for item in broken if _is_inside(table.name(item[1]), table.name(first))]
        if not inner:
            break
        at, first, kind = inner[0]
    name = table.name(first)
    before = [layer for key, layer, k in sound if key < at and k == "act" and not _is_inside(name, table.name(layer))]
    after = before[-1] if before else None
    around = None if after is None else enclosing(table.name(after), name)
    inputs = kind == "act" and evidence.finite("act_in", first)
    weights = 1 if table.parameters[first] == 0 else int(evidence.weights[first])
    inside: str | None
    if kind == "act" and weights == 0:
        how, alone, inside = "parameters", False, name
    elif inputs:
        how, alone, inside = "module", weights == 1, None if weights == 1 else name
    else:
        how, alone, inside = "between", False, around
    return Producer(
        first=first,
        after=after,
        tensor=kind,
        alone=alone,
        inside=inside,
        how=how,
        local=True,
        certainty=3,
        order=int(table.order[first]),
    )


def _backward(table: LayerTable, evidence: Evidence) -> Producer | None:
    def place(order: int, part: int) -> int:
        return -2 * order + part

    # Gradients summed over ranks are broken everywhere as soon as one rank's are: what this rank saw before counts.
    local = bool(len(evidence.layers("act_grad", broken=True)))
    kinds = ("act_grad",) if evidence.reduced and local else ("act_grad", "grad")
    broken = sorted(_swept(table, evidence, kinds, place, broken=True))
    if not broken:
        return None
    at, first, kind = broken[0]
    name = table.name(first)
    sound = sorted(_swept(table, evidence, kinds, place, broken=False))
    before = [layer for key, layer, k in sound if key < at and k == "act_grad" and layer != first]
    after = before[-1] if before else None
    inside: str | None = None
    if "act_grad" not in evidence.rows or (evidence.reduced and not local):
        how, alone, after = "not_later_than", False, None
    elif kind == "grad" and evidence.finite("act_grad", first):
        alone = evidence.finite("act_in", first)
        how, inside = "module", None if alone else name
    else:
        how, alone = "backward", False
        inside = None if after is None else enclosing(table.name(after), name)
    return Producer(
        first=first,
        after=after,
        tensor=kind,
        alone=alone,
        inside=inside,
        how=how,
        local=local,
        certainty=1 if how == "not_later_than" else 2,
        order=int(table.order[first]),
    )
