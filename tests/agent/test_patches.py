"""Patched functions behave as before and come back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from floatscope._guard import Guard, RefusedValueError, swallowed
from floatscope._patches import active_patches, observe


class Base:
    def double(self, value: int) -> int:
        """Twice the value."""
        if value < 0:
            raise ValueError("negative")
        return 2 * value


class Derived(Base):
    pass


class Recording:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.seen.append(("enter", args[1:], kwargs))

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        self.seen.append(("leave", result))


class Failing(Recording):
    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise RuntimeError("ours")


def test_the_last_observer_restores_the_function() -> None:
    original = vars(Base)["double"]
    first, second = Recording(), Recording()
    undo_first, undo_second = observe(Base, "double", first), observe(Derived, "double", second)
    assert active_patches() == ["double"]
    assert "double" not in vars(Derived)
    assert Derived().double(value=3) == 6
    assert Base.double.__doc__ == original.__doc__
    undo_first()
    assert Base().double(4) == 8
    undo_second()
    assert vars(Base)["double"] is original
    assert active_patches() == []
    assert first.seen == [("enter", (), {"value": 3}), ("leave", 6)]
    assert second.seen == [*first.seen, ("enter", (4,), {}), ("leave", 8)]


def test_the_functions_own_exception_passes_and_ours_do_not() -> None:
    Guard.reraise = False
    recording, failing = Recording(), Failing()
    undo: list[Callable[[], None]] = [observe(Base, "double", failing), observe(Base, "double", recording)]
    with pytest.raises(ValueError, match="negative"):
        Base().double(-1)
    assert Base().double(1) == 2
    assert recording.seen == [("enter", (-1,), {}), ("enter", (1,), {}), ("leave", 2)]
    for step in undo:
        step()


def test_a_later_wrapper_of_somebody_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording()
    with monkeypatch.context() as patch:
        undo = observe(Base, "double", recording)
        ours = vars(Base)["double"]
        patch.setattr(Base, "double", lambda self, value: ours(self, value) + 1)
        undo()
        assert Base().double(5) == 11
        assert recording.seen == []
        assert active_patches() == []
    Base.double = ours.__wrapped__  # type: ignore[method-assign]
    assert Base().double(5) == 10


def test_a_log_that_raises_keeps_nothing_from_the_program() -> None:
    Guard.reraise = False

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("nobody reads this any more")

    handler = Broken()
    logging.getLogger().addHandler(handler)
    try:
        with Guard("a log was tried"):
            raise RuntimeError("ours")
        with Guard("a value was tried"):
            raise RefusedValueError("not this one")
    finally:
        logging.getLogger().removeHandler(handler)
    assert swallowed()["a log was tried"] == swallowed()["a value was tried"] == 1
