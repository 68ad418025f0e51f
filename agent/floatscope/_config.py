"""What the agent observes and where it sends it."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Config", "configured", "disabled_by_environment", "run_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Options of ``floatscope.watch``; ``ValueError`` when a value makes no sense.

    An interval of n observes steps 0, n, 2n, ...; 0 switches that kind of reading off.
    """

    run: str | None = None
    """Name of the run; without one FLOATSCOPE_RUN, then the script's name and the start time."""
    server: str | None = None
    """Address of the service, http://HOST:PORT; without one FLOATSCOPE_SERVER, then http://127.0.0.1:6160."""
    token: str | None = field(default=None, repr=False)
    """Ingest token; without one FLOATSCOPE_TOKEN. Never sent anywhere but to the server, nor stored."""
    gradients_every: int = 1
    """Steps between readings of the gradients."""
    activations_every: int = 10
    """Steps between readings of module outputs and of the inputs and output gradients of linear layers."""
    weights_every: int = 100
    """Steps between readings of the weights."""
    histograms_every: int = 10
    """Steps between histograms, without which shares of underflow and overflow are not known."""
    queue_records: int = 1024
    """Most step records waiting for the sender."""
    queue_bytes: int = 64 << 20
    """Most host memory that waiting step records hold, in bytes."""

    def __post_init__(self) -> None:
        for name in ("gradients_every", "activations_every", "weights_every", "histograms_every"):
            _require_integer(name, getattr(self, name), least=0)
        for name in ("queue_records", "queue_bytes"):
            _require_integer(name, getattr(self, name), least=1)
        if self.run is not None and not (self.run.strip() and self.run.isprintable()):
            raise ValueError(f"run: a run's name is printable text, got {self.run!r}")
        if self.server is not None:
            address = urlsplit(self.server)
            if address.scheme not in ("http", "https") or not address.hostname:
                raise ValueError(f"server: expected http://HOST:PORT or https://HOST:PORT, got {self.server!r}")


def _require_integer(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: expected an integer of at least {least}, got {value!r}")


def configured(config: Config | None, options: Mapping[str, object], environment: Mapping[str, str]) -> Config:
    """``config`` with ``options`` put over it, and FLOATSCOPE_* where neither says anything.

    ``ValueError`` names an option that does not exist and lists those that do.
    """
    known = [f.name for f in dataclasses.fields(Config)]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"unknown option {', '.join(unknown)}; known options are {', '.join(known)}")
    chosen = dataclasses.replace(config or Config(), **options)  # type: ignore[arg-type]
    fallback = {
        "run": environment.get("FLOATSCOPE_RUN") or None,
        "server": environment.get("FLOATSCOPE_SERVER") or "http://127.0.0.1:6160",
        "token": environment.get("FLOATSCOPE_TOKEN") or None,
    }
    missing: dict[str, Any] = {name: value for name, value in fallback.items() if getattr(chosen, name) is None}
    return dataclasses.replace(chosen, **missing)


def disabled_by_environment() -> bool:
    """Whether FLOATSCOPE_DISABLED asks for silence."""
    return os.environ.get("FLOATSCOPE_DISABLED", "") not in ("", "0")


def run_name(world: int, environment: Mapping[str, str]) -> str:
    """A name for a run without one. All ranks of a job find the same, without talking to each other."""
    script = Path(sys.argv[0]).stem or "run"
    if world > 1:
        job = next(
            (environment[k] for k in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_PORT") if k in environment), "job"
        )
        return f"{script}-{job}"
    return f"{script}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
