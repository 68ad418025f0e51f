"""Run-time compilers and drivers through ctypes: NVRTC with CUDA's driver, hipRTC with HIP's runtime.

Both pairs have the same functions under other prefixes. torch ships or loads these libraries itself, so nothing has to
be installed and nothing is built before it runs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

__all__ = ["CUDA", "HIP", "Driver", "Function", "Platform", "compile_source", "driver_version"]

_INVALID_CONTEXT = 201

_LEAVE_S = 30.0
"""The longest that a process which ends waits for its compiler: ten times what the kernels take."""

Argument: TypeAlias = ctypes.Structure | ctypes.c_uint32 | ctypes.c_uint64


@dataclass(frozen=True)
class Platform:
    """One vendor's names."""

    compiler: str
    """Prefix of the compiler's functions, and what the variant is called."""
    compiler_libraries: tuple[str, ...]
    code: str
    """What the compiled object is called in function names."""
    driver: str
    """Prefix of the driver's functions."""
    driver_libraries: tuple[str, ...]
    folders: tuple[str, ...]
    """Where the libraries may be: below the folders of Python packages, or absolute."""


CUDA = Platform(
    compiler="nvrtc",
    compiler_libraries=("libnvrtc.so",),
    code="CUBIN",
    driver="cu",
    driver_libraries=("libcuda.so.1",),
    folders=("nvidia/cu*/lib", "nvidia/cuda_nvrtc/lib", "torch/lib", "/usr/local/cuda*/lib64"),
)
HIP = Platform(
    compiler="hiprtc",
    # Until ROCm 5.4 or so the compiler's functions were in the runtime's own library only.
    compiler_libraries=("libhiprtc.so", "libamdhip64.so"),
    code="Code",
    driver="hip",
    driver_libraries=("libamdhip64.so",),
    folders=("torch/lib", "_rocm_sdk_core/lib", "/opt/rocm*/lib"),
)


@contextlib.contextmanager
def _until_done() -> Iterator[None]:
    """The process does not end meanwhile: libraries free at the exit what a compiler in another thread works with."""
    done, process = threading.Event(), os.getpid()

    def wait() -> None:
        if os.getpid() == process:  # in a fork the other thread is not there
            done.wait(_LEAVE_S)

    atexit.register(wait)
    try:
        yield
    finally:
        done.set()
        atexit.unregister(wait)


@_until_done()
def compile_source(platform: Platform, source: str, options: Sequence[str]) -> bytes:
    """The code object of ``source``. ``OSError`` without a compiler, ``RuntimeError`` with its log where it fails."""
    library = _load(platform, platform.compiler_libraries, f"{platform.compiler}CreateProgram")
    prefix = platform.compiler

    def call(name: str, *arguments: object) -> int:
        return int(getattr(library, prefix + name)(*arguments))

    def data(kind: str) -> bytes:
        size = ctypes.c_size_t()
        call(f"Get{kind}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        status = call(f"Get{kind}", program, buffer)
        if status:
            raise RuntimeError(f"{prefix} gave no {kind}: error {status}")
        return buffer.raw

    program = ctypes.c_void_p()
    status = call("CreateProgram", ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    if status:
        raise RuntimeError(f"{prefix} made no program: error {status}")
    try:
        flags = [option.encode() for option in options]
        if call("CompileProgram", program, len(flags), (ctypes.c_char_p * len(flags))(*flags)):
            raise RuntimeError(f"{prefix} failed: {data('ProgramLog').decode(errors='replace').strip()}")
        return data(platform.code)
    finally:
        call("DestroyProgram", ctypes.byref(program))


def driver_version() -> int:
    """The CUDA version that NVIDIA's driver supports, 12010 for 12.1. ``OSError`` without the driver."""
    version = ctypes.c_int()
    _load(CUDA, CUDA.driver_libraries, "cuDriverGetVersion").cuDriverGetVersion(ctypes.byref(version))
    return version.value


class Driver:
    """A code object loaded into the current device's context.

    ``OSError`` without the library, ``RuntimeError`` where the driver refuses the object.
    """

    def __init__(self, platform: Platform, code: bytes) -> None:
        self._prefix = platform.driver
        self._library = _load(platform, platform.driver_libraries, f"{self._prefix}ModuleLoadData")
        self._module = ctypes.c_void_p()
        self._check("ModuleLoadData", ctypes.byref(self._module), code)
        self._context = ctypes.c_void_p()
        self._check("CtxGetCurrent", ctypes.byref(self._context))

    def function(self, name: str, threads: int, arguments: Sequence[Argument]) -> Function:
        """The kernel ``name``, launched with ``arguments`` as they are at each launch, in blocks of ``threads``."""
        handle = ctypes.c_void_p()
        self._check("ModuleGetFunction", ctypes.byref(handle), self._module, name.encode())
        return Function(self, handle, threads, arguments)

    def _check(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, self._prefix + name)(*arguments)
        if status:
            raise RuntimeError(f"{self._prefix}{name} failed: error {status}")


class Function:
    """A kernel and the places of its arguments, made once: a launch costs one call through ctypes."""

    def __init__(
        self,
        driver: Driver,
        handle: ctypes.c_void_p,
        threads: int,
        arguments: Sequence[Argument],
    ) -> None:
        self._driver, self._handle, self._threads = driver, handle, threads
        self._arguments = arguments
        self._places = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        name = "LaunchKernel" if driver._prefix == "cu" else "ModuleLaunchKernel"
        # CDLL lets other threads run meanwhile: a full queue makes the driver wait, and what empties it may be a
        # callback that needs the interpreter.
        self._launch = getattr(driver._library, driver._prefix + name)
        self._launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]

    def launch(self, blocks: int, stream: int) -> None:
        """Put the kernel on ``stream``; its arguments are copied before this returns. Does not wait."""
        arguments = (self._handle, blocks, 1, 1, self._threads, 1, 1, 0, stream, self._places, None)
        status = self._launch(*arguments)
        if status == _INVALID_CONTEXT:
            # A thread in which nothing has used the device yet.
            self._driver._check("CtxSetCurrent", self._driver._context)
            status = self._launch(*arguments)
        if status:
            raise RuntimeError(f"the launch of a statistics kernel failed: error {status}")


def _load(platform: Platform, names: Sequence[str], symbol: str) -> ctypes.CDLL:
    """The first library that has ``symbol``: one that the process has loaded, torch's, the toolkit's, the system's."""
    for path in _candidates(platform, names):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if hasattr(library, symbol):
            return library
    raise OSError(f"no {' or '.join(names)} was found")


def _candidates(platform: Platform, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield from _loaded(name)
    # A compiler of another major version than torch's may make code that the driver does not take.
    version = (torch.version.cuda or "").partition(".")[0]
    for name in names:
        suffix = f".{version}*" if name == "libnvrtc.so" and version else "*"
        for folder in _folders(platform):
            yield from (str(path) for path in sorted(folder.glob(name + suffix), reverse=True) if path.is_file())
        yield f"{name}.{version}" if name == "libnvrtc.so" and version else name


def _loaded(name: str) -> Iterator[str]:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "/" in line}
    yield from sorted(path for path in paths if os.path.basename(path).startswith(name))  # noqa: PTH119 (may be gone)


def _folders(platform: Platform) -> Iterator[Path]:
    for pattern in platform.folders:
        if pattern.startswith("/"):
            yield from sorted(Path("/").glob(pattern[1:]), reverse=True)
            continue
        package, _, below = pattern.partition("/")
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from sorted(Path(root).glob(below), reverse=True)
