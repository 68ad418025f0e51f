"""A shell script as far as it can be read without a shell: what it assigns, and the options of its commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

__all__ = ["exported_and_options"]

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_UNKNOWN = re.compile(r"[$`]")
_REDIRECTION = re.compile(r"(?:\d*|&)[<>].*", re.DOTALL)
_BETWEEN = frozenset(("&&", "||", "|", "|&", "&", ";"))
"""Words between two commands."""
_LONGEST_VALUE = 1 << 14
"""Of a variable that stands for others: one that doubles itself on each line of a script has no end."""
_PARTS = re.compile(
    r"""(?P<joined>\\\n)
    |(?P<comment>(?:(?<=\s)|\A)\#[^\n]*)
    |(?P<kept>\\.|'[^']*'|"(?:\\.|[^"\\])*")
    |(?P<body>(?<!<)<<-?[ \t]*(?P<quote>['"]?)(?P<end>\w+)(?P=quote))
    |(?P<open>['"])
    |(?P<line>\n)
    |(?P<other>[^\\\s\#'"<]+|.|\s)""",
    re.DOTALL | re.VERBOSE,
)


def exported_and_options(text: str) -> tuple[dict[str, str], dict[str, object]]:
    """Variables and ``--options``, as their parsers take them. Variables of the script are put in where they are known.
    Where they are not, the variable is left out, and the option is None.

    ``ValueError``, with the line, where a quotation does not end.
    """
    environment: dict[str, str] = {}
    options: dict[str, object] = {}
    known: dict[str, str] = {}
    for number, line in _lines(text):
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        for command in _commands(words):
            while command and (command[0] == "export" or _ASSIGNMENT.fullmatch(command[0])):
                if match := _ASSIGNMENT.fullmatch(command.pop(0)):
                    known[match[1]] = value = _filled(match[2], known)[:_LONGEST_VALUE]
                    environment.pop(match[1], None)
                    if not _UNKNOWN.search(value):
                        environment[match[1]] = value
            options |= _options(list(_expanded(command, known)))
    return environment, options


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Each with its number: a quotation and a backslash at the end go on in the next, the text of a here-document and
    comments are none."""
    line, number, at, ends = "", 1, 0, ""
    while match := _PARTS.match(text, at):
        at = match.end()
        kind = match.lastgroup
        if match["open"]:
            raise ValueError(f"line {text.count(chr(10), 0, match.start()) + 1}: No closing quotation")
        if match["body"]:
            ends = match["end"]
        elif match["joined"]:
            line += " "
        elif kind == "line":
            yield number, line
            if ends:
                last = re.compile(rf"^\t*{re.escape(ends)}$", re.MULTILINE).search(text, at)
                at, ends = (last.end() if last else len(text)), ""
            line, number = "", text.count("\n", 0, at) + 1
        elif not match["comment"]:
            line += match[0]
    yield number, line


def _commands(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    skip = False
    for word in words:
        if word in _BETWEEN:
            yield command
            command = []
        elif _REDIRECTION.fullmatch(word):
            # "> log" has its file in the next word, ">log" in its own.
            skip = word[-1] in "<>"
        elif skip:
            skip = False
        else:
            command.append(word.removesuffix(";"))
            if word.endswith(";"):
                yield command
                command = []
    yield command


def _filled(word: str, known: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), word)


def _expanded(words: list[str], known: Mapping[str, str]) -> Iterator[str]:
    for word in words:
        filled = _filled(word, known)
        if _VARIABLE.fullmatch(word):
            # A variable may hold several words.
            yield from filled.split()
        else:
            yield filled


def _options(words: list[str]) -> dict[str, object]:
    # What stands before the script is the launcher's.
    start = next((n for n, word in enumerate(words) if word.endswith(".py") or word == "train"), -1)
    found: dict[str, list[str]] = {}
    name = None
    for word in words[start + 1 :]:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = [value] if equals else []
        elif name is not None:
            found[name].append(word)
    return {name: _value(words) for name, words in found.items() if not _UNKNOWN.search(name)}


def _value(words: list[str]) -> object:
    if not words:
        return True
    if any(_UNKNOWN.search(word) for word in words):
        return None
    return _scalar(words[0]) if len(words) == 1 else " ".join(words)


def _scalar(text: str) -> object:
    """A word of a command line as the parsers take it: number, truth value, or itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        # No float holds a number of so many digits.
        return value if len(text) < 300 else text
    return text
