"""The documents say what is there: links, commands, code, names and tables are held against the repository."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from floatscope import _cli
from floatscope._formats import formats

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMANDS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["floatscope.commands"])

every_page = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The text without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page))


def headings(page: Path) -> list[tuple[int, str]]:
    return [(len(marks), text) for marks, text in re.findall(r"^(#+) (.*)$", prose(page), flags=re.MULTILINE)]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for _, text in headings(page)}


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command of the page's shell blocks, lines that end in a backslash joined."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def table(page: str, first_cell: str) -> list[list[str]]:
    """The cells of the rows whose first cell matches ``first_cell``, without backticks."""
    rows = [line.strip("|").split("|") for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace("`", "") for cell in row] for row in rows]
    return [row for row in cells if re.fullmatch(first_cell, row[0])]


@every_page
def test_pictures_are_there(page: Path) -> None:
    pictures = re.findall(r"(?:src|srcset)=\"([^\"]+)\"", prose(page))
    assert [picture for picture in pictures if not (page.parent / picture).is_file()] == []


@every_page
def test_links_resolve(page: Path) -> None:
    assert all(link.startswith("https://") for link in links(page) if "://" in link)
    for link in (link for link in links(page) if "://" not in link):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@every_page
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")


@pytest.mark.parametrize("page", ["fp8-operands.md", "summaries.md"])
def test_complete_examples_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks(ROOT / "docs" / page, "python")
    names: dict[str, object] = {}
    exec(compile(example, page, "exec"), names)
    if "MyFp8Linear" in names:
        layer = names["MyFp8Linear"]
        assert isinstance(layer, type)
        assert set(layer(3, 2).floatscope_operands()) == {"act_in", "weight", "act_grad"}
    else:
        assert len(capsys.readouterr().out.splitlines()) == 3


@every_page
def test_commands_exist(page: Path) -> None:
    makefile = ROOT / "Makefile"
    for words in commands(page):
        if words[0] == "make":
            assert re.search(rf"^{re.escape(words[1])}:", makefile.read_text(), flags=re.MULTILINE), words
        elif words[0] == "floatscope":
            assert words[1] in COMMANDS, words
            parses(words[1:])


def parses(arguments: list[str]) -> None:
    """The program's own parser takes ``arguments``."""
    (point,) = importlib.metadata.entry_points(group="floatscope.commands", name=arguments[0])
    command = point.load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "run", lambda options: 0)
        assert _cli.main(arguments) == 0


