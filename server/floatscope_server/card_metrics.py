"""The newest readings of the cards that agents tell of, for Prometheus."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from floatscope import wire
from floatscope_server.observation import Observation

__all__ = ["CardMetrics"]

_FORGOTTEN_S = 60.0
"""After the last reading that came: a card whose run is over has no figures any more."""
_HISTORY_S = 600.0
"""A reading older than that is what an import or a spool brings, and says nothing of now."""
_MOST = 4096
"""Cards; each is some twenty lines."""


@dataclass(frozen=True, slots=True)
class _Metric:
    """``label``: one more, with its value. Prometheus wants base units: ratios, hertz."""

    name: str
    figure: str
    factor: float
    help: str
    label: str = ""

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


_METRICS = (
    _Metric("card_busy_ratio", "busy_percent", 0.01, "Share of the time in which a card was busy."),
    _Metric("card_memory_busy_ratio", "memory_busy_percent", 0.01, "Activity of a card's memory controller."),
    _Metric("card_memory_used_bytes", "vram_used_bytes", 1, "Memory of a card in use."),
    _Metric("card_memory_bytes", "vram_total_bytes", 1, "Memory of a card."),
    _Metric("card_power_watts", "power_watts", 1, "Power that a card takes."),
    _Metric("card_temperature_celsius", "temperature_celsius", 1, "Junction temperature of a card."),
    _Metric("card_clock_hertz", "core_clock_mhz", 1e6, "Clocks of a card.", 'domain="core"'),
    _Metric("card_clock_hertz", "memory_clock_mhz", 1e6, "Clocks of a card.", 'domain="memory"'),
    _Metric("card_pcie_lanes", "pcie_width", 1, "Lanes of the narrowest link between a card and its processor."),
    _Metric("card_pcie_most_lanes", "pcie_max_width", 1, "Lanes that every link on that way could have."),
    _Metric("card_pcie_replays_total", "pcie_replays", 1, "Packets that a card sent again."),
    _Metric("card_xgmi_bytes_per_second", "xgmi_bytes_per_s", 1, "Traffic over all XGMI links of a card."),
    _Metric("card_ecc_errors_total", "ecc_corrected", 1, "Memory errors of a card.", 'kind="corrected"'),
    _Metric("card_ecc_errors_total", "ecc_uncorrected", 1, "Memory errors of a card.", 'kind="uncorrected"'),
    _Metric("card_slowed_ratio", "throttle_power_percent", 0.01, "Share of the time held down.", 'by="power_limit"'),
    _Metric("card_slowed_ratio", "throttle_thermal_percent", 0.01, "Share of the time held down.", 'by="heat"'),
    _Metric("card_slowed_ratio", "throttle_brake_percent", 0.01, "Share of the time held down.", 'by="outside"'),
)


class CardMetrics:
    """Told of every block that was committed; ``clock`` gives seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: dict[tuple[str, int, str], tuple[float, wire.Device]] = {}

    def observe(self, observation: Observation) -> None:
        """Keep the newest reading of each card; from the store's thread."""
        if not observation.body.devices:
            return
        now = self._clock()
        with self._lock:
            for device in observation.body.devices:
                if abs(now - device.time_ns / 1e9) > _HISTORY_S:
                    continue
                key = observation.run, observation.rank, device.pci or f"card{device.index}"
                before = self._newest.pop(key, None)
                # The first is the one that was told of longest ago.
                if len(self._newest) >= _MOST:
                    del self._newest[next(iter(self._newest))]
                self._newest[key] = now, device if before is None else _carried(before[1], device)

    def lines(self) -> Iterator[str]:
        """Of the text format: figures that are not known are left out."""
        now = self._clock()
        with self._lock:
            self._newest = {key: kept for key, kept in self._newest.items() if now - kept[0] <= _FORGOTTEN_S}
            cards = [(key, device) for key, (_, device) in self._newest.items()]
        told = ""
        for metric in _METRICS:
            if metric.name != told:
                yield f"# HELP floatscope_{metric.name} {metric.help}"
                yield f"# TYPE floatscope_{metric.name} {metric.kind}"
                told = metric.name
            yield from _samples(metric, cards)


def _carried(before: wire.Device, device: wire.Device) -> wire.Device:
    missing = {name: getattr(before, name) for name in wire.READ_SELDOM if getattr(device, name) is None}
    return msgspec.structs.replace(device, **missing)


def _samples(metric: _Metric, cards: Iterable[tuple[tuple[str, int, str], wire.Device]]) -> Iterator[str]:
    for (run, rank, card), device in cards:
        figure = getattr(device, metric.figure)
        if figure is None or not math.isfinite(value := figure * metric.factor):
            continue
        labels = [f'run="{_escaped(run)}"', f'rank="{rank}"', f'card="{_escaped(card)}"', metric.label]
        # Twelve digits are exact to the byte at 1 TB and drop what 0.01 adds to a percentage.
        yield f"floatscope_{metric.name}{{{','.join(filter(None, labels))}}} {value:.12g}"


def _escaped(text: str) -> str:
    # A zero byte would end the text for Prometheus, and with it every figure of every run.
    shown = "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
