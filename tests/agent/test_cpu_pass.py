"""The pass on a CPU, in C and in torch operations, against brute force in numpy and against the reference."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import floatscope
from floatscope._stats import Rows, RowValues, Variant, WordAt, _choice, variant_for
from floatscope._stats._cpu import BLOCK, SAMPLE, Cpu, works
from floatscope._stats._cpu_library import Compilation
from floatscope._stats._reference import Reference
from floatscope._summary import Summary
from tests.agent.brute_force import DTYPES, Array, assert_same, expected
from tests.needs import needs

STRIDE = BLOCK * SAMPLE


@pytest.fixture(scope="module")
def compilation(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    needs(shutil.which("cc"), "a C compiler")
    directory = tmp_path_factory.mktemp("cache") / "floatscope"
    result = Compilation(lambda: directory, works)
    result.start()
    assert result.wait(50.0)
    assert result.function() is not None
    return result


@pytest.fixture(params=["torch", "c"])
def variant(request: pytest.FixtureRequest) -> Cpu:
    if request.param == "torch":
        return Cpu(lambda: None)
    return Cpu(request.getfixturevalue("compilation").function)


def measured(
    variant: Variant, tensors: Sequence[torch.Tensor], at: Sequence[int], *, histogram: bool = True
) -> RowValues:
    rows = Rows(max(at) + 1, "cpu")
    variant.plan(at).run(rows, tensors, histogram=histogram)
    return RowValues(rows.words.numpy(), rows.hist.numpy().view(np.uint32) if histogram else None)


def float32_values(tensor: torch.Tensor) -> Array:
    """As float32, in memory order; float64 by numpy, finite values clamped."""
    if tensor.dtype != torch.float64:
        values: Array = tensor.reshape(-1).to(torch.float32).numpy()
        return values
    doubles, limit = tensor.reshape(-1).numpy(), float(np.finfo(np.float32).max)
    with np.errstate(all="ignore"):
        clamped = np.where(np.isinf(doubles), doubles, np.clip(doubles, -limit, limit))
        singles: Array = clamped.astype(np.float32)
    return singles


def sampled_part(values: Array) -> Array:
    if len(values) < STRIDE:
        return values
    part: Array = values[np.arange(len(values)) // BLOCK % SAMPLE == 0]
    return part


def sampled_summary(values: Array) -> Summary:
    whole, part = expected(values), expected(sampled_part(values))
    return Summary(
        count=whole.count,
        zeros=whole.zeros,
        nans=whole.nans,
        infs=whole.infs,
        absmax=whole.absmax,
        absmin=whole.absmin,
        sum=whole.sum,
        sumsq=whole.sumsq,
        hist=part.hist,
        hist_n=part.hist_n,
    )


VALUES: dict[str, Callable[[int], torch.Tensor]] = {
    "normal": lambda n: torch.randn(n, generator=torch.Generator().manual_seed(n)) * 1e-3,
    "zeros": lambda n: torch.zeros(n),
    "negative zeros": lambda n: -torch.zeros(n),
    "all equal": lambda n: torch.full((n,), -0.3),
    "large": lambda n: torch.full((n,), 1e38),
    "subnormal": lambda n: torch.full((n,), 1e-42),
    "smallest": lambda n: torch.ones(n, dtype=torch.int32).view(torch.float32),
    "nan": lambda n: torch.full((n,), math.nan),
    "negative inf": lambda n: torch.full((n,), -math.inf),
    "one nan": lambda n: torch.cat([torch.full((n - 1,), 2.0), torch.tensor([math.nan])]) if n else torch.empty(0),
    "one inf at the start": lambda n: torch.cat([torch.tensor([math.inf]), torch.ones(n - 1)]) if n else torch.empty(0),
    "any bits": lambda n: (
        torch.randint(-(1 << 31), 1 << 31, (n,), generator=torch.Generator().manual_seed(n), dtype=torch.int64)
        .to(torch.int32)
        .view(torch.float32)
    ),
}
SIZES = (0, 1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, STRIDE - 1, STRIDE, STRIDE + 3, 5 * STRIDE + BLOCK + 7)


@pytest.mark.parametrize("values", VALUES)
def test_every_size_and_value(variant: Cpu, values: str) -> None:
    tensors = [VALUES[values](n) for n in SIZES]
    got = measured(variant, tensors, range(len(tensors)))
    for row, tensor in enumerate(tensors):
        assert_same(got.summary(row), sampled_summary(float32_values(tensor)))
    assert got.word(WordAt.TENSORS).tolist() == [1] * len(tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_equals_the_reference(variant: Cpu, dtype: torch.dtype) -> None:
    patterns = VALUES["any bits"](50_000).view(torch.int32)
    narrow = dtype.itemsize <= 4
    tensors = [patterns.view(dtype)[: STRIDE - 1] if narrow else patterns.view(torch.float32).to(dtype) * 1e10]
    tensors.append(VALUES["normal"](70_001).to(dtype))
    got, want = (measured(v, tensors, (0, 1)) for v in (variant, Reference()))
    for row in range(2):
        assert_same(got.summary(row), sampled_summary(float32_values(tensors[row])))
    exact = [place for place in range(got.words.shape[1]) if place not in (WordAt.SUM, WordAt.SUMSQ, WordAt.SAMPLED)]
    assert got.words[:, exact].tolist() == want.words[:, exact].tolist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    codes=st.lists(st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1 << 31, 1, 0x7F800000, 0x7FC00000]))),
    repeat=st.sampled_from([1, 3, 700]),
    offset=st.integers(0, 3),
)
def test_any_bit_pattern(variant: Cpu, codes: list[int], repeat: int, offset: int) -> None:
    data = np.tile(np.array(codes, dtype=np.uint32), repeat)
    tensor = torch.from_numpy(data.view(np.int32)).view(torch.float32)[offset:]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2fnuz):
        typed = tensor.view(dtype) if tensor.numel() else torch.empty(0, dtype=dtype)
        assert_same(measured(variant, [typed], (0,)).summary(0), sampled_summary(float32_values(typed)))


@given(st.lists(st.floats(width=64), max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_float64_counts_through_float32(variant: Cpu, values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    assert_same(measured(variant, [tensor], (0,)).summary(0), sampled_summary(float32_values(tensor)))


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.permute(2, 0, 1),
    "strided": lambda x: x[:, ::2, 1:],
    "narrow": lambda x: x[:, :, 2],
    "expanded": lambda x: x[:1].expand(3, -1, -1),
    "scalar": lambda x: x[0, 0, 0],
    "empty": lambda x: x[:0],
    "odd start": lambda x: x.reshape(-1)[1:],
    "negated view": lambda x: torch._neg_view(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_layouts(variant: Cpu, layout: str, dtype: torch.dtype) -> None:
    base = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    base[1, 2, 3], base[0, 0, 0], base[2, 5, 2], base[3, 1, 1] = math.nan, math.inf, 0.0, -0.0
    view = LAYOUTS[layout](base)
    got = measured(variant, [view], (0,))
    assert_same(got.summary(0), expected(float32_values(view.resolve_neg().contiguous())))
    assert got.word(WordAt.TENSORS).tolist() == [1]


def test_a_large_tensor_in_another_order_is_sampled_in_memory_order(variant: Cpu) -> None:
    base = VALUES["normal"](400 * 300).view(400, 300)
    assert_same(measured(variant, [base.t()], (0,)).summary(0), sampled_summary(base.numpy().reshape(-1)))
    apart = base[:, :250]
    got = measured(variant, [apart], (0,)).summary(0)
    whole = expected(float32_values(apart))
    assert (got.count, got.zeros, got.absmax, got.absmin) == (whole.count, whole.zeros, whole.absmax, whole.absmin)
    assert 0 < got.hist_n <= got.count
    assert got.hist.sum() == got.hist_n


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_memory_that_no_element_is_aligned_in(variant: Cpu, shift: int) -> None:
    whole = VALUES["normal"](9000)
    data = bytearray(shift) + whole.numpy().tobytes()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        count = len(whole) * 4 // dtype.itemsize
        tensor = torch.frombuffer(data, dtype=dtype, offset=shift, count=count)
        assert tensor.data_ptr() % 4 == shift % 4
        aligned = torch.frombuffer(bytearray(whole.numpy().tobytes()), dtype=dtype)
        assert_same(measured(variant, [tensor], (0,)).summary(0), expected(float32_values(aligned)))


def test_rows_add_up_over_tensors_and_runs(variant: Cpu) -> None:
    tensors = [VALUES["normal"](n) for n in (100, STRIDE + 1, 7)]
    rows = Rows(3, "cpu")
    plan = variant.plan((2, 0, 2))
    for _ in range(2):
        plan.run(rows, tensors, histogram=True)
    got = RowValues(rows.words.numpy(), rows.hist.numpy().view(np.uint32))
    both = torch.cat([tensors[0], tensors[2]] * 2)
    assert_same(got.summary(2), expected(both.numpy()))
    assert got.word(WordAt.TENSORS).tolist() == [2, 0, 4]
    assert got.word(WordAt.ELEMENTS).tolist() == [2 * (STRIDE + 1), 0, 214]
    assert got.words[1].tolist() == [0] * 10
    variant.measure(tensors[0], rows.words[1], rows.hist[1])
    assert_same(
        RowValues(rows.words.numpy(), rows.hist.numpy().view(np.uint32)).summary(1), expected(tensors[0].numpy())
    )
    without = measured(variant, tensors, (0, 1, 2), histogram=False)
    assert without.word(WordAt.SAMPLED).tolist() == [0, 0, 0]
    assert without.word(WordAt.ELEMENTS).tolist() == [100, STRIDE + 1, 7]


def test_bins_count_in_thirty_two_bits(variant: Cpu) -> None:
    rows = Rows(1, "cpu")
    rows.hist[0, 254] = (1 << 31) - 2
    variant.measure(torch.full((3,), 1.5), rows.words[0], rows.hist[0])
    assert int(rows.hist.numpy().view(np.uint32)[0, 254]) == (1 << 31) + 1


@pytest.fixture
def flushed_denormals() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushed_denormals")
def test_subnormals_survive_a_thread_that_flushes_them(variant: Cpu) -> None:
    single = torch.tensor([1, -(1 << 31) + 1, 0x400000, 0x400001, 0], dtype=torch.int32).view(torch.float32)
    half = torch.tensor([1, 0x3FF, 0, 0x400], dtype=torch.int16).view(torch.float16)
    brain = torch.tensor([1, 0x7F, 0, 0x80], dtype=torch.int16).view(torch.bfloat16)
    tensors = [single, half, brain]
    got, want = (measured(v, tensors, (0, 1, 2)) for v in (variant, Reference()))
    assert got.words.tolist() == want.words.tolist()
    assert got.hist is not None
    assert want.hist is not None
    assert got.hist.tolist() == want.hist.tolist()
    assert got.word(WordAt.ZEROS).tolist() == [1, 1, 1]
    assert got.word(WordAt.ABSMIN_GAP).tolist() == [0x7F800000 - 1, 0x7F800000 - 0x33800000, 0x7F800000 - 0x10000]


def test_threads_change_no_bit(compilation: Compilation) -> None:
    variant = Cpu(compilation.function)
    tensors = [VALUES["normal"](n) for n in (3_000_000, 10, 1_700_001)]
    alone = measured(variant, tensors, (0, 1, 0))
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        together = measured(variant, tensors, (0, 1, 0))
    finally:
        torch.set_num_threads(threads)
    assert together.words.tolist() == alone.words.tolist()
    assert alone.hist is not None
    assert together.hist is not None
    assert together.hist.tolist() == alone.hist.tolist()


def test_who_serves_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_choice, "_chosen", {})
    monkeypatch.delenv("FLOATSCOPE_KERNELS", raising=False)
    variant = variant_for(torch.device("cpu"))
    assert (variant.name, variant.samples_histogram) == ("cpu", True)
    monkeypatch.setenv("FLOATSCOPE_KERNELS", "torch")
    monkeypatch.setattr(_choice, "_chosen", {})
    assert variant_for(torch.device("cpu")).name == "torch"


def test_a_query_has_the_whole_histogram() -> None:
    tensor = VALUES["normal"](3 * STRIDE)
    assert_same(floatscope.summarize(tensor), expected(tensor.numpy()))


def test_the_default_device_does_not_matter(variant: Cpu) -> None:
    tensor = VALUES["any bits"](1000)
    with torch.device("meta"):
        got, whole = measured(variant, [tensor], (0,)).summary(0), floatscope.summarize(tensor)
    assert_same(got, expected(tensor.numpy()))
    assert_same(whole, expected(tensor.numpy()))
