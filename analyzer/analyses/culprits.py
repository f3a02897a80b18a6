"""Culprits: the ledger's idle time by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._blame import IDLE, PARTS, blamed, cut_by_ranges, host_culprits, walks_for_blame
from kanalyze.analyses._common import THREAD, analysis, once_per_report, require
from kanalyze.analyses._gap_sums import coded, of_each_gap
from kanalyze.analyses._host import threads
from kanalyze.analyses._walk import Walked, unwalked, walked
from kanalyze.frames import parts_by
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses._blame import Blamed
    from kanalyze.analyses._cuts import Batch, Walk
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
        for walk in walks_for_blame(report):
            table, found[walk.device] = _of_device(walk)
            tables.append(table)
        keep(found)
    return pl.concat(tables).sort(
        "device", "bucket", "ns", "culprit", "range", descending=[False, False, True, False, False]
    )


@once_per_report
def context_culprits(report: Report) -> dict[int, pl.DataFrame]:
    """How long contexts were made in no recorded call, by what :func:`culprits` calls that time, for each device.

    Columns: culprit, range, making_ns. Devices whose processes made none are left out.
    """
    found = {}
    for device, walk in walked(report).items():
        parts = parts_by(pl.concat(walk.unrecorded), THREAD) if walk.unrecorded else {}
        named = [host_culprits(report, key, threads(report)[key], part.sort("start")) for key, part in parts.items()]
        if named:
            lengths = pl.concat(named).with_columns(making_ns=pl.col("end") - pl.col("start"))
            sums = lengths.group_by("culprit", "range").agg(pl.col("making_ns").sum())
            found[device] = sums.with_columns(pl.col("culprit", "range").cast(pl.String))
    return found


_KEYS: Final = ("bucket", "culprit", "range")

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
    for sums, part in walk.of_batches(_of_batch, walk.idle.with_row_index("gap")):
        parts.append(sums)
        found.include(part)
    together = pl.concat(parts).group_by(_KEYS)
    total = together.agg(pl.col("ns").sum(), pl.col("gaps").sum(), pl.col("longest_ns").max())
    share = pl.col("ns") / max(walk.high - walk.low, 1)
    return TABLE.select(total.with_columns(pl.lit(walk.device).alias("device"), share.alias("share"))), found


def _of_batch(batch: Batch) -> tuple[pl.DataFrame, Walked]:
    cuts, found = cut_by_ranges(batch), Walked()
    found.add(batch.walk.report, cuts)
    return _summed(blamed(batch, cuts)), found


def _summed(parts: Blamed) -> pl.DataFrame:
    """The sums over gaps of what :func:`blamed` gives."""
    together = pl.concat([parts.often, parts.once])
    numbered, size = coded(together, _KEYS)
    each = of_each_gap(parts.often.get_column("gap"), numbered.head(parts.often.height), size)
    longest = pl.col("ns").max().alias("longest_ns")
    sums = pl.concat([each, numbered.tail(parts.once.height)]).group_by("code")
    found = sums.agg(pl.col("ns").sum(), pl.len().alias("gaps"), longest, pl.col("at").first())
    told = found.with_columns(together.select(pl.col(_KEYS).gather(found.get_column("at"))))
    return told.select(pl.col(name).cast(dtype) for name, dtype in _SUMS.items())
