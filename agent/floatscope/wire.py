"""Wire protocol v1: the messages between agent and server, and the only module both sides share.

Messages are msgpack, one tagged Struct each. Numbers travel as raw little-endian blocks (``Field.data``), so NaN
payloads and infinities survive. What happened in one optimizer step on one rank travels in one ``Body`` or, when it is
too large for a block, in several with consecutive ``seq``, all but the last of them ``continued``. The dump of a flight
recorder travels in bodies of its own, which hold nothing else.

A batch is ``(writer, seq)`` with ``seq`` gapless from 1: ``Block`` and ``Gap`` consume one each. The server keeps the
last ``seq`` per writer in the transaction that stores the data, acknowledges what it has already, and answers a hole
with the ``seq`` it expects.
"""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import msgspec

__all__ = [
    "DTYPES",
    "KINDS",
    "MAX_BLOCK_BYTES",
    "MAX_FOCUS_STEPS",
    "MAX_IN_FLIGHT",
    "MAX_RUN_NAME",
    "MISSING_BITS",
    "PLACEMENTS",
    "PROTOCOL",
    "PROTOCOL_MIN",
    "READ_SELDOM",
    "SCALINGS",
    "SUBPROTOCOL",
    "Ack",
    "AgentMessage",
    "Alert",
    "Beat",
    "Block",
    "Body",
    "Bye",
    "Cost",
    "Device",
    "Dump",
    "Event",
    "Field",
    "Focus",
    "Freeze",
    "Gap",
    "Hello",
    "Histograms",
    "Identity",
    "Layer",
    "Nack",
    "Operand",
    "Refused",
    "Scalars",
    "ServerMessage",
    "Summaries",
    "Welcome",
    "WireError",
    "decode_agent",
    "decode_body",
    "decode_server",
    "encode",
    "is_run_name",
    "make_block",
]

PROTOCOL = 1
PROTOCOL_MIN = 1
SUBPROTOCOL = "floatscope.v1"
MAX_BLOCK_BYTES = 1 << 20
MAX_IN_FLIGHT = 8
MAX_FOCUS_STEPS = 10_000
"""Steps that one ``Focus`` may ask for."""
READINGS = ("gradients", "activations", "weights", "updates", "histograms")
"""What has an interval of its own and can be asked for."""
MAX_RUN_NAME = 128
"""Characters."""
MISSING_BITS = 0x7FC00001
"""float32 payload of "not observed"; an observed NaN is 0x7FC00000."""

KINDS = ("grad", "act", "act_in", "act_grad", "weight", "update")
SCALINGS = ("none", "loss", "static", "delayed", "dynamic")
PLACEMENTS = ("", "shard", "replica", "data", "local")
DTYPES = ("<f4", "<f8", "<i8", "<u8", "<u4", "<u2", "|u1")
"""Known values of the open-ended string fields below. A receiver drops a part with an unknown one, counts it, and keeps
the rest of its batch."""


class WireError(ValueError):
    """Bytes that are no valid message; the text says what is wrong with them."""


