"""The command as a fixture."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from floatscope_server.commands import check


@dataclass(frozen=True)
class Answer:
    """What the command printed; ``content`` is the JSON, None without ``--json`` or where there is none."""

    status: int
    out: str
    err: str
    content: Any

    def kinds(self, *severities: str) -> list[str]:
        """The kinds of the alerts of these severities, or of all."""
        return [a["kind"] for a in self.content["alerts"] if not severities or a["severity"] in severities]


Checks = Callable[..., Answer]


@pytest.fixture
def checks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Checks:
    """Run ``floatscope check --json`` on files, or on content that is written to one first."""

    def run(*files: Path | str | bytes, as_json: bool = True) -> Answer:
        paths = []
        for i, file in enumerate(files):
            if isinstance(file, Path):
                paths.append(file)
                continue
            path = tmp_path / f"log-{i}"
            path.write_bytes(file.encode() if isinstance(file, str) else file)
            paths.append(path)
        parser = argparse.ArgumentParser()
        check.configure(parser)
        status = check.run(parser.parse_args([*map(str, paths), *(["--json"] if as_json else [])]))
        out, err = capsys.readouterr()
        return Answer(status, out, err, json.loads(out) if as_json and out else None)

    return run
