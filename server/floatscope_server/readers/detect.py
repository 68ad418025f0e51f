"""Which reader a file needs, by its content: names say nothing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from floatscope_server.readers.amd_smi import (
    AMD_SMI_CSV,
    AMD_SMI_JSON,
    AMD_SMI_MONITOR,
    is_amd_header,
    is_monitor_header,
)
from floatscope_server.readers.console import CONSOLE, is_of_interest
from floatscope_server.readers.extremes import LAYER_EXTREMES, is_extremes_header
from floatscope_server.readers.nvidia_dmon import NVIDIA_DMON, is_dmon_header
from floatscope_server.readers.nvidia_smi import NVIDIA_SMI_CSV, is_nvidia_header
from floatscope_server.readers.rocm_smi import ROCM_SMI_CSV, ROCM_SMI_JSON, is_rocm_header
from floatscope_server.readers.rows import LogFormat
from floatscope_server.readers.step_series import SERIES_CSV, SERIES_JSONL, is_series_header, is_series_object
from floatscope_server.readers.text import characters
from floatscope_server.readers.tfevents import TENSORBOARD, begins_record
from floatscope_server.readers.trainer_log import TRAINER_LOG
from floatscope_server.readers.trainer_state import TRAINER_STATE

__all__ = ["HEAD_BYTES", "detect"]

HEAD_BYTES = 1 << 18
"""Bytes from the beginning that are looked at."""
_HEADERS = (
    (is_rocm_header, ROCM_SMI_CSV),
    (is_extremes_header, LAYER_EXTREMES),
    (is_amd_header, AMD_SMI_CSV),
    (is_monitor_header, AMD_SMI_MONITOR),
    (is_nvidia_header, NVIDIA_SMI_CSV),
    (is_dmon_header, NVIDIA_DMON),
    (is_series_header, SERIES_CSV),
)
_LINES = 100
"""Lines among which a table's header must be."""
_STATE = re.compile(r'"(?:log_history|best_model_checkpoint|is_hyper_param_search|best_global_step)"\s*:')
_ROCM = re.compile(r'"card\d+"\s*:\s*\{')
_AMD = re.compile(r'"gpu"\s*:\s*\d+')
_AMD_PARTS = ('"gfx_activity"', '"socket_power"', '"used_vram"', '"mem_usage"', '"power_usage"', '"vram_used"')


def _json_format(text: str) -> LogFormat | None:
    """The format of a file whose first object begins ``text``."""
    if re.match(r'\{[^{}]*"current_steps"\s*:', text):
        return TRAINER_LOG
    if text.startswith("{") and _STATE.search(text):
        return TRAINER_STATE
    if _ROCM.search(text):
        return ROCM_SMI_JSON
    if _AMD.search(text) and any(part in text for part in _AMD_PARTS):
        return AMD_SMI_JSON
    return SERIES_JSONL if is_series_object(text) else None


def detect(head: bytes) -> LogFormat:
    """The reader for a file that begins with ``head``. Text of no other kind is for the console's, which may find
    nothing in it."""
    if begins_record(head):
        return TENSORBOARD
    text = "".join(characters(iter([head])))
    begun = re.search(r"^\s*(?=[\[{])", text, re.MULTILINE)
    if begun is not None and (found := _json_format(text[begun.end() :])):
        # A console may hold such lines among others.
        mixed = found is TRAINER_LOG and any(map(is_of_interest, text[: begun.start()].splitlines()))
        return CONSOLE if mixed else found
    for line in itertools.islice(_lines(text), _LINES):
        if "," not in line and not line.lstrip().startswith(("GPU", "XCP", "TIMESTAMP", "#")):
            continue
        for is_header, log_format in _HEADERS:
            if is_header(line):
                return log_format
    return CONSOLE


def _lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line)
