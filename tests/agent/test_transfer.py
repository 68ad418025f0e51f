"""Rows leave through a bounded ring: nothing waits for it, a full one costs rows, memory comes back."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import floatscope
from floatscope import Scope
from floatscope._backend import Backend, ring_bytes
from floatscope._device_rows import DeviceRows, Route
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._record import LostRecord, RecordLostError
from floatscope._recorder import Recorder
from floatscope._ring import Extent, Ring
from floatscope._stats import Plan, Reference
from floatscope._streams import Streams
from tests.agent.rows_on_the_host import OneStream, Runs, like_a_card, on_the_host

Attach = Callable[..., tuple[Scope, MemorySink]]

EVERY = floatscope.Config(activations_every=1, histograms_every=1, weights_every=1)


@given(st.lists(st.tuples(st.integers(1, 700), st.integers(0, 9)), max_size=80))
def test_pieces_in_use_never_overlap_and_all_come_back(orders: list[tuple[int, int]]) -> None:
    ring = Ring(1024, reserve=64, allocate=on_the_host)
    held: list[tuple[Extent, int]] = []
    for number, (nbytes, later) in enumerate(orders):
        for extent, due in list(held):
            if due <= number:
                assert (extent.host == due * 1000 + len(extent.host)).all(), "somebody else wrote here"
                extent.give_back()
                held.remove((extent, due))
        taken = ring.take(nbytes)
        if taken is None:
            assert held, "an empty ring has room for this"
            continue
        assert 8 * len(taken.host) >= nbytes
        taken.host.fill_((number + later) * 1000 + len(taken.host))
        held.append((taken, number + later))
    for extent, _ in held:
        extent.give_back()
    assert ring.take(1024) is None, "the reserve is for small things"
    assert ring.take(1024 - 64) is not None


def test_the_reserve_is_left_to_small_things() -> None:
    ring = Ring(800, reserve=80, allocate=on_the_host)
    assert ring.take(720) is not None
    assert ring.take(81) is None
    assert ring.take(80) is not None
    assert ring.take(8) is None


def test_the_size_of_a_ring_is_bounded() -> None:
    assert ring_bytes(10**9) == 64 << 20
    assert ring_bytes(1) == 4 << 20
    assert 4 << 20 < ring_bytes(1000) < 64 << 20


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, scope: Scope) -> None:
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).square().sum()
    loss.backward()
    optimizer.step()
    scope.step(loss=loss)


def test_a_step_is_the_same_through_a_ring_as_without(attach: Attach) -> None:
    records = []
    for chosen in (Backend(variant=lambda _: Reference()), like_a_card()):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scope, sink = attach(model, optimizer, config=EVERY, _backend=chosen)
        for _ in range(3):
            step(model, optimizer, scope)
        records.append(sink.records())
    for plain, through in zip(*records, strict=True):
        assert [rows.kind for rows in plain.summaries] != []
        assert sorted(rows.kind for rows in plain.summaries) == sorted(rows.kind for rows in through.summaries)
        for rows in plain.summaries:
            other = next(r for r in through.summaries if r.kind == rows.kind)
            assert rows.layers.tolist() == other.layers.tolist()
            assert rows.hist is not None
            assert other.hist is not None
            assert rows.hist.tolist() == other.hist.tolist()
            for name, values in rows.fields.items():
                assert values.tobytes() == other.fields[name].tobytes(), name


def test_a_record_is_ready_when_its_copy_has_arrived(attach: Attach) -> None:
    model, streams = make_model(), OneStream(at_once=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, _backend=like_a_card(streams=streams))
    step(model, optimizer, scope)
    [pending] = sink.pending
    assert not pending.ready()
    streams.arrive()
    assert pending.ready()
    assert not any(event.waited for event in streams.events), "the training waited"


def test_a_full_ring_costs_rows_and_says_so(attach: Attach) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Ten rows with histograms take 21 KB, the scalars of a step 512 bytes.
    ring = Ring(24 << 10, reserve=1 << 10, allocate=on_the_host)
    scope, sink = attach(model, optimizer, _backend=like_a_card(ring=ring), config=EVERY, updates_every=0)
    sink.said.append(floatscope.wire.Focus(steps=8))
    for _ in range(8):
        step(model, optimizer, scope)
    full = sink.pending[0].resolve()
    assert full.summaries
    rest = [pending.resolve() for pending in sink.pending[1:4]]
    for record in rest:
        assert record.summaries == ()
        assert not record.everything, "what a closer look asked for is not here"
        assert record.scalars["loss"] > 0, "scalars are small"
        assert [(e.kind, e.detail) for e in record.events if e.kind != "coverage"] == [
            ("rows_lost", {"reason": "transfer_full"})
        ]
    lost = sink.pending[-1]
    assert isinstance(lost, LostRecord)
    with pytest.raises(RecordLostError, match="transfer_full"):
        lost.resolve()
    # What was resolved, and what nobody wants any more, gives its memory back.
    sink.pending.clear()
    gc.collect()
    step(model, optimizer, scope)
    assert sink.pending[-1].resolve().summaries


def test_a_device_that_is_lost_costs_its_steps_and_not_the_training(
    attach: Attach, caplog: pytest.LogCaptureFixture
) -> None:
    class Lost(OneStream):
        def join(self) -> None:
            raise RuntimeError("the device is lost")

    Guard.reraise = False
    caplog.set_level(logging.CRITICAL, "floatscope")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    streams: list[OneStream] = [Lost(), OneStream()]
    scope, sink = attach(model, optimizer, _backend=like_a_card(streams=streams[0]))
    for _ in range(2):
        step(model, optimizer, scope)
    assert [type(pending) for pending in sink.pending] == [LostRecord] * 2
    assert sum(len(pending.layers) for pending in sink.pending) >= 2, "names are kept"


def test_rows_and_scalars_grow_beyond_what_was_expected(attach: Attach) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, config=EVERY)
    rows = scope._recorder.rows_on(torch.device("cpu"))
    for number in range(200):
        rows.keep(torch.tensor(float(number)))
        rows.place("act", 100 + number)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert rows.slot(150).item() == 150.0
    scope.step()
    for kind in ("act", "act_in", "act_grad", "grad", "weight"):
        assert sink.row(0, kind, "4") is not None


def test_a_ring_grows_with_the_rows() -> None:
    sizes: list[int] = []

    def made(rows: int) -> Ring:
        sizes.append(rows)
        return Ring(1 << 20, reserve=1 << 10, allocate=on_the_host)

    route = Route(made, cast("Streams", OneStream()))
    rows = DeviceRows(torch.device("cpu"), Runs(), capacity=2, route=route)
    for layer in range(9):
        part = rows.part_for("act", layer, 3, limit=100, format_="fp32", loss_scaled=False)
        rows.measure(torch.full((3,), float(layer)), part.row, histogram=False)
    assert sizes == [2, 4, 8, 16]
    transit = rows.send(histogram=False)
    assert transit is not None
    assert transit.resolve().rows.absmax.tolist() == [float(layer) for layer in range(9)]
    assert rows.parts() == []


def test_closing_lets_go_of_rows_and_of_what_waits(attach: Attach) -> None:
    model = make_model()
    scope, sink = attach(model, config=EVERY, _backend=like_a_card())
    out = model.get_submodule("0")(torch.ones(3, 4))
    waiting = weakref.ref(out.untyped_storage())
    rows = weakref.ref(scope._recorder.rows_on(torch.device("cpu")))
    scope.close()
    del out
    gc.collect()
    assert waiting() is None
    assert rows() is None
    assert sink.reason == "finished"


def test_two_models_that_share_a_layer_are_both_read() -> None:
    shared = nn.Linear(4, 4)
    models = [nn.Sequential(shared, nn.Linear(4, 2)) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    sinks = [MemorySink(), MemorySink()]
    scopes = [
        floatscope.watch(model, optimizer, config=EVERY, _backend=like_a_card(), _sink=sink)
        for model, optimizer, sink in zip(models, optimizers, sinks, strict=True)
    ]
    for model, optimizer, scope in zip(models, optimizers, scopes, strict=True):
        step(model, optimizer, scope)
    for scope, sink in zip(scopes, sinks, strict=True):
        scope.close()
        row = sink.row(0, "grad", "0")
        assert row is not None
        assert row["count"] == 20
        assert sink.row(0, "act", "1") is not None
    assert not shared._forward_hooks


def test_rows_of_others_are_collected_and_cleared(attach: Attach) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, histograms_every=1, activations_every=0)
    words, hist = torch.zeros(10, dtype=torch.int64), torch.zeros(512, dtype=torch.int32)
    unused = torch.zeros(10, dtype=torch.int64)

    def collect(recorder: Recorder) -> None:
        recorder.adopt("act", 0, words, hist, format_="bf16", cast_scale=2.0)
        recorder.adopt("act", 1, unused, None, format_="bf16")

    scope._recorder.collectors.append(collect)
    tensor = torch.tensor([1.0, -2.0, 0.0])
    for _ in range(2):
        Runs().measure(tensor, words, hist)
        step(model, optimizer, scope)
        assert not words.any()
        assert not hist.any()
    for number in range(2):
        row = sink.row(number, "act", "0")
        assert row is not None
        assert (row["count"], row["absmax"], row["sum"], row["scale"]) == (3, 2.0, -1.0, 2.0)
        counts = sink.hist(number, "act", "0")
        assert counts is not None
        assert counts.sum() == 2
        assert sink.row(number, "act", "2") is None
        assert sink.row(number, "grad", "2") is not None


def test_a_collector_that_raises_costs_what_it_would_have_brought(attach: Attach) -> None:
    Guard.reraise = False
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)

    def broken(recorder: Recorder) -> None:
        raise RuntimeError("not mine")

    scope._recorder.collectors.append(broken)
    step(model, optimizer, scope)
    assert sink.row(0, "grad", "0") is not None


def test_lists_that_a_large_model_repeats_are_planned_once() -> None:
    variant, tensor = Runs(), torch.ones(3)
    rows = DeviceRows(torch.device("cpu"), variant, capacity=120)
    for _ in range(2):
        for first in range(110):
            rows.run((first, first + 1), [tensor, tensor], histogram=False)
    assert variant.plans == 110
    for first in range(110):
        for step in range(2, 10):
            rows.run((first, first + step), [tensor, tensor], histogram=False)
    assert len(rows._plans) <= 256


def test_long_lists_that_differ_from_step_to_step_are_not_all_kept() -> None:
    class Planned(Reference):
        def plan(self, at: Sequence[int]) -> Plan:
            return super().plan(at[:1])

    rows, tensor = DeviceRows(torch.device("cpu"), Planned(), capacity=4000), torch.ones(1)
    for step in range(20):
        at = tuple(row for row in range(4000) if row != step)  # an expert that got no token
        rows.run(at, [tensor], histogram=False)
    assert sum(map(len, rows._plans)) <= 1 << 15
    assert at in rows._plans
