"""Metrics of ncu as columns, a row per kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import polars as pl

from kanalyze.errors import CannotTellError
from kanalyze.report import Report
from kanalyze.schema import Table


def require_counters(report: Report, table: Table) -> None:
    """Raises :class:`CannotTellError` unless the report has counters and no window is set."""
    if not report.meta.timeless:
        raise CannotTellError.without_counters(table.name, report.meta.path)
    if report.scope.window is not None:
        raise CannotTellError.timeless(f"{table.name} of a window", report.meta.path)


def measured_kernels(report: Report, table: Table, metrics: Iterable[str]) -> pl.DataFrame:
    """All kernels in scope with `metrics`, in the order of measurement.

    Returns:
        Columns event_id, name, dur_ns, process_id, device, those of kernel_config, and a Float64 column for each of
        `metrics`, null if not collected.

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    require_counters(report, table)
    kernels = report.seen("kernel").select("event_id", pl.col("name").cast(pl.String), "dur_ns", "process_id", "device")
    placed = kernels.join(report.kernel_config, on="event_id", how="left", maintain_order="left")
    return placed.join(metric_columns(report, metrics), on="event_id", how="left", maintain_order="left")


def metric_columns(report: Report, metrics: Iterable[str]) -> pl.DataFrame:
    """One column per metric, a row per kernel that has any; with event_id."""
    wanted = list(dict.fromkeys(metrics))
    rows = report.table("metrics").filter(pl.col("metric").is_in(wanted)).select("event_id", "metric", "value")
    wide = rows.pivot(on="metric", on_columns=wanted, index="event_id", values="value", aggregate_function="first")
    return wide.select("event_id", *wanted)


def share(*metrics: str) -> pl.Expr:
    """A percentage as a share of 1, of the first of `metrics` that was collected."""
    return pl.coalesce(metrics) / 100


def ratio(part: str | pl.Expr, whole: str | pl.Expr) -> pl.Expr:
    """The ratio of two columns, null if the divisor is zero."""
    by = pl.col(whole) if isinstance(whole, str) else whole
    return pl.when(by > 0).then((pl.col(part) if isinstance(part, str) else part) / by)


def whole(metric: str | pl.Expr) -> pl.Expr:
    """Rounds a count, which ncu stores as a floating-point number."""
    return ((pl.col(metric) if isinstance(metric, str) else metric) + 0.5).floor().cast(pl.Int64, strict=False)


#: Each reason with its meaning, and whether it is a wait (`selected` is the issue itself).
REASONS: Final = {
    "long_scoreboard": ("data from global, local or texture memory", True),
    "short_scoreboard": ("data from shared memory, or a special function", True),
    "math_pipe_throttle": ("an execution pipe that is busy", True),
    "mio_throttle": ("the queue for shared memory and special functions", True),
    "lg_throttle": ("the queue for global and local memory", True),
    "tex_throttle": ("the queue for textures", True),
    "barrier": ("other warps at a barrier of the block", True),
    "membar": ("a memory barrier", True),
    "wait": ("the result of an instruction before it, of fixed latency", True),
    "no_instruction": ("instructions to be fetched", True),
    "imc_miss": ("constants to be fetched", True),
    "drain": ("stores to complete before it exits", True),
    "branch_resolving": ("a branch to be resolved", True),
    "dispatch_stall": ("the dispatcher", True),
    "gmma": ("other warps of a warpgroup, or its matrix products", True),
    "sleeping": ("the end of a sleep", True),
    "misc": ("something else in the hardware", True),
    "not_selected": ("its turn: another warp was issued instead", False),
    "selected": ("nothing: it was issued", False),
}


#: Cycles between two instructions of a warp, which the stall reasons divide among themselves.
LATENCY: Final = "smsp__average_warp_latency_per_inst_issued.ratio"


def stall_metric(reason: str) -> str:
    """The metric of ncu for the cycles that warps spend with `reason` per instruction issued."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
