"""The address of a server as people write it and the one to connect to; what a token can be."""

from __future__ import annotations

from urllib.parse import urlsplit

__all__ = ["DEFAULT_SERVER", "ingest_url", "why_no_token"]

DEFAULT_SERVER = "http://127.0.0.1:6160"

_SCHEMES = {"http": "ws", "https": "wss"}


def ingest_url(server: str) -> str:
    """The WebSocket address of a server given as http(s)://HOST[:PORT][/PATH]; ``ValueError`` says what to write."""
    try:
        parts = urlsplit(server)
        host, port = parts.hostname, parts.port
        # Names in other scripts are looked up in this form; it has limits of its own.
        (host or "").encode("idna")
    except ValueError as error:
        raise ValueError(f"server: {server!r} is no address ({error}); write it as http://HOST:PORT") from None
    if parts.scheme not in _SCHEMES or not host or port == 0 or any(c.isspace() for c in server):
        raise ValueError(f"server: expected http://HOST:PORT or https://HOST:PORT, got {server!r}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("server: leave out user, query and fragment of the address; a token is given separately")
    return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}/ingest/v1"


def why_no_token(token: str) -> str:
    """Why ``token`` cannot travel in a header; empty when it can. It is not in the text, which is for logs."""
    wrong = next((at for at, character in enumerate(token, start=1) if not "!" <= character <= "~"), 0)
    if not wrong:
        return ""
    return f"character {wrong} of {len(token)} is none of printable ASCII; a line break at the end belongs to no token"
