"""Threads take turns often while a server runs, and as before once it has ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from floatscope_server.bench.targets import in_process
from floatscope_server.settings import Settings
from floatscope_server.turns import short_turns


def test_turns_are_short_until_the_end() -> None:
    before = sys.getswitchinterval()
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(0.0002)
    assert sys.getswitchinterval() == before
    with pytest.raises(ZeroDivisionError), short_turns():
        _ = 1 // 0
    assert sys.getswitchinterval() == before


def test_what_is_measured_in_process_takes_turns_as_a_server_does(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    with in_process(Settings(data=tmp_path)):
        assert sys.getswitchinterval() == pytest.approx(0.0002)
    assert sys.getswitchinterval() == before
