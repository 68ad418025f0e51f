"""Figures of casts in blocks that share a power of two each (MX formats), one small tensor for a whole operand.

The scale of a block is found as OCP Microscaling Formats v1.0 section 6.3 says (the exponent of its amax, less that of
the format's max), or rounded up so that no element is clipped, as Blackwell's conversion does.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

from floatscope._formats import format_named

__all__ = ["BLOCK", "FIGURES", "block_figures"]

BLOCK = 32
FIGURES = ("exponent_min", "exponent_max", "worst_flushed")
"""Smallest and largest exponent of the blocks' scales 2**e, by which elements are divided, over blocks that are not all
zero; and the largest share of a block's non-zero elements that round to zero."""

_LEAST, _MOST = -127, 127
"""The range of E8M0."""
_OUTSIDE = float(_MOST + 1)
_PIECE = 1 << 24
_PIECE_ON_CPU = 1 << 18
_HALVES = (torch.bfloat16, torch.float16)
_SUBNORMAL = 2.0**-149


class _Table(NamedTuple):
    """What follows from a block's amax, found by looking for it in ``bounds``: 256 of them make 257 places.

    The first is that of blocks that are all zero, the last that of blocks with a NaN or an Inf.
    """

    bounds: torch.Tensor
    """float32 [256], ascending."""
    closed: bool
    """Whether a bound itself belongs to the place after it."""
    rows: torch.Tensor
    """float32 [3, 257]: the largest magnitude that rounds to zero, the exponent of the scale, and that negated."""
    signs: torch.Tensor
    """float32 [3], which makes ``FIGURES`` of three minima."""
    unknown: torch.Tensor
    """float32, NaN."""


@functools.cache
def _table(format_: str, device: torch.device, *, rounds_up: bool) -> _Table:
    """Computed on the device: a copy from the host would be waited for. Powers of two by their bits are exact."""
    limits = format_named(format_)
    exponents = torch.arange(_LEAST, _MOST + 1, device=device)
    # A training may have made another dtype the default, which holds neither the largest float32 nor the smallest.
    one = torch.ones(1, dtype=torch.float32, device=device)
    powers = ((exponents + 1023) << 52).view(torch.float64)

    def ends(first: float, middle: torch.Tensor, last: float) -> torch.Tensor:
        return torch.cat([first * one, middle.to(torch.float32), last * one])

    if rounds_up:
        largest = torch.finfo(torch.float32).max
        bounds = ends(0.0, (powers[:-1] * limits.max).clamp(max=largest), largest)
    else:
        bounds = ends(_SUBNORMAL, powers[1:] * 2.0 ** (math.frexp(limits.max)[1] - 1), math.inf)
    rows = torch.stack(
        [
            ends(-1.0, powers * limits.zero_at_or_below, -1.0),
            ends(_OUTSIDE, exponents, _OUTSIDE),
            ends(_OUTSIDE, -exponents, _OUTSIDE),
        ]
    )
    unknown = torch.full((), torch.nan, dtype=torch.float32, device=device)
    return _Table(bounds, not rounds_up, rows, torch.cat([one, -one, -one]), unknown)


@torch.no_grad()
def block_figures(tensor: torch.Tensor, format: str, *, rounds_up: bool) -> torch.Tensor | None:  # noqa: A002
    """``FIGURES`` as float32 [3] on the device of ``tensor``; NaN each where all is zero.

    Blocks of 32 along the last dimension; None where it is no multiple of that, which such a cast refuses too. Blocks
    with a NaN or an Inf are left out. No host synchronisation on a device other than the CPU. 17 operations, 18 in
    bf16, for up to 2**24 elements (2**18 on the CPU, which keeps them in its cache).
    """
    if tensor.dim() == 0 or tensor.numel() == 0 or tensor.shape[-1] % BLOCK:
        return None
    table = _table(format, tensor.device, rounds_up=rounds_up)
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    per_piece = max(1, (_PIECE_ON_CPU if tensor.device.type == "cpu" else _PIECE) // tensor.shape[-1])
    found = [_of_rows(piece, table) for piece in torch.split(rows, per_piece)]
    minima = found[0] if len(found) == 1 else torch.stack(found).amin(0)
    return torch.where(minima[0] <= _MOST, minima * table.signs, table.unknown)


def _of_rows(rows: torch.Tensor, table: _Table) -> torch.Tensor:
    """The smallest exponent, the largest and the worst share, these two negated: all three are minima."""
    magnitude = (rows if rows.dtype in _HALVES else rows.to(torch.float32)).reshape(-1, BLOCK).abs()
    place = torch.bucketize(magnitude.amax(1).to(torch.float32), table.bounds, out_int32=True, right=table.closed)
    found = table.rows.index_select(1, place)
    nonzero = (magnitude != 0).sum(1, dtype=torch.float32)  # the quotient of integers has the training's default dtype
    # With the zeros among them, of which there are BLOCK - nonzero. No share is positive where no block is usable.
    rounded = (magnitude <= found[0].unsqueeze(1)).sum(1)
    kept = BLOCK - rounded
    return torch.cat([found[1:].amin(1), ((kept - nonzero) / nonzero).amin().view(1)])
