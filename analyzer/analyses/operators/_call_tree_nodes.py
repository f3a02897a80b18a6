"""The nodes of the call tree: host events and device operations, merged by call path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.operators._event_tree import in_subtrees, sums_by
from kanalyze.analyses.operators._events import HOST_KINDS, host_tree
from kanalyze.analyses.operators._paths import path_numbers, plain_names
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import mixed
from kanalyze.columns.lookup import gathered
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.report import Report

#: Kinds of nodes: threads, events, and the remainder of omitted nodes.
KINDS: Final = ("thread", *HOST_KINDS, *DEVICE_KINDS, "rest")

#: The summable columns of nodes.
SUMS: Final = ("count", "host_ns", "self_host_ns", "device_ns", "self_device_ns")

_COLUMNS: Final[dict[str, DataType | DataTypeClass]] = {
    "path": pl.UInt64,
    "outer": pl.UInt64,
    "kind": pl.Enum(KINDS),
    "name": pl.String,
    **dict.fromkeys(SUMS, pl.Int64),
}


def nodes(report: Report) -> pl.DataFrame:
    """The nodes of the call tree in scope, unordered.

    Columns: path (the node's number), outer (number of the enclosing node; 0 for none), kind, name, count, host_ns and
    self_host_ns (clipped to the window), device_ns and self_device_ns (exclusive time; an operation launched by a host
    event is a node of its own).
    """
    tree, ran = host_tree(report), launched_work(report)
    root = pl.col("parent").is_null()
    label = pl.when(root).then(mixed(["kind", "name", *THREAD])).otherwise(mixed(["kind", "name"]))
    named = tree.rows.with_columns(plain_names(tree.rows))
    everything = named.select(pl.col("start").is_not_null()).to_series()
    numbers = path_numbers(named, everything, named.select(label).to_series())
    own = sums_by(ran.get_column("maker"), ran.get_column("exclusive_ns"), named.height)
    rows = _in_window(report, named).with_columns(
        numbers.alias("path"),
        gathered(numbers, tree.rows.get_column("parent")).fill_null(0).alias("outer"),
        pl.lit(0, dtype=pl.Int64).alias("self_device_ns"),
        in_subtrees(tree.rows, own).alias("device_ns"),
    )
    host = rows.filter((pl.col("count") > 0) | (pl.col("device_ns") > 0)).with_columns(pl.col("name").cast(pl.String))
    said = [pl.col(name).first() for name in ("outer", "kind", "name", *THREAD)]
    merged = host.group_by("path").agg(*said, pl.col(SUMS).sum())
    return pl.concat([*_under_threads(merged), _typed(_leaves(ran, numbers))])


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(dtype) for name, dtype in _COLUMNS.items())


def _in_window(report: Report, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds count (1 for rows that overlap the window), host_ns and self_host_ns (clipped to the window)."""
    window = report.scope.window
    low, high = (None, None) if window is None else (window.start_ns, window.end_ns)
    begun = pl.lit(value=True) if high is None else pl.col("start") < high
    going_on = pl.lit(value=True) if low is None else (pl.col("end") > low) | (pl.col("start") == low)
    cut = rows.with_columns(
        (begun & going_on).cast(pl.Int64).alias("count"),
        (pl.col("end").clip(low, high) - pl.col("start").clip(low, high)).alias("host_ns"),
    )
    inner = sums_by(rows.get_column("parent"), cut.get_column("host_ns"), rows.height)
    return cut.with_columns((cut.get_column("host_ns") - inner).alias("self_host_ns"))


def _under_threads(merged: pl.DataFrame) -> list[pl.DataFrame]:
    """The nodes of host events, below a node per thread if there are several threads."""
    roots = merged.filter(pl.col("outer") == 0)
    number = mixed([*THREAD]) | 1
    threads = roots.group_by(number.alias("path"), *THREAD).agg(pl.col("host_ns", "device_ns").sum())
    if threads.height < 2:  # noqa: PLR2004 - one thread needs no name
        return [_typed(merged)]
    zero = pl.lit(0, dtype=pl.Int64)
    named = threads.with_columns(
        pl.lit(0, dtype=pl.UInt64).alias("outer"),
        pl.lit("thread").alias("kind"),
        pl.format("thread {}", "thread_id").alias("name"),
        pl.lit(1, dtype=pl.Int64).alias("count"),
        zero.alias("self_host_ns"),
        zero.alias("self_device_ns"),
    )
    below = pl.when(pl.col("outer") == 0).then(number).otherwise("outer").alias("outer")
    return [_typed(named), _typed(merged.with_columns(below))]


def _leaves(ran: pl.DataFrame, numbers: pl.Series) -> pl.DataFrame:
    """The nodes of device operations."""
    made = ran.select(
        gathered(numbers, ran.get_column("maker")).fill_null(0).alias("outer"), "kind", "name", "exclusive_ns"
    )
    sums = made.group_by("outer", "kind", "name").agg(pl.len().alias("count"), pl.col("exclusive_ns").sum())
    zero = pl.lit(0, dtype=pl.Int64)
    return sums.with_columns(
        mixed(["outer", "kind", "name"]).alias("path"),
        zero.alias("host_ns"),
        zero.alias("self_host_ns"),
        pl.col("exclusive_ns").alias("device_ns"),
        pl.col("exclusive_ns").alias("self_device_ns"),
    )
