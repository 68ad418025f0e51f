"""How long a card works for us: events around our launches in some steps, looked at later and never waited for."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["DeviceClock", "reading_of"]

_READINGS = {"grad": "gradients", "weight": "weights", "update": "updates"}
_UNDER_WAY = 32
"""Most steps whose events have not passed; with more of them none are measured."""

Key = tuple[str, bool]
"""A kind of reading, and whether with histograms."""


def reading_of(kind: str) -> str:
    """The kind of reading (gradients, activations, weights, updates) that a kind of tensor belongs to."""
    return _READINGS.get(kind, "activations")


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class DeviceClock:
    """``seconds`` holds what the newest measured step took, by reading; readings on the host take no device time.

    Events cost the host some 5 us a pair, so only steps between ``start_step(wanted=True)`` and the next are measured.
    """

    def __init__(
        self,
        event: Callable[[], torch.cuda.Event] = _timing_event,
        stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.current_stream,
    ) -> None:
        self.seconds: dict[Key, float] = {}
        self._event = event
        self._stream = stream
        self.wanted = False
        """Whether this step is measured."""
        self._mark: torch.cuda.Event | None = None
        self._marked = False
        self._step: list[tuple[Key, torch.cuda.Event, torch.cuda.Event]] = []
        self._under_way: deque[list[tuple[Key, torch.cuda.Event, torch.cuda.Event]]] = deque()

    def mark(self, device: torch.device) -> None:
        """An optimizer is about to step: ``caught_up`` tells whether the device had come so far when asked."""
        if device.type != "cuda":
            return
        self._mark = self._mark or self._event()
        self._mark.record(self._stream(device))
        self._marked = True

    def caught_up(self) -> bool:
        """Whether the device has done what was asked of it before the last ``mark``, once for each mark.

        Then it waits for the host, whose time counts. A device that is behind works on while the host is ours.
        """
        marked, self._marked = self._marked, False
        return not marked or self._mark is None or _passed(self._mark)

    @contextmanager
    def around(self, device: torch.device, kind: str, *, histogram: bool) -> Iterator[None]:
        """Measure what is launched inside on the current stream of ``device``."""
        if not self.wanted or device.type != "cuda":
            yield
            return
        first, last = self._event(), self._event()
        first.record(self._stream(device))
        yield
        last.record(self._stream(device))
        self._step.append(((reading_of(kind), histogram), first, last))

    def start_step(self, *, wanted: bool) -> None:
        """The next step begins. Takes in what has passed; no host synchronisation."""
        if self._step:
            self._under_way.append(self._step)
            self._step = []
        while self._under_way and all(_passed(last) for _, _, last in self._under_way[0]):
            total: defaultdict[Key, float] = defaultdict(float)
            for key, first, last in self._under_way.popleft():
                total[key] += 1e-3 * first.elapsed_time(last)
            self.seconds.update(total)
        self.wanted = wanted and len(self._under_way) < _UNDER_WAY


def _passed(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]
