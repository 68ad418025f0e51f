"""``floatscope doctor`` as it is typed, and what it asks of other processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from floatscope import _cli
from floatscope._doctor._ask_torch import ask, import_torch
from floatscope._doctor._verdict import exit_status, ok, table, warning, wrong
from tests.agent.doctor.test_configuration_verdicts import CLEAN, changed


def test_json_is_verdicts_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(changed("fp8: true", "compute_type: bf16"))
    assert _cli.main(["doctor", str(path), "--chip", "gfx90a", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"verdicts"}
    assert all(set(verdict) == {"item", "status", "value", "why", "fix"} for verdict in answer["verdicts"])
    assert {v["item"] for v in answer["verdicts"] if v["status"] != "ok"} >= {"fp8", "compute_type"}


def test_a_clean_configuration_adds_no_bad_news(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(CLEAN)
    without = _cli.main(["doctor"])
    assert _cli.main(["doctor", str(path), "--chip", "gfx942"]) == without
    assert "train.yaml: llamafactory" in capsys.readouterr().out


@pytest.mark.parametrize(("chip", "said"), [("mi300", ["warning"]), ("MI300", []), ("sm_90", [])])
def test_a_chip_that_is_not_known_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], chip: str, said: list[str]
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(CLEAN)
    _cli.main(["doctor", str(path), "--chip", chip, "--json"])
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert [verdict["status"] for verdict in verdicts if verdict["item"] == "chip"] == said


def test_the_doctor_knows_what_was_tested(capsys: pytest.CaptureFixture[str]) -> None:
    def said() -> list[str]:
        capsys.readouterr()
        _cli.main(["doctor", "--json"])
        verdicts = json.loads(capsys.readouterr().out)["verdicts"]
        return [verdict["status"] for verdict in verdicts if verdict["item"] == "selftest"]

    assert said() == []
    assert _cli.main(["selftest"]) == 0
    assert said() == ["ok"]


@pytest.mark.parametrize(("name", "text"), [("missing.yaml", None), ("other.yaml", "a: 1"), ("list.json", "[]")])
def test_what_cannot_be_judged_is_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert _cli.main(["doctor", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("floatscope doctor: ")
    assert len(err.splitlines()) == 1


def test_the_worst_comes_first() -> None:
    verdicts = [ok("a", 1), warning("b", 2, "because", "do"), wrong("c", 3, "since", "mend")]
    lines = table(verdicts).splitlines()
    assert [line.split()[0] for line in lines] == ["wrong", "why:", "fix:", "warning", "why:", "fix:", "ok"]
    assert (exit_status(verdicts), exit_status(verdicts[:1]), exit_status([])) == (1, 0, 0)


def test_a_terminal_is_not_driven_by_somebodys_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(changed('"learn\\e[2J\\n": "\\e]0;owned\\a"', f"other: {'x' * 5000}"))
    assert _cli.main(["doctor", str(path)]) == 1
    out = capsys.readouterr().out
    assert "learn?[2J?" in out
    assert all(line.isprintable() and len(line) < 400 for line in out.splitlines())
    path.write_text('a: !<"\x1b[2J"> 1\n')
    assert _cli.main(["doctor", str(path)]) == 2
    assert capsys.readouterr().err.rstrip("\n").isprintable()


def test_torch_says_what_it_is() -> None:
    torch, broken = import_torch()
    assert broken is None
    asked = ask(torch, cards=True)
    assert asked.version == str(torch.__version__)
    assert asked.devices == len(asked.chips)
