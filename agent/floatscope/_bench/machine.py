"""What a figure was measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import torch

import floatscope

__all__ = ["describe", "version_of"]


def describe(device: torch.device) -> dict[str, str | int | None]:
    """Names and versions. ``gpu`` and ``multiprocessors`` are None on a CPU, ``threads`` is torch's number of them."""
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "device": device.type,
        "gpu": gpu.name if gpu is not None else None,
        "multiprocessors": gpu.multi_processor_count if gpu is not None else None,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": version_of("triton"),
        "floatscope": floatscope.__version__,
    }


def version_of(package: str) -> str | None:
    """The installed version; None without one."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
