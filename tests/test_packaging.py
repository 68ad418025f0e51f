"""The distribution as people get it: built, installed into an empty environment, started without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def artefacts(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the built wheel and sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(root)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return out


def _only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def test_wheel_holds_agent_server_page_and_migrations(artefacts: Path) -> None:
    with zipfile.ZipFile(_only(artefacts, "*.whl")) as wheel:
        names = set(wheel.namelist())
    assert {
        "floatscope/__init__.py",
        "floatscope/_doctor/keys.json",
        "floatscope/_stats/cpu.c",
        "floatscope/py.typed",
        "floatscope/wire.py",
        "floatscope_server/app.py",
        "floatscope_server/py.typed",
        "floatscope_server/static/index.html",
    } <= names
    assert any(name.startswith("floatscope_server/migrations/versions/") for name in names)
    strangers = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert strangers == {"floatscope", "floatscope_server", "floatscope.pth"}
    assert not [name for name in names if "node_modules" in name or name.endswith("package.json")]


def test_sdist_can_be_tested(artefacts: Path) -> None:
    with tarfile.open(_only(artefacts, "*.tar.gz")) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "Makefile", "LICENSE", "README.md", "web/index.html", "tests/test_packaging.py"} <= names


@pytest.mark.timeout(300)
def test_installed_wheel_serves_its_page_without_a_network(
    artefacts: Path, root: Path, tmp_path: Path, program: Callable[[str], str]
) -> None:
    environment = tmp_path / "empty"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    wheel = _only(artefacts, "*.whl")
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}[server]"], check=True, env=_bare())
    command = [
        *(program("unshare"), "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
        *(sys.executable, "-m", "tests.e2e.without_network"),
        *(str(environment / "bin" / "floatscope"), program("chromium"), str(tmp_path / "data")),
    ]
    result = subprocess.run(command, capture_output=True, text=True, env=_bare(), check=False, cwd=root)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("loaded http://127.0.0.1:")


def _bare() -> dict[str, str]:
    """An environment that nothing of this test run leaks into."""
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
