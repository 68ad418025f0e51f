"""``floatscope run`` becomes its command: what that does, and what Python it runs, is as if it were started alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from floatscope._attach import launch, loops
from floatscope._config import configured

Environment = dict[str, str]

PTH = Path(__file__).parents[3] / "agent" / "floatscope.pth"
PROBE = """
import json, os, signal, sys
print(json.dumps({"path": sys.path, "pid": os.getpid(), "modules": sorted(m for m in sys.modules if "custom" in m),
                  "pipe": signal.getsignal(signal.SIGPIPE).name, "finders": len(sys.meta_path),
                  "argv": sys.argv, "attached": "floatscope._attach.startup" in sys.modules}))
"""


@pytest.fixture
def environment() -> Environment:
    """With a server that nobody has to be waited for."""
    return {**os.environ, "FLOATSCOPE_SERVER": "http://127.0.0.1:1"}


def start(*command: str, env: Mapping[str, str], **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
    line = [sys.executable, "-m", "floatscope", "run", "--", *command]
    return subprocess.run(line, capture_output=True, text=True, env=dict(env), timeout=120, check=False, **options)


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_the_exit_status_is_the_commands(environment: Environment, status: int) -> None:
    assert start("sh", "-c", f"exit {status}", env=environment).returncode == status


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT", "SIGSEGV"])
def test_a_death_by_signal_is_the_commands(environment: Environment, name: str) -> None:
    assert start("sh", "-c", f"kill -{name[3:]} $$", env=environment).returncode == -signal.Signals[name]


def test_the_command_is_the_process_that_was_started(environment: Environment, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "floatscope", "run", "--", "sh", "-c", "echo $$; cat; exec sleep 600"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.stdin.write(b"\0\xff raw")
        process.stdin.close()
        assert process.stdout.read(6) == b"\0\xff raw"
        # Of one that runs, whoever sends it: no process of ours is in between.
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT


def test_a_command_that_cannot_be_run(environment: Environment, tmp_path: Path) -> None:
    missing = start("no-such-program", env=environment)
    assert (missing.returncode, missing.stderr.splitlines()[-1]) == (
        127,
        "floatscope run: no-such-program: command not found",
    )
    plain = tmp_path / "plain"
    plain.write_text("text")
    refused = start(str(plain), env=environment)
    assert (refused.returncode, "Permission denied" in refused.stderr) == (126, True)
    for words in ([], ["--", "", "train.py"]):
        line = [sys.executable, "-m", "floatscope", "run", *words]
        nothing = subprocess.run(line, capture_output=True, text=True, check=False)
        assert nothing.returncode == 2
        assert "floatscope run -- python train.py" in nothing.stderr


@pytest.mark.parametrize(
    "option",
    [["--name", "a/b"], ["--server", "nonsense"], ["--set", "activation_every=1"], ["--set", "weights_every=-1"]],
    ids=["name", "server", "option", "value"],
)
def test_options_that_make_no_sense(option: list[str]) -> None:
    line = [sys.executable, "-m", "floatscope", "run", *option, "--", "true"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("variable", "value"), [("SERVER", "127.0.0.1:6160"), ("RUN", "a/b"), ("OPTIONS", "a=1")])
def test_variables_that_make_no_sense(environment: Environment, variable: str, value: str) -> None:
    """Where nothing could attach, nothing would wait for a server either."""
    refused = start("true", env={**environment, f"FLOATSCOPE_{variable}": value})
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("floatscope run: ")
    assert "telemetry waits" not in line


def test_options_of_the_agent(environment: Environment) -> None:
    line = [sys.executable, "-m", "floatscope", "run", "--set", "weights_every=7", "--set", "overhead_budget=0", "--"]
    show = [sys.executable, "-c", "import os; print(os.environ['FLOATSCOPE_OPTIONS'])"]
    given = {**environment, "FLOATSCOPE_OPTIONS": "weights_every=5,operands=false"}
    done = subprocess.run([*line, *show], capture_output=True, text=True, env=given, check=True)
    told = configured(None, {"histograms_every": 3}, {"FLOATSCOPE_OPTIONS": done.stdout.strip()})
    assert (told.weights_every, told.overhead_budget, told.operands, told.histograms_every) == (7, 0.0, False, 3)


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_outputs_that_are_closed_or_full_stay_so_and_the_command_runs(
    environment: Environment, tmp_path: Path, streams: str
) -> None:
    """As under a supervisor that gives its programs none, or a log on a disk that is full."""
    found = tmp_path / "found"
    code = "import sys; print([s is None for s in (sys.stdin, sys.stdout, sys.stderr)], file=open(sys.argv[1], 'w'))"

    def run(*front: str) -> list[str]:
        line = ["sh", "-c", f'"$@" {streams}', "sh", *front, sys.executable, "-c", code, str(found)]
        assert subprocess.run(line, env=environment, timeout=120, check=False).returncode == 0
        return found.read_text().splitlines()

    assert run(sys.executable, "-m", "floatscope", "run", "--") == run()


def test_without_a_server_it_says_so_once_and_where_telemetry_waits(environment: Environment) -> None:
    done = start("true", env={**environment, "FLOATSCOPE_DIR": "/spool/of/mine"})
    (line,) = done.stderr.splitlines()
    assert "no server answers at http://127.0.0.1:1" in line
    assert "/spool/of/mine" in line
    given = {"FLOATSCOPE_SERVER": "http://127.0.0.1:1"}
    assert len(launch.notices(given)) == 1
    assert given["FLOATSCOPE_TOLD"] == "server"


@pytest.mark.parametrize(
    ("server", "advice"),
    [
        ("http://127.0.0.1:6160", "start one with `floatscope server`, now or later;"),
        ("http://localhost:6199", "start one with `floatscope server --port 6199`, now or later;"),
        ("http://gpu-host:6160", "start one there, now or later;"),
        ("https://127.0.0.1", "start one there, now or later;"),
    ],
)
def test_without_a_server_the_command_that_is_named_starts_one_that_is_asked(
    monkeypatch: pytest.MonkeyPatch, server: str, advice: str
) -> None:
    monkeypatch.setattr(launch, "_unreachable", lambda server: "Connection refused")
    (line,) = launch.notices({"FLOATSCOPE_SERVER": server})
    assert advice in line


def test_an_attached_interpreter_is_as_it_was(environment: Environment) -> None:
    environment.pop("PYTHONPATH", None)
    alone = subprocess.run([sys.executable, "-c", PROBE, "a", "b"], capture_output=True, env=environment, check=True)
    before, after = (
        json.loads(alone.stdout),
        json.loads(start(sys.executable, "-c", PROBE, "a", "b", env=environment).stdout),
    )
    assert after["attached"]
    assert not before["attached"]
    for name in ("path", "modules", "pipe", "argv"):
        assert after[name] == before[name], name
    assert after["finders"] == before["finders"] + 1


@pytest.mark.parametrize("safe", ["", "1"])
def test_the_sitecustomize_of_others_runs(environment: Environment, tmp_path: Path, safe: str) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.theirs = __file__\n")
    environment |= {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": safe}
    code = "import sys, sitecustomize; print(sys.theirs, sitecustomize.__file__, sys.path.count(sys.argv[1]))"
    done = start(sys.executable, "-c", code, str(tmp_path), env=environment)
    theirs = str(tmp_path / "sitecustomize.py")
    assert done.stdout.split() == [theirs, theirs, "1"]


def test_a_sitecustomize_that_fails_fails_as_without_us(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    environment["PYTHONPATH"] = str(tmp_path)
    alone = subprocess.run(
        [sys.executable, "-c", "pass"], capture_output=True, text=True, env=environment, check=True
    ).stderr
    assert "Error in sitecustomize" in alone
    assert start(sys.executable, "-c", "pass", env=environment).stderr.endswith(alone)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which nothing is installed but something called torch."""
    folder = tmp_path_factory.mktemp("foreign")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "torch.py").write_text("__version__ = '2.9.0'\n")
    return folder / "bin" / "python"


