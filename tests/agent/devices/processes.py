"""What the kernel says of processes."""

from __future__ import annotations

from pathlib import Path

__all__ = ["alive", "sidecars_of", "state"]


def state(pid: int) -> str:
    """One letter of proc(5), "X" for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody collected does not."""
    return state(pid) not in ("Z", "X")


def sidecars_of(parent: int) -> list[int]:
    """The processes that read cards for that one, whoever is their parent now."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"floatscope._devices" in arguments and b"--parent=%d" % parent in arguments and alive(int(folder.name)):
            found.append(int(folder.name))
    return found
