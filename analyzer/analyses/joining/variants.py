"""Compares implementations of one operation: the time of each, and how well it uses the GPU.

Implementations are identified by the program's own ranges: ranges of different names that each contain a range of one
name, such as ``timed`` in ``torch``, ``cuda`` and ``triton``.
"""

from __future__ import annotations

from typing import Any, Final, Unpack

import polars as pl

from kanalyze.analyses.joining._kernel_groups import GROUP_KEYS, kernel_groups, measured_groups, same_kernels
from kanalyze.analyses.joining._report_set import Together, of_each, several, together
from kanalyze.analyses.ranges.range_gpu import range_gpu
from kanalyze.analyses.shared.analysis import require
from kanalyze.analyses.shared.statistics import total as total_of
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table
from kanalyze.window import Window

#: ncu's columns about the heaviest kernel: name and meaning.
_COUNTERS: Final = (
    ("ncu_dur_ns", pl.Int64, "Its duration alone, under replay."),
    ("occupancy_share", pl.Float64, "Theoretical Occupancy."),
    ("achieved_occupancy_share", pl.Float64, "Achieved Occupancy."),
    ("limiter", pl.String, "What limits its resident blocks."),
    ("compute_share", pl.Float64, "Compute (SM) Throughput of its peak."),
    ("memory_share", pl.Float64, "Memory Throughput of its peak."),
    ("dram_bytes_per_s", pl.Float64, "Achieved bandwidth."),
    ("bound", pl.String, "What takes longer at its peak: memory or compute."),
    ("roof_share", pl.Float64, "The least time by the duration: 1 is on the roof."),
)

TABLE: Final = Table(
    "variants",
    "One implementation of an operation that the program ran in several, each in a range of its own.",
    (
        Column("variant", pl.String, "Name of its range."),
        Column("inside", pl.String, "The range in it that is compared, its last instance."),
        Column("repeats", pl.Int64, "Ranges directly in that one that launched anything; 1 where there is none."),
        Column("avg_span_ns", pl.Float64, "From the first operation's start to the last end, for each of them."),
        Column("avg_kernel_ns", pl.Float64, "Time of its kernels, each instant once, for each of them."),
        Column("slower", pl.Float64, "That by the kernel time of the fastest variant."),
        Column("launches", pl.Float64, "Launches of kernels, for each of them."),
        Column("kernels", pl.Int64, "Different kernels and launch shapes."),
        Column("measured_share", pl.Float64, "Part of its kernel time in kernels that ncu measured.", nullable=True),
        Column("kernel", pl.String, "The heaviest kernel, which the rest is of.", nullable=True),
        Column("kernel_share", pl.Float64, "Its part of the kernel time.", nullable=True),
        Column("registers", pl.Int64, "Registers of a thread.", nullable=True),
        Column("shared_bytes", pl.Int64, "Shared memory of a block.", nullable=True),
        Column("ncu_match", pl.String, "How sure it is that ncu saw the same kernel, as in `joined`.", nullable=True),
        *(Column(name, dtype, doc, nullable=True) for name, dtype, doc in _COUNTERS),
    ),
    purpose="implementations of one operation, side by side",
    telling=("variant", "avg_span_ns", "avg_kernel_ns", "slower", "launches"),
    together=True,
)

SEVERAL: Final = several(TABLE)


def variants(*reports: Report, **where: Unpack[Where]) -> pl.DataFrame:
    """The implementations that the program ran, the fastest first; empty if its ranges show none.

    Args:
        reports: As :func:`kanalyze.joined` takes them.
        where: As there.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: No report provides the time, or it lacks ranges or kernels.
    """
    return of_each(TABLE, together(TABLE, reports, where), _variants_of)


def _variants_of(found: Together) -> pl.DataFrame:
    """:func:`variants` for one report that provides the time, and the others."""
    require(found.base, TABLE.name, "range")
    require(found.base, TABLE, "kernel")
    measured = _measured(found.base.whole, found.ncu)
    rows = [_row(found.base, one, measured) for one in _instances(found.base).to_dicts()]
    schema = {column.name: column.dtype for column in TABLE.columns if column.name != "slower"}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    least = pl.col("avg_kernel_ns").min()
    slower = pl.when(least > 0).then((pl.col("avg_kernel_ns") / least).clip(1.0)).otherwise(1.0)
    return TABLE.select(frame.with_columns(slower=slower).sort("avg_kernel_ns", "variant"))


def _instances(report: Report) -> pl.DataFrame:
    """The range to analyse of each variant: columns variant, inside, start, end, repeats."""
    ranges = range_gpu(report, trace=True, graphs=True)
    outer = ranges.select(parent_id="event_id", variant="range", level="level")
    inner = ranges.join(outer, on="parent_id", suffix="_outer")
    several = inner.filter(pl.col("variant").n_unique().over("range", "level_outer") > 1)
    highest = several.filter(pl.col("level_outer") == pl.col("level_outer").min())
    last = highest.sort("projected_start_ns").group_by("variant", maintain_order=True).last()
    common = last.group_by("range").len().sort("len", "range", descending=[True, False]).head(1)
    chosen = last.join(common, on="range", how="semi")
    repeats = ranges.group_by(event_id="parent_id").agg(repeats=pl.len().cast(pl.Int64))
    return chosen.join(repeats, on="event_id", how="left").select(
        pl.col("variant").str.strip_prefix(":"),
        pl.col("range").str.strip_prefix(":").alias("inside"),
        start="projected_start_ns",
        end=pl.col("projected_start_ns") + pl.col("projected_ns"),
        repeats=pl.col("repeats").fill_null(1),
    )


def _measured(base: Report, ncu: Report | None) -> pl.DataFrame | None:
    """Measurements by ncu of the kernel groups of the whole report, by :data:`GROUP_KEYS`."""
    if ncu is None:
        return None
    pairs = same_kernels(base, ncu).rename({"match": "ncu_match"})
    told = measured_groups(ncu).select("group", *(name for name, _, _ in _COUNTERS))
    both = pairs.join(told, left_on="right", right_on="group").drop("right")
    groups = kernel_groups(base).select("group", *GROUP_KEYS)
    return groups.join(both, left_on="group", right_on="left").drop("group")


def _row(report: Report, one: dict[str, Any], measured: pl.DataFrame | None) -> dict[str, Any]:
    groups = kernel_groups(report.narrow(window=Window(one["start"], one["end"])))
    if measured is not None:
        groups = groups.join(measured, on=GROUP_KEYS, how="left", nulls_equal=True)
    groups = groups.sort("exclusive_ns", "name", descending=[True, False])
    total, repeats = total_of(groups, "exclusive_ns"), one["repeats"]
    row = {
        **{name: one[name] for name in ("variant", "inside", "repeats")},
        "avg_span_ns": (one["end"] - one["start"]) / repeats,
        "avg_kernel_ns": total / repeats,
        "launches": total_of(groups, "count") / repeats,
        "kernels": groups.height,
    }
    if not total:
        return row
    first = groups.row(0, named=True)
    if measured is not None:
        known = total_of(groups.filter(pl.col("ncu_match").is_not_null()), "exclusive_ns")
        row |= {"measured_share": known / total, "ncu_match": first["ncu_match"] or "none"}
        row |= {name: first[name] for name, _, _ in _COUNTERS}
    return row | {
        "kernel": first["name"],
        "kernel_share": first["exclusive_ns"] / total,
        "registers": first["registers"],
        "shared_bytes": first["shared"],
    }
