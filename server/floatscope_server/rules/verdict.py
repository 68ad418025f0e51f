"""What a rule says about one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

__all__ = ["NO_DATA", "OK", "Finding", "Outcome", "Severity", "Status", "Verdict", "alert"]


class Severity(IntEnum):
    """How bad; ordered, so that ``max`` picks the worst."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @property
    def label(self) -> str:
        """The name in JSON: info, warning or critical."""
        return self.name.lower()


class Status(Enum):
    """NO_DATA is not OK: a step without a loss says nothing about a loss spike."""

    NO_DATA = "no data"
    OK = "ok"
    ALERT = "alert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A condition that holds.

    ``since_step`` is where the trouble began, ``value`` the number that decided and ``threshold`` what it was held
    against, both in the unit of the rule's series. ``tensor`` is the kind of tensor (grad, act, ...). ``hits`` counts
    layers, or records where the subject is a series. ``certainty`` ranks the namings of several ranks.
    """

    kind: str
    severity: Severity
    reason: str
    since_step: int
    layer: str | None = None
    tensor: str | None = None
    format: str | None = None
    rank: int | None = None
    device: str | None = None
    value: float | None = None
    threshold: float | None = None
    hits: int = 1
    certainty: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rule's answer for one step; ``verdict`` is set exactly when ``status`` is ALERT."""

    status: Status
    verdict: Verdict | None = None

    @property
    def severity(self) -> int:
        """The verdict's severity, 0 without one."""
        return 0 if self.verdict is None else int(self.verdict.severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule found on one step of one rank, about all members of one family.

    Members are layers (``RANK:LAYER INDEX``) or series (``RANK``). Those of one family that begin within
    ``group_steps`` of each other share a cause and become one alert, led by the first. ``active`` lists the members
    for which the condition holds in causal order; ``clear`` tells of any other member whether it was seen to be sound
    at this step. ``verdict`` words the alert that a given member leads. ``hold`` and ``keep`` are steps, or seconds
    where ``at`` gives the time of the finding (seconds since 1970).
    """

    kind: str
    family: str
    step: int
    rank: int
    active: Mapping[str, Severity]
    clear: Callable[[str], bool]
    verdict: Callable[[str], Verdict]
    group_steps: int | None = None
    hold: float = 0
    keep: float = 0
    at: float | None = None


NO_DATA = Outcome(Status.NO_DATA)
OK = Outcome(Status.OK)


def alert(verdict: Verdict) -> Outcome:
    """The outcome that carries ``verdict``."""
    return Outcome(Status.ALERT, verdict)
