"""Whatever else `apprise` knows how to reach. The operator names the targets in a file; over HTTP only their names are
known, since the library connects by itself, past the rules for webhooks."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from floatscope_server.alerts.receivers.answer import Answer
from floatscope_server.alerts.receivers.note import Note

if TYPE_CHECKING:
    import apprise

__all__ = ["Targets", "read_targets"]

INSTALL = 'pip install "floatscope[apprise]"'


def read_targets(path: Path) -> dict[str, str]:
    """{name: address} of the lines ``NAME ADDRESS``; empty ones and those that begin with # do not count.

    ``ValueError`` names the line at fault, never its address, which holds a password.
    """
    found: dict[str, str] = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the file of targets {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or "://" not in words[1]:
            raise ValueError(f"line {number} of {path} is not NAME ADDRESS, such as `team tgram://TOKEN/CHAT`")
        if words[0] in found:
            raise ValueError(f"line {number} of {path} names {words[0]!r} again")
        found[words[0]] = words[1]
    return found


def _library(addresses: Iterable[tuple[str, str]]) -> dict[str, apprise.Apprise]:
    if importlib.util.find_spec("apprise") is None:
        raise ValueError(f"targets of apprise need that library: {INSTALL}")
    import apprise

    # It logs addresses with their passwords at the level of details.
    logging.getLogger("apprise").setLevel(logging.CRITICAL)
    asset = apprise.AppriseAsset(app_id="Floatscope", async_mode=False, http_redirects=False)
    made: dict[str, apprise.Apprise] = {}
    for name, address in addresses:
        one = apprise.Apprise(asset=asset)
        if not one.add(address):
            raise ValueError(f"apprise does not understand the address of the target {name!r}")
        made[name] = one
    return made


class Targets:
    """``ValueError`` for an address that the library does not understand, or where it is missing."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._made = _library(addresses.items()) if addresses else {}

    def __contains__(self, name: str) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def hosts(self, name: str) -> list[str]:
        """The hosts of one's own that a target is at. Services with an address of their own have none: where the others
        have a host, theirs have a token, which must not be looked up."""
        found: list[str] = []
        for server in self._made.get(name, ()):
            templates: tuple[object, ...] = tuple(server.templates)
            if any("{host}" in str(template) for template in templates):
                found.append(str(server.host))
        return found

    def send(self, name: str, note: Note) -> Answer:
        """Send; blocks. The library says only whether it worked."""
        target = self._made.get(name)
        if target is None:
            return Answer(error=f"the server's file of targets does not name {name!r}", gone=True)
        more = note.more(len(note.lines))
        parts = [*(f"{name}: {value}" for name, value in note.facts), *note.lines]
        parts += [part for part in (more, note.link) if part is not None]
        kinds = {"critical": "failure", "warning": "warning", "info": "info", "resolved": "success"}
        told = target.notify(body="\n".join(parts), title=note.title, notify_type=kinds[note.level], body_format="text")
        return Answer() if told else Answer(error="apprise could not deliver the message")
