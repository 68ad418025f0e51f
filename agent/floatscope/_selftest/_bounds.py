"""How far a correct device may be from the exact result.

u is the unit roundoff of a format with m stored fraction bits, 2^-(m+1): rounding to nearest is off by at most u|x|,
and by half the smallest subnormal below the normal range. A sum of n products accumulated in a format with unit
roundoff v, in any order, is off by at most gamma_n = n v / (1 - n v) times the sum of the products' magnitudes
(N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section 3.1). Bounds are elementwise,
float64.
"""

from __future__ import annotations

import math

import torch

from floatscope._formats import Format

__all__ = ["FP8_ACCUMULATION", "FP32_ACCUMULATION", "attention", "gamma", "product", "rounding", "unit_roundoff"]

FP32_ACCUMULATION = 2.0**-24
FP8_ACCUMULATION = 2.0**-13
"""FP8 matrix units of Hopper align the products of an instruction to the largest and truncate at 13 fraction bits
(DeepSeek-V3 Technical Report, https://arxiv.org/abs/2412.19437, section 3.5.2). Taken for every FP8 unit."""


def unit_roundoff(fmt: Format) -> float:
    """2^-(m+1)"""
    return math.ldexp(1.0, -fmt.mantissa_bits - 1)


def gamma(terms: int, v: float) -> float:
    """n v / (1 - n v), for a sum of ``terms`` products"""
    return terms * v / (1 - terms * v)


def rounding(exact: torch.Tensor, fmt: Format) -> torch.Tensor:
    """Of one rounding of ``exact`` to ``fmt``."""
    return exact.abs() * unit_roundoff(fmt) + fmt.zero_at_or_below


def product(a: torch.Tensor, b: torch.Tensor, out: Format, accumulation: float) -> torch.Tensor:
    """Of ``a @ b`` (float64 [m, k] and [k, n], what the device was given) that is accumulated with unit roundoff
    ``accumulation`` and rounded once to ``out``; [m, n]."""
    spread = gamma(a.shape[-1], accumulation) * (a.abs() @ b.abs())
    return spread + rounding((a @ b).abs() + spread, out)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gradient: torch.Tensor, fmt: Format
) -> dict[str, torch.Tensor]:
    """Of softmax(q k^T / sqrt(d)) v and its gradients, to first order in u; float64 [t, d] each.

    A kernel may keep scores and probabilities in fp32 or round them to ``fmt``: the bound covers both. With an error ds
    of a score a probability is off by a factor exp(2 ds); rounding it adds u. Gradients follow from
    dS = P * (dP - rowsum(P * dP)), each factor with its own error; the output, from which kernels take the row sums,
    was rounded to ``fmt`` too.
    """
    t, d = q.shape
    u = unit_roundoff(fmt)
    scale = 1 / math.sqrt(d)
    scores = q @ k.T * scale
    ds = float(((gamma(d, FP32_ACCUMULATION) + 2 * u) * (q.abs() @ k.abs().T) * scale).max())
    p = scores.softmax(-1)
    p_error = math.expm1(2 * ds) + 2 * u
    sums = gamma(t, FP32_ACCUMULATION) + u
    out = p @ v.abs() * (p_error + sums) + fmt.zero_at_or_below
    dv = p.T @ gradient.abs() * (p_error + sums) + fmt.zero_at_or_below
    dp, dp_size = gradient @ v.T, gradient.abs() @ v.abs().T
    rows = (p * dp).sum(-1, keepdim=True)
    row_size = (p * dp_size).sum(-1, keepdim=True)
    inner = dp_size * (gamma(d, FP32_ACCUMULATION) + u) + row_size * (p_error + sums + 2 * u)
    ds_size = p * (dp - rows).abs()
    ds_error = ds_size * (p_error + 2 * u) + p * inner * (1 + p_error)
    return {
        "out": out,
        "dq": (ds_error + ds_size * sums) @ k.abs() * scale + fmt.zero_at_or_below,
        "dk": (ds_error + ds_size * sums).T @ q.abs() * scale + fmt.zero_at_or_below,
        "dv": dv,
    }
