"""Reads a configuration that anybody may have written: bounded in size, depth and number, and never executed."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from floatscope._doctor._shell import exported_and_options

__all__ = ["Document", "Exponent", "UnreadableError", "read"]

_MOST_BYTES = 256 << 10
"""The longest public configuration of these frameworks has 20 KiB; PyYAML reads some 100 KiB a second."""
_MOST_NODES = 20_000
_DEEPEST = 32
_MOST_KEYS = 1000
"""Of one mapping; all keys of LLaMA-Factory and transformers together are half of that."""
_LARGEST = 1 << 63
"""What no whole number of a configuration exceeds; Python's have no end, and no float can hold some of them."""


class UnreadableError(ValueError):
    """This is no configuration that can be judged; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file. ``values`` of a shell script are its ``--options``, ``environment`` what it exports."""

    path: Path
    kind: str
    """"mapping", "arguments" or "python" """
    values: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


class _Loader(yaml.SafeLoader):
    """Plain data only; a key that comes twice is an error, and 1e-4 a number, as it is for OmegaConf."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen or not isinstance(key.value, str):
                what = "comes twice" if isinstance(key.value, str) else "is no plain word"
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r:.60} {what}", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class Exponent(float):
    """A number as 1e-4, which YAML 1.1 takes for a text."""

    def __new__(cls, text: str) -> Exponent:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str
    """As it is written."""

    @property
    def with_point(self) -> str:
        """As it is a number for everybody."""
        mantissa, _, exponent = self.text.lower().partition("e")
        sign = "" if exponent[:1] in ("-", "+") else "+"
        return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{sign}{exponent}"


# After YAML's own pattern for numbers: what that one knows does not come here.
_Loader.add_implicit_resolver("!exponent", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789."))
_Loader.add_constructor("!exponent", lambda loader, node: Exponent(str(node.value)))


def read(path: Path) -> Document:
    """The configuration in ``path``, by its suffix. ``UnreadableError`` for whatever is none."""
    text = _text(path)
    suffix = path.suffix.lower()
    if suffix == ".py":
        return Document(path=path, kind="python", text=text)
    if suffix in (".yaml", ".yml"):
        return Document(path=path, kind="mapping", values=_mapping(path, _yaml(path, text)))
    if suffix in (".json", ".hjson"):
        return Document(path=path, kind="mapping", values=_mapping(path, _json(path, text)))
    return _arguments(path, text)


def _text(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError(f"{path} is no file; name a configuration file")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UnreadableError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # a zero byte in the name
        raise UnreadableError(f"cannot read {str(path)!r}: {error}") from None
    if len(data) > _MOST_BYTES:
        raise UnreadableError(f"{path} is larger than {_MOST_BYTES >> 10} KiB: no training configuration is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None


def _yaml(path: Path, text: str) -> object:
    try:
        _measure(path, text)
        return yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader
    except (IndexError, KeyError, AttributeError) as error:
        # What PyYAML raises where a value is not of the kind that its tag says, as in !!bool x.
        raise UnreadableError(
            f"{path}: a value does not fit its tag ({type(error).__name__}); remove the tag"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise UnreadableError(f"{path}{where}: {error.problem or 'no YAML'}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"{path}: {str(error).splitlines()[0]}") from None


def _measure(path: Path, text: str) -> None:
    """Before anything is built. References are refused rather than followed: a few hundred bytes of them can stand for
    gigabytes, and no framework's own examples use them."""
    depth = nodes = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            mark = event.start_mark
            line = mark.line + 1 if mark is not None else 0
            raise UnreadableError(
                f"{path}, line {line}: references (*{event.anchor:.30}) are not read; write the value out"
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        nodes += isinstance(event, yaml.NodeEvent)
        if depth > _DEEPEST or nodes > _MOST_NODES:
            raise UnreadableError(_too_much(path))


def _json(path: Path, text: str) -> object:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise UnreadableError(f"{path}: the key {key!r:.60} comes twice")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise UnreadableError(f"{path}, line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise UnreadableError(f"{path} is nested too deeply") from None
    except UnreadableError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise UnreadableError(f"{path}: {error}") from None


def _mapping(path: Path, content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise UnreadableError(f"{path} is {kind}; a training configuration is a mapping of keys to values")
    for nodes, (depth, value) in enumerate(_inside(content)):
        if depth > _DEEPEST or nodes > _MOST_NODES:
            raise UnreadableError(_too_much(path))
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise UnreadableError(f"{path}: a number of {value.bit_length()} bits; no setting is that large")
        if isinstance(value, dict):
            if len(value) > _MOST_KEYS:
                raise UnreadableError(f"{path}: a mapping of more than {_MOST_KEYS} keys; no configuration has as many")
            for key in value:
                if not isinstance(key, str):
                    raise UnreadableError(f"{path}: the key {key!r:.60} is no plain word; put it in quotes")
    return content


def _inside(content: object) -> Iterator[tuple[int, object]]:
    """Every value with its depth, itself first; JSON may nest deeper than Python recurses."""
    waiting = [(1, content)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        if isinstance(value, dict | list | tuple | set):
            inner = value.values() if isinstance(value, dict) else value
            waiting += [(depth + 1, part) for part in inner]


def _too_much(path: Path) -> str:
    return f"{path} is nested deeper than {_DEEPEST} levels or has over {_MOST_NODES} values"


def _arguments(path: Path, text: str) -> Document:
    """A shell script, or a file of arguments: what it exports and every --option of its commands."""
    try:
        environment, values = exported_and_options(text)
    except ValueError as error:
        raise UnreadableError(f"{path}, {error}") from None
    if not environment and not values:
        raise UnreadableError(
            f"{path} has neither --options nor exported variables; name a YAML, JSON, .sh or .py file"
        )
    if len(values) > _MOST_KEYS:
        raise UnreadableError(f"{path} has more than {_MOST_KEYS} options; no training has as many")
    return Document(path=path, kind="arguments", values=values, environment=environment)
