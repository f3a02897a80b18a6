"""Gradients of DistributedDataParallel that are reduced for each batch of an optimizer's step."""

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.device._windows import spans_of_bucket
from kanalyze.analyses.findings import rules, say
from kanalyze.analyses.shared.analysis import named_ranges
from kanalyze.columns import beside, nearest
from kanalyze.report import Report

#: Ranges of PyTorch around a batch's forward pass, and around the update of parameters.
_FORWARD: Final = "DistributedDataParallel.forward"
_UPDATE: Final = "Optimizer.step#"

_TEXTS: Final = pl.col("name").cast(pl.String)


@rules.Rule
def repeated_reductions(report: Report) -> rules.Findings:
    """At most one finding per device."""
    # forward passes with the update that follows, but before several updates in a row: each may be of another network
    ranges, process, by = named_ranges(report), ["process_id"], ["process_id", "update"]
    updates = ranges.filter(_TEXTS.str.starts_with(_UPDATE)).select(*process, update="start").sort("update")
    batches = ranges.filter(_TEXTS == _FORWARD).select(*process, "thread_id", batch="start")
    following = nearest(updates, batches, ("update", "batch"), process, "after")
    in_a_row = pl.col("update").shift(-1).over(process) < pl.col("batch").fill_null(intervals.AFTER_ALL)
    several = following.filter(in_a_row | in_a_row.shift(1).over(process)).select(by)
    batches = nearest(batches, updates, ("batch", "update"), process, "after").drop_nulls("update")
    batches = batches.join(several, on=by, how="anti")
    if batches.is_empty():
        return
    facts = exclusive_operations(report, "process_id", "thread_id", "call_start").drop_nulls("call_start")
    facts = facts.filter(pl.col("bucket") == "communication", _TEXTS.str.contains("(?i)all_?reduce"))
    reduced = nearest(facts, batches, ("call_start", "batch"), process)
    # gradients are reduced by a thread of autograd; what the program's own reduces is something else
    reduced = reduced.filter(pl.col("thread_id") != pl.col("thread_id_right"))
    reduced = beside(reduced, report.table("collective_detail"), "in_elements")
    counts = reduced.group_by(*by, "batch").agg(reductions=pl.len(), elements=pl.col("in_elements").sum()).sort("batch")
    is_last = pl.col("batch") == pl.col("batch").last().over(by)
    # under no_sync the last batch alone reduces gradients, more than others reduce of what else there is
    sums = ("reductions", "elements")
    as_last = pl.all_horizontal(pl.col(name) == pl.col(name).last().over(by) for name in sums)
    needless = counts.filter(~is_last, as_last)
    if needless.height < say.fewest_in(report):
        return
    number = 1 + int(needless.group_by(by).len().select(pl.col("len").median()).item())
    gone = reduced.join(needless, on=[*by, "batch"], how="semi")
    for (device,), work in gone.group_by("device", maintain_order=True):
        claims = intervals.intersect(intervals.union(work), spans_of_bucket(report, device, "communication"))
        yield say.told(report, "repeated-reductions", device, claims, batches=number, reductions=work.height)
