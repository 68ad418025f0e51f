"""Environment variables and kernel options that change results or speed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from floatscope._chips import gfx_name
from floatscope._doctor._machine import Machine
from floatscope._doctor._verdict import Verdict, ok, warning, wrong

__all__ = ["environment_checks"]

_BLOCKING = ("HIP_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY")
_ALTERNATE = ("ROCBLAS_INTERNAL_FP16_ALT_IMPL", "MIOPEN_DEBUG_CONVOLUTION_ATTRIB_FP16_ALT_IMPL")


def environment_checks(machine: Machine) -> Iterator[Verdict]:
    """What was left on from another machine or another day."""
    environment = machine.environment
    if text := environment.get("HSA_OVERRIDE_GFX_VERSION"):
        yield _override(machine, text)
    for name in _BLOCKING:
        if environment.get(name, "0") not in ("", "0"):
            yield warning(
                name,
                environment[name],
                "every kernel is waited for: a debugging aid that makes a training several times slower",
                f"unset {name}",
            )
    if "HCCL_HOME" in environment and machine.amd:
        yield warning(
            "HCCL_HOME",
            environment["HCCL_HOME"],
            "HCCL is another vendor's library; RCCL, which ROCm uses, does not read it",
            "unset HCCL_HOME; RCCL reads NCCL_* and comes with torch",
        )
    for name in _ALTERNATE:
        if "gfx90a" in machine.chips and name in environment:
            on = environment[name] != "0"
            yield warning(
                name,
                environment[name],
                "forward passes in FP16 then run as BF16: 3 bits of mantissa less"
                if on
                else "backward passes in FP16 then flush what is below 6.1e-5 to zero on this chip",
                f"unset {name}: torch chooses the alternate way in backward passes only",
            )
    if environment.get("PYTORCH_TUNABLEOP_ENABLED") == "1" and environment.get("PYTORCH_TUNABLEOP_TUNING", "1") != "0":
        yield warning(
            "PYTORCH_TUNABLEOP_ENABLED",
            "1, tuning",
            "every new shape is tuned in the middle of the training, for seconds to minutes",
            "tune once, then set PYTORCH_TUNABLEOP_TUNING=0 and keep the file of results",
        )
    if environment.get("NCCL_P2P_DISABLE", "0") not in ("", "0") and any(card.xgmi_peers for card in machine.cards):
        yield warning(
            "NCCL_P2P_DISABLE",
            environment["NCCL_P2P_DISABLE"],
            "the cards are joined by XGMI, and RCCL goes through host memory instead",
            "unset NCCL_P2P_DISABLE",
        )
    if environment.get("HSA_XNACK") == "1":
        yield from _xnack(machine)
    translated = machine.kernel_options and not re.search(r"\biommu=(pt|off)\b|amd_iommu=off", machine.kernel_options)
    if len(machine.cards) > 1 and translated and machine.container is None:
        yield warning(
            "iommu",
            "not in pass-through mode",
            "transfers between cards are translated by the IOMMU: RCCL is slow, or hangs",
            "add iommu=pt to the kernel's command line and restart",
        )


def _override(machine: Machine, text: str) -> Verdict:
    name = "HSA_OVERRIDE_GFX_VERSION"
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 4 for part in parts):
        return wrong(name, text, "it is three numbers, as 9.0.10", f"unset {name}")
    major, minor, stepping = map(int, parts)
    claimed = gfx_name(major * 10000 + minor * 100 + stepping)
    real = sorted({chip for chip in machine.chips if chip.startswith("gfx")})
    if not real:
        return warning(
            name,
            f"{text} ({claimed})",
            "code for that architecture is run on whatever card is there; no card that could be compared is known here",
            f"unset {name}: every Instinct card is supported without it. MI210 and MI250 are 9.0.10, MI300X is 9.4.2",
        )
    if real == [claimed]:
        return ok(name, f"{text}, what the card is")
    return wrong(
        name,
        f"{text} ({claimed})",
        f"the card is {', '.join(real)}: code for {claimed} runs on it, and crashes or computes garbage",
        f"unset {name}",
    )


def _xnack(machine: Machine) -> Iterator[Verdict]:
    without = [chip for chip in machine.chips if re.match(r"gfx1[0-2]", chip)]
    if without:
        yield wrong(
            "HSA_XNACK", "1", f"{without[0]} cannot retry a page fault: the variable does nothing", "unset HSA_XNACK"
        )
    elif machine.chips:
        yield warning(
            "HSA_XNACK",
            "1",
            "kernels run in a mode that can retry page faults: slower, and wheels without code for xnack+ do not load",
            "unset HSA_XNACK unless the training relies on managed memory larger than the card",
        )
