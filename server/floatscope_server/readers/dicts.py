"""Records that Hugging Face's Trainer prints: Python dictionaries in a line of text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from floatscope_server.readers.text import number

__all__ = ["dicts"]

_DICT = re.compile(r"\{\s*'[^{}]*\}?")
_PAIR = re.compile(
    r"""'([^']+)'\s*:\s*(?:'([^']*)'|"([^"]*)"|(?:np\.float\d+|np\.int\d+|tensor)\(([-+\w.]{1,40})[^)]{0,80}\)|([-+\w.]+))"""
)
_MARKS = frozenset({"loss", "eval_loss", "learning_rate", "grad_norm", "train_loss", "train_runtime", "eval_runtime"})
"""A dictionary with none of these is something else."""


def dicts(text: str) -> Iterator[tuple[int, int, dict[str, float] | None]]:
    """Where each record in ``text`` begins and ends, and its numbers: bare (nan, inf and -0.0 too), in quotes as of
    transformers 5, or of NumPy. None in place of the numbers: the record does not end."""
    for found in _DICT.finditer(text):
        values: dict[str, float] = {}
        for name, *forms in _PAIR.findall(found.group()):
            value = number(next((form for form in forms if form), ""))
            if value is not None:
                values[name] = value
        if _MARKS.isdisjoint(values) and not any(name.endswith("_loss") for name in values):
            continue
        yield found.start(), found.end(), values if found.group().endswith("}") else None
