"""Colours of headroom, those of the page: a ramp runs through OKLab at constant speed, so equal steps of the value look
equally large, and its lightness is monotone, so that it reads without hue."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BEYOND", "DARK", "LIGHT", "Palette", "calm_end", "headroom_scale"]

RGB = npt.NDArray[np.uint8]
Lch = tuple[float, float, float]

_LIMIT = "#000000"
_SIZE = 96
"""Colours of a ramp. Two of them and what else a heat map has fit the 256 of an indexed image."""

BEYOND = 4.0
"""Bits over the limit at the far end of the scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """``safe`` (uint8 [96, 3]) runs from no concern to the limit, ``over`` from there to far above it and is drawn
    hatched; ``hatch`` is its line, ``mark`` and ``cross`` are of what is not finite (uint8 [3] each)."""

    safe: RGB
    over: RGB
    hatch: RGB
    mark: RGB
    cross: RGB
    missing: RGB


def _srgb(lab: npt.NDArray[np.float64]) -> RGB:
    """uint8 sRGB of OKLab [n, 3]: https://bottosson.github.io/posts/oklab/"""
    to_lms = np.array(
        [
            [1, 0.3963377774, 0.2158037573],
            [1, -0.1055613458, -0.0638541728],
            [1, -0.0894841775, -1.291485548],
        ]
    )
    to_linear = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.707614701],
        ]
    )
    linear = np.clip((lab @ to_lms.T) ** 3 @ to_linear.T, 0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    whole: RGB = np.floor(255 * encoded + 0.5).astype(np.uint8)
    return whole


def _ramp(*stops: Lch) -> RGB:
    """Straight from stop to stop (lightness, chroma, hue in degrees), each stretch as long as it is in OKLab."""
    labs = np.array([(x, c * math.cos(math.radians(h)), c * math.sin(math.radians(h))) for x, c, h in stops])
    marks = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(labs, axis=0), axis=1))])
    way = np.linspace(0, marks[-1], _SIZE)
    return _srgb(np.stack([np.interp(way, marks, labs[:, channel]) for channel in range(3)], axis=1))


def _one(*rgb: int) -> RGB:
    return np.array(rgb, np.uint8)


DARK = Palette(
    safe=_ramp((0.24, 0.045, 250), (0.56, 0.085, 210), (0.93, 0.14, 102)),
    over=_ramp((0.7, 0.19, 40), (0.5, 0.2, 18)),
    hatch=_one(24, 8, 8),
    mark=_one(245, 247, 246),
    cross=_one(150, 16, 40),
    missing=_one(13, 18, 20),
)
LIGHT = Palette(
    safe=_ramp((0.955, 0.03, 110), (0.7, 0.1, 195), (0.34, 0.1, 266)),
    over=_ramp((0.58, 0.21, 30), (0.4, 0.16, 15)),
    hatch=_one(255, 238, 230),
    mark=_one(18, 22, 24),
    cross=_one(255, 190, 170),
    missing=_one(250, 249, 245),
)


def calm_end(bits: npt.NDArray[np.floating]) -> float:
    """The headroom at the calm end of the scale: 16 bits, or more where no layer comes that near to a limit."""
    finite = bits[np.isfinite(bits)]
    if not finite.size or finite.min() <= 16:
        return 16.0
    return float(np.ceil(finite.max() / 16) * 16)


def headroom_scale(calm: float) -> list[tuple[float, str]]:
    """plotly's colour scale of headroom from ``-BEYOND`` to ``calm`` bits: a line lies at 0, the limit."""

    def named(rgb: RGB) -> str:
        return "#{:02x}{:02x}{:02x}".format(*rgb.tolist())

    limit, half = BEYOND / (BEYOND + calm), 0.003
    shares = np.linspace(0, 1, 9)
    picks = np.round(shares * (_SIZE - 1)).astype(int)
    over = [(share * (limit - half), named(LIGHT.over[::-1][at])) for share, at in zip(shares, picks, strict=True)]
    start = limit + half
    safe = [(start + share * (1 - start), named(LIGHT.safe[::-1][at])) for share, at in zip(shares, picks, strict=True)]
    return [*over, (limit - half, _LIMIT), (limit + half, _LIMIT), *safe]
