"""Sums over views whose elements overlap: windows of a signal, or tensors that were expanded."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.findings import on_host
from kanalyze.analyses.findings.rules import Findings, Rule
from kanalyze.report import Report

_ADDS: Final = r"^aten::(?:nan)?(?:sum|mean|var|std|var_mean|std_mean)$"
_AGAIN: Final = 20  # times that each element is read at least
#: Times that memory is read and written by a running sum and its differences; reading again from caches is that faster.
_PASSES: Final = 10


@Rule
def overlapping_windows(report: Report) -> Findings:
    """At most one finding per device on sums that read each element many times."""
    sizes, steps = on_host.sides(pl.col("input_shapes")), on_host.sides(pl.col("input_strides"))
    # what a sum's gradient expands is nobody's to change
    sums = on_host.working(report).filter(pl.col("name").str.contains(_ADDS))
    sums = sums.join(on_host.forward(report), on="row", how="semi")
    sums = sums.with_columns(sizes=sizes, steps=steps)
    sums = sums.filter(pl.col("sizes").list.len() == pl.col("steps").list.len(), pl.col("sizes").list.min() > 0)
    stored = ((pl.col("sizes") - 1) * pl.col("steps")).list.sum() + 1
    sums = sums.with_columns(again=pl.col("sizes").list.eval(pl.element().product()).list.first() / stored)
    sums = sums.filter(pl.col("again") >= _AGAIN)
    again = min(sums.get_column("again").to_list(), default=1.0)
    for work in on_host.works_within(report, sums):
        left = min(_PASSES / again, 1.0)
        yield work.finding("overlapping-windows", work.most, left=left, at_most=True, again=again)
