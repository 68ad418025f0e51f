"""Lines that name their step and what was measured at it: torchtune, torchtitan, nanoGPT, llm.c, LitGPT, verl."""

from __future__ import annotations

import re

from floatscope_server.readers.text import number, whole

__all__ = ["step_line"]

_VALUE = r"([-+]?(?:nan|inf|\d[\d.,]*(?:e[-+]?\d+)?))"
_TUNE = re.compile(r"^Step (\d+) \| (\S+:\S+.*)")
_VERL = re.compile(r"\bstep:(\d+) - (\S+:\S+.*)")
_TITAN = re.compile(r"\bstep:\s*(\d+)\s+(loss:\s.*)")
_GPT = re.compile(rf"^iter (\d+): loss {_VALUE}, time ([\d.]+)ms", re.IGNORECASE)
_GPT_EVAL = re.compile(rf"^step (\d+): train loss {_VALUE}, val loss {_VALUE}", re.IGNORECASE)
_LLM_C = re.compile(
    rf"^step\s+(\d+)/\d+ \|\s+loss\s+{_VALUE}.*?\|\s+norm\s+{_VALUE}.*?\|\s+lr\s+{_VALUE}\s+\| ([\d.]+) ms",
    re.IGNORECASE,
)
_LIT = re.compile(
    rf"\bstep (\d+) \| loss train: {_VALUE}, val: (?:n/a|{_VALUE}) \| iter time: ([\d.]+) ms", re.IGNORECASE
)
_PAIR = re.compile(rf"([A-Za-z][\w./@-]*):\s*{_VALUE}(?![\w(])", re.IGNORECASE)


def _number(text: str) -> float | None:
    """With separators of thousands or without."""
    return number(text.rstrip(".,").replace(",", ""))


def _pairs(text: str) -> dict[str, float]:
    return {name: value for name, shown in _PAIR.findall(text) if (value := _number(shown)) is not None}


def _named(names: tuple[str, ...], shown: tuple[str | None, ...]) -> dict[str, float]:
    return {
        name: value
        for name, text in zip(names, shown, strict=True)
        if text is not None and (value := _number(text)) is not None
    }


_SHAPES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (_GPT, ("loss", "iteration time (ms)")),
    (_GPT_EVAL, ("train loss", "val loss")),
    (_LLM_C, ("loss", "norm", "lr", "iteration time (ms)")),
    (_LIT, ("loss train", "val loss", "iteration time (ms)")),
)


def step_line(text: str) -> tuple[int, dict[str, float]] | None:
    """The step of a line and its values by their names; None where it is none of these lines."""
    for pattern in (_TUNE, _VERL, _TITAN):
        if found := pattern.search(text):
            values = _pairs(found[2])
            return (whole(found[1]), values) if values else None
    for pattern, names in _SHAPES:
        if found := pattern.search(text):
            return whole(found[1]), _named(names, found.groups()[1:])
    return None
