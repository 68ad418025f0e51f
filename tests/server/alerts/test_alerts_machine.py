"""The state machine against a tiny model of what it promises: 1000 histories of 20 steps and more, and the same by a
clock that the test sets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_server.alerts.machine import Change, Ended, Phase, Policy, Signal, State, advance
from floatscope_server.rules.verdict import Severity

SIGNALS = st.one_of(
    st.builds(Signal, severity=st.sampled_from(Severity)),
    st.just(Signal(clear=True)),
    st.just(Signal()),
    st.sampled_from([Signal(ended=ended) for ended in Ended]),
)
HISTORIES = st.lists(st.tuples(st.integers(0, 4), SIGNALS, st.booleans()), min_size=20, max_size=60)
POLICIES = st.builds(Policy, hold=st.integers(0, 6), keep=st.integers(0, 6))


class Model:
    """One alert told as the steps at which its condition held since it was last known to be sound."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.active: list[tuple[int, Severity]] = []
        self.firing: Severity | None = None

    def step(self, step: int, signal: Signal, inhibited: bool) -> list[str]:
        if signal.severity is not None:
            return self._held(step, signal.severity, inhibited)
        waits = self.firing is None
        over = (
            signal.ended is Ended.RUN_RESTARTED
            or (signal.ended is Ended.RUN_FINISHED and waits)
            or (signal.clear and (waits or step - self.active[-1][0] >= self.policy.keep))
        )
        if not self.active or not over:
            return []
        told = ["resolved"] if self.firing is not None else []
        self.active, self.firing = [], None
        return told

    def _held(self, step: int, severity: Severity, inhibited: bool) -> list[str]:
        if self.firing is None and inhibited:
            self.active = []
            return []
        self.active.append((step, severity))
        if self.firing is None:
            if step - self.active[0][0] < self.policy.hold:
                return []
            self.firing = max(s for _, s in self.active)
            return ["fired"]
        if severity > self.firing and not inhibited:
            self.firing = severity
            return ["escalated"]
        return []


@settings(max_examples=1000, deadline=None)
@given(POLICIES, HISTORIES)
def test_it_does_what_the_model_does(policy: Policy, history: list[tuple[int, Signal, bool]]) -> None:
    model, state, step = Model(policy), None, 0
    for ahead, signal, inhibited in history:
        step += ahead
        expected = model.step(step, signal, inhibited)
        state, change = advance(policy, state, signal, step, inhibited=inhibited)
        told = [change.value] if change in (Change.FIRED, Change.ESCALATED, Change.RESOLVED) else []
        assert told == expected
        if change is Change.ESCALATED:
            # The caller opens the successor at once.
            state, change = advance(Policy(keep=policy.keep), None, signal, step)
            assert change is Change.FIRED
        is_open = state is not None and state.phase is not Phase.RESOLVED
        assert is_open == bool(model.active)
        if state is not None and state.phase is Phase.FIRING:
            assert state.severity is model.firing
            assert state.held == model.active[-1][0]


@given(POLICIES, HISTORIES)
def test_silence_is_no_proof_of_health(policy: Policy, history: list[tuple[int, Signal, bool]]) -> None:
    state: State | None = None
    step = 0
    for ahead, signal, inhibited in history:
        step += ahead
        before = state
        state, change = advance(policy, state, signal, step, inhibited=inhibited)
        if signal == Signal():
            assert (state, change) == (before, Change.NONE)
        if change is Change.RESOLVED:
            assert signal.clear or signal.ended is Ended.RUN_RESTARTED
        if change is Change.FIRED:
            assert state is not None
            assert state.fired == step
            assert step - state.since >= policy.hold


@settings(max_examples=1000, deadline=None)
@given(POLICIES, HISTORIES)
def test_seconds_count_as_steps_do(policy: Policy, history: list[tuple[int, Signal, bool]]) -> None:
    by_step: State | None = None
    by_time: State | None = None
    step = 0
    for ahead, signal, inhibited in history:
        step += ahead
        by_step, change = advance(policy, by_step, signal, step, inhibited=inhibited)
        # The run itself stands still: only the clock moves.
        by_time, same = advance(policy, by_time, signal, 7, at=1e9 + step, inhibited=inhibited)
        assert same is change
        if by_time is not None:
            assert by_step is not None
            assert by_time.phase is by_step.phase
            assert by_time.held_at == 1e9 + by_step.held
