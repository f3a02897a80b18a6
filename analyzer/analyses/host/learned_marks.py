"""Steps of serving engines that have no labels, by what is launched between reads of the tokens.

A step ends where its thread reads from the device. It is a decode step where most of its work is a replay of CUDA
graphs; one that is launched kernel by kernel is mixed where it runs the kernels that all decode steps have and other
such steps lack, else prefill. So much is learned only of a program that serves: nothing of it is a backward pass, some
steps compute attention kernel by kernel, and others replay graphs of several batches.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import families, operations
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest_place
from kanalyze.report import Report

#: Copies from the device; calls that launch a graph; kernels of training.
_READS: Final = r"(?i)DtoH|device-to-host"
LAUNCHES_GRAPH: Final = "GraphLaunch"
_TRAINS: Final = r"(?i)backward|bwd|_grad|dgrad|wgrad|optimizer|adam"

#: Fewest steps of a thread that serves, kernels of a step, and different replays.
_FEWEST: Final = 16
_KERNELS: Final = 8
_SIZES: Final = 2

#: What part of a step's GPU time in graphs makes it a replay; and of steps that have a kernel, that all have it.
REPLAYED: Final = 0.5
_ALL: Final = 0.9

_MARKS: Final = {**dict.fromkeys((*THREAD, "start", "end"), pl.Int64), "kind": pl.String}


def learned_marks(report: Report) -> pl.DataFrame:
    """The steps of threads that serve: :data:`THREAD`, start, end and kind; none of other programs."""
    found = [pl.DataFrame(schema=_MARKS)]
    calls, kernels = (report.kind(kind).get_column("name").unique().cast(pl.String) for kind in ("api", "kernel"))
    if not calls.str.contains(LAUNCHES_GRAPH).any() or kernels.str.contains(_TRAINS).any():
        return found[0]
    work = operations(report, "call_name", "call_start", "call_end", "thread_id").drop_nulls("call_start")
    replays = pl.col("call_name").cast(pl.String).str.contains(LAUNCHES_GRAPH)
    ran = pl.col("end") - pl.col("start")
    work = work.with_columns(pl.col("name").cast(pl.String), ran=ran, replayed=ran * replays).sort("call_start")
    for thread, own in work.partition_by(THREAD, as_dict=True, maintain_order=True).items():
        reads = own.filter(pl.col("detail").cast(pl.String).str.contains(_READS))
        ends = reads.get_column("call_start").unique().sort()
        at = nearest_place(ends, own.get_column("call_start"), later=True, equal=True).alias("step")
        begun = own.with_columns(at).filter(pl.col("step") > 0)  # what is before the first read may be more than a step
        steps = _of_thread(begun) if len(ends) >= _FEWEST else found[0]
        key = [pl.lit(value, pl.Int64).alias(name) for name, value in zip(THREAD, thread, strict=True)]
        found.append(steps.with_columns(key).select(list(_MARKS)))
    return pl.concat(found)


def _of_thread(work: pl.DataFrame) -> pl.DataFrame:
    """The steps of a thread's work (with step, ran, replayed): start, end and kind; none where it does not serve."""
    kernels = pl.col("kind").is_in(["kernel", "graph"])
    steps = work.group_by("step").agg(
        start=pl.col("call_start").min(),
        end=pl.col("call_end").max(),
        replay=pl.col("replayed").sum() >= REPLAYED * pl.col("ran").sum().clip(1),
        name=pl.col("name").filter(kernels).unique().sort(),
        number=kernels.sum(),
    )
    steps = steps.filter(pl.col("replay") | (pl.col("number") >= _KERNELS)).sort("start")
    names = steps.select("step", "replay", "name").explode("name")
    names = names.with_columns(families(names.get_column("name")))
    attends = names.filter(~pl.col("replay"), pl.col("family") == "attention").get_column("step").unique()
    replays = steps.filter("replay")
    if replays.get_column("name").n_unique() < _SIZES or attends.is_empty():
        return pl.DataFrame(schema=_MARKS)
    served = pl.col("replay") | pl.col("step").is_in(attends.implode())
    steps, names = steps.filter(served), names.filter(served)
    always, alone = pl.col("replay").sum() >= _ALL * replays.height, (~pl.col("replay")).sum() < len(attends)
    of_decode = names.group_by("name").agg(of_decode=always & alone).filter("of_decode").get_column("name")
    mixed = names.filter(pl.col("name").is_in(of_decode.implode())).get_column("step").unique()
    kind = pl.when("replay").then(pl.lit("decode")).when(pl.col("step").is_in(mixed.implode())).then(pl.lit("mixed"))
    return steps.with_columns(kind=kind.otherwise(pl.lit("prefill")))
