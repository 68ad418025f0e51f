"""What the agent says on the user's terminal: every message tells that it is ours."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

__all__ = ["counted", "logger", "percentage"]


class _Signed(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:  # noqa: ANN401
        return f"floatscope: {msg}", kwargs


logger = _Signed(logging.getLogger("floatscope"), {})
"""The logger "floatscope", which the user may configure."""


def counted(count: int, singular: str, plural: str) -> str:
    """The count with its words: "1 record waits", "2 records wait"."""
    return f"{count} {singular if count == 1 else plural}"


def percentage(share: float) -> str:
    """A share with two digits that count, without an exponent up to a million percent: "0.62 %", "110 %"."""
    return f"{float(f'{100 * share:.2g}'):g} %"
