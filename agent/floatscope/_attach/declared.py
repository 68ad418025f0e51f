"""What a run says of itself beside numbers: command, arguments, precision, environment, source, and versions."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from floatscope._attach.masking import is_secret, masked, masked_command, plain
from floatscope._record import encodable

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["declare", "declare_precision", "declared", "forget", "versions"]

_MOST_BYTES = 64 << 10
"""Of one entry, as JSON: a server takes a quarter of a MiB for all."""

_ENVIRONMENT = re.compile(
    r"(CUDA|HIP|ROCR|ROCM|HSA|MIOPEN|NCCL|RCCL|GLOO|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|NVTE|ACCELERATE|FSDP|DS|OMP|MKL|"
    r"MASTER|SLURM|GPU|AMD|NVIDIA|FLASH|XFORMERS|BNB|LLAMAFACTORY)_.*"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|FORCE_TORCHRUN|NPROC_PER_NODE|NNODES|NODE_RANK|CUBLAS_WORKSPACE_CONFIG"
)
_PACKAGES = (
    *("accelerate", "apex", "bitsandbytes", "datasets", "deepspeed", "flash_attn", "lightning", "llamafactory"),
    *("liger_kernel", "megatron", "numpy", "peft", "pytorch_lightning", "torch", "torchao", "torchtitan"),
    *("transformer_engine", "transformers", "triton", "trl", "unsloth", "vllm", "xformers"),
)

_declared: dict[str, object] = {}


def declare(source: str, values: Mapping[str, object]) -> None:
    """Tell what a program declares: under the name ``source`` ("transformers", say) its arguments, masked.

    Before the model is attached to: a run is described once.
    """
    told = plain(values)
    if len(json.dumps(told)) > _MOST_BYTES:
        told = {"left out": f"more than {_MOST_BYTES >> 10} KiB"}
    arguments = _declared.setdefault("arguments", {})
    assert isinstance(arguments, dict)
    arguments[source] = told


def declare_precision(model: nn.Module, scaler: torch.amp.GradScaler | None) -> None:
    """Tell the dtypes of parameters (their elements), what autocast is in force now, and whether there is a scaler."""
    import torch

    elements: Counter[str] = Counter()
    for parameter in model.parameters():
        elements[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    devices = {parameter.device.type for parameter in model.parameters()} - {"meta"}
    cast = [
        str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        for device in sorted(devices)
        if torch.is_autocast_enabled(device)
    ]
    _declared["precision"] = {
        "parameters": dict(elements),
        "autocast": cast[0] if cast else None,
        "loss_scaler": scaler is not None,
        "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        "float32_matmul": torch.get_float32_matmul_precision(),
    }


def declared(environment: Mapping[str, str] = os.environ) -> dict[str, object]:
    """All of it, for a process that ``floatscope run`` attached to or a framework told of; else nothing."""
    if environment.get("FLOATSCOPE_ATTACH") != "1" and not _declared:
        return {}
    return {
        **_declared,
        "command": masked_command(sys.orig_argv, environment),
        "directory": masked(_directory(), environment),
        "environment": {
            name: masked(value, environment)
            for name, value in sorted(environment.items())
            if _ENVIRONMENT.fullmatch(name) and not is_secret(name, value)
        },
        "source": _source(environment.get("FLOATSCOPE_SOURCE", "")),
    }


def versions() -> dict[str, str]:
    """Those of the libraries for training that are imported."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _PACKAGES}
    return {name: encodable(str(version)) for name, version in found.items() if version is not None}


def forget() -> None:
    """Nothing was declared."""
    _declared.clear()


def _directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 (a text)
    except OSError:
        return ""  # it was deleted


def _source(text: str) -> object:
    """What ``floatscope run`` found: commit and size of what is not committed."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(found, dict) or not re.fullmatch("[0-9a-f]{40,64}", str(found.get("commit"))):
        return None
    return {"commit": found["commit"], **{name: value for name, value in found.items() if isinstance(value, int)}}
