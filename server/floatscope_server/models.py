"""Tables of the store.

Small tables are used as objects. Telemetry is ``wal_frame``: one row per part of a block, never one per layer and step,
written and read through SQLAlchemy Core.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, LargeBinary, SmallInteger, UniqueConstraint
from sqlmodel import Field, SQLModel

__all__ = [
    "AGAIN",
    "CONTINUED",
    "NONFINITE",
    "Attempt",
    "DeviceFacts",
    "DumpPart",
    "Gap",
    "HistTile",
    "LayerRow",
    "Meta",
    "Milestone",
    "RankEvent",
    "Retention",
    "Run",
    "ScalarChunk",
    "ScalarSeries",
    "StepEvent",
    "Stream",
    "StreamState",
    "Tile",
    "TileRaw",
    "WalFrame",
    "Writer",
]

NONFINITE, CONTINUED, AGAIN = 1, 2, 4
"""Bits of ``WalFrame.flags``."""

# SQLite only numbers rows by itself where the key is spelled INTEGER.
_ID = BigInteger().with_variant(Integer(), "sqlite")


class Run(SQLModel, table=True):
    """A training job. ``attempt`` is the current one, ``world`` that of it, ``steps`` their number counted from step 0.

    ``glance`` is what a list of runs shows: the last values, a short loss curve, the worst headroom of late.
    ``progress_at`` is when the last new step arrived, ``seconds_per_step`` their running mean. ``tags`` are people's;
    lists leave out a run with ``archived_at``.
    """

    __tablename__ = "run"

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    name: str = Field(unique=True)
    state: str
    attempt: int = 1
    world: int = 1
    config: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    glance: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    steps: int = Field(default=0, sa_type=BigInteger)
    created_at: datetime
    started_at: datetime
    heartbeat_at: datetime
    progress_at: datetime
    seconds_per_step: float = 0.0
    finished_at: datetime | None = None
    tags: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    archived_at: datetime | None = None


class Attempt(SQLModel, table=True):
    """A start or restart of a run; steps are null until the first arrives.

    ``world`` is its number of ranks: another attempt may have fewer or more. ``config`` is null where it is the run's.
    """

    __tablename__ = "attempt"

    run_id: int = Field(sa_type=BigInteger, primary_key=True, foreign_key="run.id")
    n: int = Field(primary_key=True)
    world: int = 1
    first_step: int | None = Field(default=None, sa_type=BigInteger)
    last_step: int | None = Field(default=None, sa_type=BigInteger)
    started_at: datetime
    ended_at: datetime | None = None
    end_reason: str | None = None
    config: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))


class Writer(SQLModel, table=True):
    """One agent process. ``last_seq`` moves in the transaction that stores the data: it makes a retry harmless.

    ``number`` stands for ``id`` in telemetry. ``layer_map`` is ``store.layermap.LayerMap`` as bytes. What was lost is
    counted apart: ``dropped`` by the agent's own total in its beats, ``declared`` in its gaps, ``left_out`` by the
    server. ``cost`` is the newest ``wire.Cost``. ``doctor`` are the verdicts on ``host``, of its first writer.
    """

    __tablename__ = "writer"

    number: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    id: str = Field(unique=True)
    run_id: int = Field(sa_type=BigInteger, foreign_key="run.id", index=True)
    attempt: int
    rank: int
    agent: str
    last_seq: int = Field(default=0, sa_type=BigInteger)
    last_step: int = Field(default=-1, sa_type=BigInteger)
    last_seen_at: datetime
    dropped: int = Field(default=0, sa_type=BigInteger)
    declared: int = Field(default=0, sa_type=BigInteger)
    left_out: int = Field(default=0, sa_type=BigInteger)
    queue_bytes: int = Field(default=0, sa_type=BigInteger)
    spool_bytes: int = Field(default=0, sa_type=BigInteger)
    overhead_s: float = 0.0
    cost: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))
    clock_offset_ms: float = 0.0
    bye: str | None = None
    layer_map: bytes = Field(default=b"", sa_column=Column(LargeBinary, nullable=False))
    host: str | None = None
    doctor: list[dict[str, str]] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))


class LayerRow(SQLModel, table=True):
    """A module of a run; ``idx`` is its row number in every summary and never reused."""

    __tablename__ = "layer"
    __table_args__ = (UniqueConstraint("run_id", "name"),)

    run_id: int = Field(sa_type=BigInteger, primary_key=True, foreign_key="run.id")
    idx: int = Field(primary_key=True)
    name: str
    module_type: str
    parameters: int = Field(sa_type=BigInteger)
    order_no: int
    operands: list[dict[str, Any]] = Field(sa_column=Column(JSON, nullable=False))


class Stream(SQLModel, table=True):
    """One kind of telemetry of a run: ``layer/KIND``, ``hist/KIND``, ``scalar`` or ``gpu``.

    The geometry of its tiles (``tiles.geometry.Geometry``) is null until the first is written and fixed from then on.
    """

    __tablename__ = "stream"
    __table_args__ = (UniqueConstraint("run_id", "name"),)

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    run_id: int = Field(sa_type=BigInteger, foreign_key="run.id")
    name: str
    columns: int | None = None
    fan: int | None = None
    block: int | None = None
    keep_bits: int | None = None
    keep_bits_pooled: int | None = None


class StreamState(SQLModel, table=True):
    """Columns before ``sealed`` are in tiles, not in ``wal_frame``; it moves in the transaction that writes them.

    ``epoch`` grows with every change of what is sealed, so that nothing kept of an earlier state is taken for the new.
    Of tiles that end at ``raw_from`` or before level 0 has gone, but for those around alerts; level 1 with
    ``level1_from``.

    ``appends`` counts those changes that left all that was sealed before as it was: of tiles, the difference of the two
    says whether one that is known still holds.
    """

    __tablename__ = "stream_state"

    stream_id: int = Field(sa_type=BigInteger, primary_key=True, foreign_key="stream.id")
    attempt: int = Field(primary_key=True)
    sealed: int = Field(default=0, sa_type=BigInteger)
    epoch: int = Field(default=0, sa_type=BigInteger)
    appends: int = Field(default=0, sa_type=BigInteger)
    raw_from: int = Field(default=0, sa_type=BigInteger)
    level1_from: int = Field(default=0, sa_type=BigInteger)


class Milestone(SQLModel, table=True):
    """How old steps are: those up to ``step`` of an attempt had arrived at ``at``."""

    __tablename__ = "milestone"

    run_id: int = Field(sa_type=BigInteger, primary_key=True, foreign_key="run.id")
    attempt: int = Field(primary_key=True)
    step: int = Field(sa_type=BigInteger, primary_key=True)
    at: datetime


class WalFrame(SQLModel, table=True):
    """One part of a committed block.

    ``id`` grows in the order of commits and is never used again: of two frames with one step the later one stands.
    ``first`` and ``n`` are its columns: steps, or seconds for ``gpu``. ``flags`` bit 0: something in it is not finite,
    bit 1: more of its block's last step follows in the next block of ``writer`` (``writer.number``), bit 2: its rank is
    in the tile already, and it waits for the other ranks of that to send these steps again too. ``rank`` -1 is all
    ranks together: scalars that the block of ``writer`` completed. ``data`` is the msgpack of the part
    (wire.Histograms, a list of wire.Scalars, a list of wire.Device), or ``store.packed`` of wire.Summaries, with the
    checksum of ``store.framed``.

    Of summaries, columns before the watermark of the stream are those that came late; once columns are in tiles
    ``first`` and ``n`` leave them out, though ``data`` still has them.
    """

    __tablename__ = "wal_frame"
    # The index holds all that says whether a frame touches a stretch of steps.
    __table_args__ = (
        Index("ix_wal_frame_span", "stream_id", "attempt", "first", "n", "rank"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    stream_id: int = Field(sa_type=BigInteger, foreign_key="stream.id")
    attempt: int
    first: int = Field(sa_type=BigInteger)
    n: int = Field(sa_type=BigInteger)
    rank: int
    writer: int = Field(sa_type=BigInteger)
    seq: int = Field(sa_type=BigInteger)
    flags: int
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class _Tiled(SQLModel):
    """``stat`` and ``agg`` are those of ``tiles.statistics``; ``block`` counts blocks of layers, ``idx`` tiles of
    steps. ``data`` is ``tiles.codec``; ``flags`` are its flags."""

    id: int | None = Field(default=None, sa_type=_ID, primary_key=True)
    run_id: int = Field(sa_type=BigInteger)
    stream_id: int = Field(sa_type=BigInteger)
    attempt: int
    stat: int = Field(sa_type=SmallInteger)
    agg: int = Field(sa_type=SmallInteger)
    block: int
    idx: int = Field(sa_type=BigInteger)
    flags: int = Field(sa_type=SmallInteger)
    data: bytes = Field(sa_type=LargeBinary)


class TileRaw(_Tiled, table=True):
    """A tile of level 0."""

    __tablename__ = "tile_raw"
    __table_args__ = (UniqueConstraint("stream_id", "attempt", "stat", "agg", "block", "idx"),)


class Tile(_Tiled, table=True):
    """A tile of a level above 0. ``part`` 1: a part that later tiles complete, ``idx`` counting parts."""

    __tablename__ = "tile"
    __table_args__ = (UniqueConstraint("stream_id", "attempt", "stat", "agg", "level", "part", "block", "idx"),)

    level: int = Field(sa_type=SmallInteger)
    part: int = Field(sa_type=SmallInteger)


class HistTile(SQLModel, table=True):
    """Histograms of a block of 64 layers in a stretch of steps, merged over the ranks; ``data`` is ``tiles.hist``.

    Level 0 holds them as they were taken, level k the sums of 8^k steps each. ``n`` columns begin at ``first_step`` to
    ``last_step``. Tiles of a level do not overlap; ``id`` is never used again, so that it names their content.
    """

    __tablename__ = "hist_tile"
    __table_args__ = (
        UniqueConstraint("stream_id", "attempt", "level", "block", "first_step"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    run_id: int = Field(sa_type=BigInteger)
    stream_id: int = Field(sa_type=BigInteger)
    attempt: int
    level: int = Field(sa_type=SmallInteger)
    block: int
    first_step: int = Field(sa_type=BigInteger)
    last_step: int = Field(sa_type=BigInteger)
    n: int
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class ScalarChunk(SQLModel, table=True):
    """``n`` consecutive entries of a series, lossless; ``data`` is ``tiles.points``.

    Level 0 holds steps and values; level k one record for each stretch of 8^k steps that has points, aligned to
    multiples of that (device figures: 8^k seconds). Chunks of a level do not overlap; ``id`` is never used again, so
    that it names their content.
    """

    __tablename__ = "scalar_chunk"
    __table_args__ = (
        UniqueConstraint("series_id", "level", "first_step"),
        # Holds all that says which chunks a question needs.
        Index("ix_scalar_chunk_span", "series_id", "level", "first_step", "last_step", "n"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    series_id: int = Field(sa_type=BigInteger)
    level: int = Field(sa_type=SmallInteger)
    first_step: int = Field(sa_type=BigInteger)
    last_step: int = Field(sa_type=BigInteger)
    n: int
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class DeviceFacts(SQLModel, table=True):
    """What stays the same of a card that a rank reads; its figures are series of the stream "gpu"."""

    __tablename__ = "device_facts"

    run_id: int = Field(sa_type=BigInteger, primary_key=True, foreign_key="run.id")
    attempt: int = Field(primary_key=True)
    rank: int = Field(primary_key=True)
    backend: str = Field(primary_key=True)
    idx: int = Field(primary_key=True)
    pci: str | None = None
    name: str | None = None
    vram_total_bytes: int | None = Field(default=None, sa_type=BigInteger)
    pcie_max_width: int | None = Field(default=None, sa_type=BigInteger)
    pcie_max_speed_gts: float | None = None
    xgmi_links: int | None = Field(default=None, sa_type=BigInteger)


class RankEvent(SQLModel, table=True):
    """Where a rank departs from the others, ``kind`` outlier, nonfinite, late or missing: what is kept of a rank once
    the ranks are reduced to one."""

    __tablename__ = "rank_event"
    __table_args__ = (
        Index("ix_rank_event_step", "run_id", "step"),
        Index("ix_rank_event_rank", "run_id", "rank"),
    )

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    run_id: int = Field(sa_type=BigInteger, foreign_key="run.id")
    attempt: int
    step: int = Field(sa_type=BigInteger)
    rank: int
    stream_id: int = Field(sa_type=BigInteger)
    layer: int
    stat: int = Field(sa_type=SmallInteger)
    value: float | None = None
    median: float | None = None
    kind: str


class Retention(SQLModel, table=True):
    """What is kept how long, for a run or, where ``run_id`` is 0, for all that have no row of their own. Null: for
    ever, or as many as there are."""

    __tablename__ = "retention"

    run_id: int = Field(sa_type=BigInteger, primary_key=True)
    raw_keep_days: float | None = 30.0
    raw_keep_steps: int | None = Field(default=50_000, sa_type=BigInteger)
    level1_keep_days: float | None = 180.0
    hist_keep_days: float | None = 14.0
    hist_level1_keep_days: float | None = 180.0
    gpu_keep_days: float | None = 7.0
    gpu_level1_keep_days: float | None = 30.0
    pin_alerts: bool = True
    max_bytes_per_run: int | None = Field(default=None, sa_type=BigInteger)


class ScalarSeries(SQLModel, table=True):
    """What is known of a scalar without reading it: how many points, where they lie, the extremes.

    NULL in ``last``, ``min`` and ``max`` is a NaN. ``ordered``: every step came once and in order, so that the figures
    are exact. ``stream`` is "scalar" or "gpu"; device figures go by milliseconds since 1970 instead of steps.
    ``scalar_chunk`` holds points before ``sealed``, ``wal_frame`` later ones and what came late: of a step that is in
    both, ``wal_frame`` has what stands.
    """

    __tablename__ = "scalar_series"
    __table_args__ = (UniqueConstraint("run_id", "attempt", "rank", "stream", "name"),)

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    run_id: int = Field(sa_type=BigInteger, foreign_key="run.id")
    attempt: int
    rank: int
    stream: str = "scalar"
    name: str
    sealed: int = Field(default=0, sa_type=BigInteger)
    n: int = Field(sa_type=BigInteger)
    first_step: int = Field(sa_type=BigInteger)
    last_step: int = Field(sa_type=BigInteger)
    last: float | None = None
    min: float | None = None
    max: float | None = None
    ordered: bool = True


class StepEvent(SQLModel, table=True):
    """Something that happened at a step, ``kind`` "skipped" for one.

    ``layer`` and ``certainty`` are what the rules said of a skipped step: the layer that its alert names, null if every
    summary was finite, and how sure that is. ``certainty`` is null until they have judged it.
    """

    __tablename__ = "step_event"
    __table_args__ = (Index("ix_step_event_run_step", "run_id", "step"),)

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    run_id: int = Field(sa_type=BigInteger, foreign_key="run.id")
    attempt: int
    step: int = Field(sa_type=BigInteger)
    rank: int
    writer: int = Field(sa_type=BigInteger)
    seq: int = Field(sa_type=BigInteger)
    kind: str
    detail: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    layer: str | None = None
    certainty: int | None = None


class Gap(SQLModel, table=True):
    """Telemetry that was lost or refused: steps ``first`` to ``last``, ``count`` records, for ``reason``."""

    __tablename__ = "gap"

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    run_id: int = Field(sa_type=BigInteger, foreign_key="run.id", index=True)
    rank: int
    first: int = Field(sa_type=BigInteger)
    last: int = Field(sa_type=BigInteger)
    count: int = Field(sa_type=BigInteger)
    reason: str


class DumpPart(SQLModel, table=True):
    """A piece of what the flight recorder of one writer held when it was frozen; see ``wire.Dump``.

    ``data`` is the msgpack of a list of encoded ``wire.Body`` with the run's layer numbers, as ``store.framed`` has it.
    """

    __tablename__ = "dump_part"

    run_id: int = Field(sa_type=BigInteger, primary_key=True, foreign_key="run.id")
    dump: str = Field(primary_key=True)
    writer: int = Field(sa_type=BigInteger, primary_key=True)
    part: int = Field(primary_key=True)
    parts: int
    attempt: int
    rank: int
    kind: str
    alert_id: int | None = Field(default=None, sa_type=BigInteger)
    step: int = Field(sa_type=BigInteger)
    first_step: int = Field(sa_type=BigInteger)
    last_step: int = Field(sa_type=BigInteger)
    created_at: datetime
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class Meta(SQLModel, table=True):
    """Facts about the store; ``epoch`` is new after a restore from a backup."""

    __tablename__ = "meta"

    key: str = Field(primary_key=True)
    value: str
