"""Collects what the taps read during one optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from floatscope import wire
from floatscope._backend import Backend
from floatscope._batch import Batch, Usual
from floatscope._blocks import FIGURES, block_figures
from floatscope._captured import CapturedPart, CapturedRows
from floatscope._config import Config
from floatscope._device_rows import DeviceRows, FromAmax, Part, Scalar, Slot
from floatscope._fp8_modules import BlockCast
from floatscope._guard import Guard, RefusedValueError
from floatscope._layers import LayerTable
from floatscope._operands import Operand
from floatscope._own_ops import OwnOperations
from floatscope._placement import Placement, Ranks
from floatscope._readable import PLAIN, local_part, stored_format, stored_values, why_not
from floatscope._record import encodable
from floatscope._sampling import Sampling
from floatscope._stats import pieces
from floatscope._step_buffer import StepBuffer

__all__ = ["Recorder"]

_logging = Guard("scalars were logged", charge="step")
_naming = Guard("a scalar was logged")
_measuring = Guard("a tensor was measured")
_collecting = Guard("rows were collected")

_UNTIMED = nullcontext()
_FAILED = "it could not be measured"
_CHANGED = "changed in place before it was read"


class Recorder:
    """What the taps share: the step in progress, the layer table, the rows and the sampling intervals."""

    def __init__(
        self, table: LayerTable, config: Config, sampling: Sampling, ranks: Ranks, backend: Backend | None = None
    ) -> None:
        self.table = table
        self.ranks = ranks
        self._sampling = sampling
        self._backend = backend or Backend()
        self._config = config
        self.captures_outputs = config.activations_every > 0
        """Whether outputs are read of what is captured, which is replayed in steps that read them, and in others."""
        self._devices: dict[torch.device, DeviceRows] = {}
        self._batches: dict[torch.device, Batch] = {}
        self.generation = 0
        """Goes up when all rows are given up: what was known of their places then means nothing."""
        self._met: dict[tuple[str, int], tuple[object, ...]] = {}
        self._at_once: set[tuple[str, int]] = set()
        """Kinds of layers whose tensors were changed in place while they waited, or were in bad company."""
        self._usual: dict[tuple[str, int], Usual] = {}
        """What the tensor of a kind and layer that waited last had in common with all others."""
        self._adopted: dict[torch.device, list[tuple[Part, torch.Tensor, torch.Tensor | None]]] = {}
        self.capturing = self._backend.capturing
        self.captured = CapturedRows(self._backend.variant)
        self.collectors: list[Callable[[Recorder], None]] = [self.captured.hand_on]
        """Called when a step ends; they may ``adopt`` rows that compiled or captured code wrote."""
        self.buffer = self._start(config.first_step)

    def _start(self, step: int) -> StepBuffer:
        wanted = self._sampling.wanted(step)
        return StepBuffer(
            step=step,
            wanted=wanted,
            gradients=wanted.gradients,
            activations=wanted.activations,
            weights=wanted.weights,
            updates=wanted.updates,
            histograms=wanted.histograms,
        )

    def rows_on(self, device: torch.device) -> DeviceRows:
        """The rows of a device, made when it is first met."""
        rows = self._devices.get(device)
        if rows is None:
            layers = self.table.layers_on(device)
            # Gradient, weight, output, update and what of it is lost; input and output gradient.
            capacity = max(16, 5 * len(layers) + 2 * len(self.table.linear.intersection(layers)))
            route = self._backend.route(device)
            rows = DeviceRows(device, self._backend.variant(device), capacity=capacity, route=route)
            if self._config.gradients_every:
                rows.reserve("grad", layers)
            self._devices[device] = rows
            if self._backend.captures(device):
                self.captured.reserve(device, capacity)
        return rows

    @property
    def wants_outputs(self) -> bool:
        """Whether outputs are to be read now."""
        return self.buffer.activations or (self.captures_outputs and self.capturing())

    @property
    def wants_gradients(self) -> bool:
        """The same of gradients."""
        return self.buffer.gradients or (self._config.gradients_every > 0 and self.capturing())

    def prepare(self) -> None:
        """Make the rows of the devices that hold the model now: in a step pinned memory might be waited for."""
        with OwnOperations():
            for device in {parameter.device for parameter in self.table.parameters()}:
                if device.type != "meta":
                    self.rows_on(device)

    @property
    def row_elements(self) -> int:
        """Most elements that may be merged into one row."""
        return self._backend.row_elements

    @property
    def parts(self) -> list[Part]:
        """Everything that was measured in the step in progress."""
        return [part for rows in self._devices.values() for part in rows.parts()]

    def record(
        self,
        kind: str,
        layer: int,
        tensor: torch.Tensor,
        *,
        cast: Operand | None = None,
        loss_scaled: int = 0,
        later: bool = False,
        parameter: torch.Tensor | None = None,
    ) -> bool:
        """Measure ``tensor``, merged with what its layer had of that kind in this step. Never waits.

        ``cast`` is the cast that the tensor is about to undergo; without one it counts as stored in its own dtype.
        With ``later`` it is measured with others at the next ``flush``, where that is faster. ``parameter`` is what it
        is, or the gradient of. Says whether it was, or will be, measured; the table keeps the reason why not.
        """
        reason = _FAILED
        with _measuring:
            placement, unmerged = self.ranks.of(kind, tensor, parameter)
            if unmerged:
                self.table.unseen(layer, unmerged)
            tensor = stored_values(local_part(tensor))
            reason = why_not(tensor)
            if not reason and self.capturing():
                stored = cast.format if cast is not None else stored_format(tensor.dtype)
                assert stored is not None, "why_not has asked"
                self.meet(kind, layer, stored, cast, loss_scaled=loss_scaled)
                captured = CapturedPart(kind, layer, stored, loss_scaled, placement)
                if not (reason := self.captured.measure(tensor, captured, cast)):
                    return True
            elif not reason:
                rows = self.rows_on(tensor.device)
                waits = later and not self.is_read_alone(kind, layer) and self._can_wait(tensor)
                for piece in pieces(tensor, self.row_elements) if tensor.numel() else (tensor,):
                    part = self._part(rows, kind, layer, piece, cast, loss_scaled=loss_scaled, placement=placement)
                    if waits:
                        if self._batch(rows).add(piece, part, piece.nbytes):
                            self.flush()
                    else:
                        rows.measure(piece, part.row, histogram=self.buffer.histograms)
                return True
        self.table.unseen(layer, f"{kind} not observed: {reason or _FAILED}")
        return False

    def defer(self, kind: str, layer: int, tensor: torch.Tensor, *, loss_scaled: int = 0) -> bool:
        """Have ``tensor`` measured with others at the next ``flush``; False where ``record`` must do it now.

        Without a single operation on a tensor, so that nothing needs to be kept apart from what surrounds a hook. Not
        during a capture.
        """
        if type(tensor) not in PLAIN:
            return False
        usual = self._usual.get((kind, layer))
        if (
            usual is None
            or usual.dtype is not tensor.dtype
            or usual.device != tensor.device
            or usual.part.loss_scaled != loss_scaled
        ):
            usual = self._look(kind, layer, tensor, loss_scaled, usual)
        elements = tensor.numel()
        if usual is None or not 0 < elements <= self._backend.row_elements:
            return False
        try:
            full = usual.batch.add(tensor, usual.part, elements * usual.itemsize, elements)
        except RuntimeError:
            return False
        if full:
            with OwnOperations():
                self.flush()
        return True

    def _look(
        self, kind: str, layer: int, tensor: torch.Tensor, loss_scaled: int, before: Usual | None
    ) -> Usual | None:
        """What is known of tensors like this one, where those ``before`` were others; None where they cannot wait."""
        stored = stored_format(tensor.dtype)
        if stored is None or tensor.layout != torch.strided:
            return None
        if self.is_read_alone(kind, layer) or not self._can_wait(tensor):
            return None
        alike = before is not None and (before.device, before.part.loss_scaled) == (tensor.device, loss_scaled)
        if before is not None and alike and (before.batch.awaits(before.part) or before.batch.rows.holds(before.part)):
            return before  # of another dtype, which the first of a step decides for all
        with OwnOperations():
            batch = self._batch(self.rows_on(tensor.device))
            part = batch.rows.first_part(
                kind, layer, format_=stored, loss_scaled=loss_scaled, placement=self.ranks.activations
            )
        self.meet(kind, layer, stored, loss_scaled=loss_scaled)
        usual = self._usual[kind, layer] = Usual(tensor.dtype, tensor.device, tensor.itemsize, part, batch)
        return usual

    def _can_wait(self, tensor: torch.Tensor) -> bool:
        if type(tensor) not in PLAIN or self.capturing() or tensor.is_inference():
            return False
        return self._backend.batched(tensor.device)

    def _batch(self, rows: DeviceRows) -> Batch:
        batch = self._batches.get(rows.device)
        if batch is None:
            limit = self._backend.batch_bytes(rows.device)
            batch = self._batches[rows.device] = Batch(rows, limit, row_elements=self.row_elements)
        return batch

    def _part(
        self,
        rows: DeviceRows,
        kind: str,
        layer: int,
        tensor: torch.Tensor,
        cast: Operand | None,
        *,
        loss_scaled: int,
        placement: Placement,
    ) -> Part:
        stored = stored_format(tensor.dtype)
        assert stored is not None, "why_not has asked"
        part = rows.part_for(
            kind,
            layer,
            tensor.numel(),
            limit=self.row_elements,
            format_=cast.format if cast is not None else stored,
            loss_scaled=loss_scaled,
            placement=placement,
        )
        self.meet(kind, layer, part.format, cast, loss_scaled=loss_scaled)
        if cast is not None:
            kept = self._kept(cast, part.cast_scale)
            if kept != part.cast_scale:
                part = part._replace(cast_scale=kept)
                rows.put(part)
        return part

    def _kept(self, cast: Operand, into: Scalar | FromAmax) -> Scalar | FromAmax:
        if cast.scale is None:
            return FromAmax(cast.power_of_two)
        if isinstance(cast.scale, torch.Tensor):
            return self.keep(cast.scale, None if isinstance(into, FromAmax) else into)
        return float(cast.scale)

    def meet(self, kind: str, layer: int, format_: str, cast: Operand | None = None, *, loss_scaled: int) -> None:
        """Note the format that a tensor of the layer meets."""
        known = (format_, cast.scaling if cast is not None else loss_scaled)
        if self._met.get((kind, layer)) == known:
            return
        self._met[kind, layer] = known
        self._usual.pop((kind, layer), None)
        if cast is not None:
            operand = wire.Operand(kind=kind, format=cast.format, role="cast", scaling=cast.scaling)
        else:
            operand = wire.Operand(kind=kind, format=format_, scaling="loss" if loss_scaled else "none")
        self.table.met(layer, operand)

    def record_blocks(self, kind: str, layer: int, tensor: torch.Tensor, cast: BlockCast) -> None:
        """Note the figures of a cast in blocks as scalars; of a step the first micro-batch's. Never waits."""
        own = self.buffer.own
        if self.capturing():
            return
        names = [f"blocks/{kind}/{self.table.name(layer)}/{figure}" for figure in FIGURES]
        if names[0] in own:
            return
        with _measuring:
            tensor = local_part(tensor)
            if not why_not(tensor):
                figures = block_figures(tensor, cast.format, rounds_up=cast.rounds_up)
                if figures is not None:
                    own.update(zip(names, map(self.keep, figures), strict=True))

    def replace(self, kind: str, layers: set[int]) -> None:
        """What is read of ``layers`` from now on counts in the norm, and what was read so far does not."""
        for rows in self._devices.values():
            rows.close_parts(kind, layers)

    def record_all(self, kind: str, layers: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
        """Measure ``tensors``, small dense ones of one device made here, each for its layer, now and in one run."""
        rows = self.rows_on(tensors[0].device)
        stored = stored_format(tensors[0].dtype)
        assert stored is not None, "made here"
        parts = [
            rows.part_for(kind, layer, t.numel(), limit=self.row_elements, format_=stored, loss_scaled=0)
            for layer, t in zip(layers, tensors, strict=True)
        ]
        done = False
        with _measuring:
            rows.run(tuple(part.row for part in parts), tensors, histogram=self.buffer.histograms)
            done = True
        if not done:
            for part in parts:
                rows.discard(part)

    def flush(self) -> None:
        """Measure what waits for it; after a capture, what was there before."""
        if self.capturing():
            return
        for batch in self._batches.values():
            if not batch.waits:
                continue
            with self.timed(batch.device, batch.kind):
                unread = batch.flush(histogram=self.buffer.histograms)
            for part in unread.changed:
                self.unread(part, _CHANGED)
            for part in unread.failed:
                self.unread(part)

    def timed(self, device: torch.device, kind: str) -> AbstractContextManager[None]:
        """What is launched inside is measured, where the time of the device is taken in this step."""
        if not self._sampling.clock.wanted:
            return _UNTIMED
        return self._sampling.clock.around(device, kind, histogram=self.buffer.histograms)

    def is_read_alone(self, kind: str, layer: int) -> bool:
        """Whether tensors of a kind and layer do not wait for others."""
        return (kind, layer) in self._at_once

    def unread(self, part: Part, reason: str = _FAILED) -> None:
        """Tensors of a part that waited with others could not be measured: from now on each is measured by itself."""
        self._at_once.add((part.kind, part.layer))
        self._usual.pop((part.kind, part.layer), None)
        self.table.unseen(part.layer, f"{part.kind} not observed: {reason}")

    def adopt(
        self,
        kind: str,
        layer: int,
        words: torch.Tensor,
        hist: torch.Tensor | None,
        *,
        format_: str,
        loss_scaled: int = 0,
        cast_scale: float | torch.Tensor | FromAmax = 1.0,
        placement: Placement | None = None,
    ) -> None:
        """Take a row that others wrote (int64 [10] and int32 [512] or None) into this step, and clear it.

        Only for ``collectors``. Without a ``placement`` it is of activations. Of a row that nothing was written to
        nothing is reported.
        """
        scale = self.keep(cast_scale) if isinstance(cast_scale, torch.Tensor) else cast_scale
        placement = self.ranks.activations if placement is None else placement
        part = Part(kind, layer, 0, format_, loss_scaled, scale, placement=placement)
        self._adopted.setdefault(words.device, []).append((part, words, hist))

    def send(self) -> None:
        """End the reading of the step: start its rows and scalars on their way to the host."""
        buffer, lost = self.buffer, None
        try:
            self.flush()
            for collect in self.collectors:
                with _collecting:
                    collect(self)
            adopted, self._adopted = self._adopted, {}
            for device, taken in adopted.items():
                self.rows_on(device).adopt(taken, histogram=buffer.histograms)
            for device, rows in self._devices.items():
                parts, kept = rows.parts(), rows.kept
                transit = rows.send(histogram=buffer.histograms)
                if transit is not None:
                    buffer.transits[device] = transit
                    buffer.parts[device] = parts if transit.lost is None else []
                elif parts or kept:
                    lost = "transfer_full"
            buffer.lost, buffer.norm = lost, self.ranks.norm
        except BaseException:
            # What the rows hold is not known any more.
            self.release()
            raise

    def let_go(self) -> None:
        """Nothing follows: refer to no parameter any more."""
        self.release()
        self.table.let_go()
        self.ranks.let_go()

    def release(self) -> None:
        """Let go of the rows, and of tensors that wait."""
        self._usual.clear()
        self._batches.clear()
        self._devices.clear()
        self.generation += 1

    def next_step(self) -> StepBuffer:
        """The finished step; a new one begins."""
        finished, self.buffer = self.buffer, self._start(self.buffer.step + 1)
        return finished

    def log(self, scalars: Mapping[str, object]) -> None:
        """Attach the user's scalars to the step in progress; one that is no number costs no other.

        Nothing during a capture, when tensors have no values.
        """
        if not scalars or self.capturing():
            return
        with _logging, OwnOperations():
            self.note(scalars)

    def note(self, scalars: Mapping[str, object]) -> None:
        """The same where our own operations are apart already, and no capture runs."""
        for name, value in scalars.items():
            with _naming:
                known = encodable(name)
                self.buffer.scalars[known] = self.scalar(name, value, self.buffer.scalars.get(known))

    def scalar(self, name: str, value: object, into: Scalar | None = None) -> Scalar:
        """``value`` as a number, or as a copy on its device for one that would have to be waited for.

        ``RefusedValueError`` for something that is no single number.
        """
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                raise RefusedValueError(
                    f"scalar {name!r}: expected one number, got a tensor of shape {tuple(value.shape)}"
                )
            if value.device.type == "meta":
                raise RefusedValueError(f"scalar {name!r}: a tensor on the meta device has no value")
            return self.keep(value, into)
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError) as error:
            raise RefusedValueError(
                f"scalar {name!r}: expected one number, got {type(value).__name__} ({error})"
            ) from None

    def keep(self, value: torch.Tensor, into: Scalar | None = None) -> Scalar:
        """The number in a one-element tensor of the host; of another device a copy there, in place of ``into``."""
        if value.device.type == "cpu":
            return float(value)
        return self.rows_on(value.device).keep(value, into)

    def raise_to(self, name: str, value: torch.Tensor) -> None:
        """Keep the largest of the values of one name in a step; NaN when one was."""
        own = self.buffer.own
        known = own.get(name)
        if isinstance(known, Slot) and known.device == value.device:
            view = self.rows_on(value.device).slot(known.place)
            torch.maximum(view, value.detach().reshape(()), out=view)
        elif isinstance(known, float) and value.device.type == "cpu":
            own[name] = float(np.maximum(known, float(value)))
        else:
            own[name] = self.scalar(name, value)

    def clipped(self, coefficient: float | torch.Tensor) -> None:
        """Note the coefficient of one more clipping, which may happen any number of times in a step."""
        known = self.buffer.clip_coefficients
        if isinstance(coefficient, torch.Tensor) and coefficient.device.type != "cpu":
            slot = known.get(coefficient.device)
            if isinstance(slot, Slot):
                view = self.rows_on(coefficient.device).slot(slot.place)
                torch.minimum(view, coefficient.detach(), out=view)
            else:
                known[coefficient.device] = self.keep(coefficient)
            return
        number, before = float(coefficient), known.get(None, 1.0)
        assert isinstance(before, float), "what is on the host has no device"
        # NaN when a norm was; with min() that would depend on the order.
        known[None] = float(np.minimum(before, number))

    def count_nonfinite(self, loss: torch.Tensor) -> None:
        """Count a micro-batch whose own ``loss`` is not finite."""
        bad = loss.detach().isfinite().all().logical_not()
        known = self.buffer.raw_loss_nonfinite
        if bad.device.type == "cpu":
            before = known.get(None, 0.0)
            assert isinstance(before, float), "what is on the host has no device"
            known[None] = before + float(bad)
            return
        slot = known.get(bad.device)
        if isinstance(slot, Slot):
            self.rows_on(bad.device).slot(slot.place).add_(bad)
        else:
            known[bad.device] = self.keep(bad)
