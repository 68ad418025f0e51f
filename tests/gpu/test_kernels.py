"""The compiled kernels on a GPU, apart from right numbers, which tests/agent/test_variants.py is about."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from floatscope._stats import Reference, Rows, Variant, WordAt
from tests.agent.brute_force import DTYPES
from tests.variants import CASES, assert_rows, expected

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device; torch sees none")

cuda: Any = torch.cuda  # where torch's own functions have no types

COMPILED = [name for name in CASES if name.startswith(("nvrtc", "hiprtc"))]


@pytest.fixture(scope="module", params=COMPILED or ["none"])
def variant(request: pytest.FixtureRequest) -> Variant:
    return CASES[request.param].make()


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    torch.zeros(1, device="cuda").sum().item()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it a prototype
        torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def some(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, device="cuda").mul_(3).to(dtype)


@pytest.mark.usefixtures("waiting_is_an_error")
def test_nothing_waits(variant: Variant) -> None:
    tensors = [some(5000, dtype) for dtype in DTYPES] + [some(5000).view(50, 100)[:, ::2], some(0)]
    plan = variant.plan(range(len(tensors)))
    for histogram in (True, False, True):
        rows = Rows(len(tensors), "cuda")
        plan.run(rows, tensors, histogram=histogram)
        for row, tensor in enumerate(tensors):
            variant.measure(tensor, rows.words[row], rows.hist[row] if histogram else None)
        tensors = [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2], ids=str)
def test_more_than_two_to_the_31_elements(variant: Variant, dtype: torch.dtype) -> None:
    count = (1 << 31) + 12345
    tensor = torch.ones(count, dtype=torch.bfloat16, device="cuda").to(dtype)
    tensor[-1], tensor[1 << 31], tensor[5] = 2.0, 0.0, math.inf
    rows = Rows(2, "cuda")
    variant.plan([0]).run(rows, [tensor], histogram=True)
    variant.measure(tensor, rows.words[1], rows.hist[1])
    for row in range(2):
        words = rows.words[row].cpu()
        assert words[[WordAt.ZEROS, WordAt.NANS, WordAt.INFS]].tolist() == [1, 0, 1]
        assert words[[WordAt.ELEMENTS, WordAt.SAMPLED, WordAt.TENSORS]].tolist() == [count, count, 1]
        sums = words[WordAt.SUM : WordAt.ELEMENTS].view(torch.float64).tolist()
        assert sums == [count - 3 + 2.0, count - 3 + 4.0]
        hist = rows.hist[row].cpu().numpy().view(np.uint32)
        assert hist.sum(dtype=np.int64) == count - 2
        assert hist.max() == count - 3


def test_a_bin_counts_to_two_to_the_32(variant: Variant) -> None:
    """MAX_ROW_ELEMENTS is what may be merged into a row; one more and the counter of a bin starts again."""
    tensor = torch.ones(1 << 30, dtype=torch.bfloat16, device="cuda")
    last = tensor[1:]
    rows = Rows(1, "cuda")
    variant.plan([0, 0, 0, 0]).run(rows, [tensor, tensor, tensor, last], histogram=True)
    assert rows.hist[0].cpu().numpy().view(np.uint32).max() == (1 << 32) - 1
    variant.measure(tensor[:1], rows.words[0], rows.hist[0])
    assert not rows.hist.any()
    assert int(rows.words[0, WordAt.ELEMENTS]) == 1 << 32


@pytest.mark.parametrize("planned", [True, False])
def test_a_captured_graph_measures_what_is_there_at_each_replay(variant: Variant, planned: bool) -> None:
    tensors = [some(70_000), some(300, torch.bfloat16), some(9000, torch.float8_e4m3fn)]
    rows = Rows(3, "cuda")
    plan = variant.plan(range(3))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows.words.zero_()
        rows.hist.zero_()
        if planned:
            plan.run(rows, tensors, histogram=True)
        else:
            for row, tensor in enumerate(tensors):
                variant.measure(tensor, rows.words[row], rows.hist[row])
    # What was captured must not change with what the plan is used for afterwards.
    plan.run(Rows(3, "cuda"), [some(10), some(10), some(10)], histogram=True)
    for factor in (1.0, 8.0, 0.0):
        for tensor in tensors:
            tensor.copy_((torch.randn(tensor.shape, device="cuda") * factor).to(tensor.dtype))
        graph.replay()
        assert_rows(rows, expected(tensors, range(3), 3))


def test_streams_of_ones_own(variant: Variant) -> None:
    stream = cuda.Stream()
    tensors = [some(1 << 20), some(1 << 18, torch.float16)]
    rows = Rows(2, "cuda")
    plan = variant.plan(range(2))
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        cuda._sleep(20_000_000)
        for tensor in tensors:
            tensor.mul_(4)  # the current stream orders the pass after this
        plan.run(rows, tensors, histogram=True)
    torch.cuda.current_stream().wait_stream(stream)
    assert_rows(rows, expected(tensors, range(2), 2))


def test_addresses_that_change_while_the_gpu_is_busy(variant: Variant) -> None:
    """Many steps are queued before the first one runs: each must read the tensors that it was given."""
    generator = torch.Generator("cuda").manual_seed(3)
    steps = [
        [torch.randn(1000 + 10 * t, device="cuda", generator=generator) * 2.0**s for t in range(400)] for s in range(8)
    ]
    rows = [Rows(400, "cuda") for _ in steps]
    plan = variant.plan(range(400))
    torch.cuda.synchronize()
    cuda._sleep(100_000_000)
    for own, tensors in zip(rows, steps, strict=True):
        plan.run(own, tensors, histogram=True)
    for own, tensors in zip(rows, steps, strict=True):
        assert_rows(own, expected(tensors, range(400), 400))


def test_a_plan_follows_tensors_that_move(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tensors than a launch takes, at other addresses each time, odd ones and ones that were there before too."""
    count = 400
    first = [some(1000 + 10 * number) for number in range(count)]
    plan = variant.plan(range(count))
    plan.run(Rows(count, "cuda"), first, histogram=True)
    monkeypatch.setattr(plan, "_lay_out", None)
    second = [tensor.mul(2) for tensor in first]
    odd = [torch.cat((tensor[:1], tensor.mul(3)))[1:] for tensor in first]
    for tensors in (second, odd, first, [*second[:200], *first[200:]], first):
        rows = Rows(count, "cuda")
        plan.run(rows, tensors, histogram=True)
        assert_rows(rows, expected(tensors, range(count), count))


