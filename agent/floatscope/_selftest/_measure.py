"""Runs the layers on a device and holds them against float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from floatscope._chips import FP8, fp8_formats, fp8_of
from floatscope._formats import Format, formats
from floatscope._fp8_probe import DTYPES, multiplies
from floatscope._selftest import _bounds

__all__ = ["Result", "measure"]

_ROWS, _IN, _OUT = 64, 256, 128
"""Of the linear layer: multiples of 16, which FP8 products need, and sums long enough to tell accumulators apart."""
_TOKENS, _HEAD = 64, 64
_RATE = 2.0**-7
"""A power of two: multiplying by it is exact, so the update's own error is one rounding."""
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One stage in one format: the largest error as a share of its bound (above 1 is a failure)."""

    device: str
    format: str
    stage: str
    how: str
    error: float
    """Largest absolute error"""
    bound: float
    """The bound at the element that came closest to its own"""
    ratio: float
    why: str
    """Where the bound comes from"""

    @property
    def passed(self) -> bool:
        """NaN is no pass."""
        return self.ratio <= 1


def measure(device: torch.device, chip: str | None = None) -> Iterator[Result]:
    """Every format on ``device``; ``chip`` says which FP8 variant it has (None: both; without FP8: OCP by cast).

    Waits for the device.
    """
    with _full_sums():
        for name, dtype in _HALF.items():
            yield from _half(device, formats[name], dtype)
    variant: FP8 | None = fp8_of(chip) if chip is not None else None
    variants: tuple[FP8, ...] = (
        (variant,) if variant in ("fnuz", "ocp") else ("ocp", "fnuz") if chip is None else ("ocp",)
    )
    for each in variants:
        yield from _fp8(device, *fp8_formats(each))


@contextlib.contextmanager
def _full_sums() -> Iterator[None]:
    """Partial sums in fp32, as the bounds have it: by default torch lets cuBLAS add them in 16 bits
    (https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html)."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction = before


