"""A restart when most of a run is in tiles: alerts go on where they were, and what is around them is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlmodel import col, select

from floatscope_server.alerts.engine import AlertEngine
from floatscope_server.alerts.models import Alert, AlertEvent, Evaluated
from floatscope_server.store import Store
from floatscope_server.store.sealer import Sealer
from tests.server.alerts.conftest import Feed
from tests.server.keeping import kept

if TYPE_CHECKING:
    from floatscope_server.settings import Settings
    from tests.server.alerts.conftest import Build, Screen

_STEPS, _BROKEN, _OPEN = 2000, 520, 1995


def _told(store: Store) -> list[tuple[str, str, int]]:
    with store.read() as session:
        rows = session.exec(
            select(Alert.kind, AlertEvent.kind, AlertEvent.step)
            .join(Alert, col(Alert.id) == col(AlertEvent.alert_id))
            .where(Alert.kind == "nonfinite")
            .order_by(col(AlertEvent.step), col(Alert.id))
        ).all()
        return [(kind, event, step) for kind, event, step in rows]


def _feed(build: Build, feed: Feed, writer: str, first: int, end: int) -> None:
    """Steps of two layers, in blocks of 50 and those with a NaN by themselves."""
    at = first
    while at < end:
        broken = at in (_BROKEN, _OPEN)
        stop = at + 1 if broken else min([end, at + 50, *(step for step in (_BROKEN, _OPEN) if step > at)])
        grads = build.summary("grad", at, 2, steps=stop - at, nans={0: 1} if broken else None)
        feed.put(writer, build.body(grads, records={step: {"loss": 2.0} for step in range(at, stop)}))
        at = stop


def test_a_restart_beside_tiles_doubles_nothing_and_keeps_what_is_pinned(
    build: Build, store: Store, feed: Feed, live: Screen, settings: Settings
) -> None:
    first = AlertEngine(store, live, settings)
    store.observers[:] = [first.observe]
    first.start()
    writer = feed.hello(run="run", layers=build.layers("l0", "l1"))
    _feed(build, feed, writer, 0, _STEPS)
    first.drain()
    first.stop()
    sealer = Sealer(store, lost_after_s=1e9)
    while sealer.seal_due():
        pass
    assert kept.raw_tiles(store) == [0, 1, 2, 3, 4, 5]
    expected = [
        ("nonfinite", "firing", _BROKEN),
        ("nonfinite", "resolved", _BROKEN + 20),
        ("nonfinite", "firing", _OPEN),
    ]
    assert _told(store) == expected
    with store.read() as session:
        (seq,) = session.exec(select(Evaluated.seq)).all()
    store.stop()

    again = Store(settings)
    again.start()
    second = AlertEngine(again, live, settings)
    again.observers[:] = [second.observe]
    second.start()
    try:
        second.drain()
        assert _told(again) == expected
        other = Feed(again)
        _feed(build, other, other.resume(writer, seq), _STEPS, _STEPS + 100)
        second.drain()
        assert _told(again) == [*expected, ("nonfinite", "resolved", _OPEN + 20)]
        kept.retain(again, raw_keep_steps=16)
        kept.keep(again)
        # The tile of the first alert and its neighbours, and the last one.
        assert kept.raw_tiles(again) == [1, 2, 3, 5]
    finally:
        second.stop()
        again.stop()
