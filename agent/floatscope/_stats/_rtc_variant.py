"""The pass in CUDA and HIP C++ (kernels.cu), compiled at run time: one launch for hundreds of tensors of any dtypes."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope._stats._bounds import require_device
from floatscope._stats._cache import cached, is_cached
from floatscope._stats._float8 import FLOAT8, float8_tables_on
from floatscope._stats._layout import Layouts, in_place, spans
from floatscope._stats._reference import Reference
from floatscope._stats._rows import Rows
from floatscope._stats._rtc import HIP, Driver, Function, Platform, compile_source, driver_version

__all__ = ["SOURCE", "Build", "RtcVariant", "Shape"]

SOURCE = Path(__file__).with_name("kernels.cu")

TENSORS = 168
"""Entries of a launch: what fits in the 4 KB that a kernel's arguments may have everywhere."""
MORE_TENSORS = 336
"""... and in 8 KB: of a model of 1.3B parameters all gradients."""

_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3} | {
    dtype: 4 + table for table, dtype in enumerate(FLOAT8)
}
_COUNTED = 1 << 31

_LARGEST_PIECE = 256 << 10
_SMALLEST_PIECE = 16 << 10
_GRAIN = 8 << 10
"""Bytes that a block reads: what many tensors are cut into, and between which bounds a few are spread over the chip."""


class Shape(NamedTuple):
    """Threads of a block, blocks a multiprocessor should hold at once, 16-byte loads in flight for a thread."""

    threads: int = 256
    resident: int = 4
    unroll: int = 8


_SHAPE = Shape()


@dataclass(frozen=True)
class Build:
    """The kernels for one device: what they are compiled with."""

    platform: Platform
    device: torch.device
    architecture: str
    """sm_90 or gfx90a, say."""
    wave: int
    """Threads of a warp or wavefront."""
    tensors: int = TENSORS
    """Entries of a launch."""
    shape: Shape = _SHAPE

    @classmethod
    def of(cls, platform: Platform, device: torch.device) -> Build:
        """The build for ``device``."""
        properties = torch.cuda.get_device_properties(device)
        if platform is HIP:
            return cls(platform, device, properties.gcnArchName, properties.warp_size)
        architecture = f"sm_{properties.major}{properties.minor}"
        return cls(platform, device, architecture, 32, MORE_TENSORS if _long_arguments() else TENSORS)

    def options(self) -> list[str]:
        """What the compiler is told."""
        target = "--offload-arch" if self.platform is HIP else "--gpu-architecture"
        macros = {
            "WAVE": self.wave,
            "THREADS": self.shape.threads,
            "RESIDENT": self.shape.resident,
            "UNROLL": self.shape.unroll,
            "TENSORS": self.tensors,
        }
        return [
            f"{target}={self.architecture}",
            "--std=c++17",
            *(f"-D{name}={value}" for name, value in macros.items()),
        ]

    def code(self) -> bytes:
        """The code object, compiled unless this user has done so before. ``OSError``, ``RuntimeError``."""
        return cached("kernels", self._key(), lambda: compile_source(self.platform, SOURCE.read_text(), self.options()))

    def kept(self) -> bool:
        """Whether it was compiled before."""
        return is_cached("kernels", self._key())

    def _key(self) -> tuple[str, ...]:
        return (
            self.platform.compiler,
            str(torch.version.cuda or torch.version.hip),
            *self.options(),
            SOURCE.read_text(),
        )


def _long_arguments() -> bool:
    """Whether arguments may have 32 KB: since CUDA 12.1, on Volta and later, which is what torch runs on since 2.6."""
    compiler = tuple(int(part) for part in str(torch.version.cuda).split("."))
    return compiler >= (12, 1) and driver_version() >= 12010


@functools.cache
def _work_of(tensors: int) -> type[ctypes.Structure]:
    class Work(ctypes.Structure):
        _fields_ = (
            ("address", ctypes.c_uint64 * tensors),
            ("elements", ctypes.c_uint64 * tensors),
            ("row", ctypes.c_uint32 * tensors),
            ("first", ctypes.c_uint32 * tensors),
        )

    return Work


class _Span(NamedTuple):
    address: int
    elements: int
    size: int
    """Bytes of an element."""
    word: int
    """The row, the kind, and whether the rest of the tensor was counted."""

    @property
    def bytes(self) -> int:
        return self.elements * self.size


