"""The kernels in HIP C++ build for AMD chips, with no such chip in the machine."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from floatscope._stats._rtc import HIP, compile_source
from floatscope._stats._rtc_variant import SOURCE, Build
from tests.needs import needs

CPU = torch.device("cpu")


@pytest.mark.parametrize(("architecture", "wave"), [("gfx90a", 64), ("gfx1030", 32)])
def test_hipcc_builds_the_source(architecture: str, wave: int, tmp_path: Path) -> None:
    """Debian's hipcc, of ROCm 5.2, which knows neither gfx942 nor gfx1100."""
    needs(shutil.which("hipcc"), "hipcc")
    target, *flags = Build(HIP, CPU, architecture, wave).options()
    command = ["hipcc", target, *flags, "-O3", "-Wall", "-Werror", "--cuda-device-only", "-c", "-x", "hip", str(SOURCE)]
    built = tmp_path / "kernels.o"
    done = subprocess.run(
        [*command, "-o", str(built)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HIP_PLATFORM": "amd"},
    )
    assert done.returncode == 0, done.stderr
    for name in (b"statistics_and_histogram", b"statistics"):
        assert name in built.read_bytes()


def test_hiprtc_builds_the_source() -> None:
    needs(ctypes.util.find_library("amdhip64"), "hipRTC")
    build = Build(HIP, CPU, "gfx90a", 64)
    code = compile_source(HIP, SOURCE.read_text(), build.options())
    assert b"statistics_and_histogram" in code
    with pytest.raises(RuntimeError, match="hiprtc failed: "):
        compile_source(HIP, "not C++", build.options())


_ENDS_EARLY = """
import os, threading, time
from floatscope._stats import _rtc

def tell(line):
    # By no object whose lock a thread may hold at the end.
    os.write(1, line.encode() + bytes([10]))

class Library:
    def __getattr__(self, name):
        if name == "nvrtcCompileProgram":
            def compile(*arguments):
                compiling.set()
                over.wait()
                time.sleep(0.5)  # the process is ending meanwhile
                tell("compiled")
                return 1
            return compile
        return lambda *arguments: 0

compiling, over = threading.Event(), threading.Event()
_rtc._load = lambda *given: Library()

def work():
    try:
        _rtc.compile_source(_rtc.CUDA, "", [])
    except RuntimeError:
        tell("told")

threading.Thread(target=work, daemon=True).start()
assert compiling.wait(60)
tell("the program is over")
over.set()
"""


def test_a_process_that_ends_waits_for_its_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", _ENDS_EARLY], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["the program is over", "compiled"]
