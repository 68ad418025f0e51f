"""What an operator can set."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["DEFAULT_PORT", "Settings"]

DEFAULT_PORT = 6160
_MIB = 1 << 20
_POSTGRES = ("postgresql://", "postgres://")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Configuration of one server; checked when built, a mistake raises ``ValueError`` that says what to do."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but a loopback address needs ``token_file``."""

    port: int = DEFAULT_PORT
    """TCP port; 0 lets the system choose."""

    data: Path = Path("floatscope-data")
    """Folder of the database; made if it is missing, used by one server at a time."""

    db: str | None = field(default=None, repr=False)
    """Database URL, ``sqlite:///PATH`` or ``postgresql://...``. By default ``floatscope.db`` in ``data``."""

    token_file: Path | None = None
    """Lines ``SCOPE TOKEN``, scope being ingest, read or admin. Written with fresh tokens if it is missing."""

    allowed_hosts: tuple[str, ...] = ()
    """Host names, without port, under which browsers may reach the server besides its own address."""

    public_url: str | None = None
    """Where people reach this server, such as ``https://floatscope.example``; links in webhooks begin with it."""

    webhook_allow: tuple[str, ...] = ()
    """Hosts and CIDRs that are not public and that webhooks may connect to all the same."""

    apprise_file: Path | None = None
    """Lines ``NAME ADDRESS``: targets that endpoints of the type apprise may name. They are reached by that library,
    which connects by itself."""

    commit_interval_s: float = 0.02
    """Shortest time between two commits of telemetry, in seconds."""

    stalled_after_s: float = 60.0
    """A run without a new step for this long, in seconds, is stalled."""

    lost_after_s: float = 60.0
    """A run whose agents have all been silent for this long, in seconds, and said no goodbye is lost. An agent speaks
    every 10 s; one that comes back brings its run back."""

    alert_repeat_s: float = 4 * 3600.0
    """Seconds after which an alert above info that still fires and that nobody has acknowledged is told again; 0 for
    never."""

    max_layers: int = 50_000
    """Layers of one run; further names are left out and declared as a gap."""

    max_runs: int = 100_000
    """Runs in the store; a further name is refused."""

    dump_bytes: int = 1024 * _MIB
    """Bytes of the flight recorders' dumps of one run; then the oldest go, those of open alerts last."""

    queue_bytes: int = 64 * _MIB
    """Bytes of telemetry received and not yet committed, over all agents; then sockets are not read."""

    viewer_messages: int = 256
    """Messages waiting for one browser; then they are dropped and the browser is told to fetch anew."""

    viewer_bytes: int = 8 * _MIB
    """Bytes waiting for one browser; then as above."""

    max_viewers: int = 400
    """Browsers connected at once."""

    cache_bytes: int = 96 * _MIB
    """Decoded telemetry kept for the next query."""

    answer_bytes: int = 8 * _MIB
    """Answers kept for the next one who asks the same."""

    max_body_bytes: int = 2 * _MIB
    """Size of one HTTP request body; a longer one is answered 413."""

    user_timeout_s: float = 30.0
    """Seconds after which a peer that acknowledges nothing is cut off (TCP_USER_TIMEOUT)."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port {self.port} is no TCP port; choose one from 1 to 65535, or 0 for a free one")
        if self.db is not None and not self.db.startswith("sqlite:///") and not self.postgres:
            # What stands before the first colon is no password.
            scheme = self.db.partition(":")[0] if ":" in self.db else ""
            raise ValueError(
                f"database {scheme!r} is not supported: leave --db out, or write sqlite:///PATH or "
                "postgresql://USER@HOST/DATABASE"
            )
        if self.db == "sqlite:///":
            raise ValueError("the database sqlite:/// names no file: leave --db out, or write sqlite:///PATH")
        for entry in self.webhook_allow:
            if not _names_an_address(entry):
                raise ValueError(f"--webhook-allow {entry!r} is neither a host name nor a network such as 10.0.0.0/8")
        if self.public_url is not None and not self.public_url.startswith(("http://", "https://")):
            raise ValueError(f"public_url {self.public_url!r} is no address; write https://NAME or http://NAME:PORT")
        if not self.loopback and self.token_file is None:
            raise ValueError(
                f"listening on {self.host} would let anybody in; add --token-file FILE (it is written with fresh "
                "tokens if it is missing), or listen on 127.0.0.1"
            )
        for name in ("commit_interval_s", "stalled_after_s", "lost_after_s", "user_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if self.dump_bytes < 0:
            raise ValueError(f"dump_bytes {self.dump_bytes} is no size; write a number of bytes, 0 to keep no dumps")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str | None:
        """Where links to this server begin, without a slash at the end; None where it does not know its address: a
        port of the system's choice, or listening on all addresses."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        try:
            everywhere = ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            everywhere = not self.host
        if everywhere or not self.port:
            return None
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def postgres(self) -> bool:
        """Whether PostgreSQL holds the store."""
        return self.db is not None and self.db.startswith(_POSTGRES)

    @property
    def database(self) -> Path:
        """The SQLite file, where it is one."""
        assert not self.postgres
        if self.db is None:
            return self.data / "floatscope.db"
        return Path(self.db.removeprefix("sqlite:///"))

    @classmethod
    def of_store(
        cls, environ: Mapping[str, str] = os.environ, *, data: Path | None = None, db: str | None = None
    ) -> Settings:
        """Only where the store is, from ``FLOATSCOPE_DATA`` and ``_DB``: what reads it needs no more. A folder or a
        database that is given is meant, whatever the environment names."""
        if data is not None or db is not None:
            return cls.from_env({}, data=data, db=db)
        names = ("FLOATSCOPE_DATA", "FLOATSCOPE_DB")
        return cls.from_env({name: environ[name] for name in names if name in environ})

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, **overrides: object) -> Settings:
        """Settings from ``FLOATSCOPE_HOST``, ``_PORT``, ``_DATA``, ``_DB``, ``_TOKEN_FILE``, ``_APPRISE_FILE``,
        ``_PUBLIC_URL``, ``_DUMP_BYTES``, ``_ALLOWED_HOSTS`` and ``_WEBHOOK_ALLOW`` (lists by commas); an override wins
        unless it is None."""
        values: dict[str, object] = {}
        for name in ("host", "db", "public_url"):
            if text := environ.get(f"FLOATSCOPE_{name.upper()}"):
                values[name] = text
        for name in ("data", "token_file", "apprise_file"):
            if text := environ.get(f"FLOATSCOPE_{name.upper()}"):
                values[name] = Path(text)
        for name in ("port", "dump_bytes"):
            if text := environ.get(variable := f"FLOATSCOPE_{name.upper()}"):
                if not text.isdecimal():
                    raise ValueError(f"{variable} is {text!r}; it must be a number")
                values[name] = int(text)
        for name in ("allowed_hosts", "webhook_allow"):
            if text := environ.get(f"FLOATSCOPE_{name.upper()}"):
                values[name] = tuple(item.strip() for item in text.split(",") if item.strip())
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls(**values)  # type: ignore[arg-type]


def _names_an_address(entry: str) -> bool:
    """Whether webhooks can be allowed to go to ``entry``: a host name, an address or a network."""
    try:
        ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return bool(entry.strip()) and "/" not in entry
    return True
