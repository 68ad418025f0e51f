"""The variants of the statistics pass that this machine can run, and what each has to give for a list of tensors."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from floatscope._stats import Reference, Rows, RowValues, Variant, WordAt
from floatscope._stats._rtc import CUDA, HIP
from floatscope._stats._rtc_variant import Build, RtcVariant
from floatscope._stats._triton import SAMPLE_EVERY, TritonVariant

_LARGEST = float(np.finfo(np.float32).max)


class Case(NamedTuple):
    """One variant on one device."""

    name: str
    device: str
    make: Callable[[], Variant]


def _triton(every: int) -> Variant:
    return TritonVariant(torch.device("cuda", 0), every=every)


def _cases() -> list[Case]:
    cases = [Case("torch", "cpu", Reference)]
    if torch.cuda.is_available():
        platform = HIP if torch.version.hip is not None else CUDA
        cases += [
            Case("torch", "cuda", Reference),
            Case(platform.compiler, "cuda", lambda: RtcVariant(Build.of(platform, torch.device("cuda", 0)))),
        ]
        if importlib.util.find_spec("triton") is not None:
            cases += [
                Case("triton", "cuda", lambda: _triton(1)),
                Case("triton-sampling", "cuda", lambda: _triton(SAMPLE_EVERY)),
            ]
    return cases


CASES = {f"{case.name}-{case.device}": case for case in _cases()}


def expected(tensors: Sequence[torch.Tensor], at: Sequence[int], rows: int) -> RowValues:
    """Rows counted one value after the other in numpy, sums by ``math.fsum``; float64 through float32."""
    words = np.zeros((rows, 10), dtype=np.int64)
    hist = np.zeros((rows, 512), dtype=np.uint32)
    parts: list[list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]]] = [[] for _ in range(rows)]
    for tensor, row in zip(tensors, at, strict=True):
        values = tensor.detach().cpu()
        if values.dtype == torch.float64:
            values = torch.where(values.isinf(), values, values.clamp(-_LARGEST, _LARGEST))
        singles = values.to(torch.float32).contiguous().numpy().reshape(-1)
        bits = singles.view(np.uint32) & 0x7FFFFFFF
        finite = bits < 0x7F800000
        magnitudes = bits[finite & (bits != 0)].astype(np.int64)
        words[row, WordAt.ZEROS] += int((bits == 0).sum())
        words[row, WordAt.NANS] += int((bits > 0x7F800000).sum())
        words[row, WordAt.INFS] += int((bits == 0x7F800000).sum())
        if len(magnitudes):
            words[row, WordAt.ABSMAX] = max(words[row, WordAt.ABSMAX], int(magnitudes.max()))
            words[row, WordAt.ABSMIN_GAP] = max(words[row, WordAt.ABSMIN_GAP], 0x7F800000 - int(magnitudes.min()))
        words[row, WordAt.ELEMENTS] += tensor.numel()
        words[row, WordAt.SAMPLED] += tensor.numel()
        words[row, WordAt.TENSORS] += 1
        np.add.at(hist[row], (magnitudes - 1) >> 22, 1)
        parts[row].append(singles[finite].astype(np.float64))
    for row, values_of_row in enumerate(parts):
        doubles = np.concatenate([np.zeros(0), *values_of_row])
        words[row, WordAt.SUM] = np.float64(math.fsum(doubles)).view(np.int64)
        words[row, WordAt.SUMSQ] = np.float64(math.fsum(doubles**2)).view(np.int64)
    return RowValues(words, hist)


def assert_rows(rows: Rows, want: RowValues, *, histogram: bool = True, sampled: bool = False) -> None:
    """Integers to the last bit, sums to 1e-6; a sampled histogram is held to what it can be."""
    assert want.hist is not None
    words, hist = rows.words.cpu().numpy(), rows.hist.cpu().numpy().view(np.uint32)
    counted = [*range(WordAt.SUM), WordAt.ELEMENTS, WordAt.TENSORS]
    assert words[:, counted].tolist() == want.words[:, counted].tolist()
    if not histogram:
        assert not words[:, WordAt.SAMPLED].any()
        assert not hist.any()
    elif sampled:
        assert (words[:, WordAt.SAMPLED] <= want.words[:, WordAt.SAMPLED]).all()
        assert (hist <= want.hist).all()
        assert (hist.sum(1) <= words[:, WordAt.SAMPLED]).all()
    else:
        assert words[:, WordAt.SAMPLED].tolist() == want.words[:, WordAt.SAMPLED].tolist()
        assert hist.tolist() == want.hist.tolist()
    got = RowValues(words, None)
    np.testing.assert_allclose(got.sumsq, want.sumsq, rtol=1e-6)
    allowed = 1e-6 * np.sqrt(want.word(WordAt.ELEMENTS) * want.sumsq)
    assert (np.abs(got.sum - want.sum) <= allowed).all(), (got.sum, want.sum)
