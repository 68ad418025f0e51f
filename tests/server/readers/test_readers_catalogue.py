"""Every format that can be read is named, in messages and in the documents."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from floatscope_server import readers
from floatscope_server.readers import LogFormat
from floatscope_server.readers.catalogue import KNOWN, LOG_FORMATS, WHAT
from floatscope_server.readers.console import CONSOLE

DOCS = Path(__file__).parents[3] / "docs"


def test_no_format_is_forgotten() -> None:
    modules = [
        importlib.import_module(f"{readers.__name__}.{found.name}") for found in pkgutil.iter_modules(readers.__path__)
    ]
    there = [value for module in modules for value in vars(module).values() if isinstance(value, LogFormat)]
    assert {id(log_format) for log_format in there} == {id(log_format) for log_format in LOG_FORMATS}


def test_each_has_a_name_for_people() -> None:
    names = {name for one in LOG_FORMATS for name in (one.more or (one.name,))}
    assert names == WHAT.keys()
    assert CONSOLE.name not in WHAT  # what was found in it has a name
    assert all(what in KNOWN for what in WHAT.values())


def test_the_documents_name_the_same() -> None:
    table = (DOCS / "check.md").read_text().partition("## What it reads")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `") and "`format`" not in line]
    assert [name for row in rows for name in re.findall(r"`([\w-]+)`", row)] == list(WHAT)


def test_outputs_of_tools_hold_no_training() -> None:
    assert {one.name for one in LOG_FORMATS if one.cards} == {name for name in WHAT if "smi" in name}
