"""Runs with scalers, scaled operands and cards, told to a server as agents tell it: frames over the socket."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from floatscope import wire
from tests.server.bodies import layer, scalars, summaries

__all__ = ["CULPRIT", "MARKUP", "tell", "tell_bf16", "tell_cards", "tell_fp8", "tell_fp16"]

MARKUP = "<img src=x onerror=alert(1)>"
CULPRIT = "model.layers.1.mlp.down_proj"
STEPS = 300


def tell(
    address: str,
    run: str,
    bodies: Sequence[wire.Body],
    *,
    rank: int = 0,
    world: int = 1,
    layers: Sequence[wire.Layer] = (),
    config: dict[str, Any] | None = None,
) -> None:
    """What one rank says; every block is on disk when this returns."""
    identity = wire.Identity(run=run, writer=secrets.token_hex(16), rank=rank, world=world, attempt=1, started_ns=1)
    hello = wire.Hello(
        protocol_min=1,
        protocol_max=1,
        agent="test",
        identity=identity,
        wall_ns=time.time_ns(),
        monotonic_ns=time.monotonic_ns(),
        layers=tuple(layers),
        config=config or {},
    )
    with connect(f"ws://{address}/ingest/v1", subprotocols=[Subprotocol(wire.SUBPROTOCOL)]) as socket:
        socket.send(wire.encode(hello))
        assert isinstance(_answer(socket.recv(timeout=30)), wire.Welcome)
        for seq, body in enumerate(bodies, 1):
            socket.send(wire.encode(wire.make_block(seq, body)))
            while not isinstance(answer := _answer(socket.recv(timeout=30)), wire.Ack):
                assert not isinstance(answer, wire.Nack | wire.Refused), answer


def _answer(data: str | bytes) -> wire.ServerMessage:
    assert isinstance(data, bytes)
    return wire.decode_server(data)


def _scale_and_skips() -> tuple[list[float], list[int]]:
    """Grows every 100 good steps; one overflow at 150, and from 240 on one after the other, until 250."""
    scale, good, scales, skips = 2.0**15, 0, [], []
    for step in range(STEPS):
        scales.append(scale)
        if step == 150 or 240 <= step < 250:
            skips.append(step)
            scale, good = scale / 2, 0
        else:
            good += 1
            if good == 100:
                scale, good = scale * 2, 0
    return scales, skips


def tell_fp16(address: str, run: str, *, world: int = 4) -> None:
    """A run in fp16 on four ranks whose layer ``CULPRIT`` breaks on rank 3; with two cards a rank of two kinds."""
    now = time.time()
    scales, skips = _scale_and_skips()
    names = ["model.embed_tokens", "model.layers.0.mlp.down_proj", CULPRIT, "lm_head"]
    table = [layer(i, name, ("grad", "fp16"), ("act_grad", "fp16")) for i, name in enumerate(names)]
    for rank in range(world):
        broken = np.zeros((STEPS, len(names)))
        broken[skips, 2] = 3 if rank == 3 else 0
        grads = summaries("act_grad", 0, np.full((STEPS, len(names)), 0.01), infs=broken)
        events = [wire.Event(step=s, kind="skipped", detail={"optimizer": 0, "scale": scales[s]}) for s in skips]
        events += [
            wire.Event(step=s, kind="scale_changed", detail={"from": scales[s - 1], "to": scales[s]})
            for s in range(1, STEPS)
            if scales[s] != scales[s - 1]
        ]
        series = (
            scalars("loss", 0, [2.0 - 0.001 * s for s in range(STEPS)]),
            scalars("loss_scale", 0, scales),
            scalars("skipped", 0, [float(s in skips) for s in range(STEPS)]),
            scalars("step_time_s", 0, [0.7] * STEPS),
            *(
                scalars(f"phase/{name}_s", 0, [share * (1 + 0.1 * (s % 7 == 0)) for s in range(STEPS)])
                for name, share in (("data", 0.02), ("forward", 0.2), ("backward", 0.4), ("optimizer", 0.08))
            ),
        )
        body = wire.Body(
            steps=STEPS,
            summaries=(grads,),
            scalars=series,
            events=tuple(sorted(events, key=lambda e: e.step)),
            devices=_eight(rank, now),
        )
        tell(address, run, [body], rank=rank, world=world, layers=table, config=_config())


def _config() -> dict[str, Any]:
    verdict = {
        "item": "pcie 0000:03:00",
        "status": "warning",
        "value": "8 lanes",
        "why": "It can do 16.",
        "fix": "Reseat.",
    }
    return {"doctor": [verdict, {"item": "driver", "status": "ok", "value": "amdgpu 6.12", "why": "", "fix": ""}]}


def _eight(rank: int, now: float) -> tuple[wire.Device, ...]:
    """The two cards of a rank for four minutes. Of the last rank one stops answering and one tells little; the first
    card of rank 2 gets another index on the way."""
    found = []
    for second in range(240):
        for place in (0, 1):
            number = 2 * rank + place
            if number == 6 and second > 170:
                continue
            index = 5 if number == 4 and second > 120 else place
            busy = 90.0 - 6 * rank - (40 if number == 2 and second % 60 < 12 else 0)
            known = number != 7
            found.append(
                wire.Device(
                    time_ns=int((now - 240 + second) * 1e9),
                    backend="rocm",
                    index=index,
                    pci=f"0000:{number:02x}:00",
                    name=MARKUP if number == 5 else ("AMD Instinct MI300X" if rank < 2 else "AMD Instinct MI210"),
                    vram_total_bytes=(192 if rank < 2 else 64) << 30,
                    vram_used_bytes=((150 if rank < 2 else 62) << 30) + (second << 22) if known else None,
                    allocated_bytes=(120 if rank < 2 else 40) << 30 if known else 3 << 30,
                    reserved_bytes=(140 if rank < 2 else 58) << 30 if known else None,
                    busy_percent=busy if known else None,
                    memory_busy_percent=busy / 2 if known else None,
                    power_watts=500.0 + second % 9 if known else None,
                    temperature_celsius=71.0 if known else None,
                    alloc_retries=0 if known else None,
                    ooms=0 if known else None,
                    core_clock_mhz=2100.0 - second % 30 if known else None,
                    memory_clock_mhz=1300.0 if known else None,
                    **(_seldom(number) if known and second % 60 == number else {}),
                )
            )
    return tuple(found)


def _seldom(number: int) -> dict[str, Any]:
    """Card 3 has lost half its lanes, card 2 is too hot, and card 1 has errors from before this run."""
    return {
        "pcie_width": 8 if number == 3 else 16,
        "pcie_speed_gts": 32.0,
        "pcie_max_width": 16,
        "pcie_max_speed_gts": 32.0,
        "pcie_replays": 12 * number,
        "xgmi_links": 7,
        "xgmi_bytes_per_s": 41.5e9,
        "ecc_corrected": 1234,
        "ecc_uncorrected": 2 if number == 1 else 0,
        "throttle_power_percent": 90.0,
        "throttle_thermal_percent": 35.0 if number == 2 else 0.0,
        "throttle_brake_percent": 0.0,
    }


def tell_fp8(address: str, run: str) -> None:
    """A run with delayed, current and static scales; the amax of one operand outgrows its delayed scale."""
    names = [f"model.layers.{i}.mlp.up_proj" for i in range(12)]
    table = []
    for i, name in enumerate(names):
        scaling = ("delayed", "dynamic", "static")[i % 3]
        operands = (
            wire.Operand(kind="act_in", format="e4m3fn", role="cast", scaling=scaling),
            wire.Operand(kind="act_grad", format="e5m2", role="cast", scaling=scaling),
        )
        table.append(wire.Layer(index=i, name=name, module_type="Fp8Linear", parameters=16, order=i, operands=operands))
    amax = np.outer(1 + 0.3 * np.sin(np.arange(200) / 9), np.linspace(1, 4, 12))
    amax[150:, 0] *= np.linspace(1, 6, 50)
    scale = np.full_like(amax, 64.0)
    scale[:, 1::3] = 448 / amax[:, 1::3]
    grads = amax * 1e-4
    loss = scalars("loss", 0, [2.0] * 200)
    parts = (
        summaries("act_in", 0, amax, scale=scale),
        summaries("act_grad", 0, grads, scale=np.where(np.arange(12) % 3 == 1, 57344 / grads, 2.0**20)),
    )
    tell(address, run, [wire.Body(steps=200, summaries=parts, scalars=(loss,))], layers=table)


def tell_bf16(address: str, run: str) -> None:
    """Without a scaler; of its card there is one reading, with one figure."""
    reading = wire.Device(time_ns=time.time_ns(), backend="rocm", index=0, pci="0000:c1:00", busy_percent=0.0)
    body = wire.Body(steps=20, scalars=(scalars("loss", 0, [2.0] * 20),), devices=(reading,))
    tell(address, run, [body], layers=[layer(0, "a", ("grad", "bf16"))])


def tell_cards(address: str, run: str, ranks: int) -> None:
    """One card a rank, and in the middle the clock of rank 1 goes back by a day."""
    now = time.time()
    for rank in range(ranks):
        day = 86400 if rank == 1 else 0
        readings = tuple(
            wire.Device(
                time_ns=int((now - 60 + second + (day if second < 30 else 0)) * 1e9),
                backend="rocm",
                index=rank % 8,
                pci=f"0000:{rank % 8:02x}:00",
                name="AMD Instinct MI300X",
                vram_total_bytes=192 << 30,
                vram_used_bytes=(100 + rank) << 30,
                busy_percent=float(100 - rank),
                power_watts=600.0,
            )
            for second in range(60)
        )
        first = wire.Body(steps=2, scalars=(scalars("loss", 0, [2.0] * 2),), devices=readings[:30])
        tell(address, run, [first, wire.Body(devices=readings[30:])], rank=rank, world=ranks)
