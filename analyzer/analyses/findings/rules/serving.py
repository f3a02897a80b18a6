"""Steps of serving engines that take longer than their law says."""

from __future__ import annotations

import polars as pl

from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal
from kanalyze.analyses.serving.step_laws import HOST, slow_steps
from kanalyze.report import Report
from kanalyze.units import plural, time


@Rule
def slow_engine_steps(report: Report) -> Findings:
    """One finding per device on the kind of steps, and part of their time, with most time above the law."""
    slow, keys = slow_steps(report), ["device", "kind", "mode", "part"]
    lengths = dict(windows(report).select("device", pl.col("end") - pl.col("start")).iter_rows())
    groups = slow.group_by(keys).agg(more_ns=pl.col("more_ns").sum(), count=pl.len())
    groups = groups.sort("more_ns", *keys, descending=[True, *(False for _ in keys)])
    for row in groups.unique("device", keep="first", maintain_order=True).iter_rows(named=True):
        own = slow.filter(*(pl.col(name) == row[name] for name in keys))
        worst = own.sort("more_ns", "index", descending=[True, False]).row(0, named=True)
        steps = plural(row["count"], f"{row['kind']} step")
        of = "the host" if row["part"] == HOST else "the GPU"
        yield Finding(
            "slow-steps",
            row["device"],
            min(int(row["more_ns"]), lengths.get(row["device"], 0)),
            f"{steps} took {time(row['more_ns'])} of {of} more than others of that kind with as many tokens, most in "
            f"step {worst['index']}, {literal(worst['label'])}: {time(worst['ns'])}, by law {time(worst['law_ns'])}.",
            "See what ran in these steps: a first launch, a kernel that is loaded, compiled or planned for a length, "
            "memory that is allocated, a collection of garbage. Warm up with the lengths that will come.",
            "step_laws",
            headline=f"{steps} take longer than others with as many tokens",
            action=f"look into step {worst['index']}; warm up with the lengths that will come",
            vague=True,
            general=True,
        )
