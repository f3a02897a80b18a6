"""Culprits: the ledger's idle time by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._blame import IDLE, PARTS, blamed
from kanalyze.analyses._common import analysis, in_threads, require
from kanalyze.analyses._walk import walks
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from polars.datatypes import DataType, DataTypeClass

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
            "host: the innermost NVTX range, or the calls that it happened between; launch: the operation that was "
            "launched; queued: what the operation waited for; profiler: its own word; else the call. Null: no name.",
            nullable=True,
        ),
        Column(
            "range",
            pl.String,
            "Innermost NVTX range that the thread was in, from a launch call on the one that the call began in.",
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
    found = [TABLE.empty(), *map(_of_device, walks(report))]
    return pl.concat(found).sort(
        "device", "bucket", "ns", "culprit", "range", descending=[False, False, True, False, False]
    )


_KEYS: Final = ("bucket", "culprit", "range")

_SUMS: Final[dict[str, DataType | DataTypeClass]] = {
    **{key: PARTS[key] for key in _KEYS},
    "ns": pl.Int64,
    "gaps": pl.Int64,
    "longest_ns": pl.Int64,
}


def _of_device(walk: Walk) -> pl.DataFrame:
    missing = (walk.high - walk.low) - (walk.ended - walk.begun)
    unknown = pl.DataFrame([("unknown", None, None, missing, 1, missing)], schema=_SUMS, orient="row")
    parts = [unknown.filter(pl.col("ns") > 0), *in_threads(_of_batch, walk.batches(walk.idle().with_row_index("gap")))]
    together = pl.concat(parts).group_by(_KEYS)
    sums = together.agg(pl.col("ns").sum(), pl.col("gaps").sum(), pl.col("longest_ns").max())
    share = pl.col("ns") / max(walk.high - walk.low, 1)
    return TABLE.select(sums.with_columns(pl.lit(walk.device).alias("device"), share.alias("share")))


def _of_batch(batch: Batch) -> pl.DataFrame:
    gaps = blamed(batch).group_by("gap", *_KEYS).agg(pl.col("ns").sum())
    sums = gaps.group_by(_KEYS).agg(pl.col("ns").sum(), pl.len().alias("gaps"), pl.col("ns").max().alias("longest_ns"))
    return sums.select(pl.col(name).cast(dtype) for name, dtype in _SUMS.items())
