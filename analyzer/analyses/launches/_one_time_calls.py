"""Calls with one-time costs: context creation, loading, graph building, and slow first calls.

Every function returns rows of :data:`COST`, defined in definitions.md, section "Cold and warm".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import launching_rows
from kanalyze.analyses.host._call_kinds import (
    bucket_of,
    calls_that,
    captures,
    cuda_names,
    graph_steps,
    is_launch_name,
    shown,
)
from kanalyze.analyses.host._context_creation import context_calls, unrecorded_contexts
from kanalyze.analyses.launches._graph_launches import graph_launches
from kanalyze.analyses.launches._launch_costs import COLD_FACTOR

if TYPE_CHECKING:
    from kanalyze.report import Report

#: One cost: process, kind, time, duration, and the duration of the same once warm.
COST: Final = {
    "process_id": pl.Int64,
    "device": pl.Int64,
    "category": pl.String,
    "what": pl.String,
    "start": pl.Int64,
    "dur_ns": pl.Int64,
    "warm_ns": pl.Float64,
    "extra_ns": pl.Float64,
    "launch_ns": pl.Int64,
    "evidence": pl.String,
}

#: The kinds of loading calls, by a part of the name; the first match counts, and without a match it is a module.
_LOADING: Final = {"jit": "cuLink|nvrtc|nvJitLink", "library": "Library", "context": "Ctx", "module": ""}

#: Looking up something loaded is slow only the first time, when it loads as well.
_LOOKUP: Final = "Get"

#: A first call that exceeds later ones by less than this may do so by chance.
_WORTH_A_ROW_NS: Final = 1_000


def costs(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` as rows of :data:`COST`; missing columns are null."""
    missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in COST.items() if name not in frame.columns]
    return frame.with_columns(missing).select([pl.col(name).cast(dtype) for name, dtype in COST.items()])


def context_costs(report: Report) -> pl.DataFrame:
    """Context creation, in recorded calls or outside of them."""
    calls, made = report.kind("api"), context_calls(report)
    named = made.select("process_id", "name").unique()
    others = calls.join(named, on=["process_id", "name"], how="semi").join(made, on="event_id", how="anti")
    warm = others.group_by("process_id", "name").agg(warm_ns=pl.col("dur_ns").median(), calls=pl.len())
    known = made.join(warm, on=["process_id", "name"], how="left", nulls_equal=True)
    others_say = pl.format("makes a context; other calls of this name: {}", "calls")
    usual = pl.when(pl.col("made_ns") == pl.col("end_ns")).then(pl.col("warm_ns")).fill_null(0)
    making = pl.col("made_ns") - pl.col("start_ns")
    told = known.with_columns(
        shown(pl.col("name")).alias("what"),
        category=pl.lit("context"),
        start="start_ns",
        dur_ns=making,
        extra_ns=making - usual,
        evidence=pl.when(pl.col("calls") > 0).then(others_say).otherwise(pl.lit("makes a context")),
    )
    sides = [pl.col(side).fill_null(edge) for side, edge in (("before", "the start"), ("after", "the end"))]
    outside = unrecorded_contexts(report).select(
        "process_id",
        category=pl.lit("context"),
        what=pl.format("between {} and {}", *sides),
        start="end",
        evidence=pl.lit("the profiler saw a context made outside of all calls that it records"),
    )
    return pl.concat([costs(told), costs(outside)])


def loading_costs(report: Report) -> pl.DataFrame:
    """Calls that load or compile, and look-ups that took much longer than others of their name."""
    calls = _of_bucket(report, "loading").join(context_calls(report), on="event_id", how="anti")
    text = cuda_names(calls.get_column("name"))
    lookup = text.str.contains(_LOOKUP, literal=True)
    usual = pl.col("dur_ns").median().over("process_id", "name")
    long = (pl.col("dur_ns") > COLD_FACTOR * usual) & (pl.col("dur_ns") - usual >= _WORTH_A_ROW_NS)
    category = pl.lit(None, dtype=pl.String)
    for name, pattern in reversed(_LOADING.items()):
        category = pl.when(text.str.contains(pattern)).then(pl.lit(name)).otherwise(category)
    count = pl.len().over("process_id", "name")
    found = calls.with_columns(
        shown(pl.col("name")).alias("what"),
        category=category,
        start="start_ns",
        warm_ns=pl.when(lookup).then(usual),
        extra_ns=pl.col("dur_ns") - pl.when(lookup).then(usual).otherwise(0),
        evidence=pl.when(lookup)
        .then(pl.format("looks up what it has to load first; calls of this name in the process: {}", count))
        .otherwise(pl.lit("loads or compiles: a warm program does without")),
        kept=long | ~lookup,
    )
    return costs(found.filter("kept"))


