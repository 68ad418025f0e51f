"""A training script: calls, limits and variables that articles on mixed precision hand around. Never executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

from floatscope._chips import fp8_of
from floatscope._doctor._environment_checks import environment_checks
from floatscope._doctor._lint_precision import precision_checks
from floatscope._doctor._lint_trainer import key_checks, schedule_checks
from floatscope._doctor._lint_values import name_checks
from floatscope._doctor._machine import Card, Machine
from floatscope._doctor._masks import mask_checks
from floatscope._doctor._published import scaler_checks
from floatscope._doctor._read import Document, UnreadableError
from floatscope._doctor._verdict import Verdict, ok, warning, wrong
from floatscope._formats import formats

__all__ = ["python_checks"]

_SCALER = ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
"""Parameters of torch.amp.GradScaler"""
_LARGEST = 1 << 63


def python_checks(document: Document, chips: Sequence[str]) -> list[Verdict]:
    """``UnreadableError`` where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of somebody else's source
            tree = ast.parse(document.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"{document.path}: {type(error).__name__}: {error}") from None
    found = [verdict for node in ast.walk(tree) for verdict in _node(node, chips)]
    imported = any(isinstance(node, ast.ImportFrom) and _imports(node) for node in ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_of_transformers(node.func, imported=imported):
            found += _training_arguments(node, chips)
    environment = dict(pair for node in ast.walk(tree) if (pair := _exported(node)) is not None)
    cards = tuple(Card(pci="", gfx=chip) for chip in chips if chip.startswith("gfx"))
    found += mask_checks(Machine(environment=environment, driver="live"))
    found += environment_checks(Machine(environment=environment, driver="live", cards=cards))
    return [ok("configuration", f"{document.path.name}: a script"), *found]


def _node(node: ast.AST, chips: Sequence[str]) -> Iterator[Verdict]:
    if isinstance(node, ast.Call):
        yield from _call(node)
    elif isinstance(node, ast.Attribute) and node.attr == "is_fp8_supported":
        yield wrong(
            _line(node, "is_fp8_supported"),
            _source(node),
            "torch has no such function",
            "floatscope doctor says what the chip multiplies; a capability of 8.9 does not",
        )
    elif isinstance(node, ast.Compare):
        yield from _comparison(node, chips)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        yield from _scale(node)
    elif isinstance(node, ast.Try):
        yield from _caught(node)
    elif isinstance(node, ast.keyword | ast.Assign):
        yield from _timeout(node)


def _line(node: ast.expr | ast.stmt | ast.keyword, what: str) -> str:
    return f"line {node.lineno}: {what}"


def _source(node: ast.expr) -> str:
    """``node`` as it could be written. No value is worth a search in the source, and some cannot be written at all."""
    try:
        return ast.unparse(node)
    except (RecursionError, ValueError):  # ValueError: a number of more digits than Python converts
        return "..."


def _name(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _number(node: ast.AST | None) -> float | None:
    value = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # A whole number in the source may be larger than any float.
    return float(value) if abs(value) < _LARGEST else None


def _call(node: ast.Call) -> Iterator[Verdict]:
    name = _name(node.func)
    if name == "GradScaler":
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in _SCALER:
                yield wrong(
                    _line(node, f"GradScaler({keyword.arg}=)"),
                    _source(keyword.value),
                    "it has no such parameter and raises TypeError"
                    + ("; hysteresis is DeepSpeed's and Megatron's" if keyword.arg == "hysteresis" else ""),
                    f"leave {keyword.arg} out",
                )
            elif keyword.arg is not None:
                yield from scaler_checks(_line(node, f"GradScaler.{keyword.arg}"), _number(keyword.value))
    elif name.startswith("clip_grad_norm"):
        limit = next(
            (k.value for k in node.keywords if k.arg == "max_norm"), node.args[1] if len(node.args) > 1 else None
        )
        if isinstance(limit, ast.BinOp) and isinstance(limit.op, ast.Div) and "scale" in _source(limit.right):
            yield wrong(
                _line(node, "max_norm"),
                _source(limit),
                "gradients are clipped after unscaling, where 1/scale clips every step",
                "scaler.unscale_(optimizer), then max_norm=1.0",
            )


def _imports(node: ast.ImportFrom) -> bool:
    names = [name.name for name in node.names if name.asname is None]
    return node.module == "transformers" and node.level == 0 and "TrainingArguments" in names


def _is_of_transformers(function: ast.expr, *, imported: bool) -> bool:
    """Whether it is TrainingArguments of transformers: other packages have some of that name, with other keys."""
    if isinstance(function, ast.Attribute):
        return function.attr == "TrainingArguments" and _name(function.value) == "transformers"
    return imported and _name(function) == "TrainingArguments"


def _training_arguments(node: ast.Call, chips: Sequence[str]) -> Iterator[Verdict]:
    """Those that are written out, as in a file; what is computed, or stands in ``**arguments``, is not known here."""
    values = {keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    # A time-out is judged wherever it is assigned.
    values.pop("ddp_timeout", None)
    found = [
        *key_checks("transformers", values, strict=True, consequence="it raises TypeError"),
        *name_checks("transformers", values),
        *precision_checks("transformers", values, {}, chips),
        *schedule_checks(values),
    ]
    yield from (replace(verdict, item=_line(node, verdict.item)) for verdict in found)


def _literal(node: ast.expr) -> object:
    """None where it is no literal, as where a shell script has a variable."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str | bool) or _number(node) is not None else None


def _comparison(node: ast.Compare, chips: Sequence[str]) -> Iterator[Verdict]:
    text = _source(node.left).lower()
    for limit in node.comparators:
        value = _number(limit)
        if value == 6.0e4:
            yield warning(
                _line(node, "limit"),
                _source(node),
                f"beyond E5M2's maximum ({formats['e5m2'].max:g}) already, so it warns too late for FP8; for FP16 "
                f"({formats['fp16'].max:g}) it will do",
                f"compare amax x scale with the maximum; near is less than one bit: {formats['e5m2'].max / 2:g}",
            )
        elif value == 5.0e4:
            yield warning(
                _line(node, "limit"),
                _source(node),
                "sensible near FP16's maximum only: activations in FP8 are E4M3, which ends at 448 or 240",
                "compare amax x scale with the format's maximum",
            )
        elif value == 1e-5 and "abs" in text:
            yield warning(
                _line(node, "limit"),
                _source(node),
                "what underflows depends on the format and the scale; exact zeros do not",
                "floatscope.summarize(tensor).underflow(format, scale)",
            )
        elif value == formats["e4m3fn"].max and any(fp8_of(chip) == "fnuz" for chip in chips):
            yield wrong(
                _line(node, "limit"),
                _source(node),
                f"this chip's E4M3 is FNUZ and ends at {formats['e4m3fnuz'].max:g}",
                "torch.finfo(torch.float8_e4m3fnuz).max",
            )


def _scale(node: ast.BinOp) -> Iterator[Verdict]:
    """2 ** (floor(log2(amax)) - margin): the reciprocal of what was meant."""
    exponent = node.right
    if _number(node.left) != 2 or not isinstance(exponent, ast.BinOp) or not isinstance(exponent.op, ast.Sub):
        return
    for call in ast.walk(exponent.left):
        if isinstance(call, ast.Call) and _name(call.func) == "log2" and call.args:
            inner = call.args[0]
            if not any(isinstance(part, ast.Div) for part in ast.walk(inner)) and "max" in _source(inner).lower():
                yield wrong(
                    _line(node, "scale"),
                    _source(node),
                    "the sign is wrong: the larger the tensor, the larger this scale",
                    "2 ** (floor(log2(format_max / amax)) - margin)",
                )


def _caught(node: ast.Try) -> Iterator[Verdict]:
    calls = [c for part in node.body for c in ast.walk(part) if isinstance(c, ast.Call) and _name(c.func) == "step"]
    words = [c.value for handler in node.handlers for c in ast.walk(handler) if isinstance(c, ast.Constant)]
    if calls and any(isinstance(word, str) and "overflow" in word.lower() for word in words):
        yield wrong(
            _line(node, "except ... overflow"),
            _source(calls[0]),
            "GradScaler.step() skips a step that overflows silently and raises nothing",
            "compare scaler.get_scale() before and after update(), or let Floatscope count skipped steps",
        )


def _timeout(node: ast.keyword | ast.Assign) -> Iterator[Verdict]:
    names = [node.arg] if isinstance(node, ast.keyword) else [_name(target) for target in node.targets]
    value = _number(node.value)
    if "ddp_timeout" in names and value is not None and value > 86_400:
        yield warning(
            _line(node, "ddp_timeout"),
            f"{value:g}",
            f"it is in seconds: {value / 31_557_600:.1f} years. A rank that hangs is never reported",
            "ddp_timeout=1800",
        )


def _exported(node: ast.AST) -> tuple[str, str] | None:
    """``os.environ["NAME"] = "value"``."""
    if (
        not isinstance(node, ast.Assign)
        or not isinstance(node.value, ast.Constant)
        or not isinstance(node.value.value, str)
    ):
        return None
    for target in node.targets:
        if not isinstance(target, ast.Subscript) or not _source(target.value).endswith("environ"):
            continue
        if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
            return target.slice.value, node.value.value
    return None
