"""Kernels with fewer blocks than the GPU has SMs, so that the remaining SMs idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses.device._launch_shapes import SHAPE, other_shapes
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.occupancy.occupancy import launch_occupancy
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import count, plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report


def find(report: Report) -> list[Finding]:
    """One finding per device: the launch shape that wastes most, and the sum over all.

    A launch either leaves SMs without a block, or has more blocks than fit at once; `tail` and `low-occupancy` look at
    the latter.
    """
    found = []
    small = small_grids(report)
    for (device,), shapes in small.partition_by("device", as_dict=True, maintain_order=True).items():
        top = shapes.row(0, named=True)
        fit = top["sm_count"] * (top["max_threads_per_sm"] or 0)
        threads = top["blocks"] * top["threads"]
        of_fit = f", {plural(threads, 'thread')} of the {count(fit)} that fit" if fit else ""
        more = other_shapes(shapes)
        others = f" Also: {plural(more, 'other launch shape')} with fewer blocks than SMs." if more else ""
        shape = f"{plural(top['blocks'], 'block')} of {plural(top['threads'], 'thread')}"
        text = f"{{0}} uses {shape} on {count(top['sm_count'])} SMs{of_fit}, for {time(top['alone_ns'])}.{others}"
        remedy = "Give it at least one block per SM, better several: more parallelism, or kernels side by side."
        stake, names = total(shapes, "idle_sm_ns"), (str(top["name"]),)
        found.append(Finding("small-grid", device, stake, text, remedy, "occupancy", names))
    return found


def small_grids(report: Report) -> pl.DataFrame:
    """Launch shapes with fewer blocks than SMs, by device, the most idle SM time first.

    Returns:
        Columns device, name, those of the shape, blocks, threads (per block), sm_count, max_threads_per_sm, alone_ns
        (time while no other kernel ran), and idle_sm_ns: alone_ns times the share of SMs without a block, the most that
        a full grid can gain.
    """
    launches = launch_occupancy(report).filter((pl.col("bucket") == "kernel") & (pl.col("idle_sm_ns") > 0))
    fit = pl.col("max_warps_per_sm") * pl.col("threads_per_warp")
    shape = ("device", "name", *SHAPE, "blocks", "threads", "sm_count")
    # one shape may have run with several shared-memory configurations of the SM
    sums = launches.group_by(*shape, fit.alias("max_threads_per_sm")).agg(pl.col("alone_ns", "idle_sm_ns").sum())
    order = ("device", "idle_sm_ns", "name", *SHAPE)
    return sums.sort(order, descending=[False, True, *(False for _ in order[2:])])
