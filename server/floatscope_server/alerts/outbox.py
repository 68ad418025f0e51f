"""Stand-in until the outbox is merged."""

from __future__ import annotations

from typing import Any


class Outbox:
    def __init__(self, store: Any, settings: Any) -> None:  # noqa: ANN401
        pass

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass
