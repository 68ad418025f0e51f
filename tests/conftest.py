"""What every test shares: how a missing component is handled."""

from __future__ import annotations

import shutil
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.needs import needs


def pytest_configure() -> None:
    # Whatever a shell starts in the background ignores it, and so would all programs that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def spools_apart(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes to the user's spool, nor finds what another one has left."""
    monkeypatch.setenv("FLOATSCOPE_DIR", str(tmp_path_factory.getbasetemp() / "spools" / uuid.uuid4().hex))


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """Path of an installed program; leaves the test out where it is missing, fails it under CI=true."""

    def find(name: str) -> str:
        path = shutil.which(name)
        needs(path, name)
        assert path is not None
        return path

    return find


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).parents[1]
