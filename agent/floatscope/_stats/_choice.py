"""Which variant of the pass a device gets, and why."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from floatscope._log import logger
from floatscope._stats import _triton
from floatscope._stats._cache import cached
from floatscope._stats._cpu import Cpu
from floatscope._stats._deferred import Deferred
from floatscope._stats._golden import difference
from floatscope._stats._rows import Variant
from floatscope._stats._rtc import CUDA, HIP
from floatscope._stats._rtc_variant import Build, RtcVariant
from floatscope._stats._selfcheck import verdict_of_child
from floatscope._stats._triton import TritonVariant

__all__ = ["KERNELS", "variant_for", "why"]

KERNELS = ("torch", "nvrtc", "hiprtc", "triton")
"""Values of FLOATSCOPE_KERNELS."""

_chosen: dict[torch.device, Deferred] = {}


def variant_for(device: torch.device) -> Variant:
    """The variant of the pass that is used on ``device``, chosen the first time it is asked for.

    NVIDIA: NVRTC's, where that fails Triton's. ROCm: Triton's. Otherwise, and until those are ready, plain torch.
    FLOATSCOPE_KERNELS names another one. Kernels that NVRTC compiled before for this user are loaded and checked
    against the reference at once, in a tenth of a second, which waits for the device: ask before the training begins.
    Compiling them takes two seconds and checking Triton's a minute; both happen in the background.
    """
    return _choice(device)


def why(device: torch.device) -> str:
    """Why ``device`` has the variant that it has."""
    return _choice(device).reason


def _choice(device: torch.device) -> Deferred:
    if device == torch.device("cuda"):
        device = torch.device("cuda", torch.cuda.current_device())
    if device not in _chosen:
        _chosen[device] = _choose(device)
    return _chosen[device]


def _choose(device: torch.device) -> Deferred:
    wanted = os.environ.get("FLOATSCOPE_KERNELS")
    if device.type == "cpu" and wanted != "torch":
        choice = Deferred("")
        choice.ready(Cpu, "the tensors are in the memory of the CPU")
        choice.current()
        return choice
    if device.type != "cuda":
        return Deferred(
            "FLOATSCOPE_KERNELS is torch" if wanted == "torch" else f"there are no kernels for {device.type}"
        )
    if wanted is not None and wanted not in KERNELS:
        logger.warning("FLOATSCOPE_KERNELS=%s is none of %s and is ignored", wanted, ", ".join(KERNELS))
        wanted = None
    if wanted == "torch":
        return Deferred("FLOATSCOPE_KERNELS is torch")
    names = [wanted] if wanted else ["triton"] if torch.version.hip is not None else ["nvrtc", "triton"]
    choice = Deferred(f"{names[0]} is being prepared")
    if names[0] != "triton":
        build = Build.of(HIP if names[0] == "hiprtc" else CUDA, device)
        if build.kept():
            _attempt(choice, names[:1], lambda: _checked(choice, build, device))
            if choice.name != "torch":
                return choice
            names = names[1:]
    if names:
        work = threading.Thread(target=_prepare, args=(choice, names, device), name="floatscope-kernels", daemon=True)
        work.start()
    return choice


def _checked(choice: Deferred, build: Build, device: torch.device) -> None:
    variant = RtcVariant(build)
    found = difference(variant, device)
    if found is not None:
        raise RuntimeError(f"wrong results: {found}")
    choice.ready(lambda: variant, "it gave the reference's results on this device")
    choice.current()


def _prepare(choice: Deferred, names: list[str], device: torch.device) -> None:
    """Make the first of ``names`` that works ready. No call of the device's: somebody may be capturing a graph."""
    for name in names:
        prepare = _prepare_triton if name == "triton" else _prepare_rtc
        if _attempt(choice, [name], lambda prepare=prepare, name=name: prepare(choice, name, device)):  # type: ignore[misc]
            return


def _attempt(choice: Deferred, names: list[str], work: Callable[[], None]) -> bool:
    try:
        work()
    except Exception as error:  # noqa: BLE001 (torch, drivers and compilers raise what they like)
        choice.reason = f"{names[0]} cannot be used: {error}"
        logger.warning("statistics are computed without %s: %s", names[0], error)
        return False
    return True


def _prepare_rtc(choice: Deferred, name: str, device: torch.device) -> None:
    build = Build.of(HIP if name == "hiprtc" else CUDA, device)
    build.code()
    reason = "compiled in this run; it is checked against the reference at the next start"
    choice.ready(lambda: RtcVariant(build), reason)


def _prepare_triton(choice: Deferred, name: str, device: torch.device) -> None:
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError("Triton is not installed")
    properties = torch.cuda.get_device_properties(device)
    chip = getattr(properties, "gcnArchName", f"sm_{properties.major}{properties.minor}")
    sources = [Path(_triton.__file__).with_name(file).read_text() for file in ("_triton.py", "_triton_kernels.py")]
    key = (name, chip, str(torch.version.hip), str(torch.__version__), *sources)
    verdict = cached("verdict", key, lambda: verdict_of_child(name, str(device)))
    if verdict != b"ok":
        raise RuntimeError(verdict.decode(errors="replace") or "its check ran out of time")
    choice.ready(lambda: TritonVariant(device), "a child process had the reference's results from it on this device")