class _Launch:
    """The arguments of one launch, and the kernel with and without a histogram."""

    def __init__(self, variant: RtcVariant) -> None:
        self._work: Any = _work_of(variant.tensors)()
        self._tensors, self._piece = ctypes.c_uint32(), ctypes.c_uint32()
        self._words, self._hist = ctypes.c_uint64(), ctypes.c_uint64()
        tables = ctypes.c_uint64(variant.tables.data_ptr())
        arguments = (self._work, self._tensors, self._piece, tables, self._words, self._hist)
        threads = variant.shape.threads
        self._with_histogram = variant.driver.function("statistics_and_histogram", threads, arguments)
        self._without: Function = variant.driver.function("statistics", threads, arguments)
        self._blocks = 0
        self.addresses: NDArray[np.uint64] = np.ctypeslib.as_array(self._work.address)
        """What the launch reads them from."""

    def set(self, work: Sequence[_Span], piece: int) -> None:
        """Read ``work``, at most as many parts as fit, in pieces of ``piece`` bytes."""
        first = 0
        for index, span in enumerate(work):
            self._work.address[index] = span.address
            self._work.elements[index] = span.elements
            self._work.row[index] = span.word
            self._work.first[index] = first
            first += max(1, -(-span.bytes // piece))
        self._tensors.value, self._piece.value, self._blocks = len(work), piece, first

    def run(self, words: int, hist: int | None, stream: int) -> None:
        """Merge into the rows at the addresses ``words`` and ``hist``."""
        self._words.value = words
        if hist is None:
            self._without.launch(self._blocks, stream)
        else:
            self._hist.value = hist
            self._with_histogram.launch(self._blocks, stream)


class RtcVariant:
    """The variant that NVRTC or hipRTC compiles, for one device.

    ``OSError`` without the compiler or driver, ``RuntimeError`` where either fails. Nothing waits for the device.
    """

    samples_histogram = False

    def __init__(self, build: Build) -> None:
        code = build.code()
        with torch.cuda.device(build.device):
            self.tables = float8_tables_on(build.device)  # which makes the context current
            self.driver = Driver(build.platform, code)
            self._index = torch.cuda.current_device()
        self.name = build.platform.compiler
        self.shape = build.shape
        self.tensors = build.tensors
        self.resident = build.shape.resident * torch.cuda.get_device_properties(build.device).multi_processor_count
        self._own = threading.local()
        self._reference = Reference()

    def plan(self, at: Sequence[int]) -> RtcPlan:
        """A plan for ``len(at)`` tensors, ``at[i]`` being the row of the i-th; for one thread at a time."""
        return RtcPlan(self, tuple(at))

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        """Merge the statistics of ``tensor`` into one row."""
        kind = _KINDS.get(tensor.dtype)
        if kind is None:
            self._reference.measure(tensor, words, hist)
            return
        launch: _Launch | None = getattr(self._own, "launch", None)
        if launch is None:
            launch = self._own.launch = _Launch(self)
        # Each part lives until it is launched: the memory of a copy is reused in the order of the stream.
        for _, span in _work(tensor, 0):
            each = -(-span.bytes // self.resident)
            launch.set([span], max(_SMALLEST_PIECE, -(-each // _GRAIN) * _GRAIN))
            self.launch([launch], words, hist)

    def launch(self, launches: Iterable[_Launch], words: torch.Tensor, hist: torch.Tensor | None) -> None:
        """Run ``launches`` on the device's current stream."""
        if torch._C._cuda_getDevice() != self._index:
            with torch.cuda.device(self._index):
                self.launch(launches, words, hist)
            return
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        at, hist_at = words.data_ptr(), None if hist is None else hist.data_ptr()
        for launch in launches:
            launch.run(at, hist_at, stream)


class RtcPlan:
    """A list of tensors that is measured again and again; see ``Plan``."""

    def __init__(self, variant: RtcVariant, at: tuple[int, ...]) -> None:
        self._variant, self._at = variant, at
        self._launches: list[_Launch] = []
        self._places: list[NDArray[np.intp]] = []
        """Of each launch in use, which of the tensors its entries are."""
        self._apart: list[int] = []
        self._layouts: Layouts | None = None
        self._at_addresses: NDArray[np.uint64] | None = None
        """What the launches read: after Ctrl-C between the two not what ``_layouts`` has followed to."""

    def run(self, rows: Rows, tensors: Sequence[torch.Tensor], *, histogram: bool) -> None:
        """Merge the statistics of ``tensors[i]`` into its row."""
        layouts = self._layouts
        if layouts is None or not layouts.follow(tensors):
            self._lay_out(tensors)
        elif layouts.addresses is not self._at_addresses:
            self._move(layouts.addresses)
        hist = rows.hist if histogram else None
        self._variant.launch(self._launches[: len(self._places)], rows.words, hist)
        for index in self._apart:
            at = self._at[index]
            self._variant.measure(tensors[index], rows.words[at], None if hist is None else hist[at])

    def _lay_out(self, tensors: Sequence[torch.Tensor]) -> None:
        """Fill the launches' arguments."""
        self._layouts = None  # what follows may fail half way
        for tensor in tensors:
            require_device(tensor, self._variant.tables.device)
        # One at a time, so that copies of strided tensors do not add up.
        self._apart = [i for i, tensor in enumerate(tensors) if tensor.dtype not in _KINDS or not in_place(tensor)]
        apart = set(self._apart)
        work: list[tuple[_Span, int]] = []
        for index, (tensor, at) in enumerate(zip(tensors, self._at, strict=True)):
            if index not in apart:
                work += [(span, index) for _, span in _work(tensor, at)]
        # The largest first: the last blocks to start are short, and no multiprocessor waits long for the others.
        work.sort(key=lambda each: each[0].bytes, reverse=True)
        share = sum(span.bytes for span, _ in work) // (4 * self._variant.resident)
        piece = min(max(_SMALLEST_PIECE, -(-share // _GRAIN) * _GRAIN), _LARGEST_PIECE)
        each = self._variant.tensors
        groups = [work[start : start + each] for start in range(0, len(work), each)]
        self._places = [np.array([index for _, index in group]) for group in groups]
        self._launches += [_Launch(self._variant) for _ in groups[len(self._launches) :]]
        for launch, group in zip(self._launches, groups, strict=False):
            launch.set([span for span, _ in group], piece)
        layouts = Layouts(tensors)
        self._layouts, self._at_addresses = layouts, layouts.addresses

    def _move(self, addresses: NDArray[np.uint64]) -> None:
        """The same tensors elsewhere: a tenth of the work."""
        for launch, places in zip(self._launches, self._places, strict=False):
            launch.addresses[: len(places)] = addresses[places]
        self._at_addresses = addresses


def _work(tensor: torch.Tensor, row: int) -> Iterator[tuple[torch.Tensor, _Span]]:
    word = row | _KINDS[tensor.dtype] << 24
    for part in spans(tensor):
        yield part, _Span(part.data_ptr(), part.numel(), part.element_size(), word)
        word |= _COUNTED
