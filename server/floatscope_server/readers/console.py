"""Captured output of a training: what the Trainer, DeepSpeed, Megatron, Transformer Engine and progress bars print, in
any mixture."""

from __future__ import annotations

import re
from collections.abc import Iterator

from floatscope import wire
from floatscope_server.readers import megatron
from floatscope_server.readers.dicts import dicts
from floatscope_server.readers.hangs import hang, has_hint
from floatscope_server.readers.iterations import Iterations
from floatscope_server.readers.names import meaning
from floatscope_server.readers.overflow import at_minimum, engine_step, overflow, stamped
from floatscope_server.readers.progress import Bar, bars
from floatscope_server.readers.rows import Broken, Happening, Item, LogFormat, Named, Row
from floatscope_server.readers.skips import Clock, Seen, scales_of
from floatscope_server.readers.step_lines import step_line
from floatscope_server.readers.steps import Pending, Steps, same_record
from floatscope_server.readers.te_debug import Statistics
from floatscope_server.readers.text import lines, step_of
from floatscope_server.readers.trainer_log import TrainerLog

__all__ = ["CONSOLE", "is_of_interest"]

_FORMATS = (
    "megatron-console",
    "deepspeed-console",
    "hf-console",
    "llamafactory-trainer-log",
    "step-lines",
    "transformer-engine-log",
)
"""The first of those that a file holds lines of is its format."""
_LOGGING_STEPS = re.compile(r"""logging_steps['"]?\s*[=:]\s*(\d{1,9})\b""")
_HOST = re.compile(r"\[?([\w.-]+)\]?: ")
_SUMMARY = ("train_loss", "train_runtime")


