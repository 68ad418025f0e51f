"""The pass in C: compiled once for a machine by its own compiler, kept in the user's cache, loaded by ctypes.

Nothing here is needed: without a compiler, or with a cache that cannot be trusted, the torch operations go on.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TypeAlias

from floatscope._guard import Guard
from floatscope._leash import end, leashed
from floatscope._log import logger
from floatscope._stats._cache import cache_directory, find, keep, private

__all__ = ["Compilation", "Function", "for_this_process"]

Function: TypeAlias = Callable[[int, int, int, int, int, int], int]
"""``floatscope_measure`` of cpu.c; it runs without the interpreter's lock."""

_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_S = 60.0
# By gcc 12 on Zen 4, -O3 makes 4.2M float32 take 1.65 ms instead of 0.73. Traps are no values: without them the
# conversion of fp16 is vectorised. Never -ffast-math, which lets a NaN pass for a number.
_FLAGS = ("-O2", "-ftree-vectorize", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
_LINKING = ("-shared", "-fPIC", "-pthread")
_WITHOUT = "no compiled pass for the CPU, torch operations serve"
_compiling = Guard("the pass for the CPU was compiled")


class _UnavailableError(Exception):
    """Why there is no compiled pass."""


class Compilation:
    """Brings up the compiled pass in a background thread.

    That thread never enters torch: a daemon thread that the end of the interpreter meets in C++ ends the process.
    ``works`` is asked by the first caller of ``function`` once it is there.
    """

    def __init__(
        self,
        cache: Callable[[], Path],
        works: Callable[[Function], bool],
        *,
        compilers: Sequence[str] = _COMPILERS,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._cache, self._works = cache, works
        self._made: Function | None = None
        self._checked: Function | None = None
        self._compiler: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._compilers, self._timeout_s = compilers, timeout_s
        self._thread = threading.Thread(target=self._run, name="floatscope-compile", daemon=True)

    def start(self) -> None:
        """Begin. Returns at once."""
        self._thread.start()

    def function(self) -> Function | None:
        """The pass; None while there is none, or for good."""
        if self._made is not None:
            made, self._made = self._made, None
            if self._works(made):
                self._checked = made
            else:
                logger.debug("%s: what the compiler made gives other results", _WITHOUT)
        return self._checked

    def stop(self) -> None:
        """End a compiler that runs, or is being started."""
        self._stopped = True
        if (compiler := self._compiler) is not None:
            end(compiler)
        self.wait(1.0)

    def wait(self, timeout_s: float) -> bool:
        """Whether the thread is through, one way or the other."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with _compiling:
            try:
                self._made = _load(self._compiled())
            except (_UnavailableError, OSError, RuntimeError, subprocess.SubprocessError) as error:
                logger.debug("%s: %s", _WITHOUT, error)

    def _compiled(self) -> Path:
        compiler = next((found for name in self._compilers if (found := shutil.which(name))), None)
        if compiler is None:
            raise _UnavailableError("no C compiler")
        source = resources.files(__package__).joinpath("cpu.c").read_bytes()
        key = _key(source, Path(compiler))
        directory = private(self._cache())
        library = find(directory, "cpu", key)
        return library or keep(directory, "cpu", key, self._compile(compiler, source))

    def _compile(self, compiler: str, source: bytes) -> bytes:
        with tempfile.TemporaryDirectory(prefix="floatscope-") as directory:
            made, said = Path(directory, "cpu.so"), Path(directory, "said")
            Path(directory, "cpu.c").write_bytes(source)
            with said.open("wb") as output:
                process = self._compiler = leashed(
                    [compiler, *_FLAGS, *_LINKING, "-o", made.name, "cpu.c"],
                    cwd=directory,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                # ``stop`` sets one and looks at the other, in the other order: one of the two sees it.
                if self._stopped:
                    end(process)
                try:
                    status = process.wait(self._timeout_s)
                except subprocess.TimeoutExpired:
                    end(process)
                    process.wait()
                    raise
                finally:
                    self._compiler = None
            if status != 0:
                lines = said.read_text(errors="replace").splitlines()
                error = next((line for line in lines if "error" in line), "it named no error")
                raise _UnavailableError(f"{compiler} ended with {status}: {error}")
            return made.read_bytes()


@functools.cache
def for_this_process(works: Callable[[Function], bool]) -> Compilation:
    """The one compilation of this process, begun."""
    compilation = Compilation(cache_directory, works)
    compilation.start()
    atexit.register(compilation.stop)
    return compilation


def _key(source: bytes, compiler: Path) -> tuple[str, ...]:
    real = compiler.resolve()
    made = real.stat()
    facts = (str(real), str(made.st_size), str(made.st_mtime_ns))
    return (source.decode(), *_FLAGS, *_LINKING, *facts, *_processor())


def _processor() -> list[str]:
    """What decides on the instructions that -march=native chooses: a home directory may be shared by machines."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
        told = {line for line in lines if line.startswith(("model", "vendor", "stepping", "flags", "Features", "CPU"))}
    return [platform.machine(), *sorted(told)]


def _load(library: Path) -> Function:
    function = ctypes.CDLL(str(library)).floatscope_measure
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [pointer, count, pointer, pointer, pointer, ctypes.c_int]
    function.restype = ctypes.c_int
    result: Function = function
    return result
