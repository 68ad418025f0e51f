"""What retention costs: its transactions, what it gives back, and acknowledgements meanwhile."""

from __future__ import annotations

import time

from floatscope_server.store.dropping import set_keeping
from floatscope_server.store.keeper import Keeper
from floatscope_server.store.sealer import Sealer
from tests.bench.seal import Sender, judge, opened, percentiles

_STEPS = 8192
_LAYERS = 300


def main() -> None:
    with opened() as store:
        sender = Sender(store, _LAYERS)
        blocks = [sender.block(first, 16) for first in range(0, 480, 16)]
        for first in range(0, _STEPS + 320, 16):
            sender.send(first, 16, blocks[first // 16 % len(blocks)])
        sender.wait()
        judge(store)
        sealer = Sealer(store, lost_after_s=3600.0)
        while sealer.seal_due():
            pass
        before = store.settings.database.stat().st_size
        everything = dict.fromkeys(("raw_keep_days", "level1_keep_days", "hist_keep_days", "hist_level1_keep_days"))
        keeping = {**everything, "gpu_keep_days": None, "gpu_level1_keep_days": None, "max_bytes_per_run": None}
        store.write(lambda session: set_keeping(session, 0, {**keeping, "raw_keep_steps": 512, "pin_alerts": True}))
        sealer = Sealer(store, lost_after_s=3600.0)
        keeper = Keeper(store)
        pieces: list[float] = []

        def timed() -> bool:
            begin = time.perf_counter()
            done = keeper.step()
            if done:
                pieces.append(time.perf_counter() - begin)
            return done

        sealer.between = timed
        pairs = [sender.block(first, 2) for first in range(0, 60, 2)]
        step = _STEPS + 320

        def paced() -> None:
            nonlocal step
            sender.send(step, 2, pairs[step // 2 % len(pairs)])
            step += 2
            time.sleep(0.02)

        sender.waits.clear()
        for _ in range(300):
            paced()
        alone = percentiles(sender.waits)
        sender.waits.clear()
        begin = time.perf_counter()
        sealer.start()
        idle, seen = 0, -1
        while idle < 50:
            paced()
            idle = idle + 1 if len(pieces) == seen else 0
            seen = len(pieces)
        passed = time.perf_counter() - begin - 50 * 0.02
        sender.wait()
        sealer.stop()
        after = store.settings.database.stat().st_size
        print(
            f"  {_STEPS - 512} steps of {_LAYERS} layers dropped in {passed:.1f} s in {len(pieces)} pieces of "
            f"{percentiles(pieces)}; {before / 1e6:.0f} -> {after / 1e6:.0f} MB; acknowledged meanwhile after "
            f"{percentiles(sender.waits)}, before it after {alone}"
        )
