"""The builds of torch and of what is compiled against it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from floatscope._doctor._machine import Machine
from floatscope._doctor._verdict import Verdict, ok, warning, wrong

__all__ = ["torch_checks"]

_INSTEAD = {
    "flash_attn": "build it from https://github.com/ROCm/flash-attention, or set flash_attn: sdpa",
    "bitsandbytes": "install a release of bitsandbytes whose wheel has ROCm libraries, or build it with "
    "-DCOMPUTE_BACKEND=hip",
    "xformers": "install the ROCm wheel from https://download.pytorch.org/whl/, or leave it out",
    "transformer_engine": "build it from https://github.com/ROCm/TransformerEngine",
}


def torch_checks(machine: Machine) -> Iterator[Verdict]:
    """Builds that cannot use the cards that are there, and builds that do not belong together."""
    torch = machine.torch
    if torch is None:
        yield (
            ok("torch", "not installed")
            if not machine.cards
            else warning("torch", "not installed", "there is an AMD card and nothing to train with", _wheel(machine))
        )
        return
    amd = bool(machine.cards or machine.pci_cards or machine.driver)
    if amd and not machine.nvidia and torch.cuda:
        yield wrong(
            "torch",
            f"{torch.version}, built for CUDA {torch.cuda}",
            "this machine has AMD cards: the build for CUDA sees none of them and trains on the CPU",
            _wheel(machine),
        )
    elif (amd or machine.nvidia) and not torch.hip and not torch.cuda:
        yield wrong(
            "torch",
            f"{torch.version}, built for the CPU only",
            "there is a card in this machine, and this build uses none",
            _wheel(machine) if amd else "pip install torch from https://pytorch.org/get-started/locally/",
        )
    else:
        yield ok("torch", f"{torch.version}" + (f", HIP {torch.hip}" if torch.hip else ""))
    if torch.hip:
        yield from _beside_rocm_torch(machine, torch.hip)


def _beside_rocm_torch(machine: Machine, hip: str) -> Iterator[Verdict]:
    if machine.rocm is not None:
        own, system = hip.split(".")[0], machine.rocm.split(".")[0]
        if own != system:
            yield wrong(
                "rocm",
                f"torch was built with HIP {hip}, the system has ROCm {machine.rocm}",
                "libraries of two major releases in one process (RCCL, hipBLASLt, extensions compiled here) crash or "
                "give wrong results",
                f"install the torch wheel for ROCm {machine.rocm}, or that ROCm's release {own}",
            )
        else:
            yield ok("rocm", machine.rocm)
    for name in machine.cuda_built:
        yield wrong(
            name.replace("_", "-"),
            "compiled for CUDA",
            "torch here is a ROCm build: importing it fails, or its kernels are replaced by slow ones without a word",
            _INSTEAD[name],
        )
    if "amdsmi" in machine.packages:
        yield warning(
            "amdsmi",
            machine.packages["amdsmi"],
            "its wheel has no library; torch for ROCm imports it, and then fails to import or counts 0 cards "
            "(pytorch issue 186516)",
            "pip uninstall amdsmi; Floatscope uses pyrsmi",
        )
    if "nvidia-ml-py" in machine.packages or "pynvml" in machine.packages:
        yield warning(
            "nvidia-ml-py",
            machine.packages.get("nvidia-ml-py", machine.packages.get("pynvml", "")),
            "some releases of torch for ROCm take it for a sign of an NVIDIA card (pytorch issue 133259)",
            "pip uninstall nvidia-ml-py pynvml",
        )


def _wheel(machine: Machine) -> str:
    match = re.match(r"\d+\.\d+", machine.rocm or "")
    release = match[0] if match else "X.Y (see cat /opt/rocm/.info/version)"
    return f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/rocm{release}"
