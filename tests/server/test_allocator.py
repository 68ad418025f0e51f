"""What the C library keeps: large blocks go back to the system when they are free."""

from __future__ import annotations

import platform
import subprocess
import sys

from tests.needs import needs

# Without it the block of 8 MiB teaches glibc to keep those of 1 MiB in its heap, below one that stays.
_PROGRAM = """
from pathlib import Path
from floatscope_server.allocator import keep_little
assert {keep} is None or keep_little()
del [bytearray(8 << 20)][:]
blocks = [bytearray(1 << 20) for _ in range(64)]
for at in range(0, 64, 2):
    blocks[at] = None
print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20)
"""


_SMALL = """
from pathlib import Path
from floatscope_server.allocator import give_back
blocks = [bytearray(20_000) for _ in range(4000)]
for at in range(0, 4000, 2):
    blocks[at] = None
if {keep}:
    give_back()
print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20)
"""


def _held(program: str, *, keep: bool | None) -> int:
    found = subprocess.run([sys.executable, "-c", program.format(keep=keep)], check=True, stdout=subprocess.PIPE)
    return int(found.stdout)


def test_large_blocks_that_are_free_are_given_back() -> None:
    needs(platform.libc_ver()[0] == "glibc", "glibc")
    assert _held(_PROGRAM, keep=None) - _held(_PROGRAM, keep=True) >= 24


def test_pages_between_blocks_that_stay_are_given_back() -> None:
    needs(platform.libc_ver()[0] == "glibc", "glibc")
    assert _held(_SMALL, keep=None) - _held(_SMALL, keep=True) >= 16
