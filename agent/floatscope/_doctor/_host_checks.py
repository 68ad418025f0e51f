"""What the host grants a training: limits of a process, and how much of a card's memory the processor can address."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope._doctor._machine import Machine
from floatscope._doctor._verdict import Verdict, ok, warning

__all__ = ["host_checks"]

_LITTLE_LOCKED = 1 << 30
"""Pinned batches and RDMA buffers take hundreds of MiB; distributions grant 64 KiB or 8 MiB."""
_FEW_FILES = 4096
"""Each worker of a data loader passes tensors by file descriptor, each peer of RCCL takes sockets; 1024 is usual."""


def host_checks(machine: Machine) -> Iterator[Verdict]:
    """Limits, ReBAR and the versions of ROCm's libraries; only where there is an AMD card."""
    if not machine.cards:
        return
    if (locked := machine.limits.get("Max locked memory")) is not None:
        if locked < _LITTLE_LOCKED:
            yield warning(
                "ulimit memlock",
                f"{locked / 1024:.0f} KiB",
                "RCCL registers its buffers with the network card and cannot lock them: 'ibv_reg_mr failed', or TCP",
                "start the container with --ulimit memlock=-1"
                if machine.container
                else "'* - memlock unlimited' in /etc/security/limits.conf, LimitMEMLOCK=infinity in a service",
            )
        else:
            yield ok("ulimit memlock", "unlimited" if locked == float("inf") else f"{locked / (1 << 20):.0f} MiB")
    if (files := machine.limits.get("Max open files")) is not None:
        if files < _FEW_FILES:
            yield warning(
                "ulimit nofile",
                f"{files:.0f}",
                "workers of data loaders and connections to peers end with 'Too many open files'",
                "start the container with --ulimit nofile=65536"
                if machine.container
                else "ulimit -n 65536, or '* - nofile 65536' in /etc/security/limits.conf",
            )
        else:
            yield ok("ulimit nofile", "unlimited" if files == float("inf") else f"{files:.0f}")
    yield from _bar(machine)
    for name, version in machine.libraries.items():
        yield ok(name, version)


def _bar(machine: Machine) -> Iterator[Verdict]:
    for card in machine.cards:
        if not card.vram_bytes or not card.visible_bytes:
            continue
        visible = f"{card.visible_bytes / (1 << 20):.0f} of {card.vram_bytes / (1 << 20):.0f} MiB"
        if card.visible_bytes < card.vram_bytes:
            yield warning(
                f"rebar {card.pci}",
                visible,
                "the processor and other cards can address only this part of the memory: no P2P over PCI Express",
                "switch on 'Above 4G Decoding' and 'Resizable BAR' in the firmware",
            )
        else:
            yield ok(f"rebar {card.pci}", visible)