def _random(seed: int, *shape: int) -> torch.Tensor:
    """Normal numbers, the same everywhere: made on the CPU, float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().double()


def _judge(
    device: torch.device,
    fmt: str,
    stage: str,
    how: str,
    why: str,
    got: torch.Tensor,
    want: torch.Tensor,
    bound: torch.Tensor,
) -> Result:
    error = (_exact(got) - want).abs()
    ratio = error / bound
    # An element that became NaN is the worst, whatever max makes of it.
    worst = int(torch.where(ratio.isnan(), torch.inf, ratio).argmax())
    return Result(
        device=str(device),
        format=fmt,
        stage=stage,
        how=how,
        error=float(error.max()) if not error.isnan().any() else float("nan"),
        bound=float(bound.flatten()[worst]),
        ratio=float(ratio.flatten()[worst]),
        why=why,
    )


def _half(device: torch.device, fmt: Format, dtype: torch.dtype) -> Iterator[Result]:
    u, how = f"u = 2^{-fmt.mantissa_bits - 1}", f"torch, {dtype}".replace("torch.", "")
    x, w, g = (
        _random(seed, *shape).to(dtype).to(device)
        for seed, shape in ((1, (_ROWS, _IN)), (2, (_OUT, _IN)), (3, (_ROWS, _OUT)))
    )
    x.requires_grad_()
    w.requires_grad_()
    y = functional.linear(x, w)
    y.backward(g)  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert w.grad is not None
    ex, ew, eg = _exact(x), _exact(w), _exact(g)

    def why(terms: int) -> str:
        return f"{terms} products summed in fp32 (gamma_{terms}, v = 2^-24), one rounding to {fmt.name} ({u})"

    bounds = [_bounds.product(a, b, fmt, _bounds.FP32_ACCUMULATION) for a, b in ((ex, ew.T), (eg, ew), (eg.T, ex))]
    yield _judge(device, fmt.name, "linear forward", how, why(_IN), y, ex @ ew.T, bounds[0])
    yield _judge(device, fmt.name, "linear backward, input", how, why(_OUT), x.grad, eg @ ew, bounds[1])
    yield _judge(device, fmt.name, "linear backward, weight", how, why(_ROWS), w.grad, eg.T @ ex, bounds[2])
    yield _update(device, fmt.name, how, w, w.grad, ew, eg.T @ ex, bounds[2], fmt)
    yield from _attention(device, fmt, dtype, how)


def _update(
    device: torch.device,
    name: str,
    how: str,
    weight: torch.Tensor,
    gradient: torch.Tensor,
    exact_weight: torch.Tensor,
    exact_gradient: torch.Tensor,
    gradient_bound: torch.Tensor,
    kept: Format,
) -> Result:
    """``weight - 2^-7 gradient`` by torch.optim.SGD; the weight is kept in ``kept``."""
    parameter = torch.nn.Parameter(weight.detach().clone())
    parameter.grad = gradient.detach().to(parameter.dtype)
    torch.optim.SGD([parameter], lr=_RATE).step()
    want = exact_weight - _RATE * exact_gradient
    bound = _RATE * gradient_bound + _bounds.rounding(want.abs() + _RATE * gradient_bound, kept)
    # The product of rate and gradient may be rounded before the difference is.
    bound = bound + _bounds.rounding(_RATE * exact_gradient, kept)
    why = f"2^-7 times the gradient's bound, and two roundings of the weight's {kept.name}"
    return _judge(device, name, "update", how, why, parameter, want, bound)


def _attention(device: torch.device, fmt: Format, dtype: torch.dtype, how: str) -> Iterator[Result]:
    q, k, v, g = (_random(seed, 1, 1, _TOKENS, _HEAD).to(dtype).to(device) for seed in (4, 5, 6, 7))
    for tensor in (q, k, v):
        tensor.requires_grad_()
    out = functional.scaled_dot_product_attention(q, k, v)
    out.backward(g)  # type: ignore[no-untyped-call]
    eq, ek, ev = (_exact(tensor)[0, 0].requires_grad_() for tensor in (q, k, v))
    want = functional.scaled_dot_product_attention(eq[None, None], ek[None, None], ev[None, None])[0, 0]
    want.backward(_exact(g)[0, 0])  # type: ignore[no-untyped-call]
    bounds = _bounds.attention(eq.detach(), ek.detach(), ev.detach(), _exact(g)[0, 0], fmt)
    why = f"scores, probabilities and output each rounded to {fmt.name} (u = 2^{-fmt.mantissa_bits - 1}), sums in fp32"
    yield _judge(device, fmt.name, "attention forward", how, why, out[0, 0], want.detach(), bounds["out"])
    for name, got, exact in (("q", q, eq), ("k", k, ek), ("v", v, ev)):
        assert got.grad is not None
        assert exact.grad is not None
        stage = f"attention backward, {name}"
        yield _judge(device, fmt.name, stage, how, why, got.grad[0, 0], exact.grad, bounds[f"d{name}"])


def _fp8(device: torch.device, forward: str, backward: str) -> Iterator[Result]:
    """Forward operands in E4M3, the output's gradient in E5M2, as FP8 recipes have it; the master weight in fp32."""
    master = _random(2, _OUT, _IN)
    x, w, g = (
        _quantised(tensor.to(device), formats[name])
        for tensor, name in ((_random(1, _ROWS, _IN), forward), (master, forward), (_random(3, _ROWS, _OUT), backward))
    )
    for name, (eight, scale), original in (
        (forward, x, _random(1, _ROWS, _IN)),
        (backward, g, _random(3, _ROWS, _OUT)),
    ):
        scaled = original.double() * scale
        why = f"rounding to nearest: u = 2^{-formats[name].mantissa_bits - 1}, half the smallest subnormal below that"
        bound = _bounds.rounding(scaled, formats[name])
        yield _judge(device, name, "cast", "torch cast", why, eight.float(), scaled, bound)
    products = (
        (forward, "linear forward", x, (w[0].T, w[1]), _IN, (forward, forward)),
        (backward, "linear backward, input", g, w, _OUT, (backward, forward)),
        (backward, "linear backward, weight", (g[0].T, g[1]), x, _ROWS, (backward, forward)),
    )
    for name, stage, a, b, terms, pair in products:
        real = multiplies(device, *pair)
        how = (
            "torch._scaled_mm"
            if real
            else f"cast to {pair[0]} and {pair[1]}, product in fp32: no such instruction here"
        )
        got = _product(a, b, real=real)
        ea, eb = _exact(a[0].float()) / a[1], _exact(b[0].float()) / b[1]
        accumulation = _bounds.FP8_ACCUMULATION if real else _bounds.FP32_ACCUMULATION
        bits = 13 if real else 24
        why = f"{terms} exact products summed with v = 2^-{bits} (gamma_{terms}), one rounding to fp32 (u = 2^-24)"
        bound = _bounds.product(ea, eb, formats["fp32"], accumulation)
        yield _judge(device, name, stage, how, why, got, ea @ eb, bound)
        if stage.endswith("weight"):
            weight = master.to(device)
            yield _update(device, name, how, weight, got, master.double(), ea @ eb, bound, formats["fp32"])


def _quantised(tensor: torch.Tensor, fmt: Format) -> tuple[torch.Tensor, float]:
    """``tensor`` times the largest power of two that leaves one bit of headroom, in ``fmt``; and that scale."""
    amax = float(tensor.abs().max())
    scale = 2.0 ** int(torch.log2(torch.tensor(fmt.max / amax)).floor() - 1)
    return (tensor * scale).to(DTYPES[fmt.name]), scale


def _product(a: tuple[torch.Tensor, float], b: tuple[torch.Tensor, float], *, real: bool) -> torch.Tensor:
    """[m, k] times [k, n] in fp32, scales divided out (exact: they are powers of two)."""
    if not real:
        return (a[0].float() @ b[0].float()) / (a[1] * b[1])
    one = torch.ones((), device=a[0].device)
    # The second operand has to lie in columns.
    columns = b[0].T.contiguous().T
    product = torch._scaled_mm(a[0].contiguous(), columns, scale_a=one, scale_b=one, out_dtype=torch.float32)
    return product / (a[1] * b[1])
