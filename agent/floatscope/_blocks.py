"""Figures of casts in blocks that share a power of two each (MX formats), one small tensor for a whole operand.

The scale of a block is found as OCP Microscaling Formats v1.0 section 6.3 says (the exponent of its amax, less that of
the format's max), or rounded up so that no element is clipped, as Blackwell's conversion does.
"""

from __future__ import annotations

import math

import torch

from floatscope._formats import format_named

__all__ = ["BLOCK", "FIGURES", "block_figures"]

BLOCK = 32
FIGURES = ("exponent_min", "exponent_max", "worst_flushed")
"""Smallest and largest exponent of the blocks' scales 2**e, by which elements are divided, over blocks that are not all
zero; and the largest share of a block's non-zero elements that round to zero."""

_LEAST, _MOST = -127, 127
"""The range of E8M0."""
_PIECE = 1 << 22
_PIECE_ON_CPU = 1 << 18


@torch.no_grad()
def block_figures(tensor: torch.Tensor, format: str, *, rounds_up: bool) -> torch.Tensor | None:  # noqa: A002
    """``FIGURES`` as float32 [3] on the device of ``tensor``; NaN each where all is zero.

    Blocks of 32 along the last dimension; None where it is no multiple of that, which such a cast refuses too. Blocks
    with a NaN or an Inf are left out. No host synchronisation on a device other than the CPU.
    """
    if tensor.dim() == 0 or tensor.numel() == 0 or tensor.shape[-1] % BLOCK:
        return None
    limits = format_named(format)
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    per_piece = max(1, (_PIECE_ON_CPU if tensor.device.type == "cpu" else _PIECE) // tensor.shape[-1])
    found = [_of_rows(piece, limits.max, limits.zero_at_or_below, rounds_up) for piece in torch.split(rows, per_piece)]
    least, most, worst = torch.stack(found).unbind(1)
    figures = torch.stack([least.amin(), most.amax(), worst.amax()])
    return torch.where(figures[0] <= _MOST, figures, torch.nan)


def _of_rows(rows: torch.Tensor, largest: float, zero_at_or_below: float, rounds_up: bool) -> torch.Tensor:
    magnitude = rows.to(torch.float32).reshape(-1, BLOCK).abs()
    amax = magnitude.amax(1)
    usable = (amax > 0) & amax.isfinite()
    # frexp gives mantissas in [0.5, 1).
    mantissa, exponent = torch.frexp(torch.where(usable, amax, 1.0).to(torch.float64))
    top_mantissa, top_exponent = math.frexp(largest)
    scale = exponent - top_exponent
    if rounds_up:
        scale = scale + (mantissa > top_mantissa)
    scale = scale.clamp(_LEAST, _MOST)
    # The block in the units of its scale; float64, since 2**-127 has no normal float32.
    flushed = magnitude.to(torch.float64) <= torch.ldexp(torch.full_like(mantissa, zero_at_or_below), scale).unsqueeze(
        1
    )
    nonzero = magnitude > 0
    share = (flushed & nonzero).sum(1) / nonzero.sum(1).clamp(min=1)
    outside = float(_MOST + 1)
    return torch.stack(
        [
            torch.where(usable, scale, outside).amin().to(torch.float32),
            torch.where(usable, scale, -outside).amax().to(torch.float32),
            torch.where(usable, share, 0.0).amax().to(torch.float32),
        ]
    )
