"""A tile gives back what it was given: bits that are kept, the two NaNs, infinities, columns that nobody observed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from floatscope_server.tiles.codec import MISSING, MISSING64, Flag, TileError, decode, encode, is_missing

_WORDS = st.one_of(
    st.integers(0, 0xFFFFFFFF),
    st.sampled_from([0, 0x80000000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FC00001, 0xFFC12345, 1]),
)
_PLANES = hnp.arrays(np.uint32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=_WORDS)


@given(words=_PLANES, keep=st.integers(1, 23))
def test_float32(words: np.ndarray, keep: int) -> None:
    values = words.view(np.float32)
    encoded = encode(values, first_layer=7, first_column=1 << 40, keep_bits=keep)
    missing = is_missing(values)
    if encoded is None:
        assert missing.all()
        return
    tile = decode(encoded[1])
    assert (tile.first_layer, tile.first_column) == (7, 1 << 40)
    assert (is_missing(tile.values) == missing).all()
    observed = tile.values[~missing]
    given_values = values[~missing]
    assert (np.isnan(observed) == np.isnan(given_values)).all()
    assert (observed.view(np.uint32)[np.isnan(observed)] == 0x7FC00000).all()
    infinite = np.isinf(given_values)
    assert (observed[infinite] == given_values[infinite]).all()
    finite = np.isfinite(given_values)
    assert np.isfinite(observed[finite]).all()
    if keep == 23:
        assert (observed[finite].view(np.uint32) == given_values[finite].view(np.uint32)).all()
    else:
        small = np.abs(given_values) < np.finfo(np.float32).tiny
        assert (observed[small].view(np.uint32) == given_values[small].view(np.uint32)).all()
        fits = finite & ~small & (np.abs(given_values) <= np.finfo(np.float32).max / 2)
        error = np.abs(observed[fits].astype(np.float64) / given_values[fits].astype(np.float64) - 1)
        assert (error <= 2.0 ** -(keep + 1)).all()


def test_float64_is_exact_and_has_its_own_missing() -> None:
    values = np.array([[2.0**53 - 1, MISSING64, np.nan], [0.0, -np.inf, 5e-324]])
    encoded = encode(values, first_layer=0, first_column=0)
    assert encoded is not None
    tile = decode(encoded[1])
    assert (tile.values.view(np.uint64) == values.view(np.uint64)).all()
    assert is_missing(np.array([MISSING], np.float32).astype(np.float64)).all()


def test_columns_nobody_observed_and_constants_take_no_room() -> None:
    values = np.full((64, 256), MISSING, np.float32)
    values[:, ::10] = 1.5
    encoded = encode(values, first_layer=0, first_column=0)
    assert encoded is not None
    flags, data = encoded
    assert flags == Flag.SPARSE | Flag.CONSTANT
    assert len(data) < 100
    assert (decode(data).values.view(np.uint32) == values.view(np.uint32)).all()


def test_nothing_observed_is_no_tile() -> None:
    assert encode(np.full((3, 4), MISSING, np.float32), first_layer=0, first_column=0) is None


@given(st.data())
def test_a_flipped_bit_is_noticed(data: st.DataObject) -> None:
    rng = np.random.default_rng(0)
    encoded = encode(rng.normal(size=(8, 32)).astype(np.float32), first_layer=0, first_column=0, keep_bits=12)
    assert encoded is not None
    damaged = bytearray(encoded[1])
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(TileError):
        decode(bytes(damaged))


@pytest.mark.parametrize("data", [b"", b"TTL1", b"XXXX" + bytes(40)])
def test_what_is_no_tile_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(TileError):
        decode(data)
