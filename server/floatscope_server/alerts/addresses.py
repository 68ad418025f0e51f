"""Where an endpoint may be, and how its address is shown: that of a chat is a password."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from floatscope_server.alerts.connect import Guard
from floatscope_server.alerts.receivers import APPRISE, GENERIC
from floatscope_server.alerts.receivers.targets import Targets
from floatscope_server.responses import Refusal

__all__ = ["check_target", "check_url", "shown"]

_SHOWN = 4


def check_url(url: str, guard: Guard) -> None:
    """``Refusal`` (422) for what no message can be sent to."""
    hint = "give the receiver's address in full, such as https://example.com/hook"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Refusal(422, "bad_url", f"the URL cannot be read: {error}", hint) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refusal(422, "bad_url", "webhooks go to http:// and https:// addresses", hint)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Refusal(422, "bad_url", "the URL holds characters that must be percent-encoded (or Punycode)", hint)
    if parts.username is not None or parts.password is not None or parts.fragment or port == 0:
        raise Refusal(422, "bad_url", "the URL may not hold a user name, a fragment or the port 0", hint)
    try:
        parts.hostname.encode("idna")
    except UnicodeError as error:
        raise Refusal(422, "bad_url", f"the host name cannot be looked up: {error}", hint) from error
    try:
        literal = str(ip_address(parts.hostname))
    except ValueError:
        return  # a name: its address is checked whenever a webhook connects
    if not guard.permits(parts.hostname, literal):
        raise Refusal(
            422,
            "forbidden_address",
            f"webhooks may not connect to {literal}",
            f"start the server with --webhook-allow {literal} (FLOATSCOPE_WEBHOOK_ALLOW) if this receiver is yours",
        )


def check_target(name: str, targets: Targets) -> None:
    """``Refusal`` (422) for a target of apprise that the operator has not named."""
    if name not in targets:
        raise Refusal(
            422,
            "unknown_target",
            "the server's file of targets has no such name",
            "give the name of a line `NAME ADDRESS` in the file that the server was started with: --apprise-file FILE",
        )


def shown(type_: str, url: str) -> str:
    """``url`` as it is shown again: of a chat only the host and the last characters, without the values of a query."""
    if type_ == APPRISE:
        return url
    parts = urlsplit(url)
    start = f"{parts.scheme}://{parts.netloc}"
    if type_ == GENERIC:
        return f"{start}{parts.path}" + ("?…" if parts.query else "")
    return f"{start}/…{url[-_SHOWN:]}"
