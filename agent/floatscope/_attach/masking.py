"""Keeps secrets and user names out of what is told of a run: of names, of texts, of command lines.

Two nets. What is called like a secret is masked whatever it is. What looks like one is masked whatever it is called:
credentials in addresses, tokens with the prefixes of those who issue them, long random words. User names in paths go.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from floatscope._record import encodable

__all__ = ["MASK", "is_secret", "masked", "masked_command", "plain"]

MASK = "***"
_LONGEST = 512
"""Characters of a text; a server takes no longer ones."""
_LOOKED_AT = 8192
"""Characters of a text in which secrets are looked for. Of what comes after these nothing is shown."""
_COMMAND_BYTES = 64 << 10
"""Of all words of a command line together; a server takes a quarter of a MiB for all that is told of a run."""
_MOST = 400
"""Entries of one mapping or list."""
_DEEPEST = 4

_SECRET_WORDS = frozenset(
    (
        *("apikey", "auth", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "dsn", "jwt"),
        *("key", "oauth", "passphrase", "passwd", "password", "pat", "pin", "pwd", "sas", "secret", "secrets"),
        *("session", "sessionid", "signature", "ssh", "token", "webhook"),
    )
)
_SECRET_PARTS = ("passw", "apikey", "credential", "accesskey", "privatekey", "authtoken", "accesstoken")
_PASS = re.compile(r"(?:^|db|user|admin|root|smtp|sql|proxy|login)[\W_]*pass(?:code)?$", re.IGNORECASE)
_NAME = re.compile(r"-{0,2}[A-Za-z_][\w.\-]{0,80}")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_NAMED = re.compile(
    r"""(?P<name>[A-Za-z_][\w.\-]{0,80})\\*["']?\s*[:=]\s*"""  # an assignment, in JSON inside of a text as well
    r"""|(?P<option>--?[A-Za-z][\w.\-]{0,80})\s+(?!-)"""
)
_VALUE = re.compile(
    r"""(?P<open>\\*["']).*?(?P<end>(?<!\\)(?P=open)|\Z)"""  # up to a quote that is escaped as the first one is
    r"""|\[[^\]]*\]?"""
    r"""|(?:-[ \t]+\S+\s*)+"""  # the entries of a YAML list
    r"""|[^\s"',;&}\])]+""",
    re.DOTALL,
)
# Each begins in few places, or is bounded: with a text of one long word others take the square of its length.
_PATTERNS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*-----.*?(-----END [A-Z ]*-----|$)", re.DOTALL), MASK),
    # A password may hold an @ of its own: up to the last one before the path.
    (re.compile(r"(?P<kept>[A-Za-z][A-Za-z0-9+.\-]{0,30}://)[^\s/]*@"), rf"\g<kept>{MASK}@"),
    (
        re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{0,30}://[^\s\"']+"),
        lambda found: re.sub(r"(?<=[?#]).+", MASK, found[0]),
    ),
    # Who knows such an address may write there: chats' webhooks, bots.
    (
        re.compile(r"(?P<kept>://[^\s\"']{0,200}?/(?:services|webhooks?|webhookb2|hooks?|bot)[/\d])[^\s\"'?#]{8,}"),
        rf"\g<kept>{MASK}",
    ),
    (re.compile(r"(?P<kept>\b(?:Bearer|Basic|Token)\s+)[^\s\"']{6,}", re.IGNORECASE), rf"\g<kept>{MASK}"),
    (
        re.compile(
            r"\b(?:hf_|sk-|sk_|pk_|rk_|gh[pousr]_|github_pat_|glpat-|gsk_|xox[abeprs]-|dckr_pat_|pypi-|npm_|nvapi-|AIza|"
            r"ya29\.|r8_|lin_api_|local-|dop_v1_|SG\.)[\w.\-]{12,}"
        ),
        MASK,
    ),
    (re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{12,}"), MASK),
    (re.compile(r"\beyJ[\w\-]{8,}\.[\w\-]+(?:\.[\w\-]+)?"), MASK),
    (
        re.compile(r"[\w.+\-]+(?P<kept>@[\w\-]+(?:\.[\w\-]+)+)?"),
        lambda found: found[0] if found["kept"] is None else f"{MASK}{found['kept']}",
    ),
    # Letters and digits in one word of 32 or more, as no word that a person writes.
    (re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{32,}(?![A-Za-z0-9])"), MASK),
    # A secret key of AWS: 40 characters of base64, small and capital letters and digits among them.
    (
        re.compile(
            r"(?<![A-Za-z0-9/+])(?=[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=]))(?=\S*[a-z])(?=\S*[A-Z])(?=\S*[0-9])[A-Za-z0-9+]"
            r"[A-Za-z0-9/+]{39}"
        ),
        MASK,
    ),
)
_CUT_CREDENTIALS = re.compile(r"(?P<kept>://)[^\s/]*\Z")
_HOMES = re.compile(r"(?P<start>^|[^\w.~])(?:/home/|/Users/|/export/home/|[A-Za-z]:\\Users\\|\\Users\\)[^/\\\s\"':,;]+")
_ROOT = re.compile(r"(?P<start>^|[^\w./~])/root(?=/|$|[\s\"':,;])")


def is_secret(name: str, value: object = "") -> bool:
    """Whether what is called ``name`` is a secret. A number is one only by the name of a password."""
    words = {word.lower() for word in _WORD.findall(name)}
    joined = re.sub(r"[^a-z]", "", name.lower())
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, int | float) or (isinstance(value, str) and re.fullmatch(r"[-+]?[0-9.]+", value)):
        return bool(words & {"pin", "pwd", "passwd", "password", "secret", "passphrase"}) or "passw" in joined
    return (
        bool(words & _SECRET_WORDS) or any(part in joined for part in _SECRET_PARTS) or _PASS.search(name) is not None
    )


