"""One connection after the welcome: send within window and credit, take the answers, beat, and say goodbye."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from websockets.sync.connection import Connection

from floatscope import wire
from floatscope._outbox import Outgoing

__all__ = ["Conversation", "Duties", "Order", "Timing"]

Order = wire.Focus | wire.Freeze | wire.Alert

_LONGEST_HOLD_S = 60.0
_HEARTBEATS_S = (0.05, 60.0)
_MOST_UNASKED = 1000
"""Messages that are no answer to anything, in a row: a server that says more than that is not one of ours."""
_SHORTEST_HOLD_S = 0.25
"""Least pause after a refusal that names none; a server that says "not now" must not be asked in a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time limits of a connection, in seconds."""

    open_s: float = 5.0
    """For TCP, TLS and the WebSocket handshake together, and again for the welcome."""
    silence_s: float = 30.0
    """A server that leaves blocks unanswered this long is taken for dead."""
    poll_s: float = 0.05
    """Longest wait for an answer before looking for new blocks."""
    stall_s: float = 20.0
    """A server that stores nothing of what waits for this long is reported, once."""
    mend_s: float = 60.0
    """Pause before a server is asked again that refused for a reason which somebody can mend."""
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """What the sender tells its connection, asked for between two messages."""

    beat: Callable[[], wire.Beat]
    farewell: Callable[[], str | None]
    """The reason for the end once nothing more will be queued, None before."""
    aborted: Callable[[], bool]
    """Whether to stop at once, whatever is left."""
    heard: Callable[[Order], None] = lambda order: None
    """Takes what the server says without having been asked. Never blocks."""
    last_beat: Callable[[], wire.Beat | None] = lambda: None
    """Goes before the goodbye: a run shorter than a heartbeat has figures too. None for those who know none."""


class Conversation:
    """State of one connection; a new one starts with the server's ``welcome``."""

    def __init__(
        self,
        connection: Connection,
        welcome: wire.Welcome,
        outbox: Outgoing,
        duties: Duties,
        timing: Timing,
        *,
        turn: Callable[[], None] = lambda: None,
    ) -> None:
        """``turn`` is called between two messages, at least every ``Timing.poll_s``."""
        self._turn = turn
        self._refusals = 0
        self._unasked = 0
        self._connection = connection
        self._outbox = outbox
        self._duties = duties
        self._timing = timing
        self._clock = timing.clock
        # What a server asks for is a wish within limits: NaN, zero or a year would stop us or make us spin.
        self._heartbeat_s = _within(welcome.heartbeat_s, *_HEARTBEATS_S)
        self._window = min(max(1, welcome.max_in_flight), wire.MAX_IN_FLIGHT)
        self._credit = welcome.credit
        self._quiet_since = self._beaten_at = self._clock()
        self._hold_until = self._quiet_since
        self._resent_from: int | None = None
        outbox.rewind(welcome.last_seq + 1)

    def run(self) -> wire.Refused | wire.Bye | None:
        """Until goodbye is said (that), the server refuses (its answer), or the duties end (None).

        Raises OSError or ``websockets.exceptions.ConnectionClosed`` when it breaks.
        """
        while not self._duties.aborted():
            sent = self._send_next()
            self._beat_when_due()
            self._turn()
            refused = self._receive(0.0 if sent else self._timing.poll_s)
            if refused is not None:
                return refused
            reason = self._duties.farewell()
            if reason is not None and self._outbox.empty():
                beat = self._duties.last_beat()
                if beat is not None:
                    self._connection.send(wire.encode(beat))
                farewell = wire.Bye(seq=self._outbox.last_seq, reason=reason)
                self._connection.send(wire.encode(farewell))
                return farewell
        return None

    def _send_next(self) -> bool:
        now = self._clock()
        if now < self._hold_until:
            return False
        idle = self._outbox.in_flight == 0
        credit, window = self._credit, self._window
        if idle and now - self._quiet_since >= self._heartbeat_s:
            # No credit and no word for a whole period: one block gives the server something to answer.
            credit, window = 2 * wire.MAX_BLOCK_BYTES, 1
        data = self._outbox.next(max_in_flight=window, credit=credit)
        if data is None:
            return False
        if idle:
            self._quiet_since = now
        self._connection.send(data)
        return True

    def _beat_when_due(self) -> None:
        now = self._clock()
        if now - self._beaten_at >= self._heartbeat_s:
            self._connection.send(wire.encode(self._duties.beat()))
            self._beaten_at = now

    def _receive(self, timeout_s: float) -> wire.Refused | None:
        try:
            data = self._connection.recv(timeout=timeout_s)
        except TimeoutError:
            if self._outbox.in_flight and self._clock() - self._quiet_since >= self._timing.silence_s:
                raise
            return None
        self._quiet_since = self._clock()
        try:
            message = wire.decode_server(data if isinstance(data, bytes) else data.encode())
        except wire.WireError:
            # A newer server may say things that this version has no word for.
            self._note_unasked()
            return None
        match message:
            case wire.Ack():
                self._refusals = self._unasked = 0
                self._outbox.acknowledge(message.seq)
                self._credit = message.credit
                if self._resent_from is not None and message.seq >= self._resent_from:
                    self._resent_from = None
            case wire.Nack():
                self._unasked = 0
                self._refusals += 1
                self._take_refusal(message)
            case wire.Refused():
                return message
            case wire.Focus() | wire.Freeze() | wire.Alert():
                self._note_unasked()
                self._duties.heard(message)
            case _:
                self._note_unasked()
        return None

    def _note_unasked(self) -> None:
        self._unasked += 1
        if self._unasked > _MOST_UNASKED:
            raise wire.WireError("it floods this connection with messages that answer nothing")

    def _hold(self, seconds: float) -> None:
        self._hold_until = self._clock() + _within(seconds, _SHORTEST_HOLD_S, _LONGEST_HOLD_S)

    def _take_refusal(self, nack: wire.Nack) -> None:
        if nack.seq > nack.expected and nack.expected == self._resent_from:
            return  # Sent before the server asked to start again from there; up to seven such answers follow.
        if nack.code == "hole":
            self._outbox.rewind(nack.expected)
            self._resent_from = nack.expected
            if self._refusals > 1:
                # Starting again did not help; a server that changes its mind each time must not be asked in a loop.
                self._hold(_SHORTEST_HOLD_S * 2 ** min(self._refusals, 6))
            return
        # Any other code speaks of this one batch: a server without room refuses several in a row, each by itself.
        code = f"refused_{nack.code}"
        if nack.seq < nack.expected and not nack.retryable:
            self._outbox.settle(nack.seq, code)
            return
        if nack.retryable or not self._outbox.quarantine(nack.seq, code):
            self._hold(nack.retry_after_s)
        self._outbox.send_again()
        self._resent_from = nack.expected


def _within(value: float, least: float, most: float) -> float:
    # ``max`` gives its first argument for NaN.
    return min(most, max(least, value))
