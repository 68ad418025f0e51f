"""HTTP: the report of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Response
from sqlmodel import Session

from floatscope_server.export.source import of_session
from floatscope_server.report.document import CONTENT_SECURITY_POLICY, file_name, report
from floatscope_server.services import Running

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["runs"], default_response_class=Response)


@router.get("/runs/{run}/report", responses={200: {"content": {"text/html": {}}}})
async def run_report(
    run: str,
    services: Running,
    language: Annotated[Literal["en", "zh"], Query(description="Of all words but names.")] = "en",
) -> Response:
    """The run as one HTML file that opens without a server: verdict, alerts, charts, heat maps, configuration."""

    def question(session: Session) -> str:
        return report(of_session(session, services.reader), run, language=language, at=datetime.now(UTC))

    content = await services.answer(question)
    name = file_name(run, language)
    plain = name.encode("ascii", "replace").decode().replace("?", "-")
    headers = {
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name)}",
        "content-security-policy": f"{CONTENT_SECURITY_POLICY}; frame-ancestors 'none'",
    }
    # A lone half of a surrogate pair, which UTF-8 has no bytes for, is spelled by ``readable`` already.
    return Response(content.encode(), media_type="text/html", headers=headers)
