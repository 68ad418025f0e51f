"""Stand-in until the alert engine is merged."""

from __future__ import annotations

from typing import Any

from sqlmodel import Session

from floatscope_server.observation import Observation


class AlertEngine:
    def __init__(self, store: Any, live: Any, settings: Any) -> None:  # noqa: ANN401
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def drain(self) -> None:
        pass

    def observe(self, observation: Observation) -> None:
        pass


def alerts_of(session: Session, run_id: int) -> list[dict[str, Any]]:
    return []
