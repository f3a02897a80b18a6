"""Kernels that are timed, each run after a fill that clears the cache: a benchmark, or an autotuner at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._telling import COMPILED, per_iteration, written_with
from kanalyze.analyses.iterations._timed_launches import timed_runs
from kanalyze.analyses.shared.statistics import total

if TYPE_CHECKING:
    from kanalyze.report import Report

_REMEDY: Final = (
    "Where the program is a benchmark, read the times of its kernels alone. What an autotuner chose can be kept "
    "(@triton.autotune(…, cache_results=True), TRITON_CACHE_AUTOTUNING=1; torch.compile does), or be chosen before "
    "what is recorded; fewer configurations take less time."
)
_KEEP: Final = "if an autotuner's: @triton.autotune(…, cache_results=True)"
_KEEP_COMPILED: Final = "record a second run: torch.compile keeps on disk what it chose"


def timed_kernels(report: Report) -> list[Finding]:
    """One finding per device with such fills, on all of them together."""
    runs = timed_runs(report)
    if runs.is_empty():
        return []
    found, per = [], per_iteration(report)
    for (device,), own in _within(report, runs).partition_by("device", as_dict=True, maintain_order=True).items():
        fills, timed = own.filter("fill"), own.filter(~pl.col("fill"))
        if fills.is_empty() or timed.is_empty():
            continue
        sums = timed.group_by(pl.col("name").cast(pl.String)).agg(pl.col("exclusive_ns").sum())
        name = str(sums.sort("exclusive_ns", "name", descending=[True, False]).item(0, "name"))
        stake, many = total(own, "exclusive_ns"), per.plural(own.get_column("run").n_unique(), "run")
        fill, took = total(fills, "exclusive_ns"), total(timed, "exclusive_ns")
        text = (
            f"{many} of kernels, most of {{0}}, are timed: a fill clears the cache before each ({per.time(fill)}), "
            f"and events are around what follows ({per.time(took)}), as triton.testing.do_bench and autotuners do."
        )
        one = Finding("timed-kernels", int(str(device)), stake, text, _REMEDY, "kernels", (name,))
        headline = "Kernels are timed, each run after a fill of the cache: {0}"
        action = _KEEP_COMPILED if written_with(report, name) == COMPILED else _KEEP
        found.append(one._replace(headline=headline, action=action))
    return found


def _within(report: Report, runs: pl.DataFrame) -> pl.DataFrame:
    """The operations in scope that were launched in `runs`: device, name, exclusive_ns, run (its start), fill."""
    work = exclusive_operations(report, "call_start")
    line = work.select("process_id", "device", "name", "exclusive_ns", at="call_start").drop_nulls("at").sort("at")
    begun = runs.select("process_id", "end", "start", at="start").sort("at")
    line = line.join_asof(begun, on="at", by="process_id", check_sortedness=False)
    inside = line.filter(pl.col("at") < pl.col("end"))
    fill = pl.col("at") == pl.col("start")
    return inside.select("device", "name", "exclusive_ns", run="start", fill=fill).sort("device")


RULES: Final = (timed_kernels,)
