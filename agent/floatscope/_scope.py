"""Attaching to a training: ``watch`` and the ``Scope`` it returns."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from floatscope import wire
from floatscope._activations import ActivationTap
from floatscope._alert import Alert, no_reaction
from floatscope._arguments import Optimizer, Optimizers, checked
from floatscope._backend import Backend
from floatscope._compiled import compiled_code_tap
from floatscope._config import Config, configured, disabled_by_environment
from floatscope._deepspeed import DeepSpeedTap
from floatscope._exit import call_at_exit
from floatscope._gradients import GradientTap
from floatscope._guard import Guard
from floatscope._layers import Coverage, CoverageReport, LayerTable
from floatscope._log import logger
from floatscope._megatron import MegatronTap
from floatscope._own_ops import OwnOperations
from floatscope._pending import Pending, ScaleTrace
from floatscope._phases import Phases, marks_of
from floatscope._placement import Ranks, rank_and_world
from floatscope._record import EventRecord, LostRecord, NoThreadError, PendingRecord, Sink
from floatscope._recorder import Recorder
from floatscope._sampling import Sampling
from floatscope._scaler import ScalerTap
from floatscope._sending import sender_for
from floatscope._updates import UpdateTap

if TYPE_CHECKING:
    from floatscope._attach.driver import Driver

__all__ = ["Scope", "scope_of", "scopes", "watch"]

_preparing = Guard("rows were made")
_ending = Guard("a step ended", charge="step")
_concluding = Guard("a part of a step's end")
_weighing = Guard("weights were read", charge="weights")
_closing = Guard("closing")
_attached: dict[int, Scope] = {}  # by the identity of the model: some call others equal, or cannot be compared
_ending_alone: list[tuple[threading.Thread, Sink]] = []
"""Those that close the scopes of collected models. No daemon must be at work when the interpreter is torn down."""
_retired: list[Callable[[], None]] = []
"""Removals for models that were collected: the hooks may be running at that moment, so they stay until later."""

_NOTHING: Mapping[str, object] = MappingProxyType({})


class Scope:
    """One attachment to one model. Made by ``floatscope.watch``; all methods are for the training thread.

    Nothing here waits for the device, the network or the disk, and no exception escapes. The model is held weakly: when
    it is collected, the scope closes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scaler: torch.amp.GradScaler | None,
        config: Config,
        sink: Callable[[], Sink],
        on_alert: Callable[[Alert], object] = no_reaction,
        backend: Backend | None = None,
    ) -> None:
        """``sink`` makes one. What goes wrong in here leaves nothing behind."""
        self.config = config
        self._table = LayerTable(model)
        self._sampling = Sampling(config, next(model.parameters()).device, on_alert)
        self._recorder = Recorder(self._table, config, self._sampling, Ranks(model, *rank_and_world()), backend)
        self._gradients = GradientTap(self._recorder, [o for o in optimizers if isinstance(o, torch.optim.Optimizer)])
        deepspeed = DeepSpeedTap(self._recorder, self._gradients)
        megatron = MegatronTap(self._recorder, self._gradients, optimizers)
        self._scaler = ScalerTap(self._recorder, self._gradients, scaler) if scaler is not None else None
        self._gradients.begin_update = self._before_update
        self._gradients.overdue = self._end_overdue_step
        self._updates = UpdateTap(self._recorder)
        self._gradients.changing = self._before_change
        self._gradients.changed = self._updates.after
        self._activations = ActivationTap(
            self._recorder, model, lambda: self._gradients.keep_scale(), operands=config.operands
        )
        compiled = compiled_code_tap(self._recorder, model, config, lambda: self._gradients.keep_scale())
        taps = [tap for tap in (self._scaler, self._gradients, deepspeed, megatron, self._activations, compiled) if tap]
        self._removals: list[Callable[[], None]] = [tap.remove for tap in reversed(taps)]
        try:
            with _preparing:
                self._recorder.prepare()
            for tap in taps:
                tap.install()
            self._sink = sink()
        except BaseException:
            for remove in (*self._removals, self._gradients.let_go):
                remove()
            raise
        self._scales = ScaleTrace()
        self._last_end: float | None = None
        self._closed = False
        self._driver: Driver | None = None
        self._phases: Phases | None = None
        self._weights_read = False
        self._warned = False
        self._due_after_capture = False
        self._coverage_report = CoverageReport(self._table, config.first_step)
        _attached[id(model)] = self
        self._on_collection = weakref.finalize(model, self._model_is_gone, id(model))
        self._on_collection.atexit = False
        call_at_exit(_close_all)

    @property
    def coverage(self) -> Coverage:
        """Of how many ``trainable`` layers a gradient was ``observed`` so far, and ``reasons``: text -> layer names."""
        return self._table.coverage()

    def step(self, loss: object = None, **scalars: object) -> None:
        """End an optimizer step, skipped ones included: call it once after each ``optimizer.step()``.

        ``loss`` and ``scalars`` are numbers or one-element tensors on any device; tensors are copied there and fetched
        later. No host synchronisation. A step that is not ended this way ends by itself when its optimizer begins the
        next one.
        """
        if self._driver is not None:
            self._driver.remove()
            self._driver = None
        self._end_whole_step(scalars if loss is None else {"loss": loss, **scalars})

    def drive(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """End steps by what ``optimizers`` do, for a program that does not know of us, until it calls ``step``."""
        from floatscope._attach.driver import Driver

        self.time_phases()
        self._driver = Driver(self._recorder, self._gradients, self._activations, self._end_whole_step)
        self._driver.install(optimizers, lambda: self._scaler is not None and self._scaler.waits)
        self._removals.append(self._driver.remove)

    def time_phases(self) -> None:
        """Tell of each step how long its phases took: on the card, or else on the training thread."""
        self._phases = Phases(self._recorder, self._gradients, marks_of(self._table.parameters()))
        self._phases.install()
        self._removals.append(self._phases.remove)

    @property
    def driven(self) -> bool:
        """Whether steps end without anybody saying so."""
        return self._driver is not None

    @property
    def closed(self) -> bool:
        """Whether nothing is observed any more."""
        return self._closed

    @property
    def steps(self) -> int:
        """The number of the step in progress, which is that of the steps done."""
        return self._recorder.buffer.step

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether ``parameter`` was a part of the model when it was attached to."""
        return self._table.layer_of(parameter) is not None

    def before_step(self, *called: Any) -> Any:  # noqa: ANN401 (as torch defines hooks of optimizers)
        """The hook before an optimizer's step, for one whose other hooks have run already."""
        return None if self._closed else self._gradients.before_step(*called)

    def use_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """Observe ``scaler`` too, which was not there when the scope was made, or is another one."""
        if self._scaler is not None and not self._closed:
            self._scaler.follow(scaler)
        elif not self._closed:
            self._scaler = ScalerTap(self._recorder, self._gradients, scaler)
            self._scaler.install()
            self._removals.append(self._scaler.remove)

    def _end_whole_step(self, scalars: Mapping[str, object] = _NOTHING) -> None:
        if self._closed or self._recorder.capturing():
            return
        _remove_retired()
        self._activations.begin_forward = None
        if self._due_after_capture:
            # Updates that warmed up for the capture: a step without what the replays have written meanwhile.
            self._due_after_capture, self._recorder.captured.held = False, True
            self._end_step()
            self._recorder.captured.held = False
        self._end_step(scalars)
        self._sampling.reaction.react(self._recorder.buffer.step)

    def log(self, **scalars: object) -> None:
        """Attach scalars to the step in progress; like those of ``step``."""
        if not self._closed:
            self._recorder.log(scalars)

    @property
    def steps_done(self) -> int:
        """How many optimizer steps are done, that in progress among them when its optimizer has stepped."""
        return self._recorder.buffer.step + self._gradients.stepped

    def end_at_forward(self) -> None:
        """Nobody calls ``step``: where an optimizer is done, the next forward pass in training mode ends a step."""
        self._warned = True
        self._activations.begin_forward = self._end_stepped

    def fail(self) -> None:
        """Close as one whose training has failed."""
        self._close("failed")

    def tell(self, event: wire.Event) -> None:
        """Record ``event`` at once, beside the steps."""
        if not self._closed:
            self._sink.put(EventRecord(event=event))

    def close(self) -> None:
        """Remove every hook and patch, send what is left for at most 5 s, and stop. Further calls do nothing."""
        self._close("finished")

    def __enter__(self) -> Scope:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close("finished" if error is None else "failed")

    def _end_step(self, scalars: Mapping[str, object] = _NOTHING) -> None:
        # Also called by hooks, inside whatever surrounds the user's module.
        with _ending, OwnOperations():
            self._recorder.note(scalars)
            self._conclude_step()

    def _conclude_step(self) -> None:
        recorder = self._recorder
        for part in (self._phases, self._scaler):
            with _concluding:
                if part is not None:
                    part.end_step()
        self._read_weights()  # without an update in this step they are as they were
        self._weights_read = False
        self._gradients.end_step()
        self._updates.end_step()
        with _concluding:
            recorder.send()
        events: tuple[wire.Event, ...] = ()
        with _concluding:
            events = self._sampling.end_step(recorder.buffer.step, recorder.buffer.wanted, self._sink)
        finished = recorder.next_step()
        now = perf_counter()
        if self._last_end is not None:
            finished.own["step_time_s"] = now - self._last_end
        self._last_end = now
        layers = self._table.changes()
        record: PendingRecord = LostRecord(step=finished.step, layers=layers, reason=finished.lost or "internal")
        try:
            with _concluding:
                if finished.lost is None:
                    record = Pending(
                        finished,
                        scales=self._scales,
                        events=(*events, *self._coverage_report.events(finished.step)),
                        layers=layers,
                        refuse_scale=self._table.refuse_scale,
                        name_of=self._table.name_of,
                    )
        finally:
            # Somebody who interrupts the training may go on with it.
            if isinstance(record, LostRecord):
                self._coverage_report.was_lost(finished.step)
            self._sink.put(record)
        self._table.told(layers)

    def _end_overdue_step(self) -> None:
        if self._recorder.capturing():
            self._due_after_capture = True
            return
        if self._driver is not None:
            self._driver.overdue()
            return
        if not self._warned:
            self._warned = True
            logger.warning(
                "an optimizer begins its second step without scope.step() in between: steps end by themselves, "
                "without a loss. Call scope.step(loss=loss) once after each optimizer.step()"
            )
        self._end_step()
        # From here on nobody is expected to say it, so that a forward pass belongs to the next step.
        self._activations.begin_forward = self._end_stepped

    def _end_stepped(self) -> None:
        if self._gradients.stepped and not self._recorder.capturing():
            self._end_step()

    def _before_update(self) -> None:
        if not self._recorder.capturing():
            self._read_weights()

    def _before_change(self, optimizer: torch.optim.Optimizer, gradients: bool) -> None:
        if not self._recorder.capturing():
            self._updates.before(optimizer, gradients=gradients)
            self._sampling.mark()

    def _read_weights(self) -> None:
        """The weights that this step's forward passes used; layers that cast theirs were measured at the cast."""
        if not self._recorder.buffer.weights or self._weights_read:
            return
        self._weights_read = True
        with _weighing:
            self._read_each_weight()

    def _read_each_weight(self) -> None:
        for layer, module in self._table.modules():
            if layer in self._recorder.buffer.cast_weights:
                continue
            own = dict(module.named_parameters(recurse=False))
            # A bias has other limits than the matrix that a layer multiplies by.
            for parameter in [own["weight"]] if "weight" in own else self._table.owned(layer, module):
                self._recorder.record("weight", layer, parameter, later=True, parameter=parameter)
        self._recorder.flush()

    def _model_is_gone(self, identity: int) -> None:
        # Runs wherever the garbage collector does: nothing may be waited for, and the sender may be the one running.
        _attached.pop(identity, None)
        if self._closed:
            return
        self._closed = True
        _retired.extend(self._removals)
        # Nothing is to be read from a model that is half gone.
        self._weights_read = True
        self._coverage_report.stop()
        with _closing:
            thread = threading.Thread(target=self._end, args=("finished",), name="floatscope-close", daemon=True)
            thread.start()
            _ending_alone[:] = [*(end for end in _ending_alone if end[0].is_alive()), (thread, self._sink)]

    def _close(self, reason: str) -> None:
        if self._closed:
            return
        self._detach()
        self._end(reason)

    def _detach(self) -> None:
        self._closed = True
        model = self._on_collection.detach()
        if model is not None:
            _attached.pop(id(model[0]), None)
        for remove in self._removals:
            with _closing:
                remove()

    def _end(self, reason: str) -> None:
        self._finish(reason)
        with _closing:
            self._sink.close()

    def _finish(self, reason: str) -> None:
        with _closing:
            self._flush_scalars()
        with _closing:
            self._sampling.conclude(self._sink)
        with _closing:
            self._recorder.let_go()
            self._gradients.let_go()
        with _closing:
            self._sink.finish(reason)

    def _flush_scalars(self) -> None:
        """Scalars logged after the last step still go out, with what was read since."""
        if self._recorder.buffer.has_scalars:
            self._end_step()


def _close_all(failed: bool) -> None:
    scopes = list(_attached.values())
    try:
        # All flush at once: then none waits longer than one would alone.
        for scope in scopes:
            scope._detach()
            scope._finish("failed" if failed else "finished")
        for scope in scopes:
            with _closing:
                scope._sink.close()
        for thread, _ in _ending_alone:
            thread.join()
    except KeyboardInterrupt:
        # Whoever does not want to wait need not, nor see where we were. The program has its exit status already.
        for sink in (*(scope._sink for scope in scopes), *(sink for _, sink in _ending_alone)):
            sink.abandon()


def _remove_retired() -> None:
    while _retired:
        with _closing:
            _retired.pop()()


def scopes() -> list[Scope]:
    """All that observe a model."""
    return list(_attached.values())


def scope_of(model: nn.Module) -> Scope | None:
    """The scope that observes ``model``, a part of it, or what it is a part of."""
    parts = set(map(id, model.modules()))
    watched = ((alive[0], scope) for scope in scopes() if (alive := scope._on_collection.peek()) is not None)
    return next((s for known, s in watched if id(known) in parts or any(m is model for m in known.modules())), None)


def watch(
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    scaler: torch.amp.GradScaler | None = None,
    run: str | None = None,
    server: str | None = None,
    config: Config | None = None,
    on_alert: Callable[[Alert], object] = no_reaction,
    _sink: Sink | None = None,
    _backend: Backend | None = None,
    _facts: Mapping[str, object] = _NOTHING,
    **options: object,
) -> Scope:
    """Observe a training and report to a Floatscope server.

    ``optimizer`` is one, or several in a sequence; without it every optimizer that holds a parameter of ``model`` is
    followed, as those of DeepSpeed and Megatron are in any case. Give the ``scaler`` if one is used: its skipped steps
    are invisible otherwise. ``options`` are fields of ``Config`` and go over ``config``. A model that is watched keeps
    the scope it has. The scope closes when the model is collected.

    ``on_alert`` is called with each ``floatscope.Alert`` of severity warning or critical that the server raises for the
    run, on this thread and at the end of the next ``scope.step()``; what it raises is logged and recorded.

    Raises ``ValueError`` for a model without parameters, an unknown option or a value that makes no sense, an operand
    of an unknown format, and a model that is watched under the name of another run. An unreachable server is no error:
    the training goes on and records wait.
    """
    from floatscope._silent import SilentScope

    named = {name: value for name, value in (("run", run), ("server", server)) if value is not None}
    try:
        chosen = configured(config, {**options, **named}, os.environ)
        if disabled_by_environment():
            return SilentScope(chosen, "FLOATSCOPE_DISABLED is set")
        if not callable(on_alert):
            raise ValueError(f"on_alert: expected something to call with a floatscope.Alert, got {on_alert!r}")
        return _attach(model, optimizer, scaler, chosen, on_alert, _sink, _backend, _facts)
    except ValueError:
        raise
    except Exception as error:  # whatever the properties and methods of the user's modules raise
        raise ValueError(f"this cannot be watched: {type(error).__name__}: {error}") from error


def _attach(
    model: nn.Module,
    optimizer: Optimizers,
    scaler: torch.amp.GradScaler | None,
    chosen: Config,
    on_alert: Callable[[Alert], object],
    sink: Sink | None,
    backend: Backend | None,
    facts: Mapping[str, object],
) -> Scope:
    optimizers = checked(model, optimizer, scaler)
    _remove_retired()
    if (present := scope_of(model)) is not None and present.driven:
        # Attached by nobody's code, which knows less: the run goes on.
        present.close()
        chosen = replace(chosen, run=chosen.run or present.config.run, first_step=max(chosen.first_step, present.steps))
    if (watching := _attached.get(id(model))) is not None:
        if chosen.run is not None and chosen.run != watching.config.run:
            raise ValueError(
                f"run: this model is watched already, as the run {watching.config.run or 'that was given no name'}; "
                "close that scope before you watch it under another name"
            )
        logger.warning("this model is watched already: its scope stays as it is, and is returned")
        return watching
    try:
        return Scope(
            model,
            optimizers,
            scaler,
            chosen,
            lambda: sink or sender_for(model, optimizers, scaler, chosen, facts),
            on_alert,
            backend,
        )
    except NoThreadError as error:
        logger.warning("no thread could be started (%s): training goes on without telemetry", error)
        from floatscope._silent import SilentScope

        return SilentScope(chosen, "no thread could be started")
