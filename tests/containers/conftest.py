"""Images, made once, and deployments of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.containers import standins
from tests.containers.deployment import Deployment
from tests.containers.engine import ROOT, Engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """With the server's image."""
    with closing(Engine()) as one:
        if not standins.public():
            standins.python(one)
        one.compose("build", "server")
        yield one


@pytest.fixture(scope="session")
def trainers(engine: Engine) -> list[Path]:
    """The example trainer's images, for the processor and for ROCm; the files that Compose needs besides."""
    files: list[Path] = []
    if not standins.public():
        bases = re.findall(r"_BASE:-([^}]+)}", (ROOT / "docker-compose.yml").read_text())
        assert len(bases) == 2
        pytorch, rocm = (f"docker.io/{name}" for name in bases)
        files = [standins.torch(engine, pytorch)]
        engine.podman("tag", pytorch, rocm)
    for name in ("cpu", "rocm"):
        engine.compose("--profile", name, "build", f"trainer-{name}".removesuffix("-rocm"))
    return files


@pytest.fixture(scope="session")
def database_image(engine: Engine) -> None:
    """The database's image, where it is not pulled."""
    if not standins.public():
        (name,) = re.findall(r"image: (postgres:.+)", (ROOT / "docker-compose.yml").read_text())
        standins.database(engine, f"docker.io/library/{name}")


@pytest.fixture
def deploy(engine: Engine) -> Iterator[Callable[..., Deployment]]:
    """Deployments with the environment given; what is left of them at the end is removed."""
    made: list[Deployment] = []

    def make(**environment: str) -> Deployment:
        made.append(Deployment(engine, **environment))
        return made[-1]

    yield make
    for one in made:
        one.remove()
