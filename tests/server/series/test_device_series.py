"""Device samples by time, in the open tail and in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlmodel import func, select

from floatscope import wire
from floatscope_server.models import DeviceFacts, Gap, ScalarChunk, WalFrame
from floatscope_server.query.devices import device_samples, device_series, newest_samples
from floatscope_server.query.line import run_named
from floatscope_server.store import Store, caps
from floatscope_server.store.series_thread import SeriesThread

if TYPE_CHECKING:
    from tests.server.conftest import MakeAgent, MakePen, Running

_START = 1_700_000_000


def _reading(second: float, **figures: Any) -> wire.Device:  # noqa: ANN401 - fields of wire.Device
    card: dict[str, Any] = {"backend": "rocm", "index": 0, "pci": "0000:c1", "name": "card"}
    return wire.Device(time_ns=int(second * 1000) * 1_000_000, **{**card, "vram_total_bytes": 1 << 38, **figures})


def _samples(store: Store, seconds: float) -> list[dict[str, object]]:
    with store.read() as session:
        return device_samples(session, run_named(session, "run"), seconds=seconds)


def _series(store: Store, **options: Any) -> dict[tuple[object, ...], dict[str, Any]]:  # noqa: ANN401 - of device_series
    asked: dict[str, Any] = {"first": None, "last": None, "points": 1000, **options}
    with store.read() as session:
        found = device_series(session, run_named(session, "run"), **asked)
    return {(item["rank"], item["index"], item["figure"]): item for item in found}


def test_any_range_has_its_envelope_and_samples_stay_as_they_were(store: Store, pen: MakePen) -> None:
    rng = np.random.default_rng(0)
    n = 3000
    power = rng.uniform(100, 700, n)
    power[1234] = 5000.0
    used = rng.integers(0, 1 << 38, n)
    ranks = [pen(store, rank=rank, world=2) for rank in (0, 1)]
    for start in range(0, n, 100):
        # Two ranks read one card.
        for one in ranks:
            readings = tuple(
                _reading(_START + i, power_watts=float(power[i]), vram_used_bytes=int(used[i]))
                for i in range(start, start + 100)
            )
            one.deliver(wire.Body(devices=readings))
    before = _samples(store, 2000), _series(store, points=60), _series(store, first=_START + 100.5, last=_START + 500)
    sealer = SeriesThread(store)
    sealer.seal(everything=True)
    with store.read() as session:
        assert session.exec(select(func.count()).select_from(WalFrame)).one() == 0
        assert set(session.exec(select(ScalarChunk.level)).all()) == {0, 1}
    after = _samples(store, 2000), _series(store, points=60), _series(store, first=_START + 100.5, last=_START + 500)
    assert after[0] == before[0]
    assert len(after[0]) == 2 * 2001
    for found, expected in zip(after[1:], before[1:], strict=True):
        assert found.keys() == expected.keys()
        for key, item in found.items():
            np.testing.assert_allclose(item["values"], expected[key]["values"], rtol=1e-12)
            for name in ("times", "min", "max", "n", "cell", "pci", "name", "vram_total_bytes"):
                np.testing.assert_equal(item[name], expected[key][name])
    whole = after[1][1, 0, "power_watts"]
    assert (whole["cell"], whole["n"], whole["name"]) == (64, n, "card")
    assert whole["max"].max() == 5000.0
    assert (np.array(whole["times"]) % 64 == 0).all()
    part = after[2][0, 0, "vram_used_bytes"]
    assert part["cell"] == 0
    assert part["values"].tolist() == used[101:501].tolist()


@pytest.mark.parametrize("sealed", [False, True])
def test_clocks_that_jump_or_are_ahead_hide_nothing(store: Store, pen: MakePen, sealed: bool) -> None:
    one = pen(store)
    jump = 86_400
    times = [_START + jump, _START + jump + 1, _START, _START + 1, _START + 1, _START + 2]
    for i, second in enumerate(times):
        one.deliver(wire.Body(devices=(_reading(second, busy_percent=float(i)),)))
        if sealed:
            SeriesThread(store).seal(everything=True)
    recent = _samples(store, 60)
    assert [sample["time_ns"] for sample in recent][-1] == (_START + 2) * 10**9
    assert all(int(str(sample["time_ns"])) < (_START + 10) * 10**9 for sample in recent)
    found = _series(store)[0, 0, "busy_percent"]
    assert found["times"].tolist() == sorted(set(times))
    assert found["values"].tolist() == [2.0, 4.0, 5.0, 0.0, 1.0]


def test_what_could_not_be_had_is_no_point(store: Store, pen: MakePen) -> None:
    one = pen(store)
    one.deliver(wire.Body(devices=(_reading(_START), _reading(_START + 1, ooms=0), _reading(_START + 2))))
    for _ in range(2):
        assert _series(store).keys() == {(0, 0, "ooms")}
        assert [sample["ooms"] for sample in _samples(store, 60)] == [None, 0, None]
        SeriesThread(store).seal(everything=True)


def test_recent_samples_stay_as_they_came(store: Store, pen: MakePen) -> None:
    one = pen(store)
    for start in range(0, 3000, 4):
        one.deliver(wire.Body(devices=tuple(_reading(_START + start + i, busy_percent=1.0) for i in range(4))))
    SeriesThread(store).seal()
    with store.read() as session:
        left = session.exec(select(func.min(WalFrame.first), func.count())).one()
    assert left == (_START + 2100, 225)


def test_too_many_cards_are_left_out_and_said_so(store: Store, pen: MakePen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "MAX_DEVICES", 10)
    one = pen(store)
    one.deliver(wire.Body(devices=tuple(_reading(_START, index=i, ooms=0) for i in range(14))))
    assert len(_series(store)) == 10
    with store.read() as session:
        (gap,) = session.exec(select(Gap)).all()
    assert (gap.count, gap.reason) == (4, "more than 10 cards in one attempt")


def test_a_range_is_asked_over_http(server: Running, agent: MakeAgent) -> None:
    agent().deliver(wire.Body(devices=tuple(_reading(_START + i, power_watts=100.0 + i) for i in range(100))))
    path = f"/api/v1/runs/run/devices?from={_START + 10}&to={_START + 19}"
    (item,) = server.json(path)
    assert item["figure"] == "power_watts"
    assert item["values"] == [110.0 + i for i in range(10)]
    (pooled,) = server.json(path + "&points=2")
    assert pooled["cell"] == 8
    assert (min(pooled["min"]), max(pooled["max"])) == (110.0, 119.0)


_SELDOM: dict[str, Any] = {
    "pcie_width": 8,
    "pcie_speed_gts": 16.0,
    "pcie_max_width": 16,
    "pcie_max_speed_gts": 32.0,
    "pcie_replays": 12,
    "xgmi_links": 7,
    "xgmi_bytes_per_s": 1.5e9,
    "ecc_corrected": 5,
    "ecc_uncorrected": 0,
    "throttle_power_percent": 90.0,
    "throttle_thermal_percent": 0.0,
    "throttle_brake_percent": 12.5,
}


@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_read_seldom_is_the_newest_that_is_known(store: Store, pen: MakePen, sealed: bool) -> None:
    one = pen(store)
    readings = [
        _reading(_START, **{**_SELDOM, "ecc_corrected": 4}),
        _reading(_START, index=1, pci="0000:c2"),
        _reading(_START + 20, core_clock_mhz=2100.0, ecc_corrected=5),
        _reading(_START + 60, core_clock_mhz=1900.0, memory_clock_mhz=1300.0),
    ]
    for reading in readings:
        one.deliver(wire.Body(devices=(reading,)))
    if sealed:
        SeriesThread(store).seal(everything=True)
    with store.read() as session:
        card, other = newest_samples(session, run_named(session, "run"))
    assert card["time_ns"] == (_START + 60) * 10**9
    assert (card["core_clock_mhz"], card["memory_clock_mhz"]) == (1900.0, 1300.0)
    assert {name: card[name] for name in _SELDOM} == _SELDOM
    assert {name: type(card[name]) for name in _SELDOM} == {name: type(value) for name, value in _SELDOM.items()}
    assert {name: other[name] for name in _SELDOM} == dict.fromkeys(_SELDOM)
    found = _series(store)
    assert set(_SELDOM) - {figure for _, _, figure in found} == {"pcie_max_width", "pcie_max_speed_gts", "xgmi_links"}
    assert found[0, 0, "ecc_corrected"]["values"].tolist() == [4.0, 5.0]
    samples = _samples(store, 60)
    assert "ecc_corrected" not in samples[-1], "most readings are without it, and half as long"
    assert samples[-1]["ooms"] is None


def test_a_reading_without_what_stays_the_same_takes_nothing_away(store: Store, pen: MakePen) -> None:
    one = pen(store)
    one.deliver(wire.Body(devices=(_reading(_START, pcie_max_width=16, busy_percent=1.0),)))
    one.deliver(wire.Body(devices=(_reading(_START + 1, name=None, xgmi_links=7, busy_percent=1.0),)))
    with store.read() as session:
        (fact,) = session.exec(select(DeviceFacts)).all()
    assert (fact.name, fact.pcie_max_width, fact.xgmi_links, fact.pcie_max_speed_gts) == ("card", 16, 7, None)


@pytest.mark.parametrize(
    "figures", [{"pcie_max_width": 1 << 63}, {"ecc_uncorrected": -1}, {"vram_total_bytes": 1 << 64 - 1}]
)
def test_a_count_that_no_column_holds_loses_its_sample_only(
    store: Store, pen: MakePen, figures: dict[str, int]
) -> None:
    one = pen(store)
    one.deliver(wire.Body(devices=(_reading(_START, **figures), _reading(_START + 1, ooms=1))))
    assert [sample["ooms"] for sample in _samples(store, 60)] == [1]
    with store.read() as session:
        (gap,) = session.exec(select(Gap)).all()
    assert (gap.count, gap.reason) == (1, "device sample with a count out of range")
