"""The metrics of ncu as columns: a row per kernel, each metric under its own name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.errors import CannotTellError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kanalyze.report import Report


def require_counters(report: Report, table: str) -> None:
    """Raise :class:`CannotTellError` unless the report has counters, which `table` is of, and is looked at whole."""
    if not report.meta.timeless:
        raise CannotTellError.without_counters(table, report.meta.path)
    if report.scope.window is not None:
        raise CannotTellError.timeless(f"{table} of a window", report.meta.path)


def measured_kernels(report: Report, table: str, metrics: Iterable[str]) -> pl.DataFrame:
    """Every kernel in scope with `metrics`, in the order in which ncu measured them.

    Returns:
        Columns event_id, name, dur_ns, process_id, device, those of kernel_config, and a Float64 column for each of
        `metrics`, null where it was not collected.

    Raises:
        CannotTellError: The report has no counters, or a window is looked at: ncu's kernels have no place in time.
    """
    require_counters(report, table)
    kernels = report.seen("kernel").select("event_id", pl.col("name").cast(pl.String), "dur_ns", "process_id", "device")
    placed = kernels.join(report.kernel_config, on="event_id", how="left", maintain_order="left")
    return placed.join(metric_columns(report, metrics), on="event_id", how="left", maintain_order="left")


def metric_columns(report: Report, metrics: Iterable[str]) -> pl.DataFrame:
    """Column event_id, and a column for each of `metrics`; a row per kernel that has any."""
    wanted = list(dict.fromkeys(metrics))
    rows = report.table("metrics").filter(pl.col("metric").is_in(wanted)).select("event_id", "metric", "value")
    wide = rows.pivot(on="metric", on_columns=wanted, index="event_id", values="value", aggregate_function="first")
    return wide.select("event_id", *wanted)


def share(*metrics: str) -> pl.Expr:
    """A percentage as a share of 1; the first of `metrics` that was collected."""
    return pl.coalesce(metrics) / 100


def ratio(part: str | pl.Expr, whole: str | pl.Expr) -> pl.Expr:
    """One column by another, null where the other is nothing."""
    by = pl.col(whole) if isinstance(whole, str) else whole
    return pl.when(by > 0).then((pl.col(part) if isinstance(part, str) else part) / by)


def whole(metric: str | pl.Expr) -> pl.Expr:
    """A count, which ncu keeps as a number with decimals: the nearest whole one."""
    return ((pl.col(metric) if isinstance(metric, str) else metric) + 0.5).floor().cast(pl.Int64, strict=False)
