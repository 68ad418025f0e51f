"""Images in place of the public ones, where no registry of images can be reached.

They bear the public names, in the tests' own store, so the project's files are built and run as they are. What the
public images hold is not tested then: Debian's Python stands for ``python:3.12-slim``, that with the torch of the tests
for a PyTorch and a ROCm image, and Debian's PostgreSQL for ``postgres:17``.

With ``FLOATSCOPE_TEST_IMAGES=public`` there are none, and the public images are pulled.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.containers.engine import Engine
from tests.needs import needs

__all__ = ["PYTHON", "database", "public", "python", "torch"]

PYTHON = "docker.io/library/python:3.12-slim"

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

_DATABASE = f"""
FROM {PYTHON}
RUN mkdir /etc/postgresql-common \\
    && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \\
    && apt-get update \\
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o Dpkg::Options::=--force-confold \\
        postgresql \\
    && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ \\
    && install -d -o postgres -g postgres -m 0700 /var/lib/postgresql/data
COPY entry /usr/local/bin/entry
ENV PGDATA=/var/lib/postgresql/data
VOLUME /var/lib/postgresql/data
USER postgres
STOPSIGNAL SIGINT
ENTRYPOINT ["sh", "-eu", "/usr/local/bin/entry"]
"""

_ENTRY = """
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf '%s' "${POSTGRES_PASSWORD:?}" > /tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 \\
        --encoding=UTF8
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    # As there: what prepares the database is reached by its socket alone, and ends before the one that serves begins.
    pg_ctl --wait --options="-c listen_addresses=''" start
    createdb --username="$POSTGRES_USER" --maintenance-db=postgres "$POSTGRES_DB"
    for script in /docker-entrypoint-initdb.d/*.sh; do
        [ ! -e "$script" ] || sh "$script"
    done
    pg_ctl --wait --mode=fast stop
fi
exec postgres -c listen_addresses='*'
"""


def public() -> bool:
    """Whether the public images are used."""
    return os.environ.get("FLOATSCOPE_TEST_IMAGES") == "public"


def python(engine: Engine) -> None:
    """In place of python:3.12-slim: Debian with its Python, and beside that one with pip."""
    needs(shutil.which("mmdebstrap"), "mmdebstrap")
    hooks = ['chroot "$1" python3 -m venv /usr/local']
    # The way to the package index is the machine's.
    copied = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
    hooks += [f"copy-in {path} {Path(path).parent}" for path in copied if Path(path).exists()]
    with tempfile.TemporaryFile() as said:
        made = subprocess.Popen(
            [
                *("mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates,python3-venv"),
                *(f"--customize-hook={hook}" for hook in hooks),
                *(platform.freedesktop_os_release()["VERSION_CODENAME"], "-"),
            ],
            stdout=subprocess.PIPE,
            stderr=said,
        )
        assert made.stdout is not None
        with made.stdout as archive:
            engine.podman("import", "--change", f"ENV PATH={_PATH}", "-", PYTHON, stdin=archive.fileno())
        said.seek(0)
        assert made.wait() == 0, said.read().decode()


def torch(engine: Engine, name: str) -> Path:
    """In place of an image that brings torch: the one above, with what belongs to the torch that the tests run with.
    torch itself, most of a gigabyte, is mounted where it runs: the file for Compose that says so is returned."""
    places = "import sys, site; print(*sys.version_info[:2], site.getsitepackages()[0])"
    major, minor, target = engine.podman("run", "--rm", PYTHON, "python", "-c", places).stdout.split()
    theirs, ours = (int(major), int(minor)), sys.version_info[:2]
    needs(theirs == ours, f"Debian's Python {theirs}, the version that the tests run with,")
    packages = Path(str(metadata.distribution("torch").locate_file("")))
    container = engine.podman("create", PYTHON, "true").stdout.strip()
    archive = engine.folder / "torch.tar"
    with tarfile.open(archive, "w") as tar:
        for file in _torch_files():
            tar.add(packages / file, file)
        tar.addfile(_folder("torch"))
    with archive.open("rb") as packed:
        engine.podman("cp", "-", f"{container}:{target}", stdin=packed.fileno())
    archive.unlink()
    engine.podman("commit", "--quiet", container, name)
    engine.podman("rm", container)
    mount = {"volumes": [f"{packages / 'torch'}:{target}/torch:ro"]}
    override = engine.folder / "torch.json"
    override.write_text(json.dumps({"services": {"trainer": mount, "trainer-cpu": mount}}))
    return override


def database(engine: Engine, name: str) -> None:
    """In place of an image of PostgreSQL's: Debian's, with what is used of that image: variables for user, database and
    password, where the data are, and a folder of scripts that prepare the database."""
    folder = engine.folder / "database"
    folder.mkdir()
    (folder / "Containerfile").write_text(_DATABASE)
    (folder / "entry").write_text(_ENTRY)
    engine.podman("build", "--quiet", "--file", str(folder / "Containerfile"), "--tag", name, str(folder))


def _folder(name: str) -> tarfile.TarInfo:
    folder = tarfile.TarInfo(name)
    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
    return folder


def _torch_files() -> Iterator[str]:
    """Files of torch's description and of what it needs, below the folder of packages."""
    waiting, seen = ["torch"], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        distribution = metadata.distribution(name)
        for file in distribution.files or ():
            if not {"..", "__pycache__"} & set(file.parts) and file.parts[0] != "torch":
                yield str(file)
        for requirement in map(Requirement, distribution.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
