"""A training that never was: statistics as an agent sends them, the same for the same seed, and cheap to make.

Magnitudes of a layer are log-normal: a level of its own, noise of 0.57 octaves that follows itself (AR(1)), a slow
drift, and now and then a spike of 3 to 9 octaves. Shares are k / elements; one cell in a million has NaNs. The
mantissas are noise, as real ones are, so bytes per sample carry over to real runs.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope import wire

__all__ = ["FIELDS", "SCALARS", "Synthetic", "layer_name", "samples"]

FIELDS = (
    *(("count", "<i8"), ("zeros", "<i8"), ("nans", "<i8"), ("infs", "<i8")),
    *(("absmax", "<f4"), ("absmin", "<f4"), ("sum", "<f8"), ("sumsq", "<f8")),
)
"""The eight statistics. One of one layer, kind and step is a sample."""
SCALARS = ("loss", "grad_norm", "lr", "step_seconds")

_OCTAVES = 0.57
_FOLLOWS = 0.9
_SPIKES = 1e-5
_NONFINITE = 1e-6
_WINDOW, _WINDOW_OF_MANY = 1021, 251
"""Steps that are prepared, up to and above 600 layers: primes, so that no tile holds what another one does."""
_MANY = 600
_DRIFT = 0.05
"""Octaves by which the level of a layer moves from one pass over the window to the next."""
_APART = 97
"""Steps of the window by which ranks are apart: they share what is prepared, so that memory is the server's."""

F32 = npt.NDArray[np.float32]


def samples(*, steps: int, layers: int, kinds: int, ranks: int = 1) -> int:
    """How many samples as many steps are."""
    return ranks * steps * layers * kinds * len(FIELDS)


class Synthetic:
    """``layers`` modules, each with statistics of the first ``kinds`` kinds in every step.

    Of several ``ranks`` each has all layers: its shard of what belongs to a parameter, and activations of its own data.
    """

    def __init__(self, *, layers: int, kinds: int, ranks: int = 1, seed: int = 0) -> None:
        self.layers = layers
        self.kinds = wire.KINDS[:kinds]
        self.ranks = ranks
        self._seed = seed
        rng = np.random.default_rng((seed, 0))
        self._window = _WINDOW if layers <= _MANY else _WINDOW_OF_MANY
        self._elements = np.exp2(rng.uniform(13, 23, layers)).astype(np.int64)
        self._indices = np.arange(layers, dtype="<u4").tobytes()
        self._prepared = {kind: _Prepared(rng, self._window, self._elements) for kind in self.kinds}
        self._gains: tuple[int, F32] = (-1, np.empty(0, np.float32))
        self._loss = rng.normal(0, 0.02, self._window)

    @property
    def bytes_per_step(self) -> int:
        """Of a step of one rank on the wire, nearly."""
        return len(self.kinds) * self.layers * sum(np.dtype(dtype).itemsize for _, dtype in FIELDS)

    def hello(self, run: str, writer: str, rank: int = 0) -> wire.Hello:
        """Of a rank of ``run``, every kind of every layer stored as bf16."""
        operands = tuple(wire.Operand(kind=kind, format="bf16") for kind in self.kinds)
        return wire.Hello(
            protocol_min=wire.PROTOCOL_MIN,
            protocol_max=wire.PROTOCOL,
            agent="bench",
            identity=wire.Identity(run=run, writer=writer, rank=rank, world=self.ranks),
            wall_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            layers=tuple(
                wire.Layer(
                    index=index,
                    name=layer_name(index),
                    module_type="Linear",
                    parameters=int(elements),
                    order=index,
                    operands=operands,
                )
                for index, elements in enumerate(self._elements)
            ),
        )

    def body(self, first: int, steps: int, rank: int = 0) -> wire.Body:
        """What happened on ``rank`` in ``steps`` steps from ``first`` on."""
        at = np.arange(first, first + steps)
        shown = at + rank * _APART
        rows, gains = shown % self._window, self._gain(shown // self._window)
        summaries = tuple(
            wire.Summaries(
                kind=kind,
                first_step=first,
                steps=steps,
                layers=self._indices,
                fields=self._prepared[kind].fields(rows, gains),
                placement="" if self.ranks == 1 else "data" if kind.startswith("act") else "shard",
            )
            for kind in self.kinds
        )
        series = (4 / np.sqrt(1 + at / 100) + self._loss[rows], 1 + self._loss[rows], 1e-4 / (1 + at / 1e4))
        values = (*series, 0.25 + np.abs(self._loss[rows]))
        scalars = tuple(
            wire.Scalars(name=name, steps=at.astype("<i8").tobytes(), values=value.astype("<f8").tobytes())
            for name, value in zip(SCALARS, values, strict=True)
        )
        return wire.Body(first_step=first, steps=steps, summaries=summaries, scalars=scalars)

    def _gain(self, passes: npt.NDArray[np.int64]) -> F32:
        """Of each layer, in as many rows as there are ``passes``. A pass is like no other."""
        rows = []
        for number in passes.tolist():
            if self._gains[0] != number:
                octaves = np.random.default_rng((self._seed, 1, number)).normal(0, _DRIFT, self.layers)
                self._gains = number, np.exp2(octaves).astype(np.float32)
            rows.append(self._gains[1])
        return np.array(rows)


def layer_name(index: int) -> str:
    """The name of a layer."""
    return f"model.layers.{index // 6}.linear{index % 6}"


class _Prepared:
    """A stretch of steps of one kind: arrays [steps, layers]."""

    def __init__(self, rng: np.random.Generator, steps: int, elements: npt.NDArray[np.int64]) -> None:
        shape = steps, len(elements)
        noise = rng.normal(0, _OCTAVES * np.sqrt(1 - _FOLLOWS**2), shape)
        noise[0] = rng.normal(0, _OCTAVES, shape[1])
        for row in range(1, steps):
            noise[row] += _FOLLOWS * noise[row - 1]
        noise += np.where(rng.random(shape) < _SPIKES, rng.uniform(3, 9, shape), 0)
        rms = np.exp2(rng.normal(-12, 4, shape[1]) + noise)
        self._elements = elements
        self._rms = rms.astype(np.float32)
        self._absmax = (rms * np.exp2(rng.normal(3, 0.3, shape))).astype(np.float32)
        self._absmin = (rms * np.exp2(rng.normal(-18, 1, shape))).astype(np.float32)
        self._mean = (rms * rng.normal(0, 0.01, shape)).astype(np.float32)
        self._zeros = rng.binomial(elements, 0.02, shape).astype(np.int32)
        self._nans = (rng.random(shape) < _NONFINITE).astype(np.uint8)

    def fields(self, rows: npt.NDArray[np.int64], gains: F32) -> tuple[wire.Field, ...]:
        count = np.broadcast_to(self._elements, gains.shape)
        rms = (self._rms[rows] * gains).astype(np.float64)
        values: dict[str, npt.NDArray[Any]] = {
            "count": count,
            "zeros": self._zeros[rows],
            "nans": self._nans[rows],
            "infs": np.zeros(gains.shape, np.int64),
            "absmax": self._absmax[rows] * gains,
            "absmin": self._absmin[rows] * gains,
            "sum": (self._mean[rows] * gains).astype(np.float64) * count,
            "sumsq": rms * rms * count,
        }
        return tuple(
            wire.Field(name=name, dtype=dtype, data=values[name].astype(dtype, copy=False).tobytes())
            for name, dtype in FIELDS
        )
