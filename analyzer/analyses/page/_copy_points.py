"""Copies of an HTML report by size and bandwidth, against the most that the recording shows of each direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import device_operations, with_facts
from kanalyze.exact import rate

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Points of the picture; the sizes with least time are left out.
_POINTS: Final = 400

#: The least size of a copy that shows what its link can do: below it, the start of a copy takes most of its time.
LARGE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class CopyPoints:
    """Copies by direction, kinds of memory and size.

    Attributes:
        points: direction, source_memory, target_memory, size_bytes, count, total_ns, bandwidth_bytes_per_s; those with
            most time first.
        links: The highest bandwidth of a large copy by direction: direction, size_bytes, bandwidth_bytes_per_s. No
            report says what a link can do; this is what it did.
        left_out: Copies in no point, since there are too many sizes.
    """

    points: pl.DataFrame
    links: pl.DataFrame
    left_out: int


def copy_points(report: Report) -> CopyPoints | None:
    """The copies in scope whose size is known; None without a large one, which alone shows what a link can do."""
    named = ("direction", "source_memory", "target_memory")
    work = device_operations(report).filter(pl.col("kind") == "memcpy")
    copies = with_facts(report, work, "size_bytes", *named).with_columns(pl.col(named).cast(pl.String))
    copies = copies.filter((pl.col("size_bytes") > 0) & (pl.col("dur_ns") > 0))
    large = copies.filter(pl.col("size_bytes") >= LARGE_BYTES)
    if large.is_empty():
        return None
    fastest = large.with_columns(bandwidth_bytes_per_s=rate(pl.col("size_bytes"), pl.col("dur_ns")))
    keys = [*named, "size_bytes"]
    sums = copies.group_by(keys).agg(count=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum())
    told = sums.with_columns(bandwidth_bytes_per_s=rate(pl.col("size_bytes") * pl.col("count"), pl.col("total_ns")))
    points = told.sort("total_ns", *keys, descending=[True, *[False] * 4]).head(_POINTS)
    order = fastest.sort("bandwidth_bytes_per_s", "size_bytes", descending=True)
    links = order.group_by("direction", maintain_order=True).first()
    return CopyPoints(
        points,
        links.select("direction", "size_bytes", "bandwidth_bytes_per_s"),
        copies.height - int(points.get_column("count").sum()),
    )
