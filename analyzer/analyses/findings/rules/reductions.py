"""Gradients of DistributedDataParallel that are reduced for each batch of an optimizer's step."""

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings import rules, say
from kanalyze.analyses.idle._attribution import ledger_pieces
from kanalyze.analyses.shared.analysis import named_ranges
from kanalyze.columns import nearest
from kanalyze.report import Report

#: Ranges of PyTorch around a batch's forward pass, and around the update of parameters.
_FORWARD: Final = "DistributedDataParallel.forward"
_UPDATE: Final = "Optimizer.step#"


@rules.Rule
def repeated_reductions(report: Report) -> rules.Findings:
    """At most one finding per device."""
    ranges, texts, by = named_ranges(report), pl.col("name").cast(pl.String), ["process_id"]
    updates = ranges.filter(texts.str.starts_with(_UPDATE)).select("process_id", update="start")
    batches = ranges.filter(texts == _FORWARD).select("process_id", "end", batch="start")
    batches = nearest(batches, updates, ("batch", "update"), by, "after").drop_nulls("update")
    batches = batches.with_columns(of_update=pl.len().over("process_id", "update"))
    reduced = (
        exclusive_operations(report, "process_id", "call_start")
        .drop_nulls("call_start")
        .filter(pl.col("bucket") == "communication", texts.str.contains("(?i)all_?reduce"))
    )
    # what a layer reduces in its forward pass is no gradient
    reduced = nearest(reduced, batches, ("call_start", "batch"), by).filter(pl.col("call_start") > pl.col("end_right"))
    counts = reduced.group_by(*by, "update", "batch").agg(reductions=pl.len()).sort("batch")
    is_last = pl.col("batch") == pl.col("batch").last().over(*by, "update")
    # under no_sync the last batch alone reduces gradients, more than others reduce of what else there is
    as_last = pl.col("reductions") == pl.col("reductions").last().over(*by, "update")
    needless = counts.filter(~is_last, as_last)
    if needless.height < say.fewest_in(report):
        return
    gone = reduced.join(needless, on=[*by, "update", "batch"], how="semi")
    exposed = ledger_pieces(report).filter(bucket="communication")
    for (device,), work in gone.group_by("device", maintain_order=True):
        claims = intervals.intersect(intervals.union(work), exposed.filter(device=device).select("start", "end"))
        number = work.get_column("of_update").max()
        yield say.told(report, "repeated-reductions", device, claims, batches=number, reductions=work.height)