def test_an_interpreter_without_floatscope_says_so_once_and_goes_on(environment: Environment, foreign: Path) -> None:
    environment.pop("PYTHONPATH", None)
    code = (
        "import subprocess, sys, torch; print(torch.__version__, flush=True); "
        "subprocess.run([sys.executable, '-c', 'import torch'], check=True)"
    )
    done = start(str(foreign), "-c", code, env=environment)
    assert (done.returncode, done.stdout) == (0, "2.9.0\n")
    (line,) = [line for line in done.stderr.splitlines() if "not attached" in line]
    assert f"floatscope is not installed for {foreign}; the program runs without telemetry" in line
    attached = environment | {"FLOATSCOPE_ATTACH": "1", "PYTHONPATH": str(Path(launch.__file__).parent / "path")}
    words = ["sh", "-c", '"$@" 2>&-', "sh", str(foreign), "-c", "import torch; print(1)"]
    assert subprocess.run(words, env=attached, stdout=subprocess.PIPE, check=True).stdout == b"1\n", "said nowhere"
    quiet = start(str(foreign), "-c", "print(1)", env=environment)
    assert "not attached" not in quiet.stderr, "a process without torch is none to be watched"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with floatscope's .pth in it, and what else is installed here."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "a_paths.pth").write_text("\n".join([str(PTH.parent), *(p for p in sys.path if p.endswith("-packages"))]))
    shutil.copy(PTH, site / "floatscope.pth")
    return folder / "bin" / "python"


