"""Work of the CPU on managed memory, whose pages it faults in one by one while the GPU waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._telling import per_iteration
from kanalyze.analyses.host._worlds import OPENACC, OPENMP, world
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.memory._unified_moves import faulting_host
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Fewer page faults are of what every program touches.
_FEWEST: Final = 8

#: A function is named where it has this share of the time.
_MOST: Final = 0.5

_PREFETCH: Final = "prefetch it to the CPU before its loop, or do that on the GPU"
_COPY: Final = "map(to: …) and map(from: …) in place of managed memory, or do that on the GPU"


def cpu_page_faults(report: Report) -> list[Finding]:
    """At most one finding per device, on all of the CPU's work in which it faults on managed memory."""
    found = []
    for device, inside in faulting_host(report).items():
        claims = inside.select("start", "end").unique().sort("start")
        stake = intervals.length(claims)
        if total(inside, "faults") >= _FEWEST and stake >= max(least_worth_saying(report)[device], 1):
            found.append(_finding(report, device, inside, claims))
    return found


def _finding(report: Report, device: int, inside: pl.DataFrame, claims: pl.DataFrame) -> Finding:
    per, stake = per_iteration(report), intervals.length(claims)
    ns = (pl.col("end") - pl.col("start")).sum()
    each = inside.unique("start", keep="first").group_by("function").agg(ns=ns).drop_nulls()
    functions = each.sort("ns", "function", descending=[True, False]).with_columns(pl.col("function").cast(pl.String))
    named = ", ".join(f"{literal(name)} {per.mean_time(ns)}" for name, ns in functions.head(3).iter_rows())
    kernels = operations(report).filter((pl.col("kind") == "kernel") & (pl.col("device") == device))
    last = int(str(kernels.get_column("end").max() or 0))
    after = intervals.length(claims.filter(pl.col("start") >= last))
    behind = f" {time(after)} of that is after the last kernel." if after else ""
    text = (
        f"The CPU works on managed memory for {per.time(stake)} while GPU {device} waits, and faults in "
        f"{plural(total(inside, 'faults'), 'page')} as it goes{f': {named}' if named else ''}.{behind}"
    )
    top = functions.row(0) if functions.height else ("", 0)
    return Finding(
        "cpu-page-faults",
        device,
        stake,
        text,
        "Move what the CPU reads with one prefetch, or one copy, before its loop; or let a kernel do that work.",
        "faults",
        headline="The CPU works on managed memory, page by page",
        action=_COPY if world(report) in (OPENMP, OPENACC) else _PREFETCH,
        where=literal(str(top[0])) if top[1] >= _MOST * stake else "",
        claims=claims,
    )


RULES: Final = (cpu_page_faults,)
