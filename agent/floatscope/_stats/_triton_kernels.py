"""The pass in Triton: one program reads one chunk of one tensor and merges it into the tensor's row.

Elements become the bits of float32: with ``a`` the magnitude's, the extremes are ``max a`` and ``min (a - 1)`` as
unsigned integers, so that zeros drop out, and the bin is ``(a - 1) >> 22``. Histograms are of every EVERY-th tile of
the chunk: ``tl.histogram`` votes once for each bit of a bin's number, which on all elements takes several times as
long as reading them.
"""
# Triton evaluates annotations and default values of the functions it compiles, so there are none but tl.constexpr.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

import triton
import triton.language as tl

__all__ = ["many", "one"]


@triton.jit
def _bits(pointers, live, MASKED: tl.constexpr, KIND: tl.constexpr, table):
    if MASKED:
        raw = tl.load(pointers, mask=live, other=0)
    else:
        raw = tl.load(pointers)
    if KIND == 0:
        return raw
    elif KIND == 1:
        return raw.to(tl.int32) << 16
    elif KIND == 2:
        return raw.to(tl.float32).to(tl.int32, bitcast=True)
    elif KIND == 3:
        limit = 3.4028234663852886e38
        finite = (raw - raw) == 0
        clamped = tl.where(finite & (raw > limit), limit, tl.where(finite & (raw < -limit), -limit, raw))
        return clamped.to(tl.float32).to(tl.int32, bitcast=True)
    else:
        return tl.load(table + raw.to(tl.int32))


