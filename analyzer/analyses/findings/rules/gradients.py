"""Gradients of embeddings that have all rows of a table, few of which are looked up."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings import on_gpu, on_host
from kanalyze.analyses.findings.on_gpu import FAMILY, Work
from kanalyze.analyses.findings.on_host import elements, sides
from kanalyze.analyses.findings.rules import Findings, Rule
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.statistics import total
from kanalyze.columns import nearest
from kanalyze.report import Report
from kanalyze.units import percent

#: Backward of embeddings whose gradients have all rows of the table, which they fill with zeros, and what calls it.
_DENSE: Final = r"^aten::(?:embedding_dense_backward|_embedding_bag_dense_backward)$"
_AROUND: Final = r"^aten::(?:embedding|_embedding_bag)(?:_dense)?_backward$"
_PRODUCTS: Final = (
    r"^aten::(?:linear|addmm|mm|matmul|bmm|baddbmm|einsum)$"  # with a table that is a layer's weights, too
)
_ACCUMULATES: Final = "torch::autograd::AccumulateGrad"  # a gradient is complete: its first input
_STEP: Final = r"^Optimizer\.step#"
_SPARSE: Final = 8  # a table has so many times as many rows as a step of the optimizer has indices
_WORTH: Final = 0.1  # less of the kernel time is left out


@Rule
def dense_gradients(report: Report) -> Findings:
    """One finding per device with embeddings of many rows, few of which a step looks up, by a trace with shapes."""
    tables = _tables(report)
    filled, summed = (max(tables.get_column(name).sum(), 1.0) for name in ("filled", "summed"))
    unused = tables.filter(pl.col("taken") <= 1 / _SPARSE)
    unfilled, unsummed = unused.select((pl.col("filled", "summed") * (1 - pl.col("taken"))).sum()).row(0)
    for device in on_gpu.kernel_sums(report) if unfilled and unsummed else ():
        every = on_gpu.with_operators(report, exclusive_operations(report)).filter(device=device.device)
        updates, fills = on_gpu.decoded_as(every, FAMILY == "optimizer"), on_gpu.decoded_as(every, FAMILY == "fill")
        fills &= every.get_column("outer").str.contains(_AROUND).fill_null(value=False)
        spared = pl.when(fills).then(unfilled / filled).when(updates).then(unsummed / summed)
        rows = every.with_columns(spared=spared).drop_nulls("spared")
        rows = rows.with_columns(saved_ns=on_gpu.part("dur_ns", pl.col("spared")))
        saved_ns, most = total(rows, "saved_ns"), float(unused.get_column("taken").max())  # type: ignore[arg-type]
        if saved_ns < _WORTH * device.kernel_ns:
            continue
        work = Work(report, device, rows)
        yield work.finding(
            "dense-gradients",
            f"Gradients of embeddings have all rows of their tables, of which a step takes {percent(most)} at most: "
            f"kernels that fill these, and that update all parameters (most {{0}}), take {work.took}.",
            work.most,
            headline=f"Gradients of embeddings are dense: {percent(saved_ns / device.kernel_ns)} of kernel time",
            at_stake_ns=saved_ns,
            at_most=True,  # an optimizer of sparse gradients sorts and sums their rows, table by table
            left=None,
        )


@once_per_process
def _tables(report: Report) -> pl.DataFrame:
    """Shapes of gradients: filled (elements that backward of embeddings fills), summed (elements of all), taken.

    `taken` is the part of the rows that have an index in a step of the optimizer, at most: null for what is no table of
    embeddings, or is the weight of a layer as well.
    """
    every = on_host.operators(report).with_columns(sides=sides(pl.col("input_shapes")), values=elements())
    name, trace = pl.col("name"), on_host.traced(report)
    steps = on_host.spans_named(_STEP, trace.kind("op"), trace.kind("range")).height if trace is not None else 0
    backward = every.filter(name.str.contains(_DENSE)).select(since="row", until="stop", indices=elements(1))
    fills = nearest(every.filter(name == "aten::zero_"), backward, ("row", "since")).filter(
        pl.col("row") < pl.col("until")
    )
    fills = fills.group_by("sides").agg(filled=pl.col("values").sum(), indices=pl.col("indices").sum())
    sums = every.filter(name == _ACCUMULATES).group_by("sides").agg(summed=pl.col("values").sum())
    shapes = sums.drop_nulls().join(fills.drop_nulls(), on="sides", how="full", coalesce=True)
    products = every.filter(name.str.contains(_PRODUCTS))
    factors = pl.concat(products.select(sides=sides(pl.col("input_shapes"), at)) for at in range(3))
    both = factors.select(pl.concat([pl.col("sides"), pl.col("sides").list.reverse()])).drop_nulls().unique()
    free = ~pl.col("sides").is_in(both.get_column("sides").implode())
    taken = pl.when(free, pl.lit(steps) > 0).then(pl.col("indices") / max(steps, 1) / pl.col("sides").list.first())
    return shapes.select(pl.col("filled", "summed").fill_null(0), taken=taken)
