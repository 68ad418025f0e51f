"""Host time that a watched training step spends in the agent, as for a GPU: rows that travel, a pass that does nothing.

146 linear layers with biases, so 292 float32 parameters and 146 outputs, on the CPU; gradients of every step, then
outputs of every step as well. The pass itself is left out, and with it the launch and the events on the device. The
memory of torch's own objects is as cold as in a training: between two steps a whole forward and backward pass runs. The
first line has the same in a loop, with nothing in between.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import nn

import floatscope
from floatscope import wire
from floatscope._backend import Backend
from floatscope._device_rows import Route
from floatscope._record import PendingRecord
from floatscope._ring import Ring
from floatscope._sender import Sender
from floatscope._stats import Plan, Reference, Rows
from floatscope._streams import Streams
from tests.agent.rows_on_the_host import Event, OneStream, on_the_host
from tests.bench.spread import spread

_LAYERS = 146
_WIDTH = 8
_WARM_UP, _STEPS = 50, 400
_NOTHING_ELSE = {"overhead_budget": 0, "activations_every": 0, "weights_every": 0, "updates_every": 0}
"""Options for gradients alone, at any cost."""
_NOWHERE = "http://127.0.0.1:9"


class _Nothing(Reference):
    """Measures nothing, at no cost."""

    def plan(self, at: Sequence[int]) -> Plan:
        return _NoPlan()

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        pass


class _NoPlan:
    def run(self, rows: Rows, tensors: Sequence[torch.Tensor], *, histogram: bool) -> None:
        pass


class _Passed(OneStream):
    """One whose events have all happened, and are not kept."""

    def cleared(self) -> Event:
        return Event(happened=True)


class _Clock:
    """Microseconds by section of the step in progress, and of every call."""

    def __init__(self) -> None:
        self.step: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, list[float]] = defaultdict(list)

    def timed(self, section: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time counts for ``section``."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (whatever it returns)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = 1e6 * (time.perf_counter() - begin)
                self.step[section] += took
                self.calls[section].append(took)

        return wrapper


class _Sink(Sender):
    """The sender, its ``put`` timed."""

    clock: _Clock

    def put(self, record: PendingRecord) -> None:
        begin = time.perf_counter()
        super().put(record)
        took = 1e6 * (time.perf_counter() - begin)
        self.clock.step["put"] += took
        self.clock.calls["put"].append(took)


def _backend() -> Backend:
    def make(_: int) -> Ring:
        # Filled: pinned memory has its pages already.
        return Ring(64 << 20, reserve=64 << 10, allocate=lambda words: on_the_host(words).fill_(0))

    return Backend(
        variant=lambda _: _Nothing(),
        batched=lambda _: True,
        route=lambda _: Route(make, cast("Streams", _Passed())),
        batch_bytes=lambda _: 512 << 20,
    )


class _Training:
    def __init__(self, options: dict[str, Any], *, timed: bool = True) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.inputs = torch.randn(4, _WIDTH)
        self.clock = _Clock()
        sink = _Sink(wire.Identity(run="bench", writer="0" * 32), _NOWHERE)
        sink.clock = self.clock
        self.sink = sink
        self.scope = floatscope.watch(self.model, self.optimizer, _sink=sink, _backend=_backend(), **options)
        self._end: Callable[..., None] = self.scope.step
        if timed:
            self._time()

    def _time(self) -> None:
        timed = self.clock.timed
        for module in self.model.modules():
            section = "model hook" if module is self.model else "output hooks"
            for key, hook in module._forward_hooks.items():
                module._forward_hooks[key] = timed(section, hook)
        for hooks in (self.optimizer._optimizer_step_pre_hooks, self.optimizer._optimizer_step_post_hooks):
            for key, hook in hooks.items():
                hooks[key] = timed("read", hook)
        # Where the time of ``step`` goes.
        scope, recorder = self.scope, self.scope._recorder
        inner: list[tuple[str, Any, str]] = [
            ("  scalars", recorder, "note"),
            ("  rows", recorder, "send"),
            ("  accounting", scope._sampling, "end_step"),
        ]
        for section, owner, name in inner:
            setattr(owner, name, timed(section, getattr(owner, name)))
        self._end = timed("step end", partial(scope.step))

    def step(self) -> dict[str, float]:
        """Microseconds by section."""
        self.clock.step.clear()
        self.optimizer.zero_grad()
        loss = self.model(self.inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self._end(loss=loss)
        return dict(self.clock.step)

    def again(self, loss: torch.Tensor) -> float:
        """Microseconds of all that with the gradients that are there."""
        optimizer = self.optimizer
        begin = time.perf_counter()
        for before in list(optimizer._optimizer_step_pre_hooks.values()):
            before(optimizer, (optimizer,), {})
        for after in list(optimizer._optimizer_step_post_hooks.values()):
            after(optimizer, (optimizer,), {})
        self.scope.step(loss=loss)
        return 1e6 * (time.perf_counter() - begin)


def _measure_warm() -> None:
    training = _Training(_NOTHING_ELSE, timed=False)
    for _ in range(_WARM_UP):
        training.step()
    loss = training.model(training.inputs).square().mean().detach()
    took = [training.again(loss) for _ in range(_WARM_UP + _STEPS)][_WARM_UP:]
    training.scope.close()
    print(f"  gradients, in a loop, us a step\n    {'all':14} {spread(took, digits=1)}")


def _measure(name: str, options: dict[str, Any]) -> None:
    training = _Training(_NOTHING_ELSE | options)
    for _ in range(_WARM_UP):
        training.step()
    training.clock.calls.clear()
    gc.collect()
    steps = [training.step() for _ in range(_STEPS)]
    training.scope.close()
    print(f"  {name}, us a step")
    outer = ("read", "output hooks", "model hook", "step end")
    totals = [sum(step[section] for section in outer if section in step) for step in steps]
    print(f"    {'all':14} {spread(totals, digits=1)}")
    for section in (*outer[:-1], "step end", "  scalars", "  rows", "  accounting", "put"):
        if section in steps[0]:
            print(f"    {section:14} {spread([step[section] for step in steps], digits=1)}")
    calls = training.clock.calls
    if options.get("activations_every"):
        print(f"    {'an output hook':14} {spread(calls['output hooks'], digits=2)}")
    p50, p99 = np.percentile(calls["put"], [50, 99])
    print(f"    {'a put':14} p50 {p50:.1f}, p99 {p99:.1f}")


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("floatscope").setLevel(logging.ERROR)
    _measure_warm()
    _measure("gradients", {})
    _measure("gradients and outputs", {"activations_every": 1})
    _measure("attached, nothing read", {"gradients_every": 0})
