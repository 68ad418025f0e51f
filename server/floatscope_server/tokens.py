"""The token file: lines ``SCOPE TOKEN``."""

from __future__ import annotations

import math
import os
import secrets
import string
from pathlib import Path

__all__ = ["SCOPES", "read_token_file"]

SCOPES = ("ingest", "read", "admin")
MIN_TOKEN_BITS = 128


def _bits(token: str) -> float:
    """An upper bound on what a token of these characters can hold."""
    alphabets = (string.hexdigits[:16], string.ascii_letters + string.digits, string.printable)
    size = next((len(a) for a in alphabets if set(token) <= set(a)), len(string.printable))
    return len(token) * math.log2(size) if len(set(token)) > 1 else 0.0


def read_token_file(path: Path) -> tuple[list[tuple[str, str]], bool]:
    """(scope, token) of each line, and whether the file was missing and has been written with fresh ones.

    ``ValueError`` names the line that is wrong.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _parse(path), False
    except OSError as error:
        raise ValueError(f"cannot write the token file {path}: {error.strerror}") from error
    fresh = [(scope, secrets.token_urlsafe(32)) for scope in SCOPES]
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{scope} {token}\n" for scope, token in fresh)
    return fresh, True


def _parse(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the token file {path}: {error}") from error
    tokens: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if len(words) != 2 or words[0] not in SCOPES:
            raise ValueError(f"{path}, line {number}: write SCOPE TOKEN, the scope being ingest, read or admin")
        if _bits(words[1]) < MIN_TOKEN_BITS:
            raise ValueError(
                f"{path}, line {number}: the token is too short for {MIN_TOKEN_BITS} bits; `openssl rand -hex 32` "
                "makes a good one, or remove the file and fresh tokens are written"
            )
        tokens.append((words[0], words[1]))
    if not tokens:
        raise ValueError(f"the token file {path} holds no token; remove it and fresh ones are written")
    return tokens
