"""Extremes of layers as CSV: ``step,layer,tensor,dtype,absmax``, in any order of columns."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_server.readers.rows import Broken, Extreme, Item, LogFormat
from floatscope_server.readers.text import cells, lines, number, step_of

__all__ = ["LAYER_EXTREMES", "is_extremes_header"]

_ABSMAX = ("absmax", "amax", "abs_max", "max_abs")
_FORMATS = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32"}


def _columns(text: str) -> dict[str, int]:
    names = [name.strip().lower() for name in text.split(",")]
    found: dict[str, int] = {n: names.index(n) for n in ("step", "layer", "tensor", "dtype") if n in names}
    absmax = next((name for name in _ABSMAX if name in names), None)
    if absmax is not None:
        found["absmax"] = names.index(absmax)
    return found


def is_extremes_header(text: str) -> bool:
    """Whether a line names the columns."""
    return len(_columns(text)) == 5


def _format(dtype: str) -> str:
    """``fp8_e4m3fn``, ``float8_e4m3fn``, ``torch.float16`` -> ``e4m3fn``, ``e4m3fn``, ``fp16``."""
    name = dtype.strip().lower().removeprefix("torch.")
    name = name.removeprefix("fp8_").removeprefix("float8_")
    return _FORMATS.get(name, name)


def _kind(tensor: str) -> str:
    """The kind of tensor; an operand of a backward product is an output gradient."""
    name = tensor.lower()
    if "act_grad" in name or "output_grad" in name or "grad_out" in name or name.endswith("grad_operand"):
        return "act_grad"
    if "grad" in name:
        return "grad"
    if "weight" in name:
        return "weight"
    return "act_in" if "in" in name.split("_") or "input" in name else "act"


def _read(chunks: Iterator[bytes]) -> Iterator[Item]:
    columns: dict[str, int] | None = None
    width = 0
    for line, text in lines(chunks):
        if is_extremes_header(text):
            columns, width = _columns(text), text.count(",") + 1
            continue
        if columns is None:
            continue
        found = cells(text)
        if len(found) != width:
            yield Broken(line=line, why=f"{len(found)} values for {width} columns")
            continue
        step, absmax = step_of(number(found[columns["step"]])), number(found[columns["absmax"]])
        if step is None or absmax is None:
            yield Broken(line=line, why="step or absmax is no number")
            continue
        layer, tensor = found[columns["layer"]].strip(), found[columns["tensor"]].strip()
        yield Extreme(
            line=line,
            step=step,
            layer=layer,
            kind=_kind(tensor),
            format=_format(found[columns["dtype"]]),
            absmax=absmax,
            values={f"{layer}/{tensor}": absmax},
        )


LAYER_EXTREMES = LogFormat("layer-extremes-csv", _read, cuttable=True)
