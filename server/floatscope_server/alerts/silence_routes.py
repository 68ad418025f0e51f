"""HTTP: silences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from sqlmodel import Session, col, select

from floatscope_server.alerts.models import Silence
from floatscope_server.alerts.notices import silences_at
from floatscope_server.alerts.views import silence_view
from floatscope_server.audit import Actor, record
from floatscope_server.responses import Refusal
from floatscope_server.rules import RULES
from floatscope_server.services import Running

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/silences", tags=["alerts"])

_LONGEST_S = 400 * 24 * 3600.0


class SilenceIn(BaseModel):
    """Nobody is told of these alerts for ``seconds``; what is left out covers all."""

    seconds: float = Field(gt=0, le=_LONGEST_S)
    run: str | None = Field(default=None, max_length=200)
    kind: str | None = Field(default=None, max_length=100)
    layer: str | None = Field(default=None, max_length=1000)
    comment: str = Field(default="", max_length=1000)


class SilenceOut(BaseModel):
    """A silence that has not ended."""

    id: int
    run: str | None
    kind: str | None
    layer: str | None
    until: str
    comment: str
    created_at: str


@router.get("", response_model=list[SilenceOut])
def list_silences(services: Running) -> list[dict[str, Any]]:
    """The silences that have not ended."""
    with services.store.read() as session:
        return [silence_view(silence) for silence in silences_at(session, datetime.now(UTC))]


@router.post("", response_model=SilenceOut, status_code=201)
def add_silence(services: Running, actor: Actor, wanted: SilenceIn) -> dict[str, Any]:
    """Tell nobody of some alerts for a while. They are judged, stored and shown as ever."""
    if wanted.kind is not None and wanted.kind not in RULES:
        raise Refusal(422, "unknown_kind", f"there is no rule {wanted.kind[:60]!r}", f"one of {', '.join(RULES)}")

    def write(session: Session) -> dict[str, Any]:
        now = datetime.now(UTC)
        silence = Silence(
            run=wanted.run,
            kind=wanted.kind,
            layer=wanted.layer,
            until=now + timedelta(seconds=wanted.seconds),
            comment=wanted.comment,
            created_at=now,
        )
        session.add(silence)
        session.flush()
        record(session, actor, "silence.add", silence.id, wanted.model_dump(exclude_none=True))
        return silence_view(silence)

    return services.store.write(write)


@router.delete("/{silence_id}", status_code=204)
def end_silence(services: Running, actor: Actor, silence_id: Annotated[int, Path(ge=1, lt=1 << 63)]) -> None:
    """End a silence before its time."""

    def write(session: Session) -> bool:
        silence = session.exec(select(Silence).where(col(Silence.id) == silence_id)).one_or_none()
        if silence is None:
            return False
        silence.until = min(silence.until, datetime.now(UTC))
        session.add(silence)
        record(session, actor, "silence.end", silence_id)
        return True

    if not services.store.write(write):
        raise Refusal(404, "unknown_silence", f"there is no silence {silence_id}", "GET /api/v1/silences")
