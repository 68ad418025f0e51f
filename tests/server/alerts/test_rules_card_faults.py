"""Faults that a card's readings tell, and what must not be taken for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope import wire
from floatscope_server.alerts.rehearsal import rehearse
from floatscope_server.rules import RuleParameters
from floatscope_server.rules.presets import changed
from tests.server.alerts.recordings import recorded

Alerts = list[tuple[str, str, int, str]]


def _sample(at: float, **figures: Any) -> wire.Device:  # noqa: ANN401 - of wire.Device
    given_: dict[str, Any] = {"index": 0, "backend": "test", "pci": "0000:c1:00.0", "busy_percent": 97.0, **figures}
    return wire.Device(time_ns=int(at * 1e9), **given_)


def _found(
    samples: Iterable[wire.Device | tuple[wire.Device, ...]], rules: RuleParameters | None = None
) -> list[dict[str, Any]]:
    """What a recording gives; the row is the step."""
    return rehearse(rules or RuleParameters(), recorded(samples))


def _fired(samples: Iterable[wire.Device | tuple[wire.Device, ...]], rules: RuleParameters | None = None) -> Alerts:
    return [(a["reason"], a["severity"], a["first_step"], a["device"]) for a in _found(samples, rules)]


CARD = "0000:c1:00.0"


def test_an_error_that_could_not_be_corrected() -> None:
    counts: list[int | None] = [2, None, 2, 3, None, 3, 5, 5]
    (one,) = _found(_sample(60 * i, ecc_uncorrected=count) for i, count in enumerate(counts))
    assert (one["kind"], one["reason"], one["severity"]) == ("gpu_fault", "ecc_count", "critical")
    assert (one["first_step"], one["last_step"], one["state"], one["device"]) == (3, 6, "firing", CARD)
    assert "1 more memory errors that it cannot correct by step 3, 3 in all" in one["message"]
    assert "0000:c1:00.0" in one["message_zh"]


@pytest.mark.parametrize(
    "counts",
    [
        [0] * 10,
        [7] * 10,  # from before the run
        [7, 0, 0],  # the driver was loaded again
        [None] * 5,
        [None, 4, None, 4],
    ],
)
def test_errors_that_are_not_new(counts: list[int | None]) -> None:
    assert _fired(_sample(60 * i, ecc_uncorrected=count) for i, count in enumerate(counts)) == []


def test_errors_after_the_driver_was_loaded_again() -> None:
    counts = [7, 0, 1]
    assert _fired(_sample(60 * i, ecc_uncorrected=n) for i, n in enumerate(counts)) == [
        ("ecc_count", "critical", 2, CARD)
    ]


@given(st.lists(st.integers(0, 1 << 40), max_size=40))
def test_corrected_errors_and_replays_are_no_fault(counts: list[int]) -> None:
    samples = [_sample(60 * i, ecc_corrected=n, pcie_replays=n, ecc_uncorrected=0) for i, n in enumerate(counts)]
    assert _fired(samples) == []


def test_an_error_is_over_five_minutes_after_the_last() -> None:
    counts = [0, 1, *[1] * 8]
    samples = [_sample(60 * i, ecc_uncorrected=n) for i, n in enumerate(counts)]
    (one,) = _found(samples)
    assert (one["state"], one["resolved_reason"]) == ("resolved", "cleared")
    (still,) = _found(samples[:6])
    assert still["state"] == "firing"


def test_errors_of_two_cards_are_two_alerts() -> None:
    pairs = [
        tuple(
            _sample(60 * i, index=card, pci=f"0000:c{card}:00.0", ecc_uncorrected=1 if i > 2 + card else 0)
            for card in (1, 2)
        )
        for i in range(6)
    ]
    assert _fired(pairs) == [
        ("ecc_count", "critical", 4, "0000:c1:00.0"),
        ("ecc_count", "critical", 5, "0000:c2:00.0"),
    ]


def _slowed(shares: Iterable[float | None], **figures: Any) -> list[wire.Device]:  # noqa: ANN401 - of wire.Device
    """A reading every 10 s."""
    given_ = {"throttle_brake_percent": 0.0, **figures}
    return [_sample(10 * i, throttle_thermal_percent=share, **given_) for i, share in enumerate(shares)]


def test_a_card_that_is_too_hot_for_long() -> None:
    assert _fired(_slowed([25.0] * 30)) == [("throttle_heat", "warning", 18, CARD)]
    # A driver that tells the state only says 0 or 100.
    assert _fired(_slowed([100.0, 0.0, 0.0, 0.0] * 8)) == [("throttle_heat", "warning", 18, CARD)]
    (one,) = _found(_slowed([25.0] * 30))
    assert "25 % of the time (mean of 180 s" in one["message"]


@pytest.mark.parametrize("share", [0.0, 20.0])
def test_a_card_that_is_hardly_slowed(share: float) -> None:
    assert _fired(_slowed([share] * 60)) == []


@pytest.mark.parametrize("share", [float("nan"), float("inf"), None])
def test_a_share_that_is_none_says_nothing(share: float | None) -> None:
    assert _fired(_slowed([share] * 60)) == []
    assert _fired(_slowed([share] * 60, throttle_brake_percent=share)) == []


def test_a_short_heat_is_no_fault() -> None:
    assert _fired(_slowed([0.0] * 30 + [100.0] * 3 + [0.0] * 30)) == []
    assert _fired(_slowed([100.0] * 17)) == [], "three minutes have not passed yet"


def test_a_card_at_its_power_limit_is_as_it_should_be() -> None:
    assert _fired(_slowed([0.0] * 60, throttle_power_percent=100.0)) == []
    assert _fired(_slowed([None] * 60, throttle_brake_percent=None, throttle_power_percent=100.0)) == []


def test_a_card_that_does_nothing_loses_nothing() -> None:
    assert _fired(_slowed([100.0] * 60, busy_percent=0.0)) == []
    assert _fired(_slowed([100.0] * 60, busy_percent=None)) == [("throttle_heat", "warning", 18, CARD)]


def test_a_signal_from_outside() -> None:
    assert _fired(_slowed([1.0] * 30, throttle_brake_percent=50.0)) == [("throttle_brake", "warning", 18, CARD)]
    assert _fired(_slowed([None] * 30, throttle_brake_percent=50.0)) == [("throttle_brake", "warning", 18, CARD)]


def test_a_card_that_cooled_down() -> None:
    samples = _slowed([50.0] * 30 + [0.0] * 60)
    (one,) = _found(samples)
    assert (one["state"], one["resolved_reason"]) == ("resolved", "cleared")


def _linked(widths: Iterable[int | None], most: int | None = 16, **figures: Any) -> list[wire.Device]:  # noqa: ANN401
    """A reading every minute."""
    return [_sample(60 * i, pcie_width=width, pcie_max_width=most, **figures) for i, width in enumerate(widths)]


def test_a_link_that_lost_lanes() -> None:
    assert _fired(_linked([16, 16, 8, 8, 8, 8])) == [("link_width", "warning", 4, CARD)]
    (one,) = _found(_linked([8] * 4))
    assert "works on 8 of the 16 lanes" in one["message"]
    assert "16 条通道中的 8 条" in one["message_zh"]


@pytest.mark.parametrize(
    "samples",
    [
        _linked([16] * 10),
        _linked([8] * 10, most=8),  # a slot that has no more
        _linked([16] * 10, most=8),
        _linked([8] * 10, most=None),
        _linked([None] * 10),
        _linked([8, 8, 16] * 5),  # while it trains its link anew
        _linked([1] * 10, busy_percent=0.0),  # to save power
        _linked([1] * 10, busy_percent=None),  # an APU, or a card that is asleep
        _linked([0] * 10),  # a link that is down
        _linked([-1] * 10),
        _linked([16] * 10, pcie_speed_gts=2.5, pcie_max_speed_gts=32.0),
    ],
    ids=["whole", "slot", "wide", "unknown", "unread", "retrained", "idle", "untold", "down", "negative", "slow"],
)
def test_links_that_are_as_they_should_be(samples: list[wire.Device]) -> None:
    assert _fired(samples) == []


def test_readings_without_these_figures_between_the_others_change_nothing() -> None:
    samples = [
        sample if i % 60 == 0 else wire.Device(time_ns=sample.time_ns, backend="test", index=0, pci=CARD)
        for i, sample in enumerate(_sample(i, pcie_width=8, pcie_max_width=16) for i in range(240))
    ]
    assert _fired(samples) == [("link_width", "warning", 120, CARD)]


def test_the_numbers_are_parameters() -> None:
    rules = changed(
        RuleParameters(), {"gpu_fault": {"throttle_percent": 60.0, "throttle_seconds": 60.0, "link_seconds": 30.0}}
    )
    assert _fired(_slowed([59.0] * 30), rules) == []
    assert _fired(_slowed([61.0] * 30), rules) == [("throttle_heat", "warning", 6, CARD)]
    assert _fired(_linked([8] * 3), rules) == [("link_width", "warning", 1, CARD)]
    off = changed(RuleParameters(), {"gpu_fault": {"enabled": 0}})
    assert _fired(_linked([8] * 9), off) == []
