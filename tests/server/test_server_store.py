"""What the store keeps, what it leaves out, and what it answers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from sqlalchemy import text
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.models import Attempt, Gap, LayerRow, StepEvent, WalFrame, Writer
from floatscope_server.observation import Observation
from floatscope_server.query.show import show
from floatscope_server.query.window import TileReader
from floatscope_server.store import Store
from floatscope_server.store.batch import Batch, Reply
from floatscope_server.store.framed import frame_of
from tests.databases import Disk
from tests.server.bodies import run_of

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen, OpenStore


def _gaps(store: Store) -> dict[str, int]:
    with store.read() as session:
        return {gap.reason: gap.count for gap in session.exec(select(Gap))}


def _observed(store: Store) -> None:
    """Until the observers have had all that was acknowledged: the writer thread takes this up after them."""
    store.write(lambda _: None)


def _frames(store: Store) -> int:
    with store.read() as session:
        return len(session.exec(select(WalFrame.seq)).all())


def test_an_acknowledged_block_survives_the_next_start(
    open_store: OpenStore, pen: MakePen, make: Make, clock: Clock
) -> None:
    store = open_store()
    one = pen(store, layers=[make.layer(0, "a")])
    body = wire.Body(summaries=(make.summaries("grad", 0, [[1.0]]),), scalars=(make.scalars("loss", 0, [2.0]),))
    assert isinstance(one.deliver(body), wire.Ack)
    store.stop()
    again = open_store()
    welcome = one.__class__(store=again, writer=one.writer).hello()
    assert isinstance(welcome, wire.Welcome)
    assert welcome.last_seq == 1
    assert welcome.epoch == again.epoch == store.epoch
    assert _frames(again) == 2


def test_a_layer_map_survives_a_restart_even_if_hello_names_none(
    open_store: OpenStore, pen: MakePen, make: Make
) -> None:
    store = open_store()
    one = pen(store)
    one.deliver(wire.Body(layers=(make.layer(7, "late"),)))
    store.stop()
    again = open_store()
    one.store = again
    one.hello()
    one.deliver(wire.Body(summaries=(make.summaries("grad", 1, [[1.0]], layers=[7]),)))
    assert _frames(again) == 1
    assert _gaps(again) == {}


def test_a_restarted_rank_opens_the_next_attempt_and_others_join_it(store: Store, pen: MakePen) -> None:
    assert [pen(store, rank=rank, world=2).ask(wire.Beat()) for rank in (0, 1)] == [wire.Beat()] * 2
    again = pen(store, rank=1, world=2)
    other = pen(store, rank=0, world=2)
    with store.read() as session:
        attempts = {w.id: w.attempt for w in session.exec(select(Writer))}
        rows = session.exec(select(Attempt).order_by(col(Attempt.n))).all()
    assert sorted(attempts.values()) == [1, 1, 2, 2]
    assert attempts[again.writer] == attempts[other.writer] == 2
    assert [(row.n, row.end_reason) for row in rows] == [(1, "superseded"), (2, None)]
    assert run_of(store).attempt == 2


@pytest.mark.parametrize("restarted", [False, True], ids=["", "the server is restarted"])
def test_what_a_killed_process_left_comes_before_the_attempt_that_runs(
    open_store: OpenStore, pen: MakePen, make: Make, *, restarted: bool
) -> None:
    store = open_store()
    live = [pen(store, rank=rank, world=2, age_s=60.0) for rank in (0, 1)]
    for one in live:
        one.deliver(wire.Body(first_step=0, steps=3, scalars=(make.scalars("loss", 0, [1.0, 1.0, 1.0]),)))
    if restarted:
        store.stop()
        store = open_store()
        for one in live:
            one.store = store
            one.hello()
    # Two starts were killed before a server was there: the second an hour before, the first a day.
    ages = {"second": 3600.0, "first": 86400.0}
    left = {
        (name, rank): pen(store, rank=rank, world=2, age_s=age + 5 * rank, gone=True)
        for name, age in ages.items()
        for rank in (1, 0)
    }
    for one in left.values():
        one.deliver(wire.Body(first_step=0, steps=5))
        assert isinstance(one.ask(wire.Bye(seq=one.seq, reason="killed")), wire.Ack)
    with store.read() as session:
        attempts = {w.id: w.attempt for w in session.exec(select(Writer))}
        rows = session.exec(select(Attempt).order_by(col(Attempt.n))).all()
    assert {who: attempts[one.writer] for who, one in left.items()} == {
        ("second", 0): 0,
        ("second", 1): 0,
        ("first", 0): -1,
        ("first", 1): -1,
    }
    assert [attempts[one.writer] for one in live] == [1, 1]
    assert [(row.n, row.end_reason) for row in rows] == [(-1, "superseded"), (0, "superseded"), (1, None)]
    assert [row.started_at for row in rows] == sorted(row.started_at for row in rows)
    run = run_of(store)
    assert (run.state, run.attempt, run.steps) == ("live", 1, 3)
    # A rank of the attempt that runs may be gone before it was heard of, and starts go on counting.
    assert pen(store, rank=2, world=3, age_s=90.0, gone=True).answers.empty()
    again = pen(store, rank=0, world=2)
    with store.read() as session:
        third = session.exec(select(Writer.attempt).where(Writer.rank == 2)).one()
        newest = session.exec(select(Writer.attempt).where(Writer.id == again.writer)).one()
    assert (third, newest) == (1, 2)
    assert run_of(store).attempt == 2


def test_an_old_process_that_lives_supersedes_as_any_other(store: Store, pen: MakePen) -> None:
    pen(store, age_s=5.0)
    late = pen(store, age_s=500.0)  # a clock that jumped, or a start that took long
    assert run_of(store).attempt == 2
    assert isinstance(late.hello(), wire.Welcome)


def test_steps_that_go_back_stay_apart_and_late_blocks_still_land(store: Store, pen: MakePen, make: Make) -> None:
    old = pen(store)
    old.deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.0] * 10),)))
    new = pen(store)
    new.deliver(wire.Body(scalars=(make.scalars("loss", 5, [2.0] * 2),)))
    assert run_of(store).steps == 7
    late = old.deliver(wire.Body(scalars=(make.scalars("loss", 10, [1.0]),)))
    assert isinstance(late, wire.Ack)
    with store.read() as session:
        spans = [(a.n, a.first_step, a.last_step) for a in session.exec(select(Attempt).order_by(col(Attempt.n)))]
    assert spans == [(1, 0, 10), (2, 5, 6)]
    assert run_of(store).steps == 7


def test_what_cannot_be_used_is_left_out_alone(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "a")])
    good = make.summaries("grad", 0, [[1.0]])
    cut = msgspec.structs.replace(good.fields[0], data=good.fields[0].data[:-1])
    odd = msgspec.structs.replace(good.fields[0], dtype="<f2")
    extra = wire.Field(name="kurtosis", dtype="<f4", data=b"\0" * 4)
    body = wire.Body(
        summaries=(
            good,
            make.summaries("moment", 0, [[1.0]]),
            make.summaries("act", -1, [[1.0]]),
            make.summaries("act", 0, [[1.0, 2.0]], layers=[0, 77]),
            msgspec.structs.replace(good, fields=(cut, *good.fields[1:])),
            msgspec.structs.replace(good, fields=(odd, *good.fields[1:])),
            msgspec.structs.replace(good, fields=(*good.fields, extra)),
            msgspec.structs.replace(good, fields=good.fields[1:]),
            msgspec.structs.replace(good, layers=b"\0\0\0"),
            msgspec.structs.replace(good, steps=1 << 40),
        ),
        scalars=(
            make.scalars("loss", 0, [1.0]),
            make.scalars("x" * 5000, 0, [1.0]),
            make.scalars("a\nb", 0, [1.0]),
            wire.Scalars(name="ragged", steps=b"\0" * 8, values=b"\0" * 16),
        ),
        events=(wire.Event(step=1 << 60, kind="skipped"), wire.Event(step=0, kind="skipped")),
        devices=(wire.Device(time_ns=-5, backend="rocm", index=0),),
    )
    assert isinstance(one.deliver(body), wire.Ack)
    with store.read() as session:
        (event,) = session.execute(text("SELECT step FROM step_event")).scalars().all()
    assert event == 0
    # grad twice (the unknown field was taken out of one), act once (without the unknown layer), loss.
    assert _frames(store) == 4
    assert sorted(_gaps(store)) == sorted(
        [
            "unknown kind 'moment'",
            "step -1 out of range",
            "summary of a layer that was never named",
            "field count of a wrong size",
            "unknown dtype '<f2'",
            "unknown field 'kurtosis'",
            "summary without count",
            "layer indices of a wrong size",
            f"part of {1 << 40} steps; 1 to 65536 are allowed",
            "scalar name longer than 200 characters, empty or not printable",
            "scalars of a wrong size",
            "event with a step out of range",
            "device sample with a time or index out of range",
        ]
    )


def test_numbers_that_json_lacks_are_kept_bit_for_bit(store: Store, pen: MakePen, make: Make) -> None:
    values = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308]
    series = make.scalars("loss", 0, values)
    one = pen(store)
    one.deliver(wire.Body(scalars=(series,)))
    run = run_of(store)
    assert run.id is not None
    (seen,) = store.replay(run.id, 1, last_steps=100)
    assert seen.body.scalars == (series,)


def test_a_damaged_block_is_asked_for_once_more_and_then_declared_lost(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store)
    block = wire.make_block(1, wire.Body(scalars=(make.scalars("loss", 0, [1.0]),)))
    damaged = msgspec.structs.replace(block, crc=block.crc ^ 1)
    first = one.ask(damaged)
    assert isinstance(first, wire.Nack)
    assert (first.code, first.expected, first.retryable) == ("damaged", 1, True)
    second = one.ask(damaged)
    assert isinstance(second, wire.Nack)
    assert (second.code, second.expected, second.retryable) == ("damaged", 2, False)
    assert list(_gaps(store)) == ["block 1 is damaged: its CRC-32 does not match"]
    one.seq = 1
    assert isinstance(one.deliver(wire.Body()), wire.Ack)


def test_damage_on_the_way_heals(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store)
    block = wire.make_block(1, wire.Body(scalars=(make.scalars("loss", 0, [1.0]),)))
    assert isinstance(one.ask(msgspec.structs.replace(block, crc=block.crc ^ 1)), wire.Nack)
    assert isinstance(one.ask(block), wire.Ack)
    assert _gaps(store) == {}
    assert _frames(store) == 1


def test_a_block_that_is_no_body_or_too_long_is_given_up(store: Store, pen: MakePen) -> None:
    import zlib

    one = pen(store)
    nack = one.ask(wire.Block(seq=1, crc=zlib.crc32(b"junk"), body=b"junk"))
    assert isinstance(nack, wire.Nack)
    assert (nack.code, nack.expected, nack.retryable) == ("damaged", 2, False)
    long = bytes(wire.MAX_BLOCK_BYTES + 1)
    nack = one.ask(wire.Block(seq=2, crc=zlib.crc32(long), body=long))
    assert isinstance(nack, wire.Nack)
    assert (nack.code, nack.expected, nack.retryable) == ("too_large", 3, False)


def test_a_gap_takes_a_seq_and_is_shown(store: Store, pen: MakePen) -> None:
    one = pen(store)
    gap = wire.Gap(seq=1, first=3, last=9, count=7, reason="queue_full")
    assert isinstance(one.ask(gap), wire.Ack)
    assert isinstance(one.ask(gap), wire.Ack)  # again: taken once
    assert _gaps(store) == {"queue_full": 7}


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "..", " a", "a\n", "\x00", "x" * 129, "a\u202eb"])
def test_names_that_cannot_stand_in_an_address_are_refused(store: Store, pen: MakePen, name: str) -> None:
    with pytest.raises(AssertionError, match="run_name"):
        pen(store, run=name)


@pytest.mark.parametrize("name", ["llama lora", "Qwen3-8B.v2", "微调", "a'b\"c<script>", "x" * 128])
def test_other_names_are_taken_as_they_are(store: Store, pen: MakePen, name: str) -> None:
    pen(store, run=name)
    assert run_of(store, name).name == name


def test_a_writer_never_changes_its_run(store: Store, pen: MakePen) -> None:
    one = pen(store)
    with pytest.raises(AssertionError, match="belongs to the run"):
        pen(store, run="other", writer=one.writer)


def test_layers_beyond_the_limit_are_left_out_and_the_rest_is_kept(
    open_store: OpenStore, pen: MakePen, make: Make
) -> None:
    store = open_store(max_layers=3)
    one = pen(store, layers=[make.layer(i, f"layer{i}") for i in range(5)])
    one.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[1.0] * 5]),)))
    with store.read() as session:
        assert [row.name for row in session.exec(select(LayerRow))] == ["layer0", "layer1", "layer2"]
        (frame,) = session.exec(select(WalFrame)).all()
    kept = frame_of(frame.data)
    assert kept is not None
    assert kept.layers.tolist() == [0, 1, 2]
    assert _gaps(store) == {
        "more than 3 layers in one run": 2,
        "summary of a layer that was never named": 2,
    }


def test_a_full_disk_is_waited_out(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store)
    disk = Disk(store)
    disk.full()
    body = wire.Body(scalars=(make.scalars("loss", 0, np.zeros(20_000).tolist()),))
    nack = one.deliver(body)
    assert isinstance(nack, wire.Nack)
    assert (nack.code, nack.retryable, nack.expected) == ("storage_full", True, 1)
    assert nack.retry_after_s > 0
    assert store.counters.failed_commits == 1
    disk.well()
    one.seq = 0
    assert isinstance(one.deliver(body), wire.Ack)
    assert store.writing
    assert _frames(store) == 1
    assert _gaps(store) == {}


def test_two_failed_commits_of_one_window_ask_for_the_first_batch_again(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store)
    assert isinstance(one.deliver(wire.Body()), wire.Ack)

    def send(seqs: range) -> list[wire.ServerMessage]:
        body = wire.Body(scalars=(make.scalars("loss", 0, np.zeros(20_000).tolist()),))
        for seq in seqs:
            store.submit(one.writer, wire.make_block(seq, body), one.answers.put)
        return [one.answers.get(timeout=60) for _ in seqs]

    disk = Disk(store)
    disk.broken()
    # As an agent does: the second half of the window is on its way before the first is refused.
    refused = [*send(range(2, 6)), *send(range(6, 10))]
    assert store.counters.failed_commits >= 2
    assert {answer.expected for answer in refused if isinstance(answer, wire.Nack)} == {2}
    assert len(refused) == 8
    disk.well()
    assert [type(answer) for answer in send(range(2, 10))] == [wire.Ack] * 8
    assert _frames(store) == 8


def test_when_the_writer_ends_nobody_waits_for_it(store: Store, pen: MakePen) -> None:
    one = pen(store)
    asked, held = threading.Event(), threading.Event()

    def die(_: Observation) -> None:
        asked.set()
        assert held.wait(60)
        raise SystemExit

    store.observers.append(die)
    assert isinstance(one.deliver(wire.Body()), wire.Ack)
    assert asked.wait(60)
    job = threading.Thread(target=lambda: outcomes.append(_raised(lambda: store.write(lambda _: None))), daemon=True)
    outcomes: list[str] = []
    job.start()
    store.submit(one.writer, wire.make_block(2, wire.Body()), one.answers.put)
    wait_until = time.monotonic() + 60
    while len(store._inbox) < 2:
        assert time.monotonic() < wait_until
    held.set()
    answer = one.answers.get(timeout=60)
    assert isinstance(answer, wire.Nack)
    assert (answer.retryable, answer.expected) == (True, 2)
    job.join(60)
    assert outcomes == ["StoreError"]
    assert _raised(lambda: store.write(lambda _: None)) == "StoreError"
    assert not store.writing


def _raised(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - its name is what is asked
        return type(error).__name__
    return ""


def test_a_message_that_cannot_even_be_given_up_stops_nobody(
    store: Store, pen: MakePen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pen(store), pen(store, run="other")
    apply = Batch.apply

    def broken(batch: Batch, writer: str, message: wire.AgentMessage, reply: Reply) -> None:
        if writer == one.writer:
            raise RuntimeError("broken")
        apply(batch, writer, message, reply)

    monkeypatch.setattr(Batch, "apply", broken)
    answer = one.deliver(wire.Body())
    assert isinstance(answer, wire.Nack)
    assert answer.retryable
    assert isinstance(other.deliver(wire.Body()), wire.Ack)
    assert store.writing
    assert "could not be stored" in caplog.text


def test_write_runs_in_one_transaction_and_passes_on_what_is_raised(store: Store) -> None:
    def broken(session: Session) -> None:
        session.execute(text("INSERT INTO meta VALUES ('a', 'b')"))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        store.write(broken)
    count = text("SELECT count(*) FROM meta WHERE key = 'a'")
    assert store.write(lambda session: session.execute(count).scalar()) == 0


def test_a_failing_observer_stops_nobody(store: Store, pen: MakePen, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def fail(_: Observation) -> None:
        raise RuntimeError("mine")

    store.observers += [fail, lambda o: seen.append(o.seq)]
    one = pen(store)
    one.deliver(wire.Body())
    one.deliver(wire.Body())
    _observed(store)
    assert seen == [1, 2]
    assert "an observer failed" in caplog.text


def test_what_the_agent_lost_and_what_the_server_left_out_are_counted_apart(
    store: Store, pen: MakePen, make: Make
) -> None:
    one = pen(store, layers=[make.layer(0, "a")])
    one.deliver(wire.Body(summaries=(make.summaries("moment", 0, [[1.0]]),)))
    one.ask(wire.Beat(dropped=7))
    one.seq += 1
    one.ask(wire.Gap(seq=one.seq, first=0, last=6, count=7, reason="queue_full"))
    with store.read() as session:
        writer = session.exec(select(Writer)).one()
        shown = show(session, TileReader(1 << 20), run_of(store))
    assert (writer.dropped, writer.declared, writer.left_out) == (7, 7, 1)
    unknown = dict.fromkeys(("share", "mean", "budget", "limit", "every"))
    assert shown["overhead"] == {**unknown, "seconds": 0.0, "dropped": 7, "left_out": 1}


def test_numbers_that_json_lacks_are_taken_in_events_too(store: Store, pen: MakePen) -> None:
    one = pen(store)
    event = wire.Event(step=0, kind="scale_changed", detail={"from": math.inf, "to": math.nan})
    assert isinstance(one.deliver(wire.Body(events=(event,))), wire.Ack)
    with store.read() as session:
        detail = session.exec(select(StepEvent.detail)).one()
    assert detail == {"from": "Infinity", "to": "NaN"}


def test_no_text_of_an_agent_breaks_a_commit(store: Store, pen: MakePen, make: Make) -> None:
    """A NUL character, which PostgreSQL cannot store, what does not fit together, and words of SQL."""
    odd = "a\0b'; DROP TABLE run; --\u202e\U0001f600"
    one = pen(store, layers=[make.layer(0, odd), make.layer(1, odd.replace("\0", ""))])
    body = wire.Body(
        summaries=(make.summaries("grad", 0, [[1.0, 2.0]]),),
        events=(wire.Event(step=0, kind="note", detail={"a\0": odd}),),
    )
    assert isinstance(one.deliver(body), wire.Ack)
    one.seq += 1
    assert isinstance(one.ask(wire.Gap(seq=one.seq, first=0, last=0, count=1, reason=odd)), wire.Ack)
    assert isinstance(one.ask(wire.Bye(seq=one.seq, reason=odd)), wire.Ack)
    assert store.counters.failed_commits == 0
    with store.read() as session:
        assert [row.name for row in session.exec(select(LayerRow))] == [odd.replace("\0", "")]
        (event,) = session.exec(select(StepEvent)).all()
    assert event.detail == {"a\0": odd}
    assert _gaps(store)["layer with a NUL character"] == 1
