"""The statistics kernels alone: time over that of the bytes at copy bandwidth, and host time of a launch.

Device times by replay of a captured graph that goes through several sets of buffers, so that no read finds its data in
the cache. Gradient lists are those of GPTs of 125M and 1.3B parameters in float32, where memory has room for two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

import torch

from floatscope._stats import Rows, Variant, variant_for, why

_REPLAYS = 40
_IN_A_GRAPH = 6
_HOST_RUNS = 300
_WARM_UP_SECONDS = 0.3
_WITH = {False: "no histogram", True: "with histogram"}


def gpt_gradients(layers: int, width: int, context: int, device: str) -> list[torch.Tensor]:
    """Random gradients of a GPT-2 of this size: 12 tensors a layer and four more."""
    block = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    shapes = [(50304, width), (context, width), *(block * layers), (width,), (width,)]
    return [torch.randn(shape, device=device).mul_(1e-3) for shape in shapes]


def replayed(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds that one of ``calls`` takes on the device: the median of graph replays that run each of them in turn."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(_IN_A_GRAPH):
            calls[index % len(calls)]()
    return _median(graph.replay) / _IN_A_GRAPH


def _median(work: Callable[[], object]) -> float:
    """Seconds between two events around ``work``, once the clocks are up: they fall within milliseconds of rest."""
    event: Any = torch.cuda.Event
    times = []
    deadline = time.perf_counter() + _WARM_UP_SECONDS
    while time.perf_counter() < deadline:
        work()
        torch.cuda.synchronize()
    for _ in range(_REPLAYS):
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) / 1e3)
    return statistics.median(times)


def host_time(call: Callable[[], object]) -> float:
    """Seconds of the host for one ``call``: the median over calls, the device being idle before each ten."""
    times = []
    for _ in range(_HOST_RUNS // 10):
        torch.cuda.synchronize()
        for _ in range(10):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a device-to-device copy of 2 GB."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    # Not as a graph, where a copy is another node and takes half as long again.
    return 2 * source.nbytes / _median(lambda: target.copy_(source))


def planned(variant: Variant, tensors: Sequence[torch.Tensor], *, histogram: bool) -> Callable[[], None]:
    """One pass of ``variant`` over ``tensors``, two to a row."""
    rows = Rows(len(tensors), "cuda")
    plan = variant.plan([index // 2 for index in range(len(tensors))])
    return lambda: plan.run(rows, tensors, histogram=histogram)


def main() -> None:
    """Print the figures of the variant that the GPU gets."""
    if not torch.cuda.is_available():
        print("  left out: torch sees no GPU")
        return
    variant = variant_for(torch.device("cuda"))
    bandwidth = copy_bandwidth()
    print(f"  {torch.cuda.get_device_name()}, torch {torch.__version__}, {variant.name}: {why(torch.device('cuda'))}")
    print(f"  copy bandwidth {bandwidth / 1e12:.2f} TB/s")

    def show(name: str, calls: Sequence[Callable[[], object]], size: int) -> None:
        seconds = replayed(calls)
        print(f"  {name:52s} {seconds * 1e6:8.1f} us  {seconds * bandwidth / size:5.2f}x")

    for name, shape in (("125M", (12, 768, 1024)), ("1.3B", (24, 2048, 2048))):
        lists = [gpt_gradients(*shape, "cuda") for _ in range(2)]
        size = sum(tensor.nbytes for tensor in lists[0])
        show(
            f"gradients {name}: absmax alone (_foreach_norm)",
            [partial(torch._foreach_norm, t, inf) for t in lists],
            size,
        )
        for histogram in (False, True):
            calls = [planned(variant, tensors, histogram=histogram) for tensors in lists]
            show(f"gradients {name}: {_WITH[histogram]}", calls, size)
            print(f"  {'':52s} {host_time(calls[0]) * 1e6:8.1f} us of the host")
    rows = Rows(1, "cuda")
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn):
        tensors = [torch.randn(1 << 27, device="cuda").to(dtype) for _ in range(3)]
        for histogram in (False, True):
            row = (rows.words[0], rows.hist[0] if histogram else None)
            calls = [partial(variant.measure, tensor, *row) for tensor in tensors]
            show(f"134M {dtype}: {_WITH[histogram]}", calls, tensors[0].nbytes)
