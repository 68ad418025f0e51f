"""How summaries lie in the store."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from floatscope import wire
from floatscope_server.store.packed import SUMMARIES, pack
from tests.server.bodies import summaries


def test_it_comes_back_as_it_was_in_less_than_half_the_bytes() -> None:
    rng = np.random.default_rng(0)
    part = summaries("grad", 3, np.exp2(rng.normal(-6, 3, (10, 300))))
    data = pack(part)
    assert SUMMARIES.decode(data) == part
    assert len(data) < len(wire.encode(part)) / 2


def test_what_an_earlier_version_stored_is_read_too() -> None:
    part = summaries("grad", 0, [[1.0, 2.0]])
    assert SUMMARIES.decode(wire.encode(part)) == part


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02\x01\x00\x08", b"\x93abc"])
def test_what_is_neither_is_said_to_be(data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, RuntimeError, ValueError)):
        SUMMARIES.decode(data)
