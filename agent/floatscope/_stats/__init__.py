"""Statistics of tensors: one pass in several variants of one signature, and which of them a device gets."""

from __future__ import annotations

import os

import torch

from floatscope._stats._cpu import Cpu
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
]


def variant_for(device: torch.device) -> Variant:
    """The variant of the pass that is used on ``device``; FLOATSCOPE_KERNELS=torch asks for the reference."""
    if os.environ.get("FLOATSCOPE_KERNELS") == "torch":
        return Reference()
    return Cpu() if device.type == "cpu" else Reference()
