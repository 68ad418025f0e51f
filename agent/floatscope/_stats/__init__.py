"""Statistics of tensors: one pass in several variants of one signature, and which of them a device gets."""

from __future__ import annotations

from floatscope._stats._choice import variant_for, why
from floatscope._stats._reference import Reference, pieces, summarize
from floatscope._stats._rows import MAX_ROW_ELEMENTS, WORDS, Plan, Rows, RowValues, Variant, WordAt

__all__ = [
    "MAX_ROW_ELEMENTS",
    "WORDS",
    "Plan",
    "Reference",
    "RowValues",
    "Rows",
    "Variant",
    "WordAt",
    "pieces",
    "summarize",
    "variant_for",
    "why",
]
