"""Signing in: a token becomes a cookie that scripts cannot read."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from floatscope_server.auth import COOKIE, SESSION_DAYS
from floatscope_server.responses import JSONText, Refusal
from floatscope_server.services import Running

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/session", tags=["session"])


class Credentials(BaseModel):
    """A token with the scope read or admin."""

    token: str = Field(max_length=1000)


@router.get("")
def current(request: Request, services: Running) -> Response:
    """How the server is protected, and what this browser may do."""
    scope = services.gatekeeper.scope_of(request)
    return JSONText({"mode": services.gatekeeper.mode, "scope": scope if scope in {"read", "admin"} else None})


@router.post("", status_code=204)
def sign_in(credentials: Credentials, request: Request, services: Running) -> Response:
    """Open a session; the cookie is HttpOnly and SameSite=Strict."""
    response = Response(status_code=204)
    if services.gatekeeper.mode == "local":
        return response
    opened = services.gatekeeper.open_session(credentials.token)
    if opened is None:
        raise Refusal(
            401,
            "token",
            "this token does not open the dashboard",
            "use the read or admin token of the server's token file",
        )
    response.set_cookie(
        COOKIE,
        opened[0],
        max_age=SESSION_DAYS * 86400,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.delete("", status_code=204)
def sign_out(request: Request, services: Running) -> Response:
    """End the session."""
    services.gatekeeper.close_session(request)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response