def graph_costs(report: Report) -> pl.DataFrame:
    """Captures, instantiations and uploads of CUDA graphs, and slow first launches of graphs."""
    steps = graph_steps(report).filter(pl.col("step").is_in(["instantiate", "upload"]))
    spans = captures(report).with_columns(step=pl.lit("capture"))
    kept = ("process_id", "name", "start", "end", "step")
    made = pl.concat([steps.select(kept), spans.select(kept)]).with_columns(dur_ns=pl.col("end") - pl.col("start"))
    what = pl.when(pl.col("step") == "capture").then(pl.lit("stream capture")).otherwise(shown(pl.col("name")))
    why = "part of making a graph that is launched as often as wanted"
    making = made.with_columns(what.alias("what"), category=pl.lit("graph"), extra_ns="dur_ns", evidence=pl.lit(why))
    return pl.concat([costs(making), _first_graph_launches(report)])


def _first_graph_launches(report: Report) -> pl.DataFrame:
    launches = graph_launches(report).filter("charged").sort("call_start", "launch")
    warm = pl.col("call_ns").slice(1).median()
    sums = launches.group_by("graph", "process_id").agg(
        pl.col("graph_exec_id", "device", "launch_ns").first(),
        start=pl.col("call_start").first(),
        dur_ns=pl.col("call_ns").first(),
        warm_ns=warm,
        later=pl.len() - 1,
    )
    cold = sums.filter(pl.col("dur_ns") > COLD_FACTOR * pl.col("warm_ns"))
    name = pl.col("graph_exec_id").cast(pl.String).fill_null("?")
    return costs(
        cold.with_columns(
            category=pl.lit("first launch"),
            what=pl.format("graph {}", name),
            extra_ns=pl.col("dur_ns") - pl.col("warm_ns"),
            evidence=pl.format("first launch of this CUDA graph; later ones: {}", "later"),
        )
    )


def first_call_costs(report: Report) -> pl.DataFrame:
    """First calls of a process, by name, that took much longer than later ones.

    Excludes calls that launch, were captured, block, load or build graphs: their duration has other causes.
    """
    own = pl.concat([_of_bucket(report, bucket).with_columns(bucket=pl.lit(bucket)) for bucket in _FIRST])
    launching, made = report.kind("api").get_column("event_id").gather(launching_rows(report)), context_calls(report)
    left_out = pl.concat([launching, graph_steps(report).get_column("event_id")])
    names = own.get_column("name").unique()
    launch = names.filter(pl.Series([is_launch_name(name) for name in names.cast(pl.String)], dtype=pl.Boolean))
    reasons = pl.col("event_id").is_in(left_out.implode()) | pl.col("name").is_in(launch.implode())
    calls = own.filter(~reasons).join(made.select("event_id", "made_ns", "end_ns"), on="event_id", how="left")
    # a call that created a context counts only for the time after that
    calls = calls.with_columns(
        pl.coalesce("made_ns", "start_ns").alias("start_ns"),
        pl.coalesce(pl.col("end_ns") - pl.col("made_ns"), "dur_ns").alias("dur_ns"),
    )
    calls = calls.sort("start_ns", "event_id")
    sums = calls.group_by("process_id", "name", maintain_order=True).agg(
        pl.col("bucket").first(),
        start=pl.col("start_ns").first(),
        dur_ns=pl.col("dur_ns").first(),
        warm_ns=pl.col("dur_ns").slice(1).median(),
        later=pl.len() - 1,
    )
    extra = pl.col("dur_ns") - pl.col("warm_ns")
    cold = sums.filter((pl.col("dur_ns") > COLD_FACTOR * pl.col("warm_ns")) & (extra >= _WORTH_A_ROW_NS))
    return costs(
        cold.with_columns(
            shown(pl.col("name")).alias("what"),
            category=pl.col("bucket").replace_strict(_FIRST, return_dtype=pl.String),
            extra_ns=extra,
            evidence=pl.format("the process's first call of this name; later ones: {}", "later"),
        )
    )


#: The buckets whose first calls are examined, and the kind of such a cost.
_FIRST: Final = {"allocation": "allocation", "api": "first call"}


def _of_bucket(report: Report, bucket: str) -> pl.DataFrame:
    """The calls of one bucket in the whole report."""
    columns = ("event_id", "process_id", "name", "start_ns", "dur_ns")
    return calls_that(report, lambda name: bucket_of(name) == bucket, *columns)
