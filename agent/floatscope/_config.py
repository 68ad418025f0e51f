"""What the agent observes and where it sends it."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from floatscope import wire
from floatscope._address import DEFAULT_SERVER, ingest_url, why_no_token
from floatscope._spool._home import default_directory

__all__ = ["Config", "configured", "disabled_by_environment", "options_in"]


_MOST = 2**53
"""Integers up to here are exact wherever they go, in a browser too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Options of ``floatscope.watch``; ``ValueError`` when a value makes no sense.

    An interval of n observes steps 0, n, 2n, ...; 0 switches that kind of reading off. To keep within
    ``overhead_budget`` the agent may double an interval, repeatedly; it never reads more often than the option says,
    but for a closer look: for some hundred steps after one that was not finite, or when somebody asks the server.
    """

    run: str | None = None
    """Name of the run; without one FLOATSCOPE_RUN, then the script's name and what tells its job from others."""
    server: str | None = None
    """Address of the service, http://HOST:PORT; without one FLOATSCOPE_SERVER, then http://127.0.0.1:6160."""
    token: str | None = field(default=None, repr=False)
    """Ingest token; without one FLOATSCOPE_TOKEN. Never sent anywhere but to the server, nor stored."""
    first_step: int = 0
    """Number of the first step: for a training that goes on from a checkpoint, the steps done before."""
    gradients_every: int = 1
    """Steps between readings of the gradients."""
    activations_every: int = 10
    """Steps between readings of module outputs and of the inputs and output gradients of linear layers."""
    operands: bool = True
    """Whether readings of activations include the inputs and output gradients of linear layers."""
    compiled_outputs: bool = False
    """Whether code that torch.compile makes shows the outputs of linear layers, which changes that code."""
    compiled_all_outputs: bool = False
    """The same of every layer: LayerNorm, embeddings, activation functions."""
    compiled_operands: bool = False
    """The same of the inputs and output gradients of linear layers."""
    weights_every: int = 100
    """Steps between readings of the weights."""
    updates_every: int = 100
    """Steps between comparisons of weights before and after an update, on a sample of each parameter."""
    histograms_every: int = 10
    """Steps between histograms, without which shares of underflow and overflow are not known."""
    queue_records: int = 1024
    """Most step records waiting for the sender."""
    queue_bytes: int = 64 << 20
    """Most host memory that waiting step records hold, in bytes."""
    spool_dir: str | None = None
    """Folder for what the server has not acknowledged; without one FLOATSCOPE_DIR, then the user's state directory."""
    spool_bytes: int = 1 << 30
    """Most bytes that all spools in that folder take together; 0 keeps everything in memory only."""
    overhead_budget: float = 0.01
    """Share of the step time that the agent may cost; to keep to it, it reads less often. 0: as the intervals say."""
    flight_recorder_steps: int = 64
    """Newest steps kept at full detail, to be stored for good when something breaks; 0 for none."""
    flight_recorder_bytes: int = 32 << 20
    """Most host memory that those steps hold, in bytes."""

    def __post_init__(self) -> None:
        intervals = [f.name for f in dataclasses.fields(self) if f.name.endswith("_every")]
        for name in ("first_step", *intervals, "flight_recorder_steps", "spool_bytes"):
            _require_integer(name, getattr(self, name), least=0)
        for name in ("run", "server", "token", "spool_dir"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ValueError(f"{name}: expected a text, got {type(value).__name__}")
        for name in ("operands", "compiled_outputs", "compiled_all_outputs", "compiled_operands"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name}: expected True or False, got {value!r}")
        for name in ("queue_records", "queue_bytes", "flight_recorder_bytes"):
            _require_integer(name, getattr(self, name), least=1)
        _require_share("overhead_budget", self.overhead_budget)
        if self.run is not None and not wire.is_run_name(self.run):
            raise ValueError(
                f"run: {self.run!r} cannot be a run's name; use 1 to {wire.MAX_RUN_NAME} printable characters without "
                "slashes (here or in FLOATSCOPE_RUN)"
            )
        if self.server is not None:
            ingest_url(self.server)
        if self.token is not None and (wrong := why_no_token(self.token)):
            raise ValueError(f"token: {wrong} (here or in FLOATSCOPE_TOKEN)")
        if self.spool_dir is not None and "\0" in self.spool_dir:
            raise ValueError("spool_dir: no folder has a null character in its name")


def _require_integer(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: expected an integer of at least {least}, got {value!r}")
    if value > _MOST:
        raise ValueError(f"{name}: expected an integer of at most {_MOST}, got {value!r}")


def _require_share(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"{name}: expected a share from 0 to 1, such as 0.01 for one percent, got {value!r}")


def configured(config: Config | None, options: Mapping[str, object], environment: Mapping[str, str]) -> Config:
    """``config`` with ``options`` put over it, and FLOATSCOPE_* where neither says anything.

    ``ValueError`` names an option that does not exist, the one that comes closest, and those that do.
    """
    _require_known(options, [f.name for f in dataclasses.fields(Config)])
    if not isinstance(config, Config | None):
        raise ValueError(f"config: expected floatscope.Config, got {type(config).__name__}")
    if config is None:
        options = options_in(environment.get("FLOATSCOPE_OPTIONS", "")) | dict(options)
    chosen = dataclasses.replace(config or Config(), **options)  # type: ignore[arg-type]
    fallback = {
        "run": environment.get("FLOATSCOPE_RUN") or None,
        "server": environment.get("FLOATSCOPE_SERVER") or DEFAULT_SERVER,
        "token": environment.get("FLOATSCOPE_TOKEN") or None,
        "spool_dir": default_directory(environment),
    }
    missing: dict[str, Any] = {name: value for name, value in fallback.items() if getattr(chosen, name) is None}
    return dataclasses.replace(chosen, **missing)


def options_in(text: str) -> dict[str, object]:
    """Those that FLOATSCOPE_OPTIONS names: NAME=VALUE, with commas between them.

    ``ValueError`` for one that does not exist, has a variable of its own, or is of another kind.
    """
    pairs = [pair.strip() for pair in text.split(",") if pair.strip()]
    given = {name.strip(): value.strip() for name, _, value in (pair.partition("=") for pair in pairs)}
    defaults = {f.name: f.default for f in dataclasses.fields(Config) if isinstance(f.default, int | float)}
    _require_known(given, list(defaults))
    found = {name: _parsed(name, value, defaults[name]) for name, value in given.items()}
    Config(**found)  # type: ignore[arg-type]
    return found


def _parsed(name: str, value: str, default: object) -> object:
    if isinstance(default, bool):
        known = {"true": True, "false": False, "1": True, "0": False}
        if value.lower() not in known:
            raise ValueError(f"{name}: expected true or false, got {value!r}")
        return known[value.lower()]
    try:
        return int(value) if isinstance(default, int) else float(value)
    except ValueError:
        kind = "an integer" if isinstance(default, int) else "a number"
        raise ValueError(f"{name}: expected {kind}, got {value!r}") from None


def _require_known(options: Iterable[str], known: Sequence[str]) -> None:
    if unknown := sorted(set(options) - set(known)):
        near = dict.fromkeys(name for one in unknown for name in difflib.get_close_matches(one, known, n=1))
        guess = f"did you mean {', '.join(near)}? " if near else ""
        raise ValueError(f"unknown option {', '.join(unknown)}; {guess}known options are {', '.join(known)}")


def disabled_by_environment() -> bool:
    """Whether FLOATSCOPE_DISABLED asks for silence."""
    return os.environ.get("FLOATSCOPE_DISABLED", "") not in ("", "0")