class _Console:
    def __init__(self) -> None:
        self._format = len(_FORMATS)
        self._last = -1
        self._anew = False
        self._trains = False
        self._steps = Steps()
        self._pending: Pending | None = None
        self._seen: list[Seen] = []
        self._clock = Clock()
        self._engine_step: int | None = None
        self._engine_skipped: float | None = None
        self._last_skip: int | None = None
        self._overflow_mark = "", ""
        self._iterations = Iterations()
        self._statistics = Statistics()
        self._trainer_log = TrainerLog()

    def read(self, line: int, text: str) -> Iterator[Item]:
        if "iteration" in text:
            if "|" in text:
                yield from self._iteration(line, text)
            elif "value=" in text:
                found = list(self._statistics.read(line, text))
                if found:
                    yield from self._named("transformer-engine-log")
                    yield from found
        if "%|" in text or "{'" in text:
            yield from self._printed(line, text)
        elif '"current_steps"' in text:
            item = self._trainer_log.read(line, text)
            if item is not None:
                yield from self._named("llamafactory-trainer-log")
                yield item
        elif "loss" in text and not self._trains and (told := step_line(text)) is not None:
            yield from self._named("step-lines")
            step, values = told
            yield self._row(Row(line=line, step=step, values=values, meaning=meaning(values)))
        if "logging_steps" in text and (found_steps := _LOGGING_STEPS.search(text)):
            self._steps.interval = max(int(found_steps[1]), 1)
        yield from self._scaler(line, text)
        yield from self._hang(line, text)

    def finish(self) -> Iterator[Item]:
        yield from self._settle(None)
        yield from self._place(None)
        yield from self._statistics.finish()

    def _named(self, name: str) -> Iterator[Item]:
        place = _FORMATS.index(name)
        if place < self._format:
            self._format = place
            yield Named(format=name)

    def _row(self, row: Row) -> Row:
        """What has one writer goes back only when it starts anew."""
        row.restart = row.step < self._last
        if step_of(row.step) is not None:
            self._last = row.step
        self._anew = False
        return row

    def _made(self, line: int, step: int, values: dict[str, float], **known: float) -> Iterator[Row]:
        if step >= self._last or self._anew:
            row = Row(line=line, step=step, values=values, meaning=meaning(values) | known, records=0)
            yield self._row(row)

    # Records of the Trainer and the bars around them

    def _printed(self, line: int, text: str) -> Iterator[Item]:
        tokens: list[tuple[int, Bar | dict[str, float] | None]] = []
        if "%|" in text:
            tokens += [(bar.start, bar) for bar in bars(text)]
        if "{'" in text:
            tokens += [(start, values) for start, _, values in dicts(text)]
        if not tokens:
            return
        yield from self._named("hf-console")
        self._trains = True
        for start, token in sorted(tokens, key=lambda t: t[0]):
            if isinstance(token, Bar):
                yield from self._bar(line, token)
            elif token is None:
                yield Broken(line=line, why="a record does not end")
            else:
                yield from self._record(line, token, "" if "%|" in text[:start] else text[:start])

    def _record(self, line: int, values: dict[str, float], prefix: str) -> Iterator[Item]:
        record = Pending(line, values, self._steps.before(trains="loss" in values), prefix)
        waiting = self._pending
        if waiting is not None and same_record(waiting, record):
            # The print with more digits counts: the one that has a grad norm is the Trainer's own.
            waiting.values = waiting.values | values if "grad_norm" in values else values | waiting.values
            return
        yield from self._settle(None)
        self._pending = record

    def _settle(self, after: int | None) -> Iterator[Item]:
        """The record that waited for the bar behind it."""
        record, self._pending = self._pending, None
        if record is None:
            return
        step = self._steps.of(record, after)
        if not self._anew and "step" not in record.values:
            step = max(step, self._last)
        values = {name: value for name, value in record.values.items() if name != "step"}
        known = meaning({n: v for n, v in values.items() if n not in _SUMMARY})
        yield self._row(Row(line=record.line, step=step, values=values, meaning=known))

    def _bar(self, line: int, bar: Bar) -> Iterator[Item]:
        before = self._steps.done
        if not self._steps.see(bar):
            return
        if before is not None and bar.done < before:
            yield from self._settle(None)
            self._anew, self._last_skip = True, None
            self._steps.begin()
        yield from self._settle(bar.done)
        if self._seen:
            yield from self._place(bar.done)
        if bar.done == 0:
            return
        if bar.done != before:
            self._overflow_mark = "", ""
        if self._last_skip is not None and bar.done - 1 > self._last_skip:
            # A log that tells of each skipped step tells of the others by saying nothing.
            yield from self._made(line, bar.done - 1, {}, skipped=0.0)
        if bar.seconds is not None and bar.done != before:
            yield from self._made(line, bar.done, {"seconds_per_step": bar.seconds})

    # Loss scalers

    def _scaler(self, line: int, text: str) -> Iterator[Item]:
        found = overflow(text)
        if found is not None:
            yield from self._settle(None)
            yield from self._named("deepspeed-console")
            host = _HOST.match(text)
            mark = text[text.lower().find("overflow") :], host[1] if host else ""
            if mark[0] == self._overflow_mark[0] and mark[1] != self._overflow_mark[1]:
                return  # another host says the same
            self._overflow_mark = mark
            self._seen.append(Seen(line, found.scale, stamped(text)))
            if self._steps.bar is not None:
                yield from self._place(self._steps.done)
            return
        engine = engine_step(text)
        if engine is not None:
            yield from self._named("deepspeed-console")
            yield from self._engine(line, *engine, stamped(text))
        elif at_minimum(text):
            yield from self._settle(None)
            yield from self._place(None)
            step = max(self._last, 0)
            yield Happening(line=line, event=wire.Event(step=step, kind="skipped", detail={"at_minimum": True}))

    def _engine(self, line: int, step: int, values: dict[str, float], time: float | None) -> Iterator[Item]:
        yield from self._settle(None)
        yield from self._place(step)
        self._clock.tick(step, time)
        known = meaning(values)
        if self._last_skip is not None:
            known["skipped"] = float(self._last_skip == step)
        self._engine_step = step
        self._overflow_mark = "", ""
        # Where another line is printed for each record, this one is none.
        records = int(self._format >= _FORMATS.index("deepspeed-console") and not self._trains)
        yield self._row(Row(line=line, step=step, values=values, meaning=known, records=records))

    def _place(self, last: int | None) -> Iterator[Item]:
        """Overflows whose step is known now, or will not be known better."""
        seen, self._seen = self._seen, []
        if not seen:
            return
        if self._steps.bar is not None:
            # Glued to the bar of the step before; a bar that lags shows the same number twice.
            first = self._steps.bar.done if self._last_skip is None else max(self._steps.bar.done, self._last_skip + 1)
            steps = [first + i for i in range(len(seen))]
        else:
            steps = self._clock.place(seen, max(self._engine_step or 0, self._last_skip or 0), last)
        for one, step in zip(seen, steps, strict=True):
            if self._last_skip is not None and step - 1 > self._last_skip and step - 1 > self._last:
                yield from self._made(one.line, step - 1, {}, skipped=0.0)
            yield from self._made(one.line, step, scales_of(one), skipped=1.0)
            self._last_skip = step

    # Megatron

    def _iteration(self, line: int, text: str) -> Iterator[Item]:
        found = megatron.iteration(text)
        if found is not None:
            yield from self._named("megatron-console")
            seen, self._seen = self._seen, []
            self._overflow_mark = "", ""
            for item in self._iterations.read(line, *found, rank=megatron.rank_of(text), overflows=seen):
                yield self._row(item) if isinstance(item, Row) else item
            return
        evaluated = megatron.validation(text)
        if evaluated is not None:
            yield from self._named("megatron-console")
            step, values = evaluated
            row = Row(line=line, step=step, values=values, meaning=meaning(values), records=0)
            yield self._row(row)

    # Hangs

    def _hang(self, line: int, text: str) -> Iterator[Item]:
        found = hang(text)
        if found is None:
            return
        what, words, rank = found
        yield from self._settle(None)
        step = max(self._last, self._steps.done or 0, 0)
        detail: dict[str, str | int | float | bool | None] = {"what": what, "text": words, "rank": rank}
        yield Happening(
            line=line, event=wire.Event(step=step, kind="gpu_fault" if what == "ecc" else "hang", detail=detail)
        )


def is_of_interest(text: str) -> bool:
    """Whether a line may say anything: most of a long log says nothing, and is passed over here."""
    return (
        "%|" in text
        or "{'" in text
        or "iteration" in text
        or "verflow" in text
        or "OVERFLOW" in text
        or "skipped=" in text
        or "loss scale" in text
        or "iter time" in text
        or "_steps" in text
        or "loss" in text
        or has_hint(text)
    )


def _read(chunks: Iterator[bytes]) -> Iterator[Item]:
    console = _Console()
    for line, text in lines(chunks):
        if is_of_interest(text):
            yield from console.read(line, text)
    yield from console.finish()


CONSOLE = LogFormat("console", _read, cuttable=True, more=_FORMATS)
