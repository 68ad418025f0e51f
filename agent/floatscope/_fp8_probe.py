"""Whether a device really multiplies in FP8. The one place that asks; everything else takes the answer from here.

A compute capability is no answer: gfx90a and gfx1100 pass ">= 8.9" and have no such instruction. One product of two
16 x 16 matrices is.
"""

from __future__ import annotations

import torch

__all__ = ["DTYPES", "multiplies"]

DTYPES = {
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}


def multiplies(device: torch.device, first: str, second: str) -> bool:
    """Whether ``torch._scaled_mm`` takes operands of these formats on ``device``, and gets 1 x 1 summed 16 times right.

    Waits for the device. Two E5M2 operands are refused by every vendor's library: gradients meet E4M3.
    """
    a = torch.ones(16, 16, device=device).to(DTYPES[first])
    b = torch.ones(16, 16, device=device).to(DTYPES[second]).T
    one = torch.ones((), device=device)
    try:
        product = torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.float32)
    except (RuntimeError, ValueError, NotImplementedError):
        # Whatever the library says: "only supported on ...", "not implemented for ...", a status of cuBLASLt.
        return False
    return bool((product == 16).all())
