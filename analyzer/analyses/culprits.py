"""Culprits: the ledger's idle time by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._blame import IDLE, PARTS, blamed, cut_by_ranges
from kanalyze.analyses._common import analysis, in_threads, require
from kanalyze.analyses._walk import Walked, unwalked, walked, walks
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses._blame import Blamed
    from kanalyze.analyses._walk import Batch, Walk
    from kanalyze.report import Report

TABLE: Final = Table(
    "culprits",
    "One reason for which a device was idle, by name; the rows of a bucket sum to the ledger's.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("bucket", pl.Enum(IDLE), "The ledger's bucket: " + ", ".join(IDLE) + "."),
        Column(
            "culprit",
            pl.String,
            "host: the innermost operator, annotation or Python function of a trace, else the innermost range, or what "
            "it happened between; launch: the operation that was launched; queued: what the operation waited for; "
            "profiler: its own word; else the call. Null: no name.",
            nullable=True,
        ),
        Column(
            "range",
            pl.String,
            "Innermost range that the thread was in, from a launch call on the one that the call began in; "
            "ProfilerStep* for every step of torch's profiler.",
            nullable=True,
        ),
        Column("ns", pl.Int64, "Time."),
        Column("share", pl.Float64, "Part of the device's window."),
        Column("gaps", pl.Int64, "In how many gaps."),
        Column("longest_ns", pl.Int64, "The most in one gap."),
    ),
)


@analysis
def culprits(report: Report) -> pl.DataFrame:
    """Why each device was idle, by name.

    Returns:
        :data:`TABLE`, by device and bucket, in the ledger's order, the longest first.

    Raises:
        CannotTellError: The report records no device operations at all.
    """
    require(report, TABLE.name, *DEVICE_KINDS)
    tables, found = [TABLE.empty()], {}
    with walked.found_elsewhere(report) as keep:  # the ledger needs the same walk
        for walk in walks(report):
            table, found[walk.device] = _of_device(walk)
            tables.append(table)
        keep(found)
    return pl.concat(tables).sort(
        "device", "bucket", "ns", "culprit", "range", descending=[False, False, True, False, False]
    )


_KEYS: Final = ("bucket", "culprit", "range")

#: Numbers up to this fit 64 bits with room to spare.
_LARGEST: Final = 1 << 62

_SUMS: Final[dict[str, DataType | DataTypeClass]] = {
    **{key: PARTS[key] for key in _KEYS},
    "ns": pl.Int64,
    "gaps": pl.Int64,
    "longest_ns": pl.Int64,
}


def _of_device(walk: Walk) -> tuple[pl.DataFrame, Walked]:
    missing = (walk.high - walk.low) - (walk.ended - walk.begun)
    unknown = pl.DataFrame([("unknown", None, None, missing, 1, missing)], schema=_SUMS, orient="row")
    parts, found = [unknown.filter(pl.col("ns") > 0)], unwalked(walk)
    for sums, part in in_threads(_of_batch, walk.batches(walk.idle().with_row_index("gap"))):
        parts.append(sums)
        found.include(part)
    together = pl.concat(parts).group_by(_KEYS)
    total = together.agg(pl.col("ns").sum(), pl.col("gaps").sum(), pl.col("longest_ns").max())
    share = pl.col("ns") / max(walk.high - walk.low, 1)
    return TABLE.select(total.with_columns(pl.lit(walk.device).alias("device"), share.alias("share"))), found


def _of_batch(batch: Batch) -> tuple[pl.DataFrame, Walked]:
    cuts, found = cut_by_ranges(batch), Walked()
    for part in cuts:
        found.add(batch.walk.report, part)
    return _summed(blamed(batch, cuts)), found


def _summed(parts: Blamed) -> pl.DataFrame:
    """The sums over gaps of what :func:`blamed` gives."""
    together = pl.concat([parts.often, parts.once])
    code, size = _coded(together)
    first, last = together.select(pl.col("gap").min(), last=pl.col("gap").max()).row(0)
    if together.is_empty() or size * (last - first + 1) > _LARGEST:
        gaps = together.group_by("gap", *_KEYS).agg(pl.col("ns").sum())
        return _over_gaps(gaps.with_row_index("at"), _KEYS).select(_typed())
    coded = together.select(code.alias("code"), "ns", key=(pl.col("gap") - first).cast(pl.Int64) * size + code)
    coded = coded.with_row_index("at")
    gaps = pl.concat(
        [_of_each_gap(coded.head(parts.often.height)), coded.tail(parts.once.height).select("at", "code", "ns")]
    )
    found = _over_gaps(gaps, ("code",))
    return found.with_columns(together.select(pl.col(_KEYS).gather(found.get_column("at")))).select(_typed())


def _of_each_gap(coded: pl.DataFrame) -> pl.DataFrame:
    """The sums of equal keys: columns at (of one of those rows), code and ns."""
    # sorting by one number takes a tenth of the time that grouping by four columns takes
    line = coded.select(pl.all().gather(coded.get_column("key").arg_sort()))
    ends = (line.get_column("key") != line.get_column("key").shift(-1)).fill_null(value=True)
    sums = line.select("at", "code", pl.col("ns").cum_sum()).filter(ends)
    return sums.with_columns(pl.col("ns") - pl.col("ns").shift(1, fill_value=0))


def _over_gaps(gaps: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    longest = pl.col("ns").max().alias("longest_ns")
    return gaps.group_by(keys).agg(pl.col("ns").sum(), pl.len().alias("gaps"), longest, pl.col("at").first())


def _typed() -> list[pl.Expr]:
    return [pl.col(name).cast(dtype) for name, dtype in _SUMS.items()]


def _coded(parts: pl.DataFrame) -> tuple[pl.Expr, int]:
    """One number for bucket, culprit and range, and how many such numbers there can be."""
    code, size = pl.lit(0, dtype=pl.Int64), 1
    for key in _KEYS:
        values = pl.col(key).to_physical().cast(pl.Int64)
        count = (parts.select(values.max()).item() or 0) + 2
        code, size = code * count + values.fill_null(-1) + 1, size * count
    return code, size
