"""Number formats: the limits that headroom, overflow and underflow are measured against.

Values follow IEEE 754 (fp32, fp16), the bfloat16 definition, the OCP 8-bit floating point specification (e4m3fn,
e5m2), the FNUZ variants that gfx942 executes, and the OCP Microscaling specification (e3m2, e2m3, e2m1). A test holds
every row against ``ml_dtypes`` and ``torch.finfo``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["Format", "format_named", "formats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary floating-point element format.

    ``max`` is the largest finite value, ``min_normal`` and ``min_subnormal`` the smallest positive ones of their kind,
    ``mantissa_bits`` the stored fraction bits. All are exact in float64.
    """

    name: str
    max: float
    min_normal: float
    min_subnormal: float
    mantissa_bits: int

    @property
    def zero_at_or_below(self) -> float:
        """Magnitude at or below which round-to-nearest-even gives zero: half the smallest subnormal."""
        return self.min_subnormal / 2

    def headroom(self, amax: float, scale: float = 1.0) -> float:
        """Bits left before ``amax * scale`` exceeds ``max``: log2(max / (amax * scale)).

        Negative is over the limit; ``inf`` for an ``amax`` of zero, ``-inf`` for an infinite one, NaN for NaN.
        """
        in_format = amax * scale
        if in_format == 0:
            return math.inf
        return -math.inf if math.isinf(in_format) else math.log2(self.max / in_format)


def _ieee_like(name: str, *, exponent: int, min_exponent: int, mantissa_bits: int, top_fraction: float) -> Format:
    """A format whose max is ``top_fraction * 2**exponent`` and whose smallest normal is ``2**min_exponent``."""
    return Format(
        name=name,
        max=top_fraction * 2.0**exponent,
        min_normal=2.0**min_exponent,
        min_subnormal=2.0 ** (min_exponent - mantissa_bits),
        mantissa_bits=mantissa_bits,
    )


formats: Mapping[str, Format] = MappingProxyType(
    {
        f.name: f
        for f in (
            _ieee_like("fp32", exponent=127, min_exponent=-126, mantissa_bits=23, top_fraction=2 - 2.0**-23),
            _ieee_like("bf16", exponent=127, min_exponent=-126, mantissa_bits=7, top_fraction=2 - 2.0**-7),
            _ieee_like("fp16", exponent=15, min_exponent=-14, mantissa_bits=10, top_fraction=2 - 2.0**-10),
            # OCP E4M3 gives its top code to NaN, so the largest fraction is 1.75.
            _ieee_like("e4m3fn", exponent=8, min_exponent=-6, mantissa_bits=3, top_fraction=1.75),
            _ieee_like("e4m3fnuz", exponent=7, min_exponent=-7, mantissa_bits=3, top_fraction=1.875),
            _ieee_like("e5m2", exponent=15, min_exponent=-14, mantissa_bits=2, top_fraction=1.75),
            _ieee_like("e5m2fnuz", exponent=15, min_exponent=-15, mantissa_bits=2, top_fraction=1.75),
            _ieee_like("e3m2", exponent=4, min_exponent=-2, mantissa_bits=2, top_fraction=1.75),
            _ieee_like("e2m3", exponent=2, min_exponent=0, mantissa_bits=3, top_fraction=1.875),
            _ieee_like("e2m1", exponent=2, min_exponent=0, mantissa_bits=1, top_fraction=1.5),
        )
    }
)


def format_named(name: str) -> Format:
    """The format called ``name``; ``ValueError`` lists the known names."""
    try:
        return formats[name]
    except KeyError:
        raise ValueError(f"unknown format {name!r}; known formats are {', '.join(formats)}") from None
