"""Sums over views whose elements overlap: windows of a signal, or tensors that were expanded."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings import on_gpu, on_host
from kanalyze.analyses.findings.on_gpu import Work
from kanalyze.analyses.findings.rules import Findings, Rule
from kanalyze.report import Report

_ADDS: Final = r"^aten::(?:nan)?(?:sum|mean|var|std|var_mean|std_mean)$"
_AGAIN: Final = 20  # times that each element is read at least
#: Times that memory is read and written by a running sum and its differences; reading again from caches is that faster.
_PASSES: Final = 10
_WORTH: Final = 0.1  # of the kernel time


@Rule
def overlapping_windows(report: Report) -> Findings:
    """At most one finding per device on sums that read each element many times."""
    sizes, steps = on_host.sides(pl.col("input_shapes")), on_host.sides(pl.col("input_strides"))
    sums = on_host.working(report).filter(pl.col("name").str.contains(_ADDS))
    sums = sums.with_columns(sizes=sizes, steps=steps)
    sums = sums.filter(pl.col("sizes").list.len() == pl.col("steps").list.len(), pl.col("sizes").list.min() > 0)
    stored = ((pl.col("sizes") - 1) * pl.col("steps")).list.sum() + 1
    sums = sums.with_columns(again=pl.col("sizes").list.eval(pl.element().product()).list.first() / stored)
    sums = sums.filter(pl.col("again") >= _AGAIN)
    if sums.is_empty():
        return
    least = min(sums.get_column("again").to_list())
    launched = on_host.within(report, sums).mending.gone
    for device in on_gpu.kernel_sums(report):
        own = (pl.col("kind") == "kernel") & (pl.col("device") == device.device)
        work = Work(report, device, exclusive_operations(report).filter(own & pl.col("row").is_in(launched.implode())))
        if work.rows.height:
            yield work.finding(
                "overlapping-windows",
                f"Sums read each element {least:,.0f} times and more, {work.took} (most {{0}}): over windows that "
                "overlap, or a tensor that was expanded.",
                work.most,
                left=min(_PASSES / least, 1.0),
                least=_WORTH,
                at_most=True,
            )
