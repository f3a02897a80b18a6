"""Memory over time: in use and peak, and the calls that allocate and free it."""

from __future__ import annotations

from typing import Final, Unpack

import polars as pl

from kanalyze import intervals, units
from kanalyze.analyses.device._operations import of_used_processes
from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.memory._allocations import KEYS, ON_DEVICE, allocating_calls, steps
from kanalyze.analyses.shared.analysis import check_grouping, require
from kanalyze.analyses.shared.statistics import DURATION_COLUMNS, duration_statistics, share_of_total
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table

_TOTALS: Final = (
    Column("allocations", pl.Int64, "Allocations."),
    Column("frees", pl.Int64, "Deallocations."),
    Column("allocated_bytes", pl.Int64, "Sum of the allocations' sizes."),
    Column("freed_bytes", pl.Int64, "Sum of the sizes of what was given back."),
    Column("peak_bytes", pl.Int64, "Most that was in use at once."),
    Column("peak_at_ns", pl.Int64, "When that was first reached."),
    Column("held_bytes", pl.Int64, "In use at the end of the window or report: never given back until then."),
    Column(
        "held",
        pl.Int64,
        "How many allocations that is; null where there were some before the first one that is recorded.",
        nullable=True,
    ),
    Column(
        "loop_allocations",
        pl.Int64,
        "Allocations in the steady state: by calls that take and give back memory over and over between launches; "
        "null where calls are not recorded, or an allocator keeps what is given back.",
        nullable=True,
    ),
    Column("loop_bytes", pl.Int64, "Sum of their sizes.", nullable=True),
    Column(
        "pool_peak_bytes",
        pl.Int64,
        "Most that one memory pool, or the framework's allocator, held of the device; null for none.",
        nullable=True,
    ),
    Column(
        "unmatched",
        pl.Int64,
        "Deallocations whose allocation is not in the report, which take nothing from what is in use, and allocations "
        "where an earlier one was not given back, which replace it; where an allocator tells its totals, these count.",
    ),
)

TABLE: Final = Table(
    "memory",
    "One kind of memory that a process allocated on a device: how often, how much, and the peak.",
    (
        Column("device", pl.Int64, "The GPU; for host memory that of the context.", nullable=True),
        Column("process_id", pl.Int64, "Process.", nullable=True),
        Column("memory", pl.String, "Device, Pinned, Managed, Device Static…", nullable=True),
        *_TOTALS,
    ),
    purpose="memory allocated: peak, how often, how much",
    telling=("memory", "allocations", "frees", "allocated_bytes", "peak_bytes", "held_bytes"),
    groupings=("device", "call"),
    options=("trace",),
)

#: The table that ``by="device"`` gives.
BY_DEVICE: Final = Table(
    "memory",
    "The memory of one device, all processes and kinds that lie on it: " + ", ".join(ON_DEVICE) + ".",
    (Column("device", pl.Int64, "The GPU.", nullable=True), *_TOTALS),
    when="--by device",
)

#: The table that ``trace=True`` gives.
TRACE: Final = Table(
    "memory",
    "One allocation or deallocation, in the order of time, and what is in use after it.",
    (
        Column("t_ns", pl.Int64, "When."),
        Column("device", pl.Int64, "The GPU; for host memory that of the context.", nullable=True),
        Column("process_id", pl.Int64, "Process.", nullable=True),
        Column("memory", pl.String, "Device, Pinned, Managed, Device Static…", nullable=True),
        Column("event", pl.String, "Allocation or Deallocation.", nullable=True),
        Column("address", pl.Int64, "Virtual address."),
        Column("size_bytes", pl.Int64, "Its size; of a deallocation that of its allocation."),
        Column(
            "delta_bytes",
            pl.Int64,
            "What it adds to the memory in use; null for a deallocation whose allocation is not in the report, unless "
            "the allocator tells its totals.",
            nullable=True,
        ),
        Column("in_use_bytes", pl.Int64, "In use after it, of this device, process and kind of memory."),
        Column(
            "device_bytes",
            pl.Int64,
            "In use after it on the device, all processes and kinds that lie on it; null for other kinds.",
            nullable=True,
        ),
        Column("pool", pl.Int64, "Address of the memory pool; null for none.", nullable=True),
        Column("pool_size_bytes", pl.Int64, "What the pool holds of the device.", nullable=True),
        Column("pool_used_bytes", pl.Int64, "What of that is in use.", nullable=True),
    ),
    when="--trace",
    telling=("t_ns", "event", "memory", "size_bytes", "in_use_bytes"),
)