@pytest.mark.parametrize("command", [*sorted(COMMANDS), "bench agent", "bench ingest", "bench query"])
def test_help_of_each_command_has_an_example_that_parses(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _cli.main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    head, _, examples = text.partition("\nexample:\n")
    assert len(head.split("\n\n")) >= 3, "usage, what it does, options"
    lines = examples.splitlines()
    assert any(line.startswith(f"  floatscope {command}") for line in lines), text
    for line in lines:
        parses(shlex.split(line.rpartition("| ")[2])[1:])


def test_readme_names_the_two_commands() -> None:
    made = [words for words in commands(ROOT / "README.md") if words[0] == "make"]
    assert made == [["make", "demo"], ["make", "test"]]


def test_every_command_is_documented() -> None:
    documented = {row[0].split()[1] for row in table("docs/command-line.md", r"floatscope \w+.*")}
    assert documented == COMMANDS


def test_both_readmes_have_the_same_structure() -> None:
    english, chinese = ROOT / "README.md", ROOT / "README.zh.md"
    assert [level for level, _ in headings(english)] == [level for level, _ in headings(chinese)]
    assert list(commands(english)) == list(commands(chinese))
    code = [[re.sub(r"#.*", "", block).rstrip() for block in blocks(page, "python")] for page in (english, chinese)]
    assert code[0] == code[1]
    assert links(english)[0] == chinese.name
    assert links(chinese)[0] == english.name
    assert links(english)[1:] == links(chinese)[1:]
    items = [len(re.findall(r"^- ", page.read_text(), flags=re.MULTILINE)) for page in (english, chinese)]
    assert items[0] == items[1]


def test_every_page_is_listed() -> None:
    for index in (ROOT / "docs" / "README.md", ROOT / "docs" / "decisions" / "README.md"):
        listed = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
        assert {page for page in index.parent.glob("*.md") if page != index} <= listed


@pytest.mark.parametrize(
    "name", ["Client", "ClientError", "Config", "Operand", "Scope", "Summary", "formats", "summarize", "watch"]
)
def test_promised_names_are_there(name: str) -> None:
    assert hasattr(importlib.import_module("floatscope"), name)


def number(text: str) -> float:
    base, _, exponent = text.partition("^")
    return float(base) ** float(exponent) if exponent else float(text)


def test_table_of_formats_is_right() -> None:
    rows = table("docs/formats.md", "|".join(formats))
    assert [row[0] for row in rows] == list(formats)
    for name, *cells in rows:
        known = formats[name]
        told = [number(cell) for cell in cells]
        assert told[0] == pytest.approx(known.max, rel=1e-7)
        assert told[1:] == [known.min_normal, known.min_subnormal, known.zero_at_or_below], name


def test_table_of_intervals_is_right() -> None:
    config = importlib.import_module("floatscope").Config()
    rows = table("docs/steps.md", r"\w+_every")
    assert {row[0]: int(row[1]) for row in rows} == {
        name: getattr(config, name) for name in dir(config) if name.endswith("_every")
    }


def test_every_option_is_documented() -> None:
    config = importlib.import_module("floatscope").Config
    text = "".join(page.read_text() for page in PAGES if page.name not in ("CHANGELOG.md", "README.zh.md"))
    assert [field.name for field in dataclasses.fields(config) if not re.search(rf"\b{field.name}\b", text)] == []


def test_kinds_of_events_are_documented() -> None:
    sources = "".join(path.read_text() for side in ("agent", "server") for path in (ROOT / side).rglob("*.py"))
    kinds = set(re.findall(r'\bEvent\([^()]*kind="(\w+)"', sources))
    assert {"skipped", "coverage"} <= kinds
    assert kinds <= {kind for row in table("docs/protocol.md", r"[a-z_, ]+") for kind in row[0].split(", ")}


def test_every_environment_variable_of_the_agent_is_documented() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "agent").rglob("*.py"))
    text = (ROOT / "docs" / "command-line.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    used = set(re.findall(r"FLOATSCOPE_[A-Z]+", sources))
    assert used
    assert used <= set(re.findall(r"FLOATSCOPE_[A-Z]+", text))


def test_files_and_modules_that_are_named_exist() -> None:
    for page in PAGES:
        for path in re.findall(r"`((?:agent|server|web|tests|docs)/[\w/.-]+)`", page.read_text()):
            assert (ROOT / path).exists(), (page.name, path)
        for module, name in re.findall(
            r"python -m (tests\.bench|floatscope\._[\w.]+)(?: ([a-z]+)\b)?", page.read_text()
        ):
            found = f"{module}.{name}" if module == "tests.bench" and name else module
            assert importlib.util.find_spec(found) is not None, (page.name, found)


def test_table_of_requests_is_right() -> None:
    routes = importlib.import_module("floatscope_server.auth").ROUTES
    known = {(method, re.sub(r"\{[^}]*\}", "{}", path)) for method, path in routes if path.startswith("/api/")}
    documented = set()
    for row in table("docs/http-api.md", r"(GET|POST|DELETE|PATCH).*"):
        methods: list[str] = []
        for word in re.findall(r"GET|POST|DELETE|PUT|PATCH|/\S+", row[0].replace(",", " ")):
            if word.startswith("/"):
                documented |= {(method, re.sub(r"\{[^}]*\}", "{}", word)) for method in methods}
                methods = []
            else:
                methods.append(word)
    assert {entry for entry in documented if entry[1].startswith("/api/")} == known


CHATS = ("slack", "discord", "teams", "feishu", "dingtalk", "wecom")


@pytest.mark.parametrize("chat", CHATS)
def test_examples_of_chat_messages_are_what_is_sent(chat: str) -> None:
    receivers = importlib.import_module("floatscope_server.alerts.receivers")
    note = importlib.import_module("floatscope_server.alerts.receivers.note")
    assert set(receivers.CHATS) == set(CHATS)
    data = {
        "run": "qwen-lora",
        "kind": "nonfinite",
        "severity": "critical",
        "first_step": 20,
        "layer": "model.layers.3.mlp.down_proj",
        "rank": 1,
        "message": "The loss is NaN at step 20. Lower the peak learning rate (learning_rate).",
        "message_zh": "第 20 步损失为 NaN。请降低峰值学习率（learning_rate）。",
        "run_url": "https://floatscope.example/#/run/qwen-lora",
    }
    items = note.items_of([{"type": "alert.firing", "data": data}])
    told = [json.loads(block) for block in blocks(ROOT / "docs" / "chat.md", "json")]
    language = "en" if chat in ("slack", "discord", "teams") else "zh"
    assert receivers.CHATS[chat].body(note.Note(items, language)) in told
    assert len(told) == len(CHATS)


def test_the_pace_of_chats_is_as_documented() -> None:
    receivers = importlib.import_module("floatscope_server.alerts.receivers")
    rows = table("docs/chat.md", "|".join(CHATS))
    assert {row[0]: float(row[1]) for row in rows} == {
        name: pytest.approx(60 * chat.pace.per_s) for name, chat in receivers.CHATS.items()
    }


def test_endpoints_of_the_examples_are_accepted() -> None:
    routes = importlib.import_module("floatscope_server.alerts.endpoint_routes")
    words = [words for words in commands(ROOT / "docs" / "chat.md") if words[0] == "curl" and "-d" in words]
    assert len(words) >= 6
    for each in words:
        body = json.loads(each[each.index("-d") + 1])
        model = routes.EndpointChange if "PATCH" in each else routes.EndpointIn
        model.model_validate(body)
