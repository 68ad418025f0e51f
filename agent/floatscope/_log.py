"""What the agent says on the user's terminal: every message tells that it is ours."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

__all__ = ["logger"]


class _Signed(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:  # noqa: ANN401
        return f"floatscope: {msg}", kwargs


logger = _Signed(logging.getLogger("floatscope"), {})
"""The logger "floatscope", which the user may configure."""
