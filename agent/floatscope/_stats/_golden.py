"""Whether a variant gives the reference's results on this device: tensors that hit every branch of the kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from floatscope._stats._float8 import FLOAT8
from floatscope._stats._reference import Reference
from floatscope._stats._rows import Rows, Variant, WordAt

__all__ = ["difference", "golden_tensors"]

_TOLERANCE = 1e-6


def golden_tensors() -> list[torch.Tensor]:
    """Tensors on the CPU of every dtype, size class, alignment and kind of value; the same ones each time."""
    generator, fp32 = torch.Generator().manual_seed(20), torch.float32  # whatever the training made the default
    wide = torch.randn(70_003, generator=generator, dtype=fp32)
    wide *= torch.randn(70_003, generator=generator, dtype=fp32).mul(6).exp()
    wide[::7], wide[1::1001] = 0.0, -0.0
    bad = wide.clone()
    bad[5], bad[40_000], bad[-1] = math.nan, math.inf, -math.inf
    tensors = [wide, bad]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, *FLOAT8):
        tensors += [wide[:5000].to(dtype), bad[:70_001].to(dtype)[3:], wide[:1].to(dtype), wide[:0].to(dtype)]
    tiny = torch.arange(1, 9000, dtype=torch.int32).view(torch.float32)
    tensors += [torch.full((9001,), 1e38, dtype=fp32), torch.full((513,), 1e-30, dtype=fp32)]
    tensors += [tiny, torch.zeros(4099, dtype=fp32), tiny.to(torch.float64)]
    codes = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    return [*tensors, codes.view(torch.bfloat16), codes.view(torch.float16)]


def difference(variant: Variant, device: torch.device, tensors: Sequence[torch.Tensor] | None = None) -> str | None:
    """What ``variant`` gets wrong, through a plan and one by one, with a histogram and without; None for nothing.

    Waits for the device, so it belongs in no training step. Sampled histograms are held to what they must add up to.
    """
    checked = golden_tensors() if tensors is None else tensors
    want = Rows(len(checked), "cpu")
    reference = Reference()
    for row, tensor in enumerate(checked):
        reference.measure(tensor, want.words[row], want.hist[row])
    there = [_moved(tensor, device) for tensor in checked]
    for histogram in (True, False):
        planned, single = Rows(len(there), device), Rows(len(there), device)
        plan = variant.plan(range(len(there)))
        plan.run(planned, there, histogram=histogram)
        for row, tensor in enumerate(there):
            variant.measure(tensor, single.words[row], single.hist[row] if histogram else None)
        for name, got in (("plan", planned), ("measure", single)):
            for row, tensor in enumerate(checked):
                found = _row_difference(got, want, row, histogram=histogram, sampled=variant.samples_histogram)
                if found:
                    return f"{name} of {tensor.numel()} {tensor.dtype} (tensor {row}): {found}"
    return None


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor`` on ``device``, at an address as odd as its own: a copy alone would align it."""
    storage = torch.empty(tensor.storage_offset() + tensor.numel(), dtype=tensor.dtype, device=device)
    moved = storage[tensor.storage_offset() :]
    return moved.copy_(tensor)


def _row_difference(got: Rows, want: Rows, row: int, *, histogram: bool, sampled: bool) -> str | None:
    found, wanted = got.words[row].cpu(), want.words[row].clone()
    hist = got.hist[row].cpu()
    if not histogram:
        wanted[WordAt.SAMPLED] = 0
    for place in (*range(WordAt.SUM), WordAt.ELEMENTS, WordAt.SAMPLED, WordAt.TENSORS):
        if sampled and place == WordAt.SAMPLED and histogram:
            continue
        if found[place] != wanted[place]:
            return f"word {place} is {int(found[place])}, not {int(wanted[place])}"
    (total, squares), (wanted_total, wanted_squares) = (
        words[WordAt.SUM : WordAt.ELEMENTS].view(torch.float64).tolist() for words in (found, wanted)
    )
    if not abs(squares - wanted_squares) <= _TOLERANCE * wanted_squares:
        return f"sumsq is {squares}, not {wanted_squares}"
    allowed = _TOLERANCE * math.sqrt(int(wanted[WordAt.ELEMENTS]) * wanted_squares)
    if not abs(total - wanted_total) <= allowed:
        return f"sum is {total}, not {wanted_total}"
    if not histogram:
        return "a histogram that nobody asked for" if hist.any() else None
    if sampled:
        allowed_bins = want.hist[row]
        return "a histogram of elements that are not there" if (hist > allowed_bins).any() else None
    return None if torch.equal(hist, want.hist[row]) else "the histogram differs"
