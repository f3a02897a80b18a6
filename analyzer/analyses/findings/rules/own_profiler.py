"""A profiler of PyTorch that the program itself starts, and that is on in most of its steps."""

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.findings import on_host, rules
from kanalyze.analyses.findings.on_host import SPAN
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.replay._host_time import BY_TOOL
from kanalyze.analyses.replay._unprofiled import LEFT_ON, profiled_part
from kanalyze.analyses.shared.analysis import source_lines
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.report import Report

#: Of a longer time before a launch (ns) only the end is by operators, which a profiler makes slower.
_LONGEST_NS: Final = 1_000_000

#: Lines of the program that work for its profiler: steps of it, and what becomes of what it recorded.
_PROFILING: Final = (
    r"\b(?:p|prof|profiler?)\.step\(|\bprof(?:iler?)?\.(?:start|stop)\(|on_trace_ready|key_averages\("
    r"|export_(?:chrome_trace|stacks)\("
)


@rules.Rule
def profiler_left_on(report: Report) -> rules.Findings:
    """At most one finding per device."""
    runs = report.whole.bare().marked
    of_rank = [run for run in runs if run.rank == report.meta.rank] or runs
    part, line = min(((profiled_part(run), run.profiler) for run in of_rank), default=(0.0, ""))
    if part >= LEFT_ON:
        # the end of the time before each launch, as much as is gone without torch.profiler
        kept = BY_TOOL["torch.profiler"].usual.kept
        before_ns = pl.col("call_start") - pl.col("call_end").shift(1).over(THREAD)
        gone_ns = (before_ns.clip(upper_bound=_LONGEST_NS) * (1 - kept)).cast(pl.Int64)
        slower = on_host.launched(report).with_columns(start=pl.col("call_start") - gone_ns, end="call_start")
        lines = source_lines(report).filter(pl.col("text").cast(pl.String).str.contains(_PROFILING))
        parts = [slower.drop_nulls("start").select(SPAN), lines.with_columns(**intervals.OF_EVENTS).select(SPAN)]
        spans = pl.concat(parts, how="vertical_relaxed").filter(pl.col("end") > pl.col("start"))
        inside = on_host.own_within(report, intervals.union_by(spans, THREAD))
        inside = inside._replace(mending=Mending(host=inside.mending.host))
        yield from on_host.on_time(report, "profiler-left-on", inside, where=rules.literal(line), part=part)
