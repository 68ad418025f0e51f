"""The one exception of the client."""

from __future__ import annotations

__all__ = ["ClientError"]


class ClientError(Exception):
    """The server has no answer, or cannot be reached.

    ``code`` is the server's word for it ("unknown_run", "invalid", ...), or "unreachable" or "no_answer" (not a
    floatscope server's); ``message`` says what is wrong and ``hint`` what to do. ``status`` is the HTTP status, None
    without one.
    """

    def __init__(self, code: str, message: str, hint: str = "", status: int | None = None) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.code = code
        self.message = message
        self.hint = hint
        self.status = status
