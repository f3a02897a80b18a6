"""Culprits: the ledger's idle time by name."""

from __future__ import annotations

from math import prod
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

#: Numbers up to these fit 64 bits and 32 bits with room to spare.
_LARGEST: Final = 1 << 62
_LARGEST_SHORT: Final = 1 << 31

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
    numbers, size = _coded(together)
    coded = pl.DataFrame([numbers, together.get_column("ns")]).with_row_index("at")
    each = _of_each_gap(parts.often.get_column("gap"), coded.head(parts.often.height), size)
    if each is None:
        gaps = together.group_by("gap", *_KEYS).agg(pl.col("ns").sum())
        return _over_gaps(gaps.with_row_index("at"), _KEYS).select(_typed())
    found = _over_gaps(pl.concat([each, coded.tail(parts.once.height)]), ("code",))
    return found.with_columns(together.select(pl.col(_KEYS).gather(found.get_column("at")))).select(_typed())


def _of_each_gap(gaps: pl.Series, coded: pl.DataFrame, size: int) -> pl.DataFrame | None:
    """The sums of equal codes in equal gaps: columns at (of one of those rows), code and ns; None: too many of them."""
    first, last = gaps.min(), gaps.max()
    if not isinstance(first, int) or not isinstance(last, int):
        return coded
    rows = coded.height
    if size * (last - first + 1) * rows > _LARGEST:
        return None
    # sorting one number for gap, code and row takes a tenth of the time that grouping by four columns takes
    keys = ((gaps - first).cast(pl.Int64) * size + coded.get_column("code")) * rows + coded.get_column("at")
    keys = keys.sort()
    same, at = keys // rows, (keys % rows).alias("at")
    reached = pl.DataFrame([at, coded.get_column("ns").gather(at).cum_sum()])
    ends = reached.filter((same != same.shift(-1)).fill_null(value=True))
    each = coded.select(pl.col("at", "code").gather(ends.get_column("at")))
    return each.with_columns(ends.get_column("ns") - ends.get_column("ns").shift(1, fill_value=0))


def _over_gaps(gaps: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    longest = pl.col("ns").max().alias("longest_ns")
    return gaps.group_by(keys).agg(pl.col("ns").sum(), pl.len().alias("gaps"), longest, pl.col("at").first())


def _typed() -> list[pl.Expr]:
    return [pl.col(name).cast(dtype) for name, dtype in _SUMS.items()]


def _coded(parts: pl.DataFrame) -> tuple[pl.Series, int]:
    """One number for bucket, culprit and range, as `code`, and how many such numbers there can be."""
    codes = [pl.col(key).to_physical() for key in _KEYS]
    counts = [(most or 0) + 2 for most in parts.select(code.max() for code in codes).row(0)]
    size = prod(counts)
    number = pl.lit(0, dtype=pl.UInt32 if size < _LARGEST_SHORT else pl.Int64)
    for code, count in zip(codes, counts, strict=True):
        number = number * count + (code.cast(pl.UInt32) + 1).fill_null(0)
    return parts.select(number.alias("code")).to_series(), size