def masked(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """``text`` without secrets and without user names, at most 512 characters of it."""
    # Before anything is cut off: half of a secret may look like none.
    text, more = encodable(text[:_LOOKED_AT]), len(text) > _LOOKED_AT
    if more:
        text = _CUT_CREDENTIALS.sub(rf"\g<kept>{MASK}", text)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    text = _mask_values(text)
    home = environment.get("HOME", "").rstrip("/")
    if home.count("/") > 1:
        text = re.sub(rf"{re.escape(home)}(?=/|$|[\s\"':,;])", "~", text)
    text = _ROOT.sub(r"\g<start>~", _HOMES.sub(r"\g<start>~", text))
    for name in _user_names(environment):
        text = re.sub(rf"(?:(?<=[/\\=:~])|^){re.escape(name)}(?=[/\\@:\s\"',;]|$)", MASK, text)
    if more and len(text) <= _LONGEST:
        # So much was masked that its end would show, where a word was cut that may be half of a secret.
        text = f"{text.rpartition(' ')[0]}..."
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _mask_values(text: str) -> str:
    """Of what is called a secret in ``text`` the whole value goes: a word, a quotation, a list."""
    told: list[str] = []
    at = 0
    while found := _NAMED.search(text, at):
        told.append(text[at : found.end()])
        at = found.end()
        value = _VALUE.match(text, at)
        if value is None:
            continue
        first, last = value["open"] or "", value["end"] or ""
        inside = value[0][len(first) : len(value[0]) - len(last)]
        if is_secret(found["name"] or found["option"], inside) and not inside.startswith("//"):
            told.append(f"{first}{MASK}{last}")
            at = value.end()
    return "".join((*told, text[at:]))


def _user_names(environment: Mapping[str, str]) -> list[str]:
    names = {environment.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    names.add(environment.get("HOME", "").rstrip("/").rpartition("/")[2])
    return sorted(name for name in names if len(name) > 1 and name != "root")


def masked_command(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """A command line without secrets: ``--api-key VALUE``, ``--api-key=VALUE``, ``key=VALUE``, and what looks so."""
    told: list[str] = []
    hide = several = False
    room = _COMMAND_BYTES
    # Before they are looked at: a shell may have put in the names of all files of a data set.
    for word in words[:_MOST]:
        option = word.startswith("-")
        if hide and not option:
            told.append(MASK)
            hide = several
            continue
        hide = option and "=" not in word and is_secret(word, "text")
        several = hide and word.endswith("s")
        name, equals, value = word.partition("=")
        # All of it: a shell has taken the quotes away.
        whole = equals and _NAME.fullmatch(name) and is_secret(name, value)
        told.append(f"{name}={MASK}" if whole else masked(word, environment))
        room -= len(told[-1].encode())
        if room < 0:
            told[-1] = "..."
            break
    return told


def plain(value: object, name: str = "", *, depth: int = 0, environment: Mapping[str, str] = os.environ) -> object:
    """``value`` as numbers, texts, lists and mappings, without secrets; of anything else the name of its type.

    Of mappings and lists at most 400 entries, four levels deep.
    """
    if is_secret(name, value):
        # Settings may be called so too: which ones there are, and their numbers, show.
        return _without_texts(value, environment) if isinstance(value, Mapping) else MASK
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else str(value)
    if isinstance(value, str):
        return masked(str(value), environment)
    if isinstance(value, os.PathLike):
        return masked(os.fsdecode(value), environment)
    if depth < _DEEPEST and isinstance(value, Mapping):
        some = list(value.items())[:_MOST]
        return {
            masked(str(key), environment): plain(one, str(key), depth=depth + 1, environment=environment)
            for key, one in some
        }
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        some_values = list(value)[:_MOST]
        return [plain(one, name, depth=depth + 1, environment=environment) for one in some_values]
    return type(value).__name__


def _without_texts(value: Mapping[object, object], environment: Mapping[str, str]) -> dict[str, object]:
    some = list(value.items())[:_MOST]
    return {
        masked(str(key), environment): one if one is None or isinstance(one, bool | float) or type(one) is int else MASK
        for key, one in some
    }
