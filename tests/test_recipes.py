"""What docs/deployment.md has people type and apply: the commands take it, and what it names is there."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from torch.distributed.run import get_args_parser

from tests.test_docs import COMMANDS, blocks, parses

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "deployment.md"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def typed(program: str) -> list[list[str]]:
    """What follows ``program`` wherever the page has it, up to what the shell takes for itself."""
    text = PAGE.read_text().replace("\\\n", " ")
    return [rest.split() for rest in re.findall(rf"\b{program} ([^&|<>`\n#)]+)", text)]


def test_floatscope_takes_what_others_start() -> None:
    found = [words for words in typed("floatscope") if words[0] in COMMANDS]
    assert {words[0] for words in found} >= {"server", "doctor", "sync"}
    for words in found:
        parses(words)


def test_docker_compose_takes_what_is_typed() -> None:
    profiles = {name for service in COMPOSE["services"].values() for name in service.get("profiles", [])}
    helps: dict[str, str] = {}
    for words in typed("docker compose"):
        if words[0] == "--profile":
            assert words[1] in profiles, words
            words = words[2:]
        command, options = words[0], list(takewhile(lambda word: word.startswith("-"), words[1:]))
        if command not in helps:
            program = [str(Path(sys.executable).parent / "docker-compose"), command, "--help"]
            helps[command] = subprocess.run(program, check=True, capture_output=True, text=True, timeout=60).stdout
        for option in options:
            assert re.search(rf"(?<!\S){re.escape(option)}\b", helps[command]), (words, option)
        names = [word.partition(":")[0] for word in words[1 + len(options) :][:1]]
        assert set(names) <= set(COMPOSE["services"]), words
    assert set(helps) == {"up", "exec", "cp", "restart"}


def test_torchrun_takes_what_is_typed_and_its_nodes_meet() -> None:
    (words,) = typed("torchrun")
    options = get_args_parser().parse_args(words)
    assert options.nnodes == "$SLURM_NNODES"
    # Otherwise each node takes itself for the first.
    assert (options.rdzv_backend, options.rdzv_endpoint, options.rdzv_id) == ("c10d", "$head:29500", "$SLURM_JOB_ID")
    assert "head=$(scontrol show hostnames" in PAGE.read_text()


def test_variables_are_read_by_somebody() -> None:
    sources = [path.read_text() for folder in ("agent", "server", "tests") for path in (ROOT / folder).rglob("*.py")]
    sources.append((ROOT / "docker-compose.yml").read_text())
    named = set(re.findall(r"\b(?:FLOATSCOPE|POSTGRES)_[A-Z]+|\b[A-Z]+_(?:GID|BASE)\b", PAGE.read_text()))
    assert len(named) > 10
    assert [name for name in named if not any(name in source for source in sources)] == []


def test_the_pod_is_of_what_there_is() -> None:
    prometheus, pod = map(yaml.safe_load, blocks(PAGE, "yaml"))
    assert prometheus["scrape_configs"][0]["authorization"]["credentials_file"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] in {service["image"] for service in COMPOSE["services"].values()}
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["spec"]["volumes"]}
    places = {mount["mountPath"] for mount in container["volumeMounts"]}
    (spool,) = (one["value"] for one in container["env"] if one["name"] == "FLOATSCOPE_DIR")
    assert spool in places
