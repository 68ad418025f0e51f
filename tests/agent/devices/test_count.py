"""How many cards AMD SMI shows, asked once."""

from __future__ import annotations

from pathlib import Path

import pytest

from floatscope._devices import smi_cards


def test_amd_smi_counts_in_a_process_of_its_own(
    tmp_path: Path, rocm_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module/amdgpu").mkdir(parents=True)
    (tmp_path / "module/amdgpu/initstate").write_text("live\n")
    cards = tmp_path / "cards"
    cards.write_text("0 5 0 0  1 1  1 1  1 1  A\n0 6 0 0  1 1  1 1  1 1  B\n")
    monkeypatch.setenv("ROCM_PATH", str(rocm_path))
    monkeypatch.setenv("FAKE_SMI_CARDS", str(cards))
    assert smi_cards(tmp_path, timeout_s=60.0).cards == 2
    monkeypatch.setenv("FAKE_SMI_HANG", "1")
    hung = smi_cards(tmp_path, timeout_s=0.3)
    assert hung.cards is None
    assert hung.reason == "pyrsmi: no answer within 0.3 s"


def test_without_a_library_amd_smi_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_PATH", "/nonexistent")
    count = smi_cards(tmp_path)
    assert count.cards is None
    assert count.reason is not None
    assert count.reason.startswith("pyrsmi: ")
