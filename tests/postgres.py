"""A PostgreSQL of the tests' own: a cluster in a folder, reached by a socket in it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import psycopg

__all__ = ["Cluster", "programs"]

_DEADLINE_S = 120.0
_USER = "floatscope"
_OLDEST = 15


def programs() -> Path | None:
    """Where ``initdb`` and ``postgres`` are, of the newest version from 15 on; None where they are not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = [path for path in found if int(path.parts[-3]) >= _OLDEST]
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    return None if path is None else Path(path).parent


class Cluster:
    """Made empty; ``fsync=False`` where nothing is to survive. PostgreSQL refuses to run as root."""

    def __init__(self, binaries: Path, *, fsync: bool) -> None:
        self._binaries = binaries
        # Not in pytest's folder: another user may not reach into it, and a socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="floatscope-pg-"))
        self._as: dict[str, str | int] = {}
        if os.geteuid() == 0:
            name = next((n for n in ("postgres", "nobody") if _exists(n)), "nobody")
            entry = pwd.getpwnam(name)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            self._as = {"user": entry.pw_uid, "group": entry.pw_gid}
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        self._options = [] if fsync else ["-c", "fsync=off", "-c", "full_page_writes=off"]
        subprocess.run(
            [
                *(binaries / "initdb", "--pgdata", self._data, "--username", _USER, "--auth", "trust"),
                # Not the order of bytes, which SQLite has: what depends on it shows.
                *("--encoding", "UTF8", "--locale", "C", "--locale-provider", "icu", "--icu-locale", "en-US"),
                "--no-sync",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            **self._as,  # type: ignore[call-overload]
        )
        self.start()

    def start(self) -> None:
        """Run it, and wait until it lets people in."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [
                        *(self._binaries / "postgres", "-D", self._data, "-k", self.folder, "-c", "listen_addresses="),
                        *("-c", "shared_buffers=32MB", "-c", "max_wal_size=256MB", *self._options),
                    ],
                    stderr=log,
                    cwd=self.folder,
                    **self._as,  # type: ignore[call-overload]
                )
            while self._process.poll() is None and not self._answers():
                assert time.monotonic() < deadline, "PostgreSQL does not start"
                time.sleep(0.02)
            if self._process.poll() is None:
                return
            # After a kill, the processes of the one before may not be gone yet.
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: at once, in order; SIGQUIT: as at a power cut of the machine's processes; SIGKILL: harder still."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(_DEADLINE_S)
        self._process = None

    def url(self, name: str) -> str:
        """Of the database ``name``."""
        return f"postgresql://{_USER}@/{name}?host={quote(str(self.folder), safe='')}"

    def create(self, template: str = "template0") -> str:
        """A new database; returns its name."""
        self._made += 1
        name = f"test{self._made}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return name

    def size(self, name: str) -> int:
        """Bytes of a database on disk."""
        with psycopg.connect(self.url(name)) as connection:
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None
        return int(row[0])

    def drop(self, name: str) -> None:
        """Remove a database, whoever uses it."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def remove(self) -> None:
        """Stop it and leave nothing behind."""
        if self._process is not None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
