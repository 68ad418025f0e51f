"""Reading content as a file would be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from floatscope_server.readers import Broken, Extreme, Happening, Item, Named, Reading, Row, detect


@dataclass(frozen=True)
class Read:
    """What was read."""

    format: str
    items: list[Item]

    @property
    def rows(self) -> list[Row]:
        """Rows that are records."""
        return [item for item in self.items if isinstance(item, Row) and item.records]

    @property
    def made(self) -> list[Row]:
        """Rows made from the lines around records."""
        return [item for item in self.items if isinstance(item, Row) and not item.records]

    @property
    def readings(self) -> list[Reading]:
        """Readings of cards."""
        return [item for item in self.items if isinstance(item, Reading)]

    @property
    def happenings(self) -> list[Happening]:
        """What lines say without a number."""
        return [item for item in self.items if isinstance(item, Happening)]

    @property
    def extremes(self) -> list[Extreme]:
        """Extremes of layers."""
        return [item for item in self.items if isinstance(item, Extreme)]

    @property
    def broken(self) -> list[Broken]:
        """Lines that could not be read."""
        return [item for item in self.items if isinstance(item, Broken)]

    def points(self, name: str) -> list[tuple[int, float]]:
        """The points of a series by the file's own name."""
        rows = [item for item in self.items if isinstance(item, Row)]
        return [(row.step, row.values[name]) for row in rows if name in row.values]


Reads = Callable[..., Read]


@pytest.fixture
def reads() -> Reads:
    """Read text or bytes in pieces of ``piece`` bytes; the answer must not depend on them."""

    def read(content: str | bytes, piece: int = 7) -> Read:
        data = content.encode() if isinstance(content, str) else content
        log_format = detect(data)
        items = list(log_format.read(data[i : i + piece] for i in range(0, len(data), piece)))
        name = next((item.format for item in reversed(items) if isinstance(item, Named)), log_format.name)
        return Read(name, [item for item in items if not isinstance(item, Named)])

    return read
