"""Steps of a framework's profiler: a ledger for each, their launches, and which are warm-up or odd."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, used_devices
from kanalyze.analyses.idle._attribution import window_ledgers
from kanalyze.analyses.idle._idle_parts import IDLE
from kanalyze.analyses.ranges._instances import USUAL, answer, judged, warmed_up
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.statistics import BUCKETS, median_of
from kanalyze.columns import nearest
from kanalyze.report import Report
from kanalyze.schema import Column, Table
from kanalyze.tools import recorders
from kanalyze.units import time
from kanalyze.window import STEPS, step_name

TABLE: Final = Table(
    "steps",
    "One step of a framework's profiler on one device: its ledger, and what the work that it launched did there.",
    (
        Column("step", pl.Int64, "Its number; --window step:NUMBER looks at it alone."),
        Column("process_id", pl.Int64, "Process.", nullable=True),
        Column("device", pl.Int64, "A GPU that the process used; null where it used none.", nullable=True),
        Column("start_ns", pl.Int64, "Start of the profiler's range on the host."),
        Column("dur_ns", pl.Int64, "Its length, which the buckets add up to."),
        Column("busy_ns", pl.Int64, "Time in it in which the device ran anything.", nullable=True),
        Column("busy_share", pl.Float64, "That as a part of the step.", nullable=True),
        *(Column(f"{bucket}_ns", pl.Int64, f"The ledger's bucket {bucket}.", nullable=True) for bucket in BUCKETS),
        Column(
            "idle_in",
            pl.Enum(IDLE),
            "The bucket that took most of the time in which the device was idle; of equal ones the first.",
            nullable=True,
        ),
        Column("operations", pl.Int64, "Kernels, copies and memsets that were launched in it, by any thread."),
        Column("gpu_start_ns", pl.Int64, "When the first of these started.", nullable=True),
        Column("gpu_end_ns", pl.Int64, "When the last of these ended.", nullable=True),
        Column("gpu_busy_ns", pl.Int64, "How long at least one of these ran, at any time.", nullable=True),
        Column("late_ns", pl.Int64, "How much of that was after the end of the step on the host.", nullable=True),
        Column(
            "warm_up", pl.Boolean, "Whether it only warms up: among the first, and longer through what is done once."
        ),
        Column("evidence", pl.String, "Of one that warms up: what it took longer for.", nullable=True),
        Column("odd", pl.Boolean, "Whether its length is far from the median of those that do not warm up."),
        Column("cause", pl.String, "Of an odd one: the bucket that differs most from its own median.", nullable=True),
    ),
    purpose="each step of the profiler, with its ledger",
    telling=("step", "dur_ns", "busy_share", "kernel_ns", "launch_ns", "sync_ns", "host_ns", "warm_up", "odd"),
    tools=recorders("step"),
)

_KEYS: Final = ("process_id", "device")

#: Minimum share of a step for work that runs on after it to be mentioned.
_NOTABLE: Final = 0.1


@analysis
def steps(report: Report) -> pl.DataFrame:
    """The steps of the framework's profiler that overlap the window, in full.

    A step's window is the range that the profiler marks on the host, so that the ledgers of steps never overlap. Its
    operations may run on after its end (`late_ns`): that time is in the ledger of the next step.

    Returns:
        :data:`TABLE`, by process, device and start; empty if the program has no steps.

    Raises:
        CannotTellError: The report records neither ranges nor operators.
    """
    require(report, TABLE, "range", "op")
    found = intervals.overlapping(report.steps(), report.scope.sides).with_row_index("window")
    if found.is_empty():
        return TABLE.empty()
    rows = found.join(used_devices(report).select(_KEYS), on="process_id", how="left", nulls_equal=True)
    if report.scope.device is not None:
        rows = rows.filter(pl.col("device") == report.scope.device)
    ledgers = window_ledgers(report, found.select("start", "end"))
    rows = rows.join(ledgers, on=["window", "device"], how="left")
    rows = rows.join(_launched(report, found), on=["window", "device"], how="left")
    busy = pl.sum_horizontal((f"{bucket}_ns" for bucket in BUSY_BUCKETS), ignore_nulls=False)
    most = pl.max_horizontal(f"{bucket}_ns" for bucket in IDLE)
    largest = [pl.when(pl.col(f"{bucket}_ns") == most).then(pl.lit(bucket)) for bucket in IDLE]
    length = pl.col("end") - pl.col("start")
    rows = rows.with_columns(
        start_ns="start",
        dur_ns=length,
        busy_ns=busy,
        busy_share=pl.when(length > 0).then(busy / length),
        idle_in=pl.when(most > 0).then(pl.coalesce(largest)),
        operations=pl.col("operations").fill_null(0),
    ).sort(*_KEYS, "start", "event_id")
    if rows.is_empty():
        return TABLE.empty()
    parts = rows.partition_by("process_id", maintain_order=True)
    told = pl.concat([part.with_columns(warmed_up(report, part)) for part in parts])
    return TABLE.select(judged(told, keys=_KEYS))


def told(rows: pl.DataFrame) -> str:
    """A summary of the steps in `rows` (of :func:`steps`), on the first device; empty without rows."""
    if rows.is_empty():
        return ""
    names = pl.Series("window", [step_name(number) for number in rows.get_column("step")], dtype=pl.String)
    text = answer(STEPS, rows.with_columns(names), steps=True)
    first = pl.struct("process_id", "device") == pl.struct("process_id", "device").first()
    device = rows.filter(first & USUAL)
    late = median_of(device, "late_ns")
    if late < _NOTABLE * median_of(device, "dur_ns"):
        return text
    took = time(median_of(device, "gpu_busy_ns"))
    whose, ends = ("Its", "it ends") if device.height == 1 else ("Their", "they end")
    return f"{text} {whose} work on the GPU goes on for {time(late)} after {ends}; a step keeps it busy for {took}."


def _launched(report: Report, found: pl.DataFrame) -> pl.DataFrame:
    """Sums over the operations launched in each step, by window and device.

    An operation belongs to the latest step of its process that started before its launching call, if that had not ended
    by then.
    """
    work = device_operations(report, "call_start").select("device", "process_id", "start", "end", at="call_start")
    known = found.select("process_id", "window", began="start", ended="end")
    own = nearest(work.drop_nulls("at"), known, ("at", "began"), ["process_id"]).filter(pl.col("at") < pl.col("ended"))
    # the time that no earlier operation of the step covers, summed by start, is the union of their run times
    own = own.sort("start", "end").with_columns(
        pl.col("end").cum_max().shift(1).over("window", "device").fill_null(pl.col("start")).alias("reached")
    )
    begin = pl.max_horizontal("start", "reached")
    late = pl.max_horizontal(begin, "ended")
    return own.group_by("window", "device").agg(
        pl.len().cast(pl.Int64).alias("operations"),
        pl.col("start").min().alias("gpu_start_ns"),
        pl.col("end").max().alias("gpu_end_ns"),
        (pl.col("end") - begin).clip(lower_bound=0).sum().alias("gpu_busy_ns"),
        (pl.col("end") - late).clip(lower_bound=0).sum().alias("late_ns"),
    )
