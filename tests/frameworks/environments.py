"""Environments of their own for frameworks, whose requirements hold others back: built once, then reused.

They lie under FLOATSCOPE_TEST_ENVIRONMENTS, or else in the user's cache, by what is in them. torch is that of the
interpreter of the tests, and not installed again; nothing else of it is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import torch

from tests.needs import needs

__all__ = ["DEEPSPEED", "FRAMEWORKS", "LLAMAFACTORY", "MEGATRON", "environment"]

_AGENT = ("numpy>=1.26", "msgspec>=0.19", "websockets>=15", "pytest>=8.3", "pytest-timeout>=2.3")
FRAMEWORKS = ((*_AGENT, "accelerate>=1.11", "lightning>=2.6", "peft>=0.18", "transformers>=5.6", "trl>=0.24"),)
LLAMAFACTORY = (
    (
        *_AGENT,
        "transformers==5.6.0",
        "peft==0.18.1",
        "trl==0.24.0",
        "accelerate==1.11.0",
        "datasets==4.0.0",
        "pydantic<2.13",
        "sentencepiece",
        "fire",
        "omegaconf",
        "pyyaml",
        "einops",
        "scipy",
        "av",
        "pillow",
        "tyro",
    ),
    # Its own list would bring torchvision and torchaudio, of other builds than torch.
    ("--no-deps", "llamafactory==0.9.5"),
)
DEEPSPEED = ((*_AGENT, "deepspeed"),)
MEGATRON = ((*_AGENT, "megatron-core>=0.16"),)
_PIP_S = 900.0


def _home() -> Path:
    given = os.environ.get("FLOATSCOPE_TEST_ENVIRONMENTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else cache / "floatscope" / "test-environments"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time: tests run in several."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def environment(name: str, installs: Sequence[Sequence[str]]) -> Path:
    """The Python of an environment with what ``installs`` says, each the arguments of one ``pip install``."""
    contents = "\n".join((sys.version, str(torch.__version__), torch.__file__, *map(" ".join, installs)))
    folder = _home() / f"{name}-{hashlib.sha256(contents.encode()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock")):
        python = folder / "bin" / "python"
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            [packages] = folder.glob("lib/python*/site-packages")
            # Outside of what pip takes for the environment: it never removes anything from there.
            (packages / "torch.pth").write_text(str(_torch_alone(folder / "torch")))
            torchrun = python.with_name("torchrun")
            torchrun.write_text(f'#!/bin/sh\nexec {python} -m torch.distributed.run "$@"\n')
            torchrun.chmod(0o755)
            keep = folder / "constraints.txt"
            keep.write_text(f"torch=={torch.__version__}\n")
            for arguments in installs:
                _install(python, ["--constraint", str(keep), *arguments])
            (folder / "complete").touch()
    return python


def _torch_alone(folder: Path) -> Path:
    """``folder`` with links to what belongs to torch, so that its other neighbours are not found."""
    folder.mkdir()
    home = Path(torch.__file__).parents[1]
    names = {file.parts[0] for file in distribution("torch").files or () if file.parts[0] != ".."}
    for name in sorted(names | {"nvidia", "triton"}):
        if (home / name).exists() and name != "__pycache__":
            (folder / name).symlink_to(home / name)
    return folder


def _install(python: Path, arguments: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S)
    why = (installed.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
    needs(installed.returncode == 0, f"{arguments[-1]}, which pip could not install ({why}); it")
