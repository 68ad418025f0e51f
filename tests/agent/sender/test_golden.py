"""One conversation as bytes: what version 1 wrote must stay readable and be written the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from floatscope import wire
from floatscope._packing import Batch, pack
from floatscope._record import StepRecord, SummaryRows

CASES = Path(__file__).parents[2] / "cases" / "wire_v1"


def records() -> list[StepRecord]:
    """Two steps of two layers; the second one overflows and is skipped."""
    layers = np.array([0, 1], np.uint32)
    table = (
        wire.Layer(
            index=0,
            name="model.layers.0.mlp.up_proj",
            module_type="Linear",
            parameters=4096,
            order=0,
            operands=(
                wire.Operand(kind="grad", format="fp16", scaling="loss"),
                wire.Operand(kind="act_in", format="e4m3fnuz", role="cast", scaling="delayed"),
            ),
        ),
        wire.Layer(index=1, name="模型.头", module_type="Linear"),
    )
    hist = np.zeros((2, 512), np.int64)
    hist[0, 250:253] = (3, 0, 1)
    missing = np.array([wire.MISSING_BITS] * 2, np.uint32).view(np.float32)

    def rows(nans: int, infs: int, absmax: float) -> SummaryRows:
        return SummaryRows(
            kind="grad",
            layers=layers,
            fields={
                "count": np.array([4, 4], np.int64),
                "zeros": np.array([0, 4], np.int64),
                "nans": np.array([nans, 0], np.int64),
                "infs": np.array([infs, 0], np.int64),
                "absmax": np.array([absmax, 0.0], np.float32),
                "absmin": np.array([2.0**-24, np.inf], np.float32),
                "sum": np.array([0.1, -0.0], np.float64),
                "sumsq": np.array([1e-300, 0.0], np.float64),
                "scale": np.array([65536.0, 65536.0], np.float32),
                "under": missing,
            },
            hist=hist,
        )

    return [
        StepRecord(
            step=100,
            scalars={"loss": 2.5, "lr": 1e-4, "loss_scale": 65536.0},
            summaries=(rows(0, 0, 0.5),),
            layers=table,
            devices=(wire.Device(time_ns=1_700_000_000_000_000_000, backend="sysfs", index=0, pci="0000:05:00.0"),),
        ),
        StepRecord(
            step=101,
            scalars={"loss": float("nan"), "lr": 1e-4, "loss_scale": 65536.0},
            summaries=(rows(1, 2, 0.25),),
            events=(wire.Event(step=101, kind="skipped", detail={"optimizer": 0, "scale": 65536.0}),),
        ),
    ]


def conversation() -> dict[str, wire.AgentMessage | wire.ServerMessage]:
    """File name, in the order of the conversation, to message."""
    [batch] = pack(records(), wire.MAX_BLOCK_BYTES)
    assert isinstance(batch, Batch)
    return {
        "01-agent-hello": wire.Hello(
            protocol_min=1,
            protocol_max=1,
            agent="floatscope 0.1.0",
            identity=wire.Identity(run="qwen-lora", writer="00112233445566778899aabbccddeeff", rank=1, world=2),
            wall_ns=1_700_000_000_000_000_000,
            monotonic_ns=123_456_789,
            config={"batch": 8, "note": "αβγ", "nested": {"list": [1, 2.5, None, True]}},
        ),
        "02-server-welcome": wire.Welcome(
            protocol=1, epoch="e1", last_seq=0, attempt=1, credit=8 << 20, wall_ns=1_700_000_000_100_000_000
        ),
        "03-agent-block": wire.Block(seq=1, crc=batch.crc, body=batch.body),
        "04-server-ack": wire.Ack(seq=1, credit=8 << 20),
        "05-agent-gap": wire.Gap(seq=2, first=102, last=140, count=39, reason="outbox_full"),
        "06-server-nack": wire.Nack(
            seq=2, code="storage_full", message="the disk is full", expected=2, retryable=True, retry_after_s=5.0
        ),
        "07-agent-beat": wire.Beat(step=140, queue_bytes=4096, dropped=39, overhead_s=0.125),
        "08-server-beat": wire.Beat(),
        "09-agent-bye": wire.Bye(seq=2, reason="finished"),
        "10-server-refused": wire.Refused(code="protocol", message="too old", hint="upgrade", retryable=False),
        "11-agent-beat-with-cost": wire.Beat(
            step=150,
            overhead_s=0.25,
            cost=wire.Cost(share=0.006, mean=0.0075, budget=0.01, every={"activations": 20}),
        ),
        "12-server-focus": wire.Focus(steps=100),
        "16-server-focus-on-layers": wire.Focus(steps=8, kinds=("activations",), layers=("model.layers.0",)),
        "13-server-alert": wire.Alert(
            id=7,
            kind="nonfinite",
            severity="critical",
            step=101,
            reason="loss",
            message="The loss is not a number.",
            layer="model.layers.0.mlp.up_proj",
            rank=1,
        ),
        "14-server-freeze": wire.Freeze(id="alert-7", alert=7, kind="nonfinite", step=101),
        "15-agent-block-dump": wire.make_block(
            3,
            wire.Body(
                dump=wire.Dump(
                    id="alert-7",
                    kind="nonfinite",
                    alert=7,
                    step=101,
                    first_step=100,
                    last_step=101,
                    part=0,
                    parts=1,
                    bodies=(batch.body,),
                )
            ),
        ),
    }


def test_every_message_of_the_protocol_is_in_the_conversation() -> None:
    spoken = {type(message) for message in conversation().values()}
    assert spoken == set(wire.AgentMessage.__args__) | set(wire.ServerMessage.__args__)
    assert {path.stem for path in CASES.glob("*.msgpack")} == set(conversation())


@pytest.mark.parametrize("name", sorted(conversation()))
def test_old_bytes_are_read_and_written_the_same(name: str) -> None:
    data = (CASES / f"{name}.msgpack").read_bytes()
    decode = wire.decode_agent if "-agent-" in name else wire.decode_server
    message = decode(data)
    assert msgspec.msgpack.encode(message) == msgspec.msgpack.encode(conversation()[name])
    assert wire.encode(message) == data


class _OldBeat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """As of the first release."""

    step: int = -1
    overhead_s: float = 0.0


class _OldBody(msgspec.Struct, frozen=True, kw_only=True):
    """As of the first release, as far as a dump could meet it."""

    first_step: int = 0
    steps: int = 0
    summaries: tuple[wire.Summaries, ...] = ()
    scalars: tuple[wire.Scalars, ...] = ()


def test_an_older_server_reads_a_beat_without_its_cost_and_stores_nothing_of_a_dump() -> None:
    beat = msgspec.msgpack.decode((CASES / "11-agent-beat-with-cost.msgpack").read_bytes(), type=_OldBeat)
    assert (beat.step, beat.overhead_s) == (150, 0.25)
    block = wire.decode_agent((CASES / "15-agent-block-dump.msgpack").read_bytes())
    assert isinstance(block, wire.Block)
    assert msgspec.msgpack.decode(block.body, type=_OldBody) == _OldBody()


def test_a_server_without_these_fields_is_understood() -> None:
    beat = wire.decode_agent((CASES / "07-agent-beat.msgpack").read_bytes())
    assert isinstance(beat, wire.Beat)
    assert beat.cost is None


def test_the_block_holds_what_was_recorded() -> None:
    block = wire.decode_agent((CASES / "03-agent-block.msgpack").read_bytes())
    assert isinstance(block, wire.Block)
    body = wire.decode_body(block)
    assert (body.first_step, body.steps) == (100, 2)
    [summaries] = body.summaries
    fields = {field.name: np.frombuffer(field.data, field.dtype).reshape(2, 2) for field in summaries.fields}
    assert fields["nans"].tolist() == [[0, 0], [1, 0]]
    assert fields["infs"].tolist() == [[0, 0], [2, 0]]
    assert fields["absmax"].tolist() == [[0.5, 0.0], [0.25, 0.0]]
    assert fields["under"].view("<u4").tolist() == [[wire.MISSING_BITS] * 2] * 2
    [histograms] = body.histograms
    assert np.frombuffer(histograms.counts, "<u8").tolist() == [6, 0, 2]
    assert np.frombuffer(histograms.first, "<u2").tolist() == [250, 0]
    assert [layer.name for layer in body.layers] == ["model.layers.0.mlp.up_proj", "模型.头"]
    assert [event.detail for event in body.events] == [{"optimizer": 0, "scale": 65536.0}]
    assert body.devices[0].power_watts is None
