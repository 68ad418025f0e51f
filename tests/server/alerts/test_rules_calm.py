"""Blocks passed over at a glance against the same steps judged one by one: the same transitions, word for word."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope import wire
from floatscope_server.alerts.book import Book
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters, RunWindow
from floatscope_server.rules.underflow import Underflow
from tests.server.alerts.conftest import Build

LAYERS = 6
OPERANDS = (
    wire.Operand(kind="act", format="e4m3fn", role="cast", scaling="delayed"),
    wire.Operand(kind="act_in", format="fp16", role="stored", scaling="none"),
    wire.Operand(kind="grad", format="bf16", role="stored", scaling="none"),
)
TROUBLES = [
    *("quiet", "loss_spike", "big_spike", "nan_loss", "zero_loss", "no_loss", "norm_spike", "inf_norm", "frozen_norm"),
    *("skip", "fall", "clip", "slow", "late", "near", "crossed", "nan", "inf", "dead", "scale", "vanish", "under"),
    *("move", "gone", "eval_nan", "back", "reward", "renamed", "named_twice"),
]
RULES = dataclasses.replace(RuleParameters(), underflow=Underflow(steps=5, of_steps=9, baseline_steps=7))


class _Told:
    """A window and its book, and all that came of the blocks."""

    def __init__(self, *, glance: bool) -> None:
        self.window, self.book = RunWindow(RULES), Book()
        self._glance = glance

    def take(self, observation: Observation) -> list[str]:
        found = []
        watched = (lambda: self.book.kinds) if self._glance else None
        for finding in self.window.judge(observation, watched):
            for t in self.book.apply(finding):
                entry = t.entry
                found.append(f"{t.kind} {t.step} {t.reason} {entry.family} {entry.leader} {entry.verdict} {entry.hits}")
        found += sorted(f"{e.family} {e.state} {e.hits} {sorted(e.members)} {e.layers}" for e in self.book)
        found.append(f"{self.window.skips} {self.window.last_step} {self.window.step_time_s} {self.window.names}")
        found += [f"{finding.kind} {finding.active}" for finding in self.window.tick(0.0, -100.0, 1.0)]
        self.window.skips.clear()
        return [text.replace("np.float64(nan)", "nan") for text in found]


class _Run:
    """A training that goes well but for ``troubles``, each of which lasts a while."""

    def __init__(self, seed: int, troubles: list[str], world: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.troubles = [*troubles, "quiet", "quiet"]
        self.world = world
        self.step = int(self.chance.integers(0, 60))
        self.seqs = [0] * world
        self.layers = Build().layers(*(f"blocks.{i}" for i in range(LAYERS)), operands=OPERANDS)
        self.now, self.left = "quiet", 0
        self.scale = 65536.0
        self.tensors = bool(self.chance.random() < 0.7)
        self.logged = {"loss", *self.chance.choice(["grad_norm", "lr", "step_time_s", "loss_scale", "clip_coef"], 3)}

    def blocks(self, steps: int) -> Iterator[Observation]:
        last = self.step + steps
        while self.step < last:
            count = int(self.chance.choice([1, 2, 5, 12, 40, 90]))
            first = self.step
            days = [self._day(step) for step in range(first, first + count)]
            self.step += count
            for rank in range(self.world):
                self.seqs[rank] += 1
                body = self._body(first, days, rank)
                yield Build().observation(body, layers=self.layers, rank=rank, world=self.world, seq=self.seqs[rank])
            if days[-1] == "back":
                self.step = max(self.step - 30, 0)

    def _day(self, _step: int) -> str:
        if self.left == 0:
            self.now = str(self.chance.choice(self.troubles))
            self.left = int(self.chance.choice([1, 2, 3, 30])) if self.now != "quiet" else 60
        self.left -= 1
        return self.now

    def _body(self, first: int, days: list[str], rank: int) -> wire.Body:
        records = {first + i: self._record(first + i, day, rank) for i, day in enumerate(days)}
        events = tuple(
            wire.Event(step=first + i, kind="skipped", detail={}) for i, day in enumerate(days) if day == "skip"
        )
        summaries = list(self._summaries(first, days)) if self.tensors else []
        return Build().body(*summaries, records={s: r for s, r in records.items() if r}, events=events)

    def _record(self, step: int, day: str, rank: int) -> dict[str, float]:
        chance = self.chance
        loss = 1 + 2 * np.exp(-step / 100) + 0.02 * chance.normal()
        found = {
            "loss": {"loss_spike": 2.2 * loss, "big_spike": 4 * loss, "nan_loss": np.nan, "zero_loss": 0.0}.get(
                day, loss
            ),
            "grad_norm": {"norm_spike": 8.0, "inf_norm": np.inf, "frozen_norm": 0.75}.get(
                day, chance.lognormal(0, 0.3)
            ),
            "lr": 1e-4 if step % 7 else 2e-4,
            "step_time_s": (1.0 + 0.01 * chance.random()) * (2 if day == "slow" or (day == "late" and rank) else 1),
            "loss_scale": self.scale,
            "clip_coef": 0.5 if day == "clip" or chance.random() < 0.02 else 1.0,
        }
        if day == "fall":
            self.scale /= 2
        if day == "no_loss":
            del found["loss"]
        known = {name: float(value) for name, value in found.items() if name in self.logged}
        if day == "eval_nan":
            known["eval_loss"] = float("nan")
        if day == "renamed":  # from the first time on the names that the rules prefer count
            known = {{"grad_norm": "floatscope/grad_norm", "loss": "train_loss"}.get(n, n): v for n, v in known.items()}
        if day == "named_twice":
            known |= {"train_loss": 9.0, "lm loss": 9.0, "floatscope/grad_norm": 9.0, "train/grad_norm": 0.0}
        if day == "reward":
            known["reward"] = 1.0
        return known

    def _summaries(self, first: int, days: list[str]) -> Iterator[wire.Summaries]:
        chance, n = self.chance, len(days)
        shape = (n, LAYERS)
        at = int(chance.integers(LAYERS))

        def where(day: str) -> np.ndarray[Any, Any]:
            mask = np.zeros(shape, np.bool_)
            mask[[i for i, d in enumerate(days) if d == day], at] = True
            return mask

        for kind, base in (("act", 100.0), ("act_in", 900.0), ("grad", 0.1)):
            amax = base * chance.lognormal(0, 0.1, shape)
            amax[where("near")] *= {"act": 3.5, "act_in": 60.0}.get(kind, 1.0)
            amax[where("crossed")] *= 1000
            amax[where("dead" if kind == "grad" else "vanish")] = 0
            under = np.where(where("under"), 0.4, 0.01 * chance.random(shape))
            fields = {
                "count": ("<i8", np.where(where("gone"), 0, 1000)),
                "zeros": ("<i8", np.where(where("under"), 600, 20)),
                "nans": ("<i8", where("nan").astype(np.int64)),
                "infs": ("<i8", (where("inf") & (kind != "act_in")).astype(np.int64)),
                "absmax": ("<f4", amax),
                "scale": ("<f4", np.where(where("scale") & (kind == "act"), 2.0**60, 1.0)),
                "under": ("<f4", under),
                "floor": ("<f4", np.where(where("under"), 0.2, 0.0)),
            }
            yield self._part(kind, first, fields)
        if "move" in days:
            for kind in ("weight", "update"):
                rms = np.where(where("move"), 0.5, 1e-3) if kind == "update" else np.ones(shape)
                fields = {
                    "count": ("<i8", np.full(shape, 1000)),
                    **{name: ("<i8", np.zeros(shape)) for name in ("zeros", "nans", "infs")},
                    "absmax": ("<f4", np.ones(shape)),
                    "sumsq": ("<f8", 1000 * rms**2),
                }
                yield self._part(kind, first, fields)

    def _part(self, kind: str, first: int, fields: dict[str, tuple[str, Any]]) -> wire.Summaries:
        return wire.Summaries(
            kind=kind,
            first_step=first,
            steps=len(fields["count"][1]),
            layers=np.arange(LAYERS, dtype="<u4").tobytes(),
            fields=tuple(
                wire.Field(name=name, dtype=dtype, data=np.ascontiguousarray(data, dtype).tobytes())
                for name, (dtype, data) in fields.items()
            ),
        )


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(TROUBLES), max_size=4), st.sampled_from([1, 1, 2]))
def test_a_glance_changes_no_verdict(seed: int, troubles: list[str], world: int) -> None:
    by_step, glance = _Told(glance=False), _Told(glance=True)
    for observation in _Run(seed, troubles, world).blocks(250):
        assert glance.take(observation) == by_step.take(observation)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_each_trouble_is_told_alike(trouble: str) -> None:
    by_step, glance = _Told(glance=False), _Told(glance=True)
    for observation in _Run(TROUBLES.index(trouble), [trouble], 1 + (trouble == "late")).blocks(250):
        assert glance.take(observation) == by_step.take(observation)


@pytest.mark.parametrize("tensors", [True, False])
@pytest.mark.parametrize("steps", [1, 5, 40])
def test_a_calm_block_comes_without_findings(build: Build, tensors: bool, steps: int) -> None:
    window, layers = RunWindow(RULES), build.layers(*(f"blocks.{i}" for i in range(LAYERS)))
    found = []
    for seq in range(60):
        numbers = range(seq * steps, (seq + 1) * steps)
        records = {step: {"loss": 2 + 0.01 * (step % 7), "grad_norm": 1 + 0.01 * (step % 5)} for step in numbers}
        summaries = [build.summary("grad", numbers[0], LAYERS, steps=steps)] if tensors else []
        observation = build.observation(build.body(*summaries, records=records), layers=layers, seq=seq + 1)
        found = list(window.judge(observation, frozenset))
    assert [finding.kind for finding in found if finding.kind != "limit_crossed" or tensors] == []
    assert window.last_step == 60 * steps - 1
    last = build.observation(build.body(records={60 * steps: {"loss": 2.0}}), layers=layers, seq=61)
    assert {"loss_spike", "loss_zero", "nonfinite"} < {finding.kind for finding in window.judge(last)}