class _Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Immutable, unknown fields ignored: a newer peer may send more than this version knows."""


class Identity(_Struct, frozen=True, kw_only=True):
    """Who speaks. ``writer`` is 32 hex digits, new at each process start; ``attempt`` 0 lets the server choose.

    ``started_ns`` is when the writer began, by its wall clock; 0 where it does not say.
    """

    run: str
    writer: str
    rank: int = 0
    world: int = 1
    attempt: int = 0
    started_ns: int = 0


class Operand(_Struct, frozen=True, kw_only=True):
    """A format that a tensor of a layer meets.

    ``role`` "cast": the tensor is about to be rounded to ``format`` after multiplication by the scale that its
    summaries carry. "stored": it is in that format already.
    """

    kind: str
    format: str
    role: str = "stored"
    scaling: str = "none"


class Layer(_Struct, frozen=True, kw_only=True):
    """A module. ``index`` is the row number in every summary of this writer and never changes its meaning.

    ``order`` is the place in execution order, -1 before the first forward pass. A later entry with the same index
    replaces the earlier one (its operands became known, say).
    """

    index: int
    name: str
    module_type: str
    parameters: int = 0
    order: int = -1
    operands: tuple[Operand, ...] = ()


class Field(_Struct, frozen=True, kw_only=True):
    """One statistic: ``data`` is C-ordered [steps, layers], ``dtype`` a NumPy code such as "<f4"."""

    name: str
    dtype: str
    data: bytes


class Summaries(_Struct, frozen=True, kw_only=True):
    """Statistics of one kind for ``steps`` consecutive steps from ``first_step``.

    ``layers`` holds uint32 layer indices. Fields: count, zeros, nans, infs (i8); absmax, absmin (f4, finite elements
    only; 0 and inf when none is finite and non-zero); sum, sumsq (f8); scale (f4, the factor at the cast that comes);
    under, over_low, over_high, floor (f4, shares of the finite non-zero elements at the operand's format and scale;
    missing where no histogram was taken). A cell with count 0 was not observed.

    ``placement`` says what the tensors of this rank are to those of the others: "shard", a part that others complete;
    "replica", the same that others hold; "data", values of this rank's own samples; "local", not known. Shards and data
    add over ranks, and so do replicas, of which exactly one counts: ``copy_of`` is the rank whose row of the same kind,
    step, layer and placement counts instead of this one, -1 for one that counts itself. "" is "local" too, said by
    nobody: there is one rank, or the agent knows no placements. A layer may have rows of several placements.
    """

    kind: str
    first_step: int
    steps: int
    layers: bytes
    fields: tuple[Field, ...]
    placement: str = ""
    copy_of: int = -1


class Histograms(_Struct, frozen=True, kw_only=True):
    """Sparse half-octave histograms of one kind, merged over ``steps`` steps from ``first_step``.

    Row r belongs to ``layers[r]`` (uint32), starts at bin ``first[r]`` (uint16), has ``length[r]`` (uint16) counts and
    describes ``sampled[r]`` (int64) elements; ``counts`` (uint64) holds the rows one after the other. Bin i counts
    finite non-zero magnitudes in (edge(i), edge(i + 1)], edge(i) being the float32 with bits ``i << 22``.
    ``placement`` and ``copy_of`` are as in ``Summaries``.
    """

    kind: str
    first_step: int
    steps: int
    layers: bytes
    first: bytes
    length: bytes
    sampled: bytes
    counts: bytes
    placement: str = ""
    copy_of: int = -1


class Scalars(_Struct, frozen=True, kw_only=True):
    """A series: ``steps`` (int64) and ``values`` (float64) of equal length.

    "grad_sumsq_share" is this rank's part of the squared gradient norm, unscaled and over the elements that count (see
    ``Summaries.copy_of``): with those of all ranks the server makes "grad_norm" of it.
    """

    name: str
    steps: bytes
    values: bytes


class Event(_Struct, frozen=True, kw_only=True):
    """Something that happened at a step: kind "skipped" (optimizer step skipped by a scaler), "scale_changed", ..."""

    step: int
    kind: str
    detail: dict[str, str | int | float | bool | None] = {}


class Device(_Struct, frozen=True, kw_only=True):
    """One reading of one card; a figure that could not be had is None, never 0. ``time_ns`` is wall-clock.

    Those in ``READ_SELDOM`` are missing in most readings. ``pcie_width`` (lanes) and
    ``pcie_speed_gts`` (GT/s) are those of the narrowest and of the slowest link between the card and the processor,
    ``pcie_max_...`` what all of them could do. ``xgmi_bytes_per_s``: read and written over all XGMI links. ECC errors
    and replays are counted from the driver's start. ``throttle_..._percent`` is the share of the time since the reading
    before in which the card was slowed: at its power or current limit, by heat, or by a signal from outside.
    """

    time_ns: int
    backend: str
    index: int
    pci: str | None = None
    name: str | None = None
    vram_used_bytes: int | None = None
    vram_total_bytes: int | None = None
    busy_percent: float | None = None
    memory_busy_percent: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    alloc_retries: int | None = None
    ooms: int | None = None
    core_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    pcie_width: int | None = None
    pcie_speed_gts: float | None = None
    pcie_max_width: int | None = None
    pcie_max_speed_gts: float | None = None
    pcie_replays: int | None = None
    xgmi_links: int | None = None
    xgmi_bytes_per_s: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    throttle_power_percent: float | None = None
    throttle_thermal_percent: float | None = None
    throttle_brake_percent: float | None = None


READ_SELDOM = Device.__struct_fields__[Device.__struct_fields__.index("pcie_width") :]
"""Figures of ``Device`` that a source has in one of many readings."""


class Dump(_Struct, frozen=True, kw_only=True):
    """A piece of what a flight recorder held: ``part`` (from 0) of ``parts``.

    ``id`` names the dump in its run, and the pieces of several writers are one dump when they have the same. ``kind``
    is that of the alert that froze it, ``alert`` its number on the server; None: the agent froze it by itself.
    ``step`` is where the trouble was. ``bodies`` are encoded ``Body`` objects, each of one or more of the steps
    ``first_step`` to ``last_step`` at full detail, in order.
    """

    id: str
    kind: str
    step: int
    first_step: int
    last_step: int
    part: int
    parts: int
    bodies: tuple[bytes, ...]
    alert: int | None = None


class Body(_Struct, frozen=True, kw_only=True):
    """Content of a block. ``first_step`` and ``steps`` span everything in it that has a step.

    ``continued``: more of this body's last step follows in the next block of this writer. Only when it is false is
    that step complete. A gap in place of that block, or a body of another step, ends it too: the rest is lost.
    """

    continued: bool = False
    first_step: int = 0
    steps: int = 0
    layers: tuple[Layer, ...] = ()
    summaries: tuple[Summaries, ...] = ()
    histograms: tuple[Histograms, ...] = ()
    scalars: tuple[Scalars, ...] = ()
    events: tuple[Event, ...] = ()
    devices: tuple[Device, ...] = ()
    dump: Dump | None = None
    """Then there is nothing else in the body: a server that does not know dumps stores nothing of it."""


class Hello(_Struct, frozen=True, kw_only=True, tag="hello"):
    protocol_min: int
    protocol_max: int
    agent: str
    identity: Identity
    wall_ns: int
    monotonic_ns: int
    layers: tuple[Layer, ...] = ()
    config: dict[str, Any] = {}
    gone: bool = False
    """The writer has ended, and somebody else sends what it left."""
    sender: str = ""
    """Where several processes may speak as one writer, since all read the same log: which of them this is. What each
    sends follows from what the server had at its hello, so only the newest may go on; the others are refused."""


class Welcome(_Struct, frozen=True, kw_only=True, tag="welcome"):
    protocol: int
    epoch: str
    last_seq: int
    attempt: int
    credit: int
    wall_ns: int
    heartbeat_s: float = 10.0
    max_block_bytes: int = MAX_BLOCK_BYTES
    max_in_flight: int = MAX_IN_FLIGHT
    read: dict[str, str | int | float | bool | None] = {}
    """Detail of the newest "read" event of this writer: how far in its file it was when ``last_seq`` was stored."""


class Block(_Struct, frozen=True, kw_only=True, tag="block"):
    """``crc`` is zlib.crc32 of ``body``, an encoded Body."""

    seq: int
    crc: int
    body: bytes


class Gap(_Struct, frozen=True, kw_only=True, tag="gap"):
    """Steps ``first`` to ``last`` (inclusive) lost ``count`` records for ``reason``."""

    seq: int
    first: int
    last: int
    count: int
    reason: str


class Ack(_Struct, frozen=True, kw_only=True, tag="ack"):
    """Everything up to ``seq`` is on disk."""

    seq: int
    credit: int


class Nack(_Struct, frozen=True, kw_only=True, tag="nack"):
    """``seq`` was refused; ``expected`` is the next one the server can take. Not retryable: quarantine and go on."""

    seq: int
    code: str
    message: str
    expected: int
    retryable: bool = False
    retry_after_s: float = 0.0


class Cost(_Struct, frozen=True, kw_only=True):
    """What the agent costs its training, as a share of the step time without it (0.01 is one percent).

    ``share`` is that of the present rates of sampling, what is read every k-th step divided by k; ``mean`` that of all
    steps so far. ``budget`` 0: nothing holds the share down. ``limit`` says in words why the share is above the budget,
    empty while it is not. ``every`` gives the present interval of each kind of reading, in steps.
    """

    share: float
    mean: float
    budget: float
    limit: str = ""
    every: dict[str, int] = {}


class Beat(_Struct, frozen=True, kw_only=True, tag="beat"):
    step: int = -1
    queue_bytes: int = 0
    spool_bytes: int = 0
    dropped: int = 0
    overhead_s: float = 0.0
    cost: Cost | None = None


class Bye(_Struct, frozen=True, kw_only=True, tag="bye"):
    seq: int
    reason: str


class Refused(_Struct, frozen=True, kw_only=True, tag="refused"):
    """The server ends the conversation; ``hint`` says what to do. Retrying is useless unless ``retryable``."""

    code: str
    message: str
    hint: str
    retryable: bool = False


class Focus(_Struct, frozen=True, kw_only=True, tag="focus"):
    """Read more in each of the next ``steps`` steps (at most ``MAX_FOCUS_STEPS``), then as before.

    ``kinds`` are some of ``READINGS``; ``layers`` those whose outputs, inputs and output gradients are read, by their
    names or by a module's around them. Empty for all.
    """

    steps: int
    kinds: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


class Freeze(_Struct, frozen=True, kw_only=True, tag="freeze"):
    """Send what the flight recorder holds as dump ``id``: ``alert``, a critical one of ``kind``, fired at ``step``."""

    id: str
    alert: int
    kind: str
    step: int


class Alert(_Struct, frozen=True, kw_only=True, tag="alert"):
    """An alert of severity warning or critical has begun to fire. Sent once or more; ``id`` tells."""

    id: int
    kind: str
    severity: str
    step: int
    reason: str
    message: str
    layer: str | None = None
    rank: int | None = None


def is_run_name(name: str) -> bool:
    """Whether ``name`` can stand in an address: 1 to 128 printable characters, no slash, no blank at an end."""
    return (
        0 < len(name) <= MAX_RUN_NAME
        and name.isprintable()
        and name == name.strip()
        and not set(name) & {"/", "\\"}
        and name not in {".", ".."}
    )


AgentMessage = Hello | Block | Gap | Beat | Bye
ServerMessage = Welcome | Ack | Nack | Beat | Refused | Focus | Freeze | Alert
"""An agent ignores a message that it has no word for, so a server may say more than an older agent knows."""

_T = TypeVar("_T")

_encoder = msgspec.msgpack.Encoder()
_agent_decoder = msgspec.msgpack.Decoder(AgentMessage)
_server_decoder = msgspec.msgpack.Decoder(ServerMessage)
_body_decoder = msgspec.msgpack.Decoder(Body)


def encode(message: AgentMessage | ServerMessage | Body | Summaries | Histograms | Scalars) -> bytes:
    """The bytes of one message or of one part of a body."""
    return _encoder.encode(message)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes | memoryview, what: str) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"not a valid {what}: {error}") from error


def decode_agent(data: bytes | memoryview) -> AgentMessage:
    """A message from an agent; ``WireError`` when it is none."""
    return _decode(_agent_decoder, data, "agent message")


def decode_server(data: bytes | memoryview) -> ServerMessage:
    """A message from a server; ``WireError`` when it is none."""
    return _decode(_server_decoder, data, "server message")


def make_block(seq: int, body: Body) -> Block:
    """``body`` as the batch ``seq``, with its CRC-32."""
    data = _encoder.encode(body)
    return Block(seq=seq, crc=zlib.crc32(data), body=data)


def decode_body(block: Block) -> Body:
    """The content of ``block``; ``WireError`` when the CRC or the content is wrong."""
    if zlib.crc32(block.body) != block.crc:
        raise WireError(f"block {block.seq} is damaged: its CRC-32 does not match")
    return _decode(_body_decoder, block.body, "block body")
