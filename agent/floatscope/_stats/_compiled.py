"""The pass in CUDA and HIP C++ (kernels.cu), compiled at run time: one launch for up to 168 tensors of any dtypes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from floatscope._stats._cache import cached
from floatscope._stats._layout import Layouts, spans
from floatscope._stats._reference import Reference
from floatscope._stats._rows import Rows
from floatscope._stats._rtc import HIP, Driver, Function, Platform, compile_source

__all__ = ["SOURCE", "Compiled", "Shape", "options"]

SOURCE = Path(__file__).with_name("kernels.cu")

TENSORS = 168
"""Entries of a launch: what fits in the 4 KB that a kernel's arguments may have everywhere."""

_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3} | {
    getattr(torch, name): 4 + table for table, name in enumerate(_FLOAT8)
}
_COUNTED = 1 << 31

_LARGEST_PIECE = 128 << 10
_SMALLEST_PIECE = 16 << 10
_GRAIN = 8 << 10
"""Bytes that a block reads: what many tensors are cut into, and between which bounds a few are spread over the chip."""


class Shape(NamedTuple):
    """Threads of a block, blocks a multiprocessor should hold at once, 16-byte loads in flight for a thread."""

    threads: int = 512
    resident: int = 2
    unroll: int = 8


def options(platform: Platform, architecture: str, wave: int, shape: Shape) -> list[str]:
    """What the compiler is told; ``architecture`` is sm_90 or gfx90a, ``wave`` the threads of a warp or wavefront."""
    target = f"--offload-arch={architecture}" if platform is HIP else f"--gpu-architecture={architecture}"
    macros = {
        "WAVE": wave,
        "THREADS": shape.threads,
        "RESIDENT": shape.resident,
        "UNROLL": shape.unroll,
        "TENSORS": TENSORS,
    }
    return [target, "--std=c++17", *(f"-D{name}={value}" for name, value in macros.items())]


class _Work(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64 * TENSORS),
        ("elements", ctypes.c_uint64 * TENSORS),
        ("row", ctypes.c_uint32 * TENSORS),
        ("first", ctypes.c_uint32 * TENSORS),
    )


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

    def __init__(self, variant: Compiled) -> None:
        self._work = _Work()
        self._tensors, self._piece = ctypes.c_uint32(), ctypes.c_uint32()
        self._words, self._hist = ctypes.c_uint64(), ctypes.c_uint64()
        tables = ctypes.c_uint64(variant.tables.data_ptr())
        arguments = (self._work, self._tensors, self._piece, tables, self._words, self._hist)
        threads = variant.shape.threads
        self._with_histogram = variant.driver.function("statistics_and_histogram", threads, arguments)
        self._without: Function = variant.driver.function("statistics", threads, arguments)
        self._blocks = 0

    def set(self, work: Sequence[_Span], piece: int) -> None:
        """Read ``work``, at most TENSORS parts, in pieces of ``piece`` bytes."""
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


class Compiled:
    """The variant that NVRTC or hipRTC compiles, for one device.

    ``OSError`` without the compiler or driver, ``RuntimeError`` where either fails. Reads the device's properties and
    compiles (or takes what this user compiled before) when made; nothing that it does later waits for the device.
    """

    samples_histogram = False

    def __init__(self, platform: Platform, device: torch.device, shape: Shape = Shape()) -> None:  # noqa: B008
        properties = torch.cuda.get_device_properties(device)
        wave = properties.warp_size if platform is HIP else 32
        architecture = properties.gcnArchName if platform is HIP else f"sm_{properties.major}{properties.minor}"
        flags = options(platform, architecture, wave, shape)
        source = SOURCE.read_text()
        key = (platform.compiler, str(torch.version.cuda or torch.version.hip), *flags, source)
        with torch.cuda.device(device):
            # Makes the context current.
            self.tables = _tables().to(device)
            code = cached("kernels", key, lambda: compile_source(platform, source, flags))
            self.driver = Driver(platform, code)
            self._index = torch.cuda.current_device()
        self.name = platform.compiler
        self.shape = shape
        self.resident = shape.resident * properties.multi_processor_count
        self._own = threading.local()
        self._reference = Reference()

    def plan(self, at: Sequence[int], *, fixed_layouts: bool = False) -> CompiledPlan:
        """A plan for ``len(at)`` tensors, ``at[i]`` being the row of the i-th; for one thread at a time."""
        return CompiledPlan(self, tuple(at), fixed_layouts=fixed_layouts)

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


class CompiledPlan:
    """A list of tensors that is measured again and again; see ``Plan``."""

    def __init__(self, variant: Compiled, at: tuple[int, ...], *, fixed_layouts: bool) -> None:
        self._variant, self._at, self._fixed = variant, at, fixed_layouts
        self._launches: list[_Launch] = []
        self._used = 0
        self._odd: list[int] = []
        self._layouts: Layouts | None = None

    def run(self, rows: Rows, tensors: Sequence[torch.Tensor], *, histogram: bool) -> None:
        """Merge the statistics of ``tensors[i]`` into its row."""
        held = []
        if self._layouts is None or not self._layouts.are_those_of(tensors):
            held = self._lay_out(tensors)
        variant = self._variant
        variant.launch(self._launches[: self._used], rows.words, rows.hist if histogram else None)
        # Copies of strided tensors may go: their memory is reused in the order of the stream.
        del held
        for index in self._odd:
            at = self._at[index]
            variant._reference.measure(tensors[index], rows.words[at], rows.hist[at] if histogram else None)

    def _lay_out(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Fill the launches' arguments; the result must live until they have been launched."""
        self._odd = [index for index, tensor in enumerate(tensors) if tensor.dtype not in _KINDS]
        parts: list[torch.Tensor] = []
        work: list[_Span] = []
        in_place = True
        for tensor, at in zip(tensors, self._at, strict=True):
            for part, span in _work(tensor, at) if tensor.dtype in _KINDS else ():
                parts.append(part)
                work.append(span)
                in_place = in_place and part is tensor
        # The largest first: the last blocks to start are short, and no multiprocessor waits long for the others.
        work.sort(key=lambda span: span.bytes, reverse=True)
        share = sum(span.bytes for span in work) // (4 * self._variant.resident)
        piece = min(max(_SMALLEST_PIECE, -(-share // _GRAIN) * _GRAIN), _LARGEST_PIECE)
        groups = [work[start : start + TENSORS] for start in range(0, len(work), TENSORS)]
        self._used = len(groups)
        self._launches += [_Launch(self._variant) for _ in groups[len(self._launches) :]]
        for launch, group in zip(self._launches, groups, strict=False):
            launch.set(group, piece)
        self._layouts = Layouts(tensors, fixed=self._fixed) if in_place else None
        return [] if in_place else parts


def _work(tensor: torch.Tensor, row: int) -> Iterator[tuple[torch.Tensor, _Span]]:
    word = row | _KINDS[tensor.dtype] << 24
    for part in spans(tensor):
        yield part, _Span(part.data_ptr(), part.numel(), part.element_size(), word)
        word |= _COUNTED


def _tables() -> torch.Tensor:
    """int32 [4, 256]: the float32 bits of every code of each float8."""
    codes = torch.arange(256).to(torch.uint8)
    return torch.stack([codes.view(getattr(torch, name)).to(torch.float32).view(torch.int32) for name in _FLOAT8])
