"""Gradients for nothing: of rows of embeddings that no index takes, and of weights that no optimizer updates."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, operations
from kanalyze.analyses.findings import on_gpu, on_host
from kanalyze.analyses.findings.on_gpu import FAMILY, Work
from kanalyze.analyses.findings.on_host import NODE, SPAN, elements, sides
from kanalyze.analyses.findings.rules import Findings, Rule, words_of
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest
from kanalyze.report import Report
from kanalyze.units import percent

_ACCUMULATES: Final = "torch::autograd::AccumulateGrad"  # a gradient is complete: its first input
_UPDATES: Final = FAMILY == "optimizer"

#: Backward of embeddings whose gradients have all rows of the table, which they fill with zeros.
_DENSE: Final = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
_PRODUCTS: Final = r"^aten::(?:linear|addmm|mm|matmul)$"  # with a table that is a layer's weights, too
_SPARSE: Final = 8  # a table has so many times as many rows as there are indices
_WORTH: Final = 0.1  # less of the kernel time is left out


@Rule
def dense_gradients(report: Report) -> Findings:
    """One finding per device with embeddings of many rows, few of which a step looks up."""
    tables = _tables(report)
    unused = total(tables, "unused")
    for device in on_gpu.kernel_sums(report) if unused else ():
        every = on_gpu.with_operators(report, exclusive_operations(report)).filter(device=device.device)
        updates = on_gpu.decoded_as(every, _UPDATES)
        fills = on_gpu.decoded_as(every, FAMILY == "fill") & every.get_column("outer").is_in(_DENSE)
        spared = (
            pl.when(fills)
            .then(unused / total(tables, "values"))
            .when(updates)
            .then(unused / max(total(_gradients(report), "values"), unused))
        )
        rows = every.with_columns(spared=spared).drop_nulls("spared")
        rows = rows.with_columns(saved_ns=on_gpu.part("dur_ns", pl.col("spared")))
        work, saved_ns = Work(report, device, rows), total(rows, "saved_ns")
        yield work.finding(
            "dense-gradients",
            f"Gradients of embeddings have all rows of their tables, of which a step takes {percent(_taken(tables))} "
            f"at most: kernels that fill them, and update all parameters (most {{0}}), take {work.took}.",
            work.most if rows.height else "",
            headline=f"Gradients of embeddings are dense: {percent(saved_ns / device.kernel_ns)} of kernel time",
            at_stake_ns=saved_ns if saved_ns >= _WORTH * device.kernel_ns else 0,
            mending=Mending(rows.select("row", "saved_ns")),
            shortens=True,
        )


def _taken(tables: pl.DataFrame) -> float:
    """The part of the rows of tables that indices take, at most."""
    return 1 - total(tables, "unused") / max(total(tables, "values"), 1)


@once_per_process
def _tables(report: Report) -> pl.DataFrame:
    """The gradients of embeddings with far more rows than indices: values, and how many of these are `unused`."""
    every = on_host.operators(report).with_columns(shape=sides(pl.col("input_shapes")))
    backward = every.filter(pl.col("name").is_in(_DENSE)).select(since="row", until="stop", indices=elements(1))
    zeros = every.filter(pl.col("name") == "aten::zero_").select("row", "shape", values=elements())
    inside = nearest(zeros, backward, ("row", "since")).filter(pl.col("row") < pl.col("until"))
    weights = every.filter(pl.col("name").str.contains(_PRODUCTS)).select(sides(pl.col("input_shapes"), 1)).to_series()
    rows = pl.col("shape").list.first()
    few = inside.filter(rows >= _SPARSE * pl.col("indices"), ~pl.col("shape").is_in(weights.drop_nulls().implode()))
    return few.select("values", unused=pl.col("values") * (1 - pl.col("indices") / rows))


@once_per_process
def _gradients(report: Report) -> pl.DataFrame:
    """The gradients of parameters in order, where their shapes are recorded: SPAN and values."""
    own = on_host.operators(report).filter(pl.col("name") == _ACCUMULATES)
    return own.select(*SPAN, values=elements()).drop_nulls("values").sort("start")


# Weights that are frozen by leaving them out of the optimizer.

_CHUNK: Final = 65_536  # elements of one tensor that a block of an optimizer's kernel updates, in PyTorch's source
_FEWEST: Final = 8  # so many gradients, and this part of all, are of no parameter that is updated
_MOST: Final = 0.5
_STEP: Final = r"^Optimizer\.step#"
_BEGINS: Final = "aten::ones_like"  # the gradient of a loss, with which each backward pass begins


@Rule
def unused_gradients(report: Report) -> Findings:
    """At most one finding per device, where the trace has shapes and the optimizer updates lists of tensors.

    Of several GPUs each may update a part.
    """
    spans = _after_updated(report)
    shared = any(device.launches(FAMILY == "communication") for device in on_gpu.kernel_sums(report))
    if spans.height and not shared:
        updated, every = spans.select("updated", "every").row(0)
        words = words_of("unused-gradients").of(updated=updated, every=every)
        yield from on_host.on_time(report, words, on_host.within(report, spans), f"{words.what}: ")


@once_per_process
def _after_updated(report: Report) -> pl.DataFrame:
    """Backward from where it has all gradients that are updated: SPAN, how many are `updated` of `every` one.

    Empty where these are not the first of each pass, as those of the last layers are, or are most of all, and where
    passes or steps of the optimizer differ, as of several models.
    """
    trace, every = on_host.traced(report), on_host.operators(report)
    begins = every.filter(pl.col("name") == _BEGINS).select(begun="start").sort("begun")
    passes = nearest(_gradients(report), begins, ("start", "begun")).drop_nulls("begun")
    number, chunks = pl.col("begun"), (pl.col("values") / _CHUNK).ceil().cast(pl.Int64)
    passes = passes.with_columns(
        updated=pl.int_range(1, pl.len() + 1).over(number),
        every=pl.len().over(number),
        chunks=chunks.cum_sum().over(number),
    )
    few = (pl.col("every") - pl.col("updated")) >= pl.max_horizontal(_FEWEST, _MOST * pl.col("every"))
    nodes = every.filter(pl.col("name").str.starts_with(NODE)).select("start", until="end")
    ends = nearest(nodes, begins, ("start", "begun")).group_by("begun").agg(pl.col("until").max())
    updated = _chunks_of_a_step(trace, begins.height) if trace is not None else 0
    last = passes.filter(few, pl.col("chunks") == updated, pl.col("every").n_unique() == 1)
    return last.join(ends, on="begun").select(*THREAD, "updated", "every", start="end", end="until")


def _chunks_of_a_step(trace: Report, passes: int) -> int:
    """How many blocks update the parameters once, if each of so many passes of backward has such a step; or else 0."""
    steps = on_host.spans_named(_STEP, trace.kind("op"), trace.kind("range")).select(SPAN).sort(*THREAD, "start")
    kernels = operations(trace, "call_start", "thread_id", *SHAPE).filter(pl.col("kind") == "kernel")
    step = on_gpu.span_of(kernels.select(*THREAD, at="call_start"), steps)
    inside = kernels.with_columns(step.alias("step")).drop_nulls("step")
    lists = on_gpu.decoded_as(inside, _UPDATES)
    if total(inside.filter(~lists), "dur_ns") > total(inside.filter(lists), "dur_ns"):
        return 0
    sums = inside.filter(lists).group_by("step", "name").agg(blocks=pl.col("grid_x").cast(pl.Int64).sum())
    blocks = sums.group_by("step").agg(pl.col("blocks").max()).get_column("blocks")
    return int(blocks[0]) if steps.height == len(blocks) == passes > 0 and blocks.n_unique() == 1 else 0