#: The table that ``by="call"`` gives; it needs no memory events.
BY_CALL: Final = Table(
    "memory",
    "One CUDA call that takes memory or gives it back.",
    (
        Column("call", pl.String, "The call."),
        *DURATION_COLUMNS,
        Column(
            "exposed_ns",
            pl.Int64,
            "What the devices waited in it: its time in the ledger's allocation bucket; null where no device is "
            "recorded.",
            nullable=True,
        ),
        Column("loop_calls", pl.Int64, "Calls in the steady state, which take and give back over and over."),
        Column("loop_ns", pl.Int64, "Sum of their durations."),
        Column("loop_launches", pl.Int64, "Launches in the rounds that they are in."),
    ),
    when="--by call",
)


def memory(report: Report, by: str | None = None, *, trace: bool = False, **where: Unpack[Where]) -> pl.DataFrame:
    """The memory allocated in the part of the report in scope.

    Args:
        report: Where to look. Memory in use is counted from the start of the recording, whatever the window.
        by: ``device`` for the sum of all memory on each device; ``call`` for the calls, which need no memory events.
        trace: All allocations and deallocations instead of totals.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, the highest peak first; :data:`BY_DEVICE`, :data:`BY_CALL` or :data:`TRACE`.

    Raises:
        CannotTellError: The report records no allocations; for `call`, no CUDA calls.
        UnknownNameError: There is no such grouping.
    """
    report = report.narrow(**where)
    check_grouping(TABLE, by)
    if by == "call":
        require(report, BY_CALL, "api")
        return _by_call(report)
    require(report, TABLE, "memory")
    line = _line(report)
    if trace:
        return _trace(report, line)
    if by == "device":
        return BY_DEVICE.select(_totals(report, line.filter(_lies_on_device()), ("device",)))
    return TABLE.select(_totals(report, line, KEYS))


def told(rows: pl.DataFrame) -> str:
    """A sentence on the limits of the totals in `rows`; empty if there are none."""
    kept = rows.filter(pl.col("loop_allocations").is_null() & pl.col("pool_peak_bytes").is_not_null())
    if kept.is_empty():
        return ""
    parts = [
        f"{units.size(held)} of GPU {device}" for device, held in kept.select("device", "pool_peak_bytes").iter_rows()
    ]
    return f"What the framework's allocator gave out, which held up to {', '.join(parts)}: no CUDA calls."


def _line(report: Report) -> pl.DataFrame:
    """All steps on the device in scope up to the end of the window."""
    line, device = steps(report), report.scope.device
    if device is not None:
        line = line.filter(pl.col("device") == device)
    return intervals.overlapping(line, (None, report.scope.sides[1]), "t_ns", "t_ns")


def _since(report: Report) -> pl.Expr:
    """Whether a step, among those before the end of the window, is inside it."""
    start, _ = report.scope.sides
    return pl.lit(value=True) if start is None else pl.col("t_ns") >= start


def _lies_on_device() -> pl.Expr:
    return pl.col("memory").cast(pl.String).is_in(ON_DEVICE)


