"""All that can be read, and what each is called: what ``import``, ``follow`` and ``check`` name."""

from __future__ import annotations

from floatscope_server.readers.amd_smi import AMD_SMI_CSV, AMD_SMI_JSON, AMD_SMI_MONITOR
from floatscope_server.readers.console import CONSOLE
from floatscope_server.readers.extremes import LAYER_EXTREMES
from floatscope_server.readers.nvidia_dmon import NVIDIA_DMON
from floatscope_server.readers.nvidia_smi import NVIDIA_SMI_CSV
from floatscope_server.readers.rocm_smi import ROCM_SMI_CSV, ROCM_SMI_JSON
from floatscope_server.readers.step_series import SERIES_CSV, SERIES_JSONL
from floatscope_server.readers.tfevents import TENSORBOARD, TENSORBOARD_EVENTS
from floatscope_server.readers.trainer_log import TRAINER_LOG
from floatscope_server.readers.trainer_state import TRAINER_STATE

__all__ = ["KNOWN", "LOG_FORMATS", "WHAT"]

LOG_FORMATS = (
    *(TRAINER_LOG, TRAINER_STATE, CONSOLE, SERIES_CSV, SERIES_JSONL, TENSORBOARD, TENSORBOARD_EVENTS),
    *(LAYER_EXTREMES, ROCM_SMI_JSON, ROCM_SMI_CSV, AMD_SMI_JSON, AMD_SMI_CSV, AMD_SMI_MONITOR),
    *(NVIDIA_SMI_CSV, NVIDIA_DMON),
)

WHAT = {
    "llamafactory-trainer-log": "LLaMA-Factory's trainer_log.jsonl",
    "hf-trainer-state": "trainer_state.json",
    "hf-console": "output of a Trainer",
    "deepspeed-console": "of DeepSpeed",
    "megatron-console": "of Megatron or Primus",
    "step-lines": "of torchtune, torchtitan, nanoGPT and others that name the step",
    "transformer-engine-log": "Transformer Engine's statistics",
    "series-csv": "a CSV table with steps and a loss (Lightning's metrics.csv)",
    "series-jsonl": "JSON lines with steps and a loss",
    "tensorboard-events": "TensorBoard events",
    "layer-extremes-csv": "layer-extremes CSV",
    "rocm-smi-json": "rocm-smi --json",
    "rocm-smi-csv": "rocm-smi --csv",
    "amd-smi-json": "amd-smi metric --json",
    "amd-smi-csv": "amd-smi metric --csv",
    "amd-smi-monitor": "amd-smi monitor",
    "nvidia-smi-csv": "nvidia-smi --query-gpu --format=csv",
    "nvidia-smi-dmon": "nvidia-smi dmon",
}
"""By the name that answers have as ``format``."""

KNOWN = ", ".join(WHAT.values())
