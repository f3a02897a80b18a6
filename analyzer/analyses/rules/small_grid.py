"""Kernels with fewer blocks than the GPU has multiprocessors: the rest of the GPU idles while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses._shapes import kernel_shapes
from kanalyze.analyses.rules import Finding
from kanalyze.units import count, plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report


def find(report: Report) -> list[Finding]:
    """One finding per device, on the launch shape that wastes most, with the sum over all of them."""
    found = []
    small = small_grids(report)
    for (device,), shapes in small.partition_by("device", as_dict=True, maintain_order=True).items():
        top = shapes.row(0, named=True)
        more = shapes.height - 1
        stake = int(shapes.get_column("wasted_ns").sum())
        fit = top["sm_count"] * (top["max_threads_per_sm"] or 0)
        threads = top["blocks"] * top["threads"]
        of_fit = f", {plural(threads, 'thread')} of the {count(fit)} that fit" if fit else ""
        others = f" Also: {plural(more, 'other launch shape')} with fewer blocks than SMs." if more else ""
        shape = f"{plural(top['blocks'], 'block')} of {plural(top['threads'], 'thread')}"
        text = f"{{0}} uses {shape} on {count(top['sm_count'])} SMs{of_fit}, for {time(top['alone_ns'])}.{others}"
        remedy = "Give it at least one block per SM, better several: more parallelism, or kernels side by side."
        found.append(
            Finding("small-grid", device, stake, text, remedy, "kernels --by launch-shape", (str(top["name"]),))
        )
    return found


def small_grids(report: Report) -> pl.DataFrame:
    """Launch shapes with fewer blocks than SMs, by device, those first whose empty SMs cost most.

    Returns:
        Columns device, name, blocks, threads (of a block), alone_ns (while no other kernel ran), sm_count,
        max_threads_per_sm, and wasted_ns: alone_ns times the share of SMs without a block, the most that a grid of
        full width can gain.
    """
    limits = report.devices.select(
        "device", "sm_count", max_threads_per_sm=pl.col("max_warps_per_sm") * pl.col("threads_per_warp")
    )
    blocks, threads = (
        pl.col(f"{what}_x").cast(pl.Int64) * pl.col(f"{what}_y") * pl.col(f"{what}_z") for what in ("grid", "block")
    )
    kernels = kernel_shapes(report).filter(pl.col("bucket") == "kernel")
    known = kernels.join(limits, on="device").with_columns(blocks.alias("blocks"), threads.alias("threads"))
    wasted = (pl.col("alone_ns") * (1 - pl.col("blocks") / pl.col("sm_count"))).cast(pl.Int64)
    small = known.filter(pl.col("blocks") < pl.col("sm_count")).with_columns(wasted.alias("wasted_ns"))
    return small.filter(pl.col("wasted_ns") > 0).sort("device", "wasted_ns", "name", descending=[False, True, False])
