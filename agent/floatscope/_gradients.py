"""Reads every gradient once for each optimizer step, before anything can change it.

The read happens at the first of: a GradScaler begins to unscale, gradients are about to be clipped, the optimizer is
about to step; with a closure, at the end of each evaluation of it. So it sees overflow steps, which a scaler skips,
and pre-clip gradients, whichever implementation of the optimizer runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch

from floatscope._clipping import ClipObserver, NormObserver
from floatscope._compiled import CompiledUpdates
from floatscope._gradient_lists import GradientList, GradientLists, OnDevice
from floatscope._guard import Guard
from floatscope._own_ops import OwnOperations, backward_runs, why_not_now
from floatscope._patches import observe
from floatscope._recorder import Recorder
from floatscope._step_hooks import after_steps, before_steps
from floatscope._tensor_refs import step_aside

__all__ = ["GradientTap", "parameters_of", "rate_of"]

_AFTER_CLIPPING = "gradients read where a compiled update begins, which is after clipping that is compiled as well"
_stepping = Guard("an optimizer stepped", charge="gradients")
_reading = Guard("gradients were measured")


class GradientTap:
    """Gradients of the model's parameters, learning rates and clip coefficients.

    Without ``optimizers`` it follows every optimizer that holds a parameter of the model; with them any that updates
    their parameters in their place: one inside, which alone has hooks or is called, or that was made later.
    """

    def __init__(self, recorder: Recorder, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._recorder = recorder
        # Held weakly, since an optimizer holds the parameters.
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._numbers = {id(optimizer): number for number, optimizer in enumerate(optimizers)}
        self._given = len(optimizers)
        self._adopting = not optimizers
        self._hooked: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        """Those that have hooks of their own, by identity."""
        self._stepping: Callable[[], object] = _nothing
        """The one of those given that is between its hooks."""
        self._standing_for: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        """Others, with the number of the one in whose place each updates."""
        self._passed_over: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._lists = GradientLists(recorder)
        self._last: tuple[Callable[[], object], frozenset[int]] = (_nothing, frozenset())
        """The optimizer that was read last and has not stepped since, and the identities of its parameters."""
        self._parameters: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[tuple[int, ...], frozenset[int]]]
        self._parameters = weakref.WeakKeyDictionary()
        """By optimizer the sizes of its groups, and the identities of its parameters then."""
        self._begun: set[int] = set()
        """Identities of the optimizers that are stepping."""
        self._read: frozenset[int] = frozenset()
        self._stepped: frozenset[int] = frozenset()
        self._captured: set[int | None] = set()
        """Optimizers whose update is captured in a CUDA graph, by number; replays run no hook."""
        self._undo: list[Callable[[], None]] = []
        self._stay: Callable[[], None] = _nothing
        """The undoing of what has references step aside."""
        self.begin_update: Callable[[], None] = _nothing
        """Called before an optimizer changes parameters, and before anything is read for that."""
        self.overdue: Callable[[], None] = _nothing
        """Called when parameters are about to be updated a second time in the same step."""
        self.using: Callable[[Any], None] = _nobody_asks
        """Called when an optimizer, or its scaler, is about to use what backward passes have left."""
        self.settled: Callable[..., None] = _nobody_asks
        """Called with optimizers that have updated, or whose scaler has dealt with them."""
        self.changing: Callable[[torch.optim.Optimizer, bool], None] = _nobody_asks
        """Called right before an optimizer steps; whether the gradients that it uses are there already."""
        self.changed: Callable[[torch.optim.Optimizer], None] = _nobody_asks
        """Called right after."""
        self.optimizing: Callable[[], None] = _nothing
        """Called where an optimizer has its gradients and begins to update."""
        self.optimized: Callable[[], None] = _nothing
        """Called where it is done, or evaluates its closure again."""
        self.is_unscaled: Callable[[torch.Tensor], bool] = _never
        """Whether a scaler has unscaled the gradient of a parameter in this step."""
        self.keep_scale: Callable[[], int] = _no_scaler
        """Notes the loss scale of this step; the number of the scaler whose it is, 0 without one."""

    def install(self) -> None:
        """Start observing."""
        self._stay = step_aside()
        compiled = CompiledUpdates(self._before_compiled_step)
        self._undo.append(compiled.remove)
        if self._adopting:
            self._undo.append(before_steps(compiled))
        self._undo += [before_steps(self._before_other_step), after_steps(self._after_other_step)]
        for optimizer in self._known():
            if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
                continue  # a wrapper that is of the class in name only: what it has inside is seen
            self._hooked[id(optimizer)] = weakref.ref(optimizer)
            self._undo += [optimizer.register_step_pre_hook(hook).remove for hook in (compiled, self.before_step)]
            self._undo.append(optimizer.register_step_post_hook(self._after_step).remove)
        # clip_grad_norm_ finds the first by its module, whoever imported it early; the second is its public name.
        norm = NormObserver()
        clip = ClipObserver(self, self._recorder, norm)
        self._undo.append(observe(torch.nn.utils.clip_grad, "_get_total_norm", norm, clip.refused))
        self._undo.append(observe(torch.nn.utils, "get_total_norm", norm, clip.refused))
        self._undo.append(observe(torch.nn.utils.clip_grad, "_clip_grads_with_norm_", clip))
        self._undo.append(observe(torch.nn.utils, "clip_grads_with_norm_", clip))

    def remove(self) -> None:
        """Stop observing; nothing stays behind."""
        while self._undo:
            self._undo.pop()()

    def let_go(self) -> None:
        """Refer to no parameter any more: nothing follows."""
        self._lists.clear()
        self._stay()

    def index_of(self, optimizer: torch.optim.Optimizer) -> int | None:
        """The optimizer's number; None when it is none of ours."""
        known = self._numbers.get(id(optimizer))
        if known is not None and self._optimizers[known]() is optimizer:
            return known
        if optimizer in self._passed_over:
            return None
        layer_of = self._recorder.table.layer_of
        if all(layer_of(p) is None for p in parameters_of(optimizer)):
            return None
        return self.follow(optimizer) if self._adopting else self._stood_for(optimizer)

    def _stood_for(self, optimizer: torch.optim.Optimizer) -> int | None:
        """The number of the one of those given whose parameters ``optimizer`` updates; None where none is."""
        number = self._standing_for.get(optimizer)
        if number is not None or self._stepping() is not None:
            return number
        living = enumerate(at() for at in self._optimizers[: self._given])
        given = [(number, known) for number, known in living if known is not None]
        if not given:
            self._adopting = True
            return self.follow(optimizer)
        own = self._identities(optimizer)
        for number, known in given:
            if not own.isdisjoint(self._identities(known)):
                self._standing_for[optimizer] = number
                return number
        return None

    def follow(self, optimizer: Any) -> int:  # noqa: ANN401 (of torch's kind, or with ``param_groups`` alone)
        """Count ``optimizer`` as one of ours; its number, that of one which is gone where there is one.

        A training may make an optimizer for each step, as one that learns to learn does.
        """
        gone = (number for number, known in enumerate(self._optimizers) if known() is None)
        number = next(gone, len(self._optimizers))
        self._optimizers[number : number + 1] = [weakref.ref(optimizer)]
        self._numbers = {key: other for key, other in self._numbers.items() if other != number}
        self._numbers[id(optimizer)] = number
        return number

    def pass_over(self, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer`` is inside one that is followed, and no other one."""
        self._passed_over.add(optimizer)
        self._numbers.pop(id(optimizer), None)

    def _known(self, end: int | None = None) -> list[torch.optim.Optimizer]:
        return [optimizer for known in self._optimizers[:end] if (optimizer := known()) is not None]

    @property
    def stepped(self) -> bool:
        """Whether an optimizer has updated parameters in this step, or a scaler has skipped that."""
        return bool(self._stepped)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer`` is about to update: if it has done so in this step already, that one is over."""
        if self.was_stepped(parameters_of(optimizer)):
            self.overdue()
        self.using(optimizer)
        self.begin_update()

    def was_stepped(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether any of ``parameters`` was updated in this step."""
        return bool(self._stepped) and any(id(p) in self._stepped for p in parameters)

    def scaler_updated(self, optimizers: Iterable[torch.optim.Optimizer] | None = None) -> None:
        """The scaler has dealt with every optimizer: those it skipped have had their step too.

        Where there are several scalers, with ``optimizers`` only.
        """
        done = self._read
        if optimizers is not None:
            done = done & {id(p) for optimizer in optimizers for p in parameters_of(optimizer)}
        self._stepped |= done
        self._read -= done

    def read_optimizer(self, optimizer: torch.optim.Optimizer, *, loss_scaled: int) -> None:
        """Read the gradients that ``optimizer`` is about to use, and its learning rates."""
        if self._recorder.wants_gradients:
            parameters, listed = self._lists.of(optimizer, loss_scaled=loss_scaled)
            updated = listed.all if listed is not None else frozenset(map(id, parameters))
            self._read_listed(parameters, listed, loss_scaled=loss_scaled)
        else:
            # The optimizer deals with all of them, and which have a gradient would take a look at each.
            updated = self._identities(optimizer)
            self._read = self._read | updated if self._read else updated
        self._last = weakref.ref(optimizer), updated
        self._read_rates(optimizer)

    def _identities(self, optimizer: torch.optim.Optimizer) -> frozenset[int]:
        """Of the parameters, as of when their number changed: to touch hundreds of cold objects takes 0.15 ms.

        For steps that read nothing. That one of many was exchanged does not change whether they were stepped.
        """
        sizes = tuple(len(group["params"]) for group in optimizer.param_groups)
        known = self._parameters.get(optimizer)
        if known is None or known[0] != sizes:
            known = self._parameters[optimizer] = sizes, frozenset(map(id, parameters_of(optimizer)))
        return known[1]

    def _read_rates(self, optimizer: torch.optim.Optimizer) -> None:
        index = self.index_of(optimizer)
        if self._recorder.capturing():
            self._captured.add(index)
            return
        rates = self._recorder.buffer.own
        before = sum(len(known.param_groups) for known in self._known(index)) if index else 0
        for number, group in enumerate(optimizer.param_groups, start=before):
            name, rate = f"lr/{number}" if number else "lr", rate_of(group)
            if rate is not None:
                rates[name] = self._recorder.scalar("lr", rate, rates.get(name))

    def read(self, parameters: Sequence[torch.Tensor], *, loss_scaled: int) -> None:
        """Measure the gradients of those parameters that are ours and were not read in this step yet."""
        listed = self._lists.find(parameters, loss_scaled=loss_scaled)
        self._read_listed(parameters, listed, loss_scaled=loss_scaled)

    def _read_listed(
        self, parameters: Sequence[torch.Tensor], listed: GradientList | None, *, loss_scaled: int
    ) -> None:
        if self._recorder.capturing():
            # No table can be filled for a launch of many.
            self._read_each(parameters, loss_scaled=loss_scaled)
            return
        if listed is not None and listed.whole <= self._read and listed.complete(parameters):
            return  # before they were unscaled, or clipped
        found = listed.gradients(parameters) if listed is not None else None
        if listed is not None and found is not None and self._read.isdisjoint(listed.all):
            devices, read = found
            if not self._recorder.buffer.gradients or self._read_list(listed, devices):
                self._read = self._read | read if self._read else read
                return
        self._read_each(parameters, loss_scaled=loss_scaled)
        if self._recorder.buffer.gradients and found is None and not backward_runs():
            self._lists.learn(parameters, loss_scaled=loss_scaled)

    def _read_list(self, listed: GradientList, devices: list[OnDevice]) -> bool:
        recorder = self._recorder
        for some in devices:
            rows = recorder.rows_on(some.device)
            if not rows.put_list(some.rows, loss_scaled=listed.loss_scaled):
                return False
        for some in devices:
            rows = recorder.rows_on(some.device)
            done = False
            with _reading, recorder.timed(some.device, "grad"):
                rows.run(some.at, some.tensors, histogram=recorder.buffer.histograms)
                done = True
            if not done:
                # Nobody knows which of them were measured. The next time each is by itself.
                listed.invalidate()
                for part in some.rows.parts.values():
                    rows.discard(part)
                    recorder.unread(part)
        return True

    def read_kept(
        self,
        optimizer: torch.optim.Optimizer,
        kept: Iterable[tuple[torch.Tensor, torch.Tensor]],
        *,
        loss_scaled: int,
    ) -> int:
        """Read gradients that are ``kept`` apart from their parameters, and the learning rates; how many they are."""
        before = len(self._read)
        self._read_pairs(kept, loss_scaled=loss_scaled)
        self._last = weakref.ref(optimizer), frozenset(map(id, parameters_of(optimizer)))
        self._read_rates(optimizer)
        return len(self._read) - before

    def _read_each(self, parameters: Sequence[torch.Tensor], *, loss_scaled: int) -> None:
        self._read_pairs(((p, p.grad) for p in parameters if p.grad is not None), loss_scaled=loss_scaled)

    def _read_pairs(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], *, loss_scaled: int) -> None:
        """Of parameters and their gradients."""
        recorder = self._recorder
        read = set()
        for parameter, gradient in pairs:
            layer = recorder.table.layer_of(parameter)
            if layer is None or id(parameter) in self._read or id(parameter) in read:
                continue
            read.add(id(parameter))
            if not recorder.wants_gradients:
                continue
            if recorder.record("grad", layer, gradient, loss_scaled=loss_scaled, later=True, parameter=parameter):
                recorder.table.has_gradient(layer)
        self._read |= read
        if not backward_runs():
            recorder.flush()
        # Else an optimizer steps inside a backward pass, for a parameter at a time: launches are for many.

    def end_step(self) -> None:
        """Forget what was read: the next backward pass writes new gradients. Rates of captured updates come now."""
        for index in self._captured:
            if index is not None and (optimizer := self._optimizers[index]()) is not None:
                self._read_rates(optimizer)
        self._read = self._stepped = frozenset()
        self._stepping = _nothing

    def before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The hook that runs before ``optimizer.step``; other arguments where there is a closure."""
        if torch.compiler.is_compiling() or why_not_now() is not None:
            return None
        with _stepping, OwnOperations():
            if self.index_of(optimizer) is None:
                return None
            self._begun.add(id(optimizer))
            if self._has_hooks(optimizer):
                self._stepping = weakref.ref(optimizer)
            self.begin(optimizer)
            # The arguments include the optimizer itself.
            closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
            self.changing(optimizer, closure is None)
            if closure is None:
                self.read_optimizer(optimizer, loss_scaled=0)
                self.optimizing()
                return None
            observed = _ObservedClosure(self, optimizer, closure)
            if "closure" in kwargs:
                return args, {**kwargs, "closure": observed}
            return (args[0], observed, *args[2:]), kwargs
        return None

    def _has_hooks(self, optimizer: torch.optim.Optimizer) -> bool:
        known = self._hooked.get(id(optimizer))
        return known is not None and known() is optimizer

    def _before_other_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        if torch.compiler.is_compiling() or self._has_hooks(optimizer):
            return None
        return self.before_step(optimizer, args, kwargs)

    def _after_other_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ANN401
        if not torch.compiler.is_compiling() and not self._has_hooks(optimizer):
            self._after_step(optimizer, args, kwargs)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A step may call that of the class above, and torch calls its hooks for both.
        if not torch.compiler.is_compiling() and id(optimizer) in self._begun:
            self._begun.discard(id(optimizer))
            with _stepping:
                self._stepping = _nothing
                if self.index_of(optimizer) is not None:
                    self.has_stepped(optimizer)

    def has_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer`` has updated its parameters, or skipped that."""
        self.optimized()
        self.changed(optimizer)
        (last, updated), self._last = self._last, (_nothing, frozenset())
        if last() is not optimizer:
            updated = frozenset(map(id, parameters_of(optimizer)))
        # Sets of hundreds are looked through only where there are several.
        self._read = frozenset() if self._read is updated else self._read - updated
        if not self._recorder.capturing():
            self._stepped = self._stepped | updated if self._stepped else updated
            self.settled(optimizer)

    def _before_compiled_step(self, given: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """A compiled update of ``given`` begins. It runs no hook, so it counts as done."""
        recorder = self._recorder
        at = {p.data_ptr(): p for p in recorder.table.parameters()}
        known = {id(p): g for q, g in zip(given, gradients, strict=True) if (p := at.get(q.data_ptr())) is not None}
        if not known:
            return
        if not self._stepped.isdisjoint(known):
            self.overdue()
        self.begin_update()
        for optimizer in self._known():
            if any(id(p) in known for p in parameters_of(optimizer)):
                self.using(optimizer)
                self._read_rates(optimizer)
        # The compiler's own tensors: what it put into them, ``grad`` may have to wait for.
        for parameter in at.values():
            gradient = known.get(id(parameter))
            layer = recorder.table.layer_of(parameter)
            if gradient is None or layer is None or id(parameter) in self._read:
                continue
            if recorder.wants_gradients and recorder.record("grad", layer, gradient, later=True):
                recorder.table.has_gradient(layer)
                recorder.table.unseen(layer, _AFTER_CLIPPING)
        recorder.flush()
        self._read -= known.keys()
        if not recorder.capturing():
            self._stepped |= known.keys()

    def before_evaluation(self, optimizer: torch.optim.Optimizer) -> None:
        """A closure computes gradients anew: they join the summaries, and replace the earlier ones in the norm.

        When it ends, those are read that it has not clipped.
        """
        layers = {self._recorder.table.layer_of(p) for p in parameters_of(optimizer)}
        self._recorder.replace("grad", {layer for layer in layers if layer is not None})
        self._recorder.buffer.framework_norm = self._recorder.buffer.clipping = None
        self._read -= frozenset(map(id, parameters_of(optimizer)))


class _ObservedClosure:
    """The user's closure, its gradients read when it clips them or ends."""

    def __init__(self, tap: GradientTap, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> None:
        self._tap, self._optimizer, self._closure = tap, optimizer, closure

    def __call__(self) -> Any:  # noqa: ANN401 (whatever the user's closure returns)
        with _stepping, OwnOperations():
            self._tap.optimized()
            self._tap.before_evaluation(self._optimizer)
        result = self._closure()
        with _stepping, OwnOperations():
            self._tap.read_optimizer(self._optimizer, loss_scaled=0)
            self._tap.optimizing()
        return result


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """All parameters of all groups."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def rate_of(group: Mapping[str, Any]) -> float | torch.Tensor | None:
    """The learning rate of a group; None where an optimizer has none, or finds it by itself (Adafactor)."""
    rate = group.get("lr")
    if isinstance(rate, torch.Tensor):
        return rate if rate.numel() == 1 and rate.device.type != "meta" else None
    return rate if isinstance(rate, int | float) else float(rate) if isinstance(rate, Real) else None


def _never(parameter: torch.Tensor) -> bool:
    return False


def _no_scaler() -> int:
    return 0


def _nobody_asks(*_: object) -> None:
    pass


def _nothing() -> None:
    pass
