"""Statistics of tensors: one pass in several variants of one signature, and which of them a device gets."""

from __future__ import annotations

from floatscope._stats._choice import variant_for, why
from floatscope._stats._reference import (
    ADDING,
    STATISTICS,
    Reference,
    Row,
    measure,
    merge_,
    pieces,
    row_summary,
    summarize,
)
from floatscope._stats._rows import MAX_ROW_ELEMENTS, WORDS, Plan, Rows, RowValues, Variant, WordAt

__all__ = [
    "ADDING",
    "MAX_ROW_ELEMENTS",
    "STATISTICS",
    "WORDS",
    "Plan",
    "Reference",
    "Row",
    "RowValues",
    "Rows",
    "Variant",
    "WordAt",
    "measure",
    "merge_",
    "pieces",
    "row_summary",
    "summarize",
    "variant_for",
    "why",
]
