"""A name for a run that was given none: the same on all ranks of a job, another one for the next job."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from floatscope import wire

__all__ = ["run_name"]

_RANKS = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""What launchers tell each process: its rank, and how many there are."""


def run_name(world: int, environment: Mapping[str, str], *, pid: int | None = None, proc: Path = Path("/proc")) -> str:
    """``SCRIPT-JOB``, which all ranks of a job find without talking to each other.

    JOB is the first of: torchrun's ``--rdzv-id``; on one machine, a number that stands for the process that launched
    the ranks; the Slurm job and step; the master's address and port. Only the last one may come again with another
    job: name the run then. A process alone takes the time and a random number.
    """
    stem = Path(sys.argv[0]).stem
    script = "".join(c if wire.is_run_name(c) else "_" for c in stem)[:64] if stem not in ("", "-c") else "run"
    if world == 1:
        return f"{script}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    job = (
        _elastic_job(environment)
        or _launcher(world, environment, os.getpid() if pid is None else pid, proc)
        or _slurm_job(environment)
        or f"{environment.get('MASTER_ADDR', 'job')}-{environment.get('MASTER_PORT', '0')}"
    )
    name = f"{script}-{job}"
    # What was put into an identifier by hand may be anything.
    return name if wire.is_run_name(name) else f"{script}-{_digest(job)}"


def _elastic_job(environment: Mapping[str, str]) -> str | None:
    job = environment.get("TORCHELASTIC_RUN_ID", "none")
    return None if job in ("", "none") else job  # torchrun without --rdzv-id says "none"


def _slurm_job(environment: Mapping[str, str]) -> str | None:
    job = environment.get("SLURM_JOB_ID")
    return job and f"{job}.{environment.get('SLURM_STEP_ID', 'batch')}"


def _launcher(world: int, environment: Mapping[str, str], pid: int, proc: Path) -> str | None:
    """A number for the process that launched the ranks; None on several machines, or where /proc does not tell."""
    if not _on_one_machine(world, environment):
        return None
    ranks = {"RANK"} | {rank for rank, size in _RANKS if environment.get(size) == str(world)}
    try:
        launcher = pid
        start, parent = _start_and_parent(proc, pid)
        climbs = not _launched_others(proc, pid, environment)
        while climbs:
            launcher = parent
            start, parent = _start_and_parent(proc, launcher)
            # Between a launcher and its rank may be a wrapper, which has a rank as well.
            climbs = parent != 0 and bool(ranks & _variables(proc, launcher).keys())
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except (OSError, ValueError, IndexError):
        return None
    return _digest(f"{boot} {socket.gethostname()} {launcher} {start}")


def _launched_others(proc: Path, pid: int, environment: Mapping[str, str]) -> bool:
    """Whether this rank, ``pid``, has a child with another rank of this machine, as the first one of Lightning has."""
    own = environment.get("LOCAL_RANK")
    try:
        children = (proc / str(pid) / "task" / str(pid) / "children").read_text().split()
    except FileNotFoundError:
        return False  # a kernel without CONFIG_PROC_CHILDREN
    return own is not None and any(_variables(proc, int(child)).get("LOCAL_RANK", own) != own for child in children)


def _on_one_machine(world: int, environment: Mapping[str, str]) -> bool:
    sizes = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    master = environment.get("MASTER_ADDR", "")
    return (
        any(environment.get(size) == str(world) for size in sizes)
        or environment.get("SLURM_STEP_NUM_NODES") == "1"
        or master in ("localhost", "::1")
        or master.startswith("127.")
    )


def _start_and_parent(proc: Path, pid: int) -> tuple[str, int]:
    """When ``pid`` started, in clock ticks since boot, and its parent (proc_pid_stat(5): fields 22 and 4)."""
    fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return fields[19], int(fields[1])


def _variables(proc: Path, pid: int) -> dict[str, str]:
    """The environment that ``pid`` started with; none of a process that is gone, or where another user's is hidden."""
    try:
        data = (proc / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return {}
    entries = (entry.partition("=") for entry in data.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in entries}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
