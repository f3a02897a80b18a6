"""Statistics of durations, with the columns that every summary of durations has."""

from collections.abc import Sequence
from typing import Final

import polars as pl

from kanalyze.schema import Column, Table


def total(frame: pl.DataFrame, column: str) -> int:
    """The sum of an integer column; 0 for no rows."""
    return int(frame.get_column(column).sum())


def longest(frame: pl.DataFrame, column: str) -> int:
    """The maximum of an integer column; 0 for no value."""
    value = frame.get_column(column).max()
    return value if isinstance(value, int) else 0


def median_of(frame: pl.DataFrame, column: str) -> float:
    """The median of a numeric column; 0 for no value."""
    value = frame.get_column(column).median()
    return float(value) if isinstance(value, int | float) else 0.0


#: The columns count…stddev_ns that every summary of durations has, in nsys' order.
DURATION_COLUMNS = (
    Column("count", pl.Int64, "How many."),
    Column("total_ns", pl.Int64, "Sum of their durations, overlaps counted as often as they occur."),
    Column("share", pl.Float64, "Their part of the sum of this table's total_ns (nsys' Time %, as a fraction)."),
    Column("avg_ns", pl.Float64, "Mean duration."),
    Column("median_ns", pl.Float64, "Median duration."),
    Column("min_ns", pl.Int64, "Shortest."),
    Column("max_ns", pl.Int64, "Longest."),
    Column("stddev_ns", pl.Float64, "Sample standard deviation of the durations; 0 for a single one."),
)


def duration_statistics() -> list[pl.Expr]:
    """Aggregations of dur_ns for :data:`DURATION_COLUMNS`, without `share`, which needs all rows."""
    return [pl.len().cast(pl.Int64).alias("count"), pl.sum("dur_ns").alias("total_ns"), *spread("dur_ns", "", "_ns")]


def spread(column: str, prefix: str, unit: str) -> list[pl.Expr]:
    """Mean, median, minimum, maximum and sample standard deviation of a column, named ``<prefix>avg<unit>`` and so on.

    Without values all are null but the standard deviation, which is then 0, as nsys prints it.
    """
    value = pl.col(column)
    parts = {
        "avg": value.mean(),
        "median": value.median(),
        "min": value.min(),
        "max": value.max(),
        "stddev": value.std().fill_null(0.0),
    }
    return [expression.alias(f"{prefix}{name}{unit}") for name, expression in parts.items()]


def share_of_total(column: str = "total_ns") -> pl.Expr:
    """Share of each row in the sum of a column; 0 where that sum is 0."""
    total = pl.col(column).sum()
    return pl.when(total > 0).then(pl.col(column) / total).otherwise(0.0).alias("share")


def exclusive_sums(table: Table, work: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Sums of operations (`keys`, dur_ns, exclusive_ns) by `keys`, as rows of `table`; the longest first."""
    sums = work.group_by(keys).agg(*duration_statistics(), pl.col("exclusive_ns").sum())
    rows = table.select(sums.with_columns(share_of_total("exclusive_ns")))
    return rows.sort("exclusive_ns", "total_ns", *keys, descending=[True, True, *(False for _ in keys)])


def known_sum(column: str) -> pl.Expr:
    """The sum of a column; null where none of its values is known."""
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum()).alias(column)


# The buckets of the ledger: what each nanosecond of a device's window goes to.

#: The buckets in order of precedence, busy ones before idle ones (definitions.md, section 5).
MEANINGS: Final = {
    "kernel": "kernels running",
    "communication": "only communication kernels running",
    "memcpy": "only copies running",
    "memset": "only memsets running",
    "profiler": "the profiler's own overhead",
    "loading": "creating contexts and loading modules",
    "allocation": "allocating and freeing memory",
    "launch": "launch overhead",
    "queued": "submitted work that waited on the device",
    "sync": "blocking calls",
    "api": "other CUDA calls",
    "host": "the program's own code outside CUDA",
    "unknown": "what the recording does not show",
}
BUCKETS: Final = tuple(MEANINGS)
