"""Responses in JSON, errors among them."""

from __future__ import annotations

from fastapi import HTTPException, Response

from floatscope_server.jsontext import encode_json

__all__ = ["JSONText", "Refusal", "busy", "error_body"]


class JSONText(Response):
    """A JSON response made by ``encode_json``."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return encode_json(content)


def error_body(code: str, message: str, hint: str) -> dict[str, dict[str, str]]:
    """The body of every error."""
    return {"error": {"code": code, "message": message, "hint": hint}}


class Refusal(HTTPException):
    """An error response with a code and a hint."""

    def __init__(self, status: int, code: str, message: str, hint: str) -> None:
        super().__init__(status, detail=error_body(code, message, hint))


def busy() -> Refusal:
    """The error response of a server that has more to answer than it can."""
    refusal = Refusal(503, "busy", "too many questions at once", "try again in a moment")
    refusal.headers = {"retry-after": "2"}
    return refusal
