"""Tail effect: kernels whose last wave of blocks only partly fills the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._launch_shapes import SHAPE, other_shapes
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.occupancy.occupancy import launch_occupancy
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import count, percent, plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Smaller tail effects, as a share of a kernel's time, are below the variation between blocks.
_WORTH: Final = 0.1


def find(report: Report) -> list[Finding]:
    """One finding per device: the launch shape with the largest loss, and the sum over all.

    The loss is what an even last wave would save if all blocks took equally long, however full their SM.
    """
    found = []
    launches = launch_occupancy(report).filter(
        (pl.col("bucket") == "kernel") & (pl.col("tail_share") >= _WORTH) & (pl.col("tail_ns") > 0)
    )
    ordered = launches.sort(
        "device", "tail_ns", "name", *SHAPE, descending=[False, True, *(False for _ in ("", *SHAPE))]
    )
    for (device,), shapes in ordered.partition_by("device", as_dict=True, maintain_order=True).items():
        top = shapes.row(0, named=True)
        room = top["blocks_per_sm"] * top["sm_count"]
        more = other_shapes(shapes)
        others = f" Also: {plural(more, 'other launch shape')} with such a tail." if more else ""
        text = (
            f"{{0}} has {plural(top['blocks'], 'block')} where {count(room)} run at once, for {time(top['alone_ns'])}: "
            f"its last wave holds {count(top['blocks'] % room)}, and leaves {percent(top['tail_share'])} of that "
            f"idle if all blocks take as long.{others}"
        )
        remedy = (
            f"Make the grid a multiple of what runs at once ({count(room)} blocks), or let each block take several "
            "parts of the work; or run other kernels beside it."
        )
        stake, names = total(shapes, "tail_ns"), (str(top["name"]),)
        found.append(Finding("tail", device, stake, text, remedy, "occupancy", names))
    return found