def _trace(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    delta, event = pl.col("delta_bytes"), pl.when("free").then(pl.lit("Deallocation")).otherwise(pl.lit("Allocation"))
    on_device = _lies_on_device().fill_null(value=False)
    before = pl.col("before_bytes")
    there = pl.when(on_device).then(delta).otherwise(0).cum_sum() + pl.when(on_device).then(before).otherwise(0).sum()
    rows = line.with_columns(
        (delta.cum_sum() + before.sum()).over(KEYS).alias("in_use_bytes"),
        pl.when(on_device).then(there.over("device")).alias("device_bytes"),
        pl.when(pl.col("matched") | ~pl.col("free") | pl.col("told")).then(delta).alias("delta_bytes"),
        event.alias("event"),
    )
    return TRACE.select(rows.filter(_since(report)))


def _totals(report: Report, line: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """The columns of :data:`_TOTALS` by `keys`; the peak includes what is in use when the window begins."""
    inside, frees = _since(report), pl.col("free")
    line = line.with_columns(
        (pl.col("delta_bytes").cum_sum() + pl.col("before_bytes").sum()).over(keys).alias("in_use"),
        pl.when(frees)
        .then(pl.when("matched").then(-1).otherwise(0))
        .otherwise(pl.col("matched").cast(pl.Int64))
        .alias("more"),
        inside.alias("inside"),
        _in_loop(report, line),
    )
    low, _ = report.scope.sides
    begun = line.filter(~pl.col("inside")).group_by(keys, maintain_order=True).agg(pl.col("in_use").last())
    carried = begun.with_columns(pl.lit(low, dtype=pl.Int64).alias("t_ns"))
    first = line.group_by(keys, maintain_order=True).agg(pl.col("before_bytes").sum(), pl.col("t_ns").first())
    held = first.filter(pl.col("before_bytes") > 0).with_columns(pl.max_horizontal("t_ns", pl.lit(low)).alias("t_ns"))
    held = held.join(begun, on=keys, how="anti", nulls_equal=True).rename({"before_bytes": "in_use"})
    parts = (held, carried, line.filter("inside"))
    levels = pl.concat([part.select(*keys, "in_use", "t_ns") for part in parts])
    at = pl.col("in_use").arg_max()
    peaks = levels.group_by(keys).agg(peak_bytes=pl.col("in_use").max(), peak_at_ns=pl.col("t_ns").get(at))
    known = pl.when(pl.col("before_bytes").sum() == 0).then(pl.col("more").sum())
    sums = line.group_by(keys).agg(*_sums(), held_bytes=pl.col("in_use").last(), held=known)
    joined = sums.join(peaks, on=keys, nulls_equal=True)
    seen = joined.filter((pl.col("allocations") + pl.col("frees") > 0) | (pl.col("peak_bytes") > 0))
    named = seen.with_columns(pl.col("memory").cast(pl.String)) if "memory" in keys else seen
    return named.sort("peak_bytes", *keys, descending=[True, *(False for _ in keys)])


def _sums() -> list[pl.Expr]:
    inside, frees = pl.col("inside"), pl.col("free")
    taken, given = inside & ~frees, inside & frees
    loop = taken & pl.col("loop")
    known = pl.col("loop").is_not_null().any()
    size = pl.col("size_bytes")
    return [
        taken.sum().alias("allocations"),
        given.sum().alias("frees"),
        size.filter(taken).sum().alias("allocated_bytes"),
        size.filter(given).sum().alias("freed_bytes"),
        pl.when(known).then(loop.sum()).alias("loop_allocations"),
        pl.when(known).then(size.filter(loop).sum()).alias("loop_bytes"),
        pl.col("pool_size_bytes").filter(inside).max().alias("pool_peak_bytes"),
        (inside & ~pl.col("matched")).sum().alias("unmatched"),
    ]


def _in_loop(report: Report, line: pl.DataFrame) -> pl.Series:
    """Whether the call behind each step is in a loop; null where calls are not recorded."""
    if "api" not in report.kinds:
        return pl.Series("loop", [None], dtype=pl.Boolean).new_from_index(0, line.height)
    keys = ["process_id", "correlation_id"]
    calls = allocating_calls(report).drop_nulls(["round", *keys]).select(keys).unique()
    marked = calls.with_columns(loop=pl.lit(value=True))
    known = line.join(marked, on=keys, how="left", maintain_order="left")
    # a caching allocator serves allocations without a call
    return known.select(pl.when(~pl.col("told")).then(pl.col("loop").fill_null(value=False)).alias("loop")).to_series()


def _by_call(report: Report) -> pl.DataFrame:
    calls = allocating_calls(report).with_columns(dur_ns=pl.col("end") - pl.col("start"))
    seen = report.seen("api").select("event_id")
    everything = report.kind("api").get_column("event_id")
    calls = calls.with_columns(everything.gather(calls.get_column("row"))).join(seen, on="event_id", how="semi")
    calls = of_used_processes(report, calls)
    looping = pl.col("round").is_not_null()
    sums = (
        calls.with_columns(shown(pl.col("name")).alias("call"))
        .group_by("call")
        .agg(
            *duration_statistics(),
            looping.sum().alias("loop_calls"),
            pl.col("dur_ns").filter(looping).sum().alias("loop_ns"),
            pl.struct("process_id", "round", "launches")
            .filter(looping)
            .unique()
            .struct.field("launches")
            .sum()
            .alias("loop_launches"),
        )
    )
    named = sums.with_columns(share_of_total()).join(_exposed(report), on="call", how="left")
    if set(DEVICE_KINDS).intersection(report.kinds):
        named = named.with_columns(pl.col("exposed_ns").fill_null(0))
    return BY_CALL.select(named.sort("total_ns", "call", descending=[True, False]))


def _exposed(report: Report) -> pl.DataFrame:
    if not set(DEVICE_KINDS).intersection(report.kinds):
        return pl.DataFrame(schema={"call": pl.String, "exposed_ns": pl.Int64})
    rows = bucket_sums(report).filter(pl.col("bucket").cast(pl.String) == "allocation")
    return rows.group_by(call=pl.col("detail")).agg(exposed_ns=pl.col("ns").sum())
