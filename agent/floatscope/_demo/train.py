"""The loop that ``floatscope demo`` watches: ``python -m floatscope._demo.train --run demo --schedule hot``."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Sequence

import torch
from torch.nn import functional

import floatscope
from floatscope._demo.fp8 import roll_scales
from floatscope._demo.model import GPT
from floatscope._demo.schedule import SCHEDULES, learning_rate
from floatscope._demo.text import batches, corpus

__all__ = ["main"]

log = logging.getLogger("floatscope.demo")


def main(argv: Sequence[str] | None = None) -> int:
    """Train until ``--steps``, ``--seconds`` or SIGTERM, whichever comes first; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m floatscope._demo.train", description=__doc__)
    parser.add_argument("--run", default="demo")
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="hot")
    parser.add_argument("--server", help="address of the server; default: FLOATSCOPE_SERVER or http://127.0.0.1:6160")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for an AMD or NVIDIA card (default: cpu)")
    parser.add_argument("--steps", type=int, default=sys.maxsize)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)

    asked_to_stop = False

    def stop(*_: object) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    signal.signal(signal.SIGTERM, stop)

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    with torch.device(options.device):
        model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    scaler = torch.amp.GradScaler(options.device)
    data = batches(corpus(), batch=4, context=model.context, seed=options.seed)

    # The limits move within a few steps here, and the model is small: look at every tensor in every step, whatever it
    # costs.
    with floatscope.watch(
        model,
        optimizer,
        scaler=scaler,
        run=options.run,
        server=options.server,
        activations_every=1,
        weights_every=1,
        updates_every=10,
        overhead_budget=0,
    ) as scope:
        deadline = time.monotonic() + options.seconds
        for step in range(options.steps):
            if asked_to_stop or time.monotonic() >= deadline:
                break
            rate = learning_rate(options.schedule, step)
            for group in optimizer.param_groups:
                group["lr"] = rate
            tokens, targets = (tensor.to(options.device) for tensor in next(data))
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scope.step(loss=loss)
            roll_scales(model)
            if step % 10 == 0:
                log.info("step %d  lr %.2e  loss %.4f  loss scale %g", step, rate, loss.item(), scaler.get_scale())
    return 0


if __name__ == "__main__":
    sys.exit(main())
