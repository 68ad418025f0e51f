"""How the pass in C comes about: what is cached, what is trusted, and what happens without it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from floatscope._stats import Rows, RowValues
from floatscope._stats._cpu import Cpu, works
from floatscope._stats._cpu_library import Compilation, Function
from tests.needs import needs


@pytest.fixture
def compiler() -> None:
    needs(shutil.which("cc"), "a C compiler")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.DEBUG, logger="floatscope")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Makes a compiler of a shell script."""

    def write(body: str) -> str:
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return str(path)

    return write


def brought_up(
    cache: Path,
    compilers: Sequence[str] = ("cc",),
    works: Callable[[Function], bool] = works,
    timeout_s: float = 50.0,
) -> Function | None:
    compilation = Compilation(lambda: cache, works, compilers=compilers, timeout_s=timeout_s)
    compilation.start()
    assert compilation.wait(50.0)
    function = compilation.function()
    rows = Rows(1, "cpu")
    Cpu(lambda: function).measure(torch.tensor([2.0, -3.0]), rows.words[0], None)
    values = RowValues(rows.words.numpy(), None)
    assert values.absmax.tolist() == [3.0]
    assert values.sumsq.tolist() == [13.0]
    return function


def ends(process: str) -> bool:
    """Whether a process that was killed is gone, or only waits for its parent."""
    status, deadline = Path("/proc", process, "stat"), time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            if status.read_text().split()[2] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def libraries(cache: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in cache.iterdir()}


@pytest.mark.usefixtures("compiler")
def test_it_is_compiled_once_for_a_user(cache: Path) -> None:
    assert brought_up(cache) is not None
    made = libraries(cache)
    assert len(made) == 1
    assert cache.stat().st_mode & 0o777 == 0o700
    assert brought_up(cache) is not None
    assert libraries(cache) == made


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("damage", ["truncated", "other content", "writable by others", "a link"])
def test_a_library_that_cannot_be_trusted_is_made_anew(cache: Path, tmp_path: Path, damage: str) -> None:
    assert brought_up(cache) is not None
    (library,) = cache.iterdir()
    right = library.read_bytes()
    # It is mapped here: to cut it short in place would end this process.
    library.rename(tmp_path / "mapped.so")
    library.write_bytes(right)
    if damage == "truncated":
        library.write_bytes(right[: len(right) // 3])
    elif damage == "other content":
        library.write_bytes(right[:-8] + b"changed!")
    elif damage == "writable by others":
        library.chmod(0o666)
    else:
        shutil.move(library, tmp_path / "elsewhere.so")
        library.symlink_to(tmp_path / "elsewhere.so")
    assert brought_up(cache) is not None
    (library,) = cache.iterdir()
    assert library.read_bytes() == right
    assert not library.is_symlink()
    assert library.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("compiler")
def test_a_directory_of_others_is_not_used(
    cache: Path, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert brought_up(cache) is None
    assert list(cache.iterdir()) == []
    (line,) = said()
    assert "not a directory that only this user can write" in line


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("wrong", ["open to others", "a file", "no directory can be made"])
def test_a_cache_that_does_not_serve(cache: Path, wrong: str, said: Callable[[], list[str]]) -> None:
    if wrong == "open to others":
        cache.mkdir()
        cache.chmod(0o777)
    elif wrong == "a file":
        cache.write_text("")
    else:
        cache.write_text("")
        cache = cache / "below"
    assert brought_up(cache) is None
    assert len(said()) == 1


def test_no_compiler(cache: Path, said: Callable[[], list[str]]) -> None:
    assert brought_up(cache, compilers=("no-such-compiler",)) is None
    assert said() == ["floatscope: no compiled pass for the CPU, torch operations serve: no C compiler"]


@pytest.mark.parametrize("body", ["echo cannot; exit 3", "exit 0", "echo nonsense > cpu.so"])
def test_a_compiler_that_fails(
    cache: Path, body: str, script: Callable[[str], str], said: Callable[[], list[str]]
) -> None:
    assert brought_up(cache, compilers=(script(body),)) is None
    assert len(said()) == 1


def test_a_compiler_that_hangs_is_ended_with_its_children(
    cache: Path, tmp_path: Path, script: Callable[[str], str], said: Callable[[], list[str]]
) -> None:
    child = tmp_path / "child"
    compiler = script(f"sleep 600 & echo $! > {child}.new; mv {child}.new {child}; wait")
    tried = 0
    # On a busy machine it takes a while until it has begun.
    for timeout_s in (0.5, 5.0, 40.0):
        assert brought_up(cache, compilers=(compiler,), timeout_s=timeout_s) is None
        tried += 1
        if child.exists():
            break
    assert len(said()) == tried
    assert ends(child.read_text().strip())


@pytest.mark.usefixtures("compiler")
def test_a_pass_with_other_results_is_refused(cache: Path, said: Callable[[], list[str]]) -> None:
    def wrong(*arguments: int) -> int:
        return 0

    assert not works(wrong)
    assert brought_up(cache, works=lambda function: False) is None
    assert "gives other results" in said()[0]


@pytest.mark.usefixtures("compiler")
def test_torch_operations_serve_until_it_is_there(cache: Path, tmp_path: Path, script: Callable[[str], str]) -> None:
    go = tmp_path / "go"
    compiler = script(f'while [ ! -e {go} ]; do sleep 0.01; done; exec cc "$@"')
    compilation = Compilation(lambda: cache, works, compilers=(compiler,))
    compilation.start()
    variant, rows = Cpu(compilation.function), Rows(1, "cpu")
    assert compilation.function() is None
    variant.measure(torch.ones(5), rows.words[0], rows.hist[0])
    go.touch()
    assert compilation.wait(50.0)
    variant.measure(torch.ones(5), rows.words[0], rows.hist[0])
    assert compilation.function() is not None
    assert RowValues(rows.words.numpy(), None).sum.tolist() == [10.0]
    assert int(rows.hist.sum()) == 10


AT_THE_END = """
import sys, time
from pathlib import Path
from floatscope._stats import _cache, _cpu_library
from floatscope._stats._cpu import Cpu, works

compilation = _cpu_library.Compilation(_cache.cache_directory, works, compilers=(sys.argv[1],))
_cpu_library.Compilation = lambda *options: compilation
Cpu()
deadline = time.monotonic() + 60
while not Path(sys.argv[2]).exists() and time.monotonic() < deadline:
    time.sleep(0.005)
"""


def test_a_program_that_ends_ends_its_compiler(tmp_path: Path, script: Callable[[str], str]) -> None:
    child = tmp_path / "child"
    compiler = script(f"sleep 600 & echo $! > {child}.new; mv {child}.new {child}; wait")
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END, compiler, str(child)],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ends(child.read_text().strip())


KILLED = (
    AT_THE_END
    + """
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
)


@pytest.mark.parametrize("waits", ["wait", "exec sleep 600"])
def test_nothing_of_a_compiler_outlives_a_program_that_is_killed(
    tmp_path: Path, script: Callable[[str], str], waits: str
) -> None:
    child = tmp_path / "child"
    compiler = script(f"trap '' TERM HUP; sleep 600 & echo $! $$ > {child}.new; mv {child}.new {child}; {waits}")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, compiler, str(child)],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        check=False,
    )
    assert done.returncode == -9
    for process in child.read_text().split():
        assert ends(process)
