"""Which rows there are of tiles, listed once: what is sealed is only added to, until its version is another one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

__all__ = ["Directory"]

Row = tuple[int, ...]
"""Plain numbers: the garbage collector need not look at them."""

_MOST = 1 << 16
"""Rows that are kept, about 16 MB."""

_OVERHEAD = 250


class Directory:
    """Rows by number, of what a key says; the least recently used go first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._count = 0
        self._held: OrderedDict[tuple[int, ...], dict[int, tuple[Row, ...]]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        return self._count * _OVERHEAD

    def listed(
        self, key: tuple[int, ...], low: int, high: int, read: Callable[[int, int], Iterable[tuple[int, Row]]]
    ) -> Iterator[Row]:
        """The rows of ``key`` with the numbers ``low`` to ``high``; ``read`` is asked for the numbers that are not
        known, and gives each row with its own. What it once gave must stay so."""
        with self._lock:
            held = self._held.get(key)
            known = {} if held is None else {number: held[number] for number in range(low, high + 1) if number in held}
            if held is not None:
                self._held.move_to_end(key)
        missing = [number for number in range(low, high + 1) if number not in known]
        if missing:
            fresh: dict[int, list[Row]] = {number: [] for number in missing}
            for number, entry in read(missing[0], missing[-1]):
                if number in fresh:
                    fresh[number].append(entry)
            known |= {number: tuple(entries) for number, entries in fresh.items()}
            self._keep(key, {number: known[number] for number in missing})
        for number in range(low, high + 1):
            yield from known[number]

    def _keep(self, key: tuple[int, ...], fresh: dict[int, tuple[Row, ...]]) -> None:
        with self._lock:
            held = self._held.setdefault(key, {})
            for number, entries in fresh.items():
                # A number without entries takes room too.
                self._count += 0 if number in held else 1 + len(entries)
                held[number] = entries
            while self._count > self._most and self._held:
                _, oldest = self._held.popitem(last=False)
                self._count -= sum(1 + len(entries) for entries in oldest.values())