def test_addresses_are_followed(variant: Variant) -> None:
    first, second = [some(5000), some(70)], [some(5000), some(70)]
    plan = variant.plan([0, 1])
    for tensors in (first, second, first, [second[0], first[1]]):
        rows = Rows(2, "cuda")
        plan.run(rows, tensors, histogram=True)
        assert_rows(rows, expected(tensors, [0, 1], 2))


def test_a_thread_that_has_not_used_the_device(variant: Variant) -> None:
    import threading

    tensor, rows = some(5000), Rows(1, "cuda")
    torch.cuda.synchronize()
    thread = threading.Thread(target=variant.measure, args=(tensor, rows.words[0], rows.hist[0]))
    thread.start()
    thread.join()
    assert_rows(rows, expected([tensor], [0], 1))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_the_current_one() -> None:
    from floatscope._stats._rtc import CUDA, HIP
    from floatscope._stats._rtc_variant import Build, RtcVariant

    device = torch.device("cuda", 1)
    variant = RtcVariant(Build.of(HIP if torch.version.hip is not None else CUDA, device))
    tensor, rows = torch.randn(5000, device=device), Rows(1, device)
    variant.measure(tensor, rows.words[0], rows.hist[0])
    assert_rows(rows, expected([tensor], [0], 1))
    assert torch.cuda.current_device() == 0


def test_temporary_memory(variant: Variant) -> None:
    """Dense tensors take none; a strided one is copied 16M elements at a time."""
    dense = some(1 << 26, torch.bfloat16)
    strided = dense.view(1 << 13, 1 << 13)[:, ::2]
    rows = Rows(1, "cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    variant.measure(dense.view(1 << 13, 1 << 13).t(), rows.words[0], rows.hist[0])
    assert torch.cuda.max_memory_allocated() == before
    variant.measure(strided, rows.words[0], rows.hist[0])
    assert torch.cuda.max_memory_allocated() - before <= 3 << 25
    want = Rows(1, "cuda")
    Reference().measure(dense, want.words[0], want.hist[0])
    Reference().measure(strided, want.words[0], want.hist[0])
    assert torch.equal(rows.hist, want.hist)
