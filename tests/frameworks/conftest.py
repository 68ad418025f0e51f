"""What trainings under frameworks need: environments of their own, and a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.frameworks.environments import FRAMEWORKS, LLAMAFACTORY, environment
from tests.frameworks.serving import Server

ROOT = Path(__file__).parents[2]
DEADLINE_S = 600.0


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The Python of an environment with transformers, Accelerate, Lightning, peft and TRL."""
    return environment("frameworks", FRAMEWORKS)


@pytest.fixture(scope="session")
def llamafactory() -> Path:
    """The Python of an environment with LLaMA-Factory."""
    return environment("llamafactory", LLAMAFACTORY)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for the runs of a test file."""
    server = Server(tmp_path_factory.mktemp("server") / "data")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a training: this checkout, no card, no network, one thread."""
    modules = tmp_path_factory.mktemp("modules")
    (modules / "torchaudio.py").touch()  # LLaMA-Factory imports it, for what nobody here does
    paths = [modules, ROOT / "agent", ROOT / "server", ROOT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "TRANSFORMERS_OFFLINE": "1",
    }


@pytest.fixture(scope="session")
def train(variables: dict[str, str]) -> Callable[..., str]:
    """``train(command, run=..., server=...)``: what it prints; with a ``server`` under ``floatscope run``."""

    def train_(
        command: list[str], *, run: str = "", server: Server | None = None, more: Mapping[str, str] | None = None
    ) -> str:
        watched: list[str] = []
        if server is not None:
            named = ["--name", run] if run else []
            watched = [sys.executable, "-m", "floatscope", "run", "--server", server.url, *named, "--"]
        done = subprocess.run(
            [*watched, *command],
            env=variables | dict(more or {}),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    return train_