@pytest.mark.parametrize("flags", [[], ["-I"], ["-E"], ["-s"], ["-P"]], ids=["none", "I", "E", "s", "P"])
def test_the_installed_pth_attaches_whatever_is_ignored(
    environment: Environment, installed: Path, flags: list[str]
) -> None:
    environment.pop("PYTHONPATH", None)
    assert json.loads(start(str(installed), *flags, "-c", PROBE, env=environment).stdout)["attached"]
    alone = subprocess.run([installed, *flags, "-c", PROBE], capture_output=True, env=environment, check=True)
    assert not json.loads(alone.stdout)["attached"]


@pytest.fixture(scope="module")
def conda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix as conda makes them: an interpreter and a library of its own, and scripts that activate it."""
    prefix = tmp_path_factory.mktemp("conda") / "env"
    library = Path(sysconfig.get_path("stdlib"))
    site = prefix / "lib" / library.name / "site-packages"
    for folder in (prefix / "bin", prefix / "conda-meta", prefix / "etc" / "conda" / "activate.d", site):
        folder.mkdir(parents=True)
    for part in library.iterdir():
        if not part.name.endswith("-packages"):
            (site.parent / part.name).symlink_to(part)
    # Where Debian's interpreter looks.
    (site.parent / "dist-packages").symlink_to(site)
    shutil.copy(Path(sys._base_executable).resolve(), prefix / "bin" / "python")  # type: ignore[attr-defined]
    (prefix / "conda-meta" / "history").touch()
    (prefix / "etc" / "conda" / "activate.d" / "mine.sh").write_text("export OF_ACTIVATION=1\n")
    (site / "a_paths.pth").write_text("\n".join([str(PTH.parent), *(p for p in sys.path if p.endswith("-packages"))]))
    shutil.copy(PTH, site / "floatscope.pth")
    return prefix


@pytest.mark.parametrize("flags", [[], ["-I"]], ids=["none", "I"])
def test_a_conda_environment_attaches(environment: Environment, conda: Path, flags: list[str]) -> None:
    environment.pop("PYTHONPATH", None)
    environment |= {"CONDA_PREFIX": str(conda), "PATH": f"{conda / 'bin'}:{os.environ['PATH']}"}
    activated = 'for script in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do . "$script"; done; exec "$@"'
    code = "import os, sys; print(sys.prefix, os.environ['OF_ACTIVATION'], 'floatscope._attach.startup' in sys.modules)"
    done = start("sh", "-c", activated, "sh", "python", *flags, "-c", code, env=environment)
    assert done.stdout.split() == [str(conda), "1", "True"], done.stderr


def test_disabled(environment: Environment) -> None:
    done = start(sys.executable, "-c", PROBE, env={**environment, "FLOATSCOPE_DISABLED": "1"})
    assert "runs without telemetry" in done.stderr
    alone = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, env=environment, check=True)
    assert json.loads(done.stdout)["finders"] == json.loads(alone.stdout)["finders"]


def test_a_torch_that_is_too_old_is_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    for version in ("1.13.1", "2.5.1+cu121", "2.0"):
        loops.on_import(cast("Any", SimpleNamespace(__version__=version)))
    assert len([record for record in caplog.records if "too old to be watched" in record.message]) == 3
    assert loops.current() is None


def test_a_program_whose_torch_is_too_old_is_told_so_and_runs(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '1.13.1'\n")
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment.get("PYTHONPATH", "")])
    done = start(sys.executable, "-c", "import torch; print(torch.__version__)", env=environment)
    assert (done.returncode, done.stdout) == (0, "1.13.1\n")
    assert "torch 1.13.1 is too old to be watched, which takes 2.6 or newer" in done.stderr
    assert "Traceback" not in done.stderr


def test_source_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[[str], str]) -> None:
    git = program("git")
    monkeypatch.chdir(tmp_path)
    assert launch.source() is None
    identity = ["-c", "user.name=x", "-c", "user.email=x@y.z"]
    subprocess.run([git, "init", "-q"], check=True)
    (tmp_path / "train.py").write_text("a\nb\n")
    subprocess.run([git, "add", "-A"], check=True)
    subprocess.run([git, *identity, "commit", "-qm", "x"], check=True)
    (tmp_path / "train.py").write_text("a\nc\nd\n")
    found = launch.source()
    assert found is not None
    assert len(str(found.pop("commit"))) == 40
    assert found == {"changed_files": 1, "added_lines": 2, "removed_lines": 1}
