"""What of a run goes, and when: decided from what is held, how old steps are, and where alerts were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

from floatscope_server.models import Milestone, Retention
from floatscope_server.tiles.geometry import Geometry

__all__ = ["Ages", "Alarm", "Held", "Spot", "SteadyClock", "going", "pins"]


_BELIEVED_S = 3600.0
_DOUBTED_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Tile ``idx`` of level 0 or 1 of a stream, all blocks and statistics of it: the steps ``first`` to
    ``end - 1``."""

    stream: int
    attempt: int
    level: int
    idx: int
    first: int
    end: int
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Alarm:
    """Where an alert was."""

    attempt: int
    first_step: int
    last_step: int


Spot = tuple[int, int]
"""An attempt and a step."""


class Ages:
    """How old the steps of a run are at ``now``."""

    def __init__(self, milestones: Sequence[Milestone], now: datetime) -> None:
        self._milestones = milestones
        self._now = now
        self._known: dict[float, dict[int, int]] = {}

    def before(self, days: float) -> dict[int, int]:
        """By attempt: the steps before this one came ``days`` ago or earlier. What nobody noted counts as new."""
        reached = self._known.get(days)
        if reached is None:
            reached = self._known[days] = {}
            for milestone in self._milestones:
                if self._now - milestone.at >= timedelta(days=days):
                    reached[milestone.attempt] = max(reached.get(milestone.attempt, 0), milestone.step + 1)
        return reached


def pins(alarms: Iterable[Alarm]) -> set[Spot]:
    """Where alerts began and ended; what is between may be most of the run."""
    return {(alarm.attempt, step) for alarm in alarms for step in (alarm.first_step, alarm.last_step)}


class SteadyClock:
    """Seconds since 1970 by which things may be called old: a wall clock that jumps ahead is believed only when it has
    kept its new time for a day. One that goes back makes nothing old, and is believed at once."""

    def __init__(self) -> None:
        self._offset: float | None = None
        self._jumped: float | None = None

    def now(self, wall: float, monotonic: float) -> float:
        """At ``wall`` by the wall clock, and ``monotonic`` by one that does not jump."""
        offset = wall - monotonic
        if self._offset is None or offset <= self._offset + _BELIEVED_S:
            self._offset, self._jumped = offset, None
            return wall
        self._jumped = monotonic if self._jumped is None else self._jumped
        if monotonic - self._jumped >= _DOUBTED_S:
            self._offset, self._jumped = offset, None
            return wall
        return self._offset + monotonic


def going(
    keeping: Retention,
    held: Sequence[Held],
    *,
    geometries: Mapping[int, Geometry],
    ages: Ages,
    pinned: Set[Spot] = frozenset(),
    nbytes: int = 0,
) -> list[Held]:
    """What of ``held`` goes, the oldest steps first, level 0 before level 1.

    Level 0: what is older than ``raw_keep_days`` or not among the last ``raw_keep_steps`` of its stream, counted in
    tiles that are there, so that a step of 10^12 does not make all others old. Level 1: what is older than
    ``level1_keep_days`` and no more at level 0. Tiles at a spot of ``pinned``, and their neighbours, stay. ``nbytes``
    is what the whole run takes: what is above ``max_bytes_per_run`` goes by the same order, and whether it is old or
    not.
    """
    spared = _spared(pinned, (geometry.columns for geometry in geometries.values())) if keeping.pin_alerts else {}
    columns = {stream: geometry.columns for stream, geometry in geometries.items()}

    def tiles_of(tile: Held) -> range:
        """Numbers of its tiles of level 0."""
        return range(tile.first // columns[tile.stream], -(-tile.end // columns[tile.stream]))

    def stays(tile: Held) -> bool:
        tiles = spared.get(columns[tile.stream], set())
        return any((tile.attempt, number) in tiles for number in tiles_of(tile))

    full = {(tile.stream, tile.attempt, tile.idx) for tile in held if not tile.level}
    gone: set[Held] = set()

    def drop(tile: Held) -> bool:
        """What is pooled of a tile stays as long as it does."""
        if tile.level and any((tile.stream, tile.attempt, number) in full for number in tiles_of(tile)):
            return False
        if not tile.level:
            full.discard((tile.stream, tile.attempt, tile.idx))
        gone.add(tile)
        return True

    free = sorted(
        (tile for tile in held if not stays(tile)), key=lambda t: (t.level, t.attempt, t.first, t.stream, t.idx)
    )
    many = _beyond(keeping.raw_keep_steps, held, columns)
    for tile in free:
        if tile in many or _is_old(tile, keeping.level1_keep_days if tile.level else keeping.raw_keep_days, ages):
            drop(tile)
    if keeping.max_bytes_per_run is not None:
        left = nbytes - sum(tile.nbytes for tile in gone)
        for tile in free:
            if left <= keeping.max_bytes_per_run:
                break
            if tile not in gone and drop(tile):
                left -= tile.nbytes
    return [tile for tile in free if tile in gone]


def _is_old(tile: Held, days: float | None, ages: Ages) -> bool:
    return days is not None and tile.end <= ages.before(days).get(tile.attempt, 0)


def _beyond(steps: int | None, held: Iterable[Held], columns: Mapping[int, int]) -> set[Held]:
    """Tiles of level 0 with ``steps`` steps or more after them, by stream."""
    if steps is None:
        return set()
    by_stream: dict[int, list[Held]] = {}
    for tile in held:
        if not tile.level:
            by_stream.setdefault(tile.stream, []).append(tile)
    found: set[Held] = set()
    for stream, tiles in by_stream.items():
        tiles.sort(key=lambda tile: (tile.attempt, tile.idx), reverse=True)
        found.update(tiles[-(-steps // columns[stream]) :])
    return found


def _spared(pinned: Iterable[Spot], columns: Iterable[int]) -> dict[int, set[tuple[int, int]]]:
    """By columns of a tile: attempts and numbers of those at a spot, and of their neighbours."""
    return {
        span: {(attempt, step // span + beside) for attempt, step in pinned for beside in (-1, 0, 1)}
        for span in set(columns)
    }
