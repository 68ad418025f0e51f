"""Which variant a device gets, how one takes over from plain torch, and what is kept between runs."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch

from floatscope._stats import Reference, Rows, variant_for, why
from floatscope._stats import _selfcheck as selfcheck
from floatscope._stats._cache import cached, is_cached
from floatscope._stats._deferred import Deferred
from floatscope._stats._golden import difference, golden_tensors
from tests.variants import assert_rows, expected

CPU = torch.device("cpu")


class Named(Reference):
    name = "other"


class Wrong(Reference):
    """Gives one zero too many."""

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        super().measure(tensor, words, hist)
        words[0] += int(tensor.numel() == 5000)


def test_a_cpu_has_the_pass_for_cpus() -> None:
    assert variant_for(CPU).name == "cpu"
    assert why(CPU) == "the tensors are in the memory of the CPU"
    assert variant_for(CPU) is variant_for(CPU)


def test_the_golden_tensors_tell_a_wrong_variant() -> None:
    tensors = golden_tensors()
    some = [tensor for tensor in tensors if tensor.numel() < 10_000]
    assert {tensor.dtype.itemsize for tensor in tensors} == {1, 2, 4, 8}
    assert difference(Reference(), CPU, some) is None
    assert "word 0" in str(difference(Wrong(), CPU, some))


def test_the_golden_tensors_are_the_same_whatever_is_the_default_dtype() -> None:
    tensors = golden_tensors()
    torch.set_default_dtype(torch.float16)
    try:
        again = golden_tensors()
    finally:
        torch.set_default_dtype(torch.float32)
    assert [tensor.dtype for tensor in again] == [tensor.dtype for tensor in tensors]
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(again, tensors, strict=True))


def test_a_variant_takes_over_and_its_plans_with_it(caplog: pytest.LogCaptureFixture) -> None:
    deferred, rows = Deferred("not yet"), Rows(1, CPU)
    tensors = [torch.randn(50)]
    plan = deferred.plan([0])
    plan.run(rows, tensors, histogram=True)
    deferred.ready(Named, "now")
    assert (deferred.name, deferred.reason) == ("torch", "not yet")
    rows = Rows(1, CPU)
    with caplog.at_level(logging.INFO, "floatscope"):
        plan.run(rows, tensors, histogram=True)
    assert (deferred.name, deferred.reason, deferred.samples_histogram) == ("other", "now", False)
    assert_rows(rows, expected(tensors, [0], 1))
    assert "by other from here on: now" in caplog.text


def test_what_cannot_be_loaded_leaves_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Named:
        raise OSError("no library")

    monkeypatch.setattr("floatscope._guard.Guard.reraise", False)
    deferred = Deferred("not yet")
    deferred.ready(fail, "now")
    rows = Rows(1, CPU)
    deferred.measure(torch.ones(3), rows.words[0], None)
    assert (deferred.name, int(rows.words[0, 7])) == ("torch", 3)


def test_a_child_that_dies_is_a_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for script, verdict in {
        "#!/bin/sh\necho ok\n": b"ok",
        "#!/bin/sh\necho 'Memory fault' >&2; kill -6 $$\n": b"the check ended with status -6: Memory fault",
    }.items():
        program = tmp_path / "python"
        program.write_text(script)
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        assert selfcheck.verdict_of_child("triton", "cpu") == verdict


def test_what_was_made_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not is_cached("kind", ["a"])
    assert cached("kind", ["a"], lambda: None) == b""
    assert cached("kind", ["a"], lambda: b"first") == b"first"
    assert cached("kind", ["a"], lambda: b"second") == b"first"
    assert cached("kind", ["b"], lambda: b"third") == b"third"
    directory = tmp_path / "floatscope"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert len(list(directory.iterdir())) == 2


@pytest.mark.parametrize("spoil", ["truncated", "changed", "link", "open to others"])
def test_what_is_spoilt_or_not_ours_is_not_used(spoil: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached("kind", ["a"], lambda: b"first")
    (file,) = (tmp_path / "floatscope").iterdir()
    if spoil == "truncated":
        file.write_bytes(file.read_bytes()[:-1])
    elif spoil == "changed":
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    elif spoil == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.parent.chmod(0o770)
    assert cached("kind", ["a"], lambda: b"second") == b"second"