@triton.jit
def _chunk(
    data,
    elements,
    begin,
    words,
    hist,
    table,
    CHUNK: tl.constexpr,
    KIND: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    EVERY: tl.constexpr,
):
    TILE: tl.constexpr = R * C
    place = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    high = tl.zeros([C], tl.int32)
    low = tl.full([C], 0xFFFFFFFF, tl.uint32)
    total = tl.zeros([C], tl.float32)
    squares = tl.zeros([C], tl.float32)
    zeros = tl.zeros([C], tl.int32)
    if EVERY > 0:
        counts = tl.zeros([512], tl.int32)
        sampled = tl.full([], 0, tl.int64)
    end = tl.minimum(begin + CHUNK, elements)
    # Whole tiles without a mask, which would cost them their 16-byte loads, and then the rest.
    full = begin + (end - begin) // TILE * TILE
    for MASKED in tl.static_range(2):
        for start in tl.range(begin if MASKED == 0 else full, full if MASKED == 0 else end, TILE):
            live = start + place < elements
            bits = _bits(data + start + place, live, MASKED, KIND, table)
            magnitude = bits & 0x7FFFFFFF
            below = (magnitude - 1).to(tl.uint32, bitcast=True)
            high = tl.maximum(high, tl.max(magnitude, axis=0))
            low = tl.minimum(low, tl.min(below, axis=0))
            value = bits.to(tl.float32, bitcast=True)
            total += tl.sum(value, axis=0)
            squares += tl.sum(value * value, axis=0)
            zeros += tl.sum(((magnitude == 0) & live).to(tl.int32), axis=0)
            if EVERY > 0:
                if ((start // TILE) % EVERY) == 0:
                    counted = below < 0x7F800000 - 1
                    bins = tl.where(counted, below >> 22, 511).to(tl.int32)
                    counts += tl.histogram(tl.reshape(bins, [TILE]), 512)
                    sampled += tl.minimum(elements - start, TILE)
    largest = tl.max(high)
    sum_of = tl.sum(total.to(tl.float64))
    sum_of_squares = tl.sum(squares.to(tl.float64))
    # Inf or NaN, or squares (of up to 2^13 elements in one sum) that overflow or vanish in float32: read again.
    if (largest >= 0x5B800000) | ((largest > 0) & (largest < 0x2B800000)):
        exact_total = tl.zeros([C], tl.float64)
        exact_squares = tl.zeros([C], tl.float64)
        high = tl.zeros([C], tl.int32)
        nans = tl.zeros([C], tl.int32)
        infs = tl.zeros([C], tl.int32)
        for start in tl.range(begin, end, TILE):
            live = start + place < elements
            bits = _bits(data + start + place, live, True, KIND, table)
            magnitude = bits & 0x7FFFFFFF
            finite = magnitude < 0x7F800000
            nans += tl.sum((magnitude > 0x7F800000).to(tl.int32), axis=0)
            infs += tl.sum((magnitude == 0x7F800000).to(tl.int32), axis=0)
            high = tl.maximum(high, tl.max(tl.where(finite, magnitude, 0), axis=0))
            value = tl.where(finite, bits, 0).to(tl.float32, bitcast=True).to(tl.float64)
            exact_total += tl.sum(value, axis=0)
            exact_squares += tl.sum(value * value, axis=0)
        largest = tl.max(high)
        sum_of = tl.sum(exact_total)
        sum_of_squares = tl.sum(exact_squares)
        tl.atomic_add(words + 1, tl.sum(nans).to(tl.int64), sem="relaxed")
        tl.atomic_add(words + 2, tl.sum(infs).to(tl.int64), sem="relaxed")
    smallest = tl.min(low).to(tl.int64)
    gap = tl.where(smallest < 0x7F800000 - 1, 0x7F800000 - 1 - smallest, 0)
    doubles = words.to(tl.pointer_type(tl.float64), bitcast=True)
    tl.atomic_add(words, tl.sum(zeros).to(tl.int64), sem="relaxed")
    tl.atomic_max(words + 3, largest.to(tl.int64), sem="relaxed")
    tl.atomic_max(words + 4, gap, sem="relaxed")
    tl.atomic_add(doubles + 5, sum_of, sem="relaxed")
    tl.atomic_add(doubles + 6, sum_of_squares, sem="relaxed")
    if begin == 0:
        tl.atomic_add(words + 7, elements.to(tl.int64), sem="relaxed")
        tl.atomic_add(words + 9, tl.full([], 1, tl.int64), sem="relaxed")
    if EVERY > 0:
        tl.atomic_add(words + 8, sampled, sem="relaxed")
        bins = tl.arange(0, 512)
        tl.atomic_add(hist + bins, counts, mask=(counts > 0) & (bins < 510), sem="relaxed")


@triton.jit
def _pointer(address, KIND: tl.constexpr):
    if KIND == 0:
        return address.to(tl.pointer_type(tl.int32))
    elif KIND == 1:
        return address.to(tl.pointer_type(tl.int16))
    elif KIND == 2:
        return address.to(tl.pointer_type(tl.float16))
    elif KIND == 3:
        return address.to(tl.pointer_type(tl.float64))
    else:
        return address.to(tl.pointer_type(tl.uint8))


@triton.jit(do_not_specialize=["work", "hist"])
def many(
    work,
    words,
    hist,
    table,
    CHUNK: tl.constexpr,
    KIND: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    EVERY: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """``work`` is int64 [programs, 4]: address, elements, first element of the chunk, row."""
    own = work + tl.program_id(0).to(tl.int64) * 4
    data = _pointer(tl.load(own), KIND)
    if ALIGNED:
        data = tl.multiple_of(data, 16)
    row = tl.load(own + 3)
    elements, begin = tl.load(own + 1), tl.load(own + 2)
    _chunk(data, elements, begin, words + row * 10, hist + row * 512, table, CHUNK, KIND, R, C, EVERY)


@triton.jit(do_not_specialize=["address", "elements", "hist"])
def one(
    address,
    elements,
    words,
    hist,
    table,
    CHUNK: tl.constexpr,
    KIND: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    EVERY: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One tensor at ``address``, the p-th program reading its p-th chunk."""
    # Small numbers come as int32.
    data = _pointer(address.to(tl.int64), KIND)
    if ALIGNED:
        data = tl.multiple_of(data, 16)
    elements = elements.to(tl.int64)
    begin = tl.program_id(0).to(tl.int64) * CHUNK
    _chunk(data, elements, begin, words, hist, table, CHUNK, KIND, R, C, EVERY)
