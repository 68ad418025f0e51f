"""Every variant of the statistics pass that this machine can run gives what counting one by one gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floatscope._stats import Rows, Variant
from tests.agent.brute_force import DTYPES
from tests.variants import CASES, Case, assert_rows, expected


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def variant(case: Case) -> Variant:
    return case.make()


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    value: torch.dtype = request.param
    return value


def check(variant: Variant, case: Case, tensors: Sequence[torch.Tensor], at: Sequence[int] | None = None) -> None:
    """``tensors`` through a plan, twice, and one by one; with a histogram and without."""
    at = range(len(tensors)) if at is None else at
    count = max(at) + 1
    there = [placed(tensor, case.device) for tensor in tensors]
    want = expected(tensors, at, count)
    for histogram in (True, False):
        plan = variant.plan(at)
        for _ in range(2):
            planned = Rows(count, case.device)
            plan.run(planned, there, histogram=histogram)
            assert_rows(planned, want, histogram=histogram, sampled=variant.samples_histogram)
        single = Rows(count, case.device)
        for tensor, row in zip(there, at, strict=True):
            variant.measure(tensor, single.words[row], single.hist[row] if histogram else None)
        assert_rows(single, want, histogram=histogram, sampled=variant.samples_histogram)


def placed(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """``tensor`` with its strides and the oddness of its address on ``device``."""
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return storage.to(device).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def some(count: int, seed: int = 0) -> torch.Tensor:
    """Values of many sizes, with zeros of both signs."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=generator) * torch.randn(count, generator=generator).mul(5).exp()
    values[::7], values[3::91] = 0.0, -0.0
    return values


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 15, 17, 511, 4096, 8191, 70_001])
def test_sizes(variant: Variant, case: Case, dtype: torch.dtype, count: int) -> None:
    check(variant, case, [some(count).to(dtype)])


@pytest.mark.parametrize("count", [1, 20, 9001, 70_001])
def test_what_is_not_finite(variant: Variant, case: Case, dtype: torch.dtype, count: int) -> None:
    values = some(count)
    values[0] = math.nan
    values[count // 2] = math.inf
    values[-1] = -math.inf
    check(variant, case, [values.to(dtype), torch.full((count,), math.nan).to(dtype)])


@pytest.mark.parametrize("offset", [1, 2, 3, 5, 7, 15])
def test_misaligned_addresses(variant: Variant, case: Case, dtype: torch.dtype, offset: int) -> None:
    values = some(9000).to(dtype)
    check(variant, case, [values[offset:], values[offset:-offset], values[offset : offset + 3]])


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.permute(2, 0, 1),
    "channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last),
    "strided": lambda x: x[:, ::2, 1:],
    "narrow": lambda x: x[:, :, 2],
    "expanded": lambda x: x[:1, :1].expand(3, 300, -1),
    "scalar": lambda x: x[1, 2, 3],
    "empty": lambda x: x[:, :0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(variant: Variant, case: Case, dtype: torch.dtype, layout: str) -> None:
    check(variant, case, [LAYOUTS[layout](some(4 * 60 * 50).to(dtype).view(4, 60, 50))])


HARD = {
    "zeros": torch.zeros(5000),
    "negative zeros": torch.full((5000,), -0.0),
    "all equal": torch.full((200_003,), 0.1),
    "all negative": torch.full((70_001,), -3.3e-5),
    "huge": torch.linspace(0.5, 3.4, 5000) * 1e38,
    "one huge": torch.cat([some(5000), torch.tensor([3.4028235e38])]),
    "tiny": torch.linspace(0.5, 2.0, 5000) * 1e-38,
    "subnormal": torch.arange(1, 9000, dtype=torch.int32).view(torch.float32),
    "smallest": torch.full((5000,), 1e-45),
    "squares that vanish": torch.linspace(0.5, 2.0, 5000) * 1e-25,
    "the edges of the fast path": torch.tensor([2.0**62, 2.0**62 * 0.9999, 2.0**-40, 2.0**-40 * 0.9999]).repeat(99),
    "just below": torch.full((9000,), 2.0**62 * (1 - 2.0**-24)),
    "just above": torch.full((9000,), 2.0**-40),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_values(variant: Variant, case: Case, name: str) -> None:
    check(variant, case, [HARD[name]])


@pytest.mark.parametrize("sixteen", [torch.bfloat16, torch.float16])
def test_every_code_of_16_bits(variant: Variant, case: Case, sixteen: torch.dtype) -> None:
    codes = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    finite = codes.view(sixteen)[codes.view(sixteen).isfinite()]
    check(variant, case, [codes.view(sixteen), finite, finite.flip(0)[1:]])


def test_every_code_of_8_bits(variant: Variant, case: Case) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).repeat(40)
    check(variant, case, [codes.view(dtype) for dtype in DTYPES if dtype.itemsize == 1])


def test_float64_is_clamped(variant: Variant, case: Case) -> None:
    values = [1e39, -1e300, 3.4028235677973366e38, 1e-46, -1e-300, 5e-324, math.inf, -math.inf, math.nan, 0.1]
    check(variant, case, [torch.tensor(values, dtype=torch.float64)])


def test_many_dtypes_in_one_plan_and_several_in_a_row(variant: Variant, case: Case) -> None:
    tensors = [some(size, seed).to(dtype) for seed, dtype in enumerate(DTYPES) for size in (3, 0, 5000)]
    tensors[5][1] = math.nan
    check(variant, case, tensors, [index // 4 for index in range(len(tensors))])


def test_more_tensors_than_one_launch_takes(variant: Variant, case: Case) -> None:
    check(variant, case, [some(1 + seed % 40, seed) for seed in range(400)], [seed % 7 for seed in range(400)])


def test_a_plan_follows_its_tensors(variant: Variant, case: Case) -> None:
    """The same address with another size, dtype or stride, which is what an allocator hands out."""
    base = placed(some(60_000), case.device)
    views = [base[:40_000], base[:1000], base.view(torch.bfloat16)[:40_000], base[:40_000:2], base[:1].expand(500)]
    plan = variant.plan([0])
    for view in [*views, *reversed(views), base[1:]]:
        rows = Rows(1, case.device)
        plan.run(rows, [view], histogram=True)
        assert_rows(rows, expected([view], [0], 1), sampled=variant.samples_histogram)
    plan = variant.plan([0, 0])
    with pytest.raises(ValueError, match="argument 2"):
        plan.run(Rows(1, case.device), [base], histogram=True)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    codes=st.lists(st.binary(min_size=0, max_size=90), min_size=1, max_size=6),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=6, max_size=6),
    times=st.sampled_from([1, 1, 30, 700]),
)
def test_any_bits(variant: Variant, case: Case, codes: list[bytes], dtypes: list[torch.dtype], times: int) -> None:
    tensors = []
    for data, dtype in zip(codes, dtypes, strict=False):
        whole = data[: len(data) // dtype.itemsize * dtype.itemsize] * times
        raw = torch.frombuffer(bytearray(whole), dtype=torch.uint8) if whole else torch.empty(0, dtype=torch.uint8)
        tensors.append(raw.view(dtype))
    check(variant, case, tensors, [index % 3 for index in range(len(tensors))])
