"""The kernels in Triton build for every chip they are meant for, and give the right numbers in its interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest

from floatscope._stats._triton import OPTIONS, constants
from tests.needs import needs

TARGETS = [("cuda", 90, 32), ("hip", "gfx942", 64), ("hip", "gfx90a", 64), ("hip", "gfx1100", 32)]


@pytest.fixture(scope="module")
def triton() -> Any:  # noqa: ANN401 (Triton has no types)
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError:
        needs(None, "Triton")
    return triton.compile, ASTSource, GPUTarget


@pytest.mark.parametrize("kind", range(5), ids=["fp32", "bf16", "fp16", "fp64", "fp8"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target[1]))
def test_triton_builds(target: tuple[str, int | str, int], kind: int, triton: Any) -> None:  # noqa: ANN401
    from floatscope._stats import _triton_kernels

    build, source_of, target_of = triton
    fixed = constants(kind, target[2], 16, aligned=True)
    signature = {"work": "*i64", "words": "*i64", "hist": "*i32", "table": "*i32"} | dict.fromkeys(fixed, "constexpr")
    source = source_of(_triton_kernels.many, signature, fixed, {})
    built = build(source, target=target_of(*target), options=OPTIONS)
    assert built.asm["cubin" if target[0] == "cuda" else "hsaco"]
    # The bins, and no tile: that is exchanged through shared memory where its columns do not fit the wavefronts.
    assert built.metadata.shared <= 2048


_INTERPRETED = """
import math
import warnings
import torch
from floatscope._stats._golden import difference
from floatscope._stats._triton import TritonVariant
warnings.simplefilter("ignore")  # numpy's, of sums with Inf and NaN
torch.manual_seed(0)
values = torch.randn(9000) * torch.randn(9000).mul(6).exp()
values[::7] = 0.0
bad = values.clone()
bad[5], bad[100], bad[-1] = math.nan, math.inf, -math.inf
dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2fnuz]
tensors = [values[1:], bad, values[:0], torch.full((99,), 1e38), torch.full((99,), 1e-42), torch.zeros(70_000)]
tensors += [bad.to(dtype)[3:] for dtype in dtypes]
for every in (1, 16):
    print(difference(TritonVariant(torch.device("cpu"), every=every), torch.device("cpu"), tensors))
"""


def test_triton_in_its_interpreter() -> None:
    needs(importlib.util.find_spec("triton"), "Triton")
    done = subprocess.run(
        [sys.executable, "-c", _INTERPRETED],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
    assert done.stdout.split() == ["None", "None"], done.stdout + done.stderr
