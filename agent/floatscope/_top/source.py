"""Asks the server in a thread of its own, so that a server which does not answer leaves the keys alive."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from floatscope._client._client import Client
from floatscope._client._errors import ClientError
from floatscope._top.frames import Known, LayerBits

__all__ = ["Source", "look"]

_EVERY_S = 1.0
_DETAIL_EVERY_S = 10.0
"""What changes seldom and costs the server more: layers, formats, which tensors are observed."""
_MOST_LAYERS = 200
_DEVICE_S = 30.0


class _Detail:
    """The description of the opened run, asked for every ten seconds."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._run = ""
        self._asked = -math.inf
        self.kinds: list[str] = []
        self.formats: dict[tuple[str, str], str] = {}

    def of(self, run: str) -> None:
        now = time.monotonic()
        if run == self._run and now - self._asked < _DETAIL_EVERY_S:
            return
        found = self._client.run(run)
        self._run, self._asked = run, now
        self.kinds = [kind for kind, count in found["coverage"]["observed"].items() if count]
        self.formats = {
            (layer["name"], operand["kind"]): operand["format"]
            for layer in found["layers"]
            for operand in layer["operands"]
        }


def look(client: Client, server: str, opened: str | None, detail: _Detail | None = None) -> Known:
    """One look at the server; ``ClientError`` if it does not answer."""
    known = Known(server=server, runs=client.runs(), opened=opened)
    if opened is None or all(run["name"] != opened for run in known.runs or ()):
        return known
    about = detail or _Detail(client)
    about.of(opened)
    return replace(
        known,
        layers=_layers(client, opened, about),
        alerts=client.alerts(opened),
        devices=_newest(client.devices(opened, seconds=_DEVICE_S)),
    )


def _layers(client: Client, run: str, about: _Detail) -> list[LayerBits]:
    """Least headroom first, of every kind of tensor that is observed."""
    found: list[LayerBits] = []
    for kind in about.kinds:
        latest = client.latest(run, kind=kind, metrics=["headroom"])
        bits = latest.values["headroom"]
        known = np.flatnonzero((latest.steps >= 0) & ~np.isnan(bits))
        for at in known[np.argsort(bits[known], kind="stable")][:_MOST_LAYERS].tolist():
            layer = latest.layers[at]
            of = about.formats.get((layer, kind), "–")
            found.append(LayerBits(layer=layer, kind=kind, format=of, bits=float(bits[at])))
    return sorted(found, key=lambda one: one.bits)[:_MOST_LAYERS]


def _newest(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_card = {(sample["rank"], sample["backend"], sample["index"]): sample for sample in samples}
    return [by_card[key] for key in sorted(by_card)]


class Source:
    """Looks every second, and at once when another run is opened; ``told`` is called in its thread after each look."""

    def __init__(self, client: Client, server: str, opened: str | None, told: Callable[[], None]) -> None:
        self.known = Known(server=server, opened=opened)
        self._client = client
        self._told = told
        self._opened = opened
        self._heard = time.monotonic()
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._look, name="floatscope-top", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def open(self, run: str | None) -> None:
        """From now on, show this run, or the list."""
        self._opened = run
        self.known = replace(self.known, opened=run, layers=(), alerts=(), devices=())
        self._wake.set()

    def stop(self) -> None:
        """No further look; one that waits for the server is left behind."""
        self._ended = True
        self._wake.set()

    def _look(self) -> None:
        detail = _Detail(self._client)
        while not self._ended:
            opened = self._opened
            try:
                known = look(self._client, self.known.server, opened, detail)
                self._heard = time.monotonic()
            except ClientError as error:
                known = replace(self.known, trouble=error.message, age_s=time.monotonic() - self._heard)
            if opened == self._opened:
                self.known = known
                self._told()
            self._wake.wait(_EVERY_S)
            self._wake.clear()
