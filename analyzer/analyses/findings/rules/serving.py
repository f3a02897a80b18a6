"""Steps of serving engines that take longer than their law says."""

from __future__ import annotations

import polars as pl

from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Findings, Rule, literal, words_of
from kanalyze.analyses.serving.step_laws import HOST, slow_steps
from kanalyze.report import Report
from kanalyze.units import plural, time


@Rule
def slow_engine_steps(report: Report) -> Findings:
    """One finding per device on the kind of steps, and part of their time, with most time above the law."""
    keys = ["device", "kind", "mode", "part"]
    lengths = dict(windows(report).select("device", pl.col("end") - pl.col("start")).iter_rows())
    slow = slow_steps(report).with_columns(all_ns=pl.col("more_ns").sum().over(keys), count=pl.len().over(keys))
    order = {"all_ns": True, **dict.fromkeys(keys, False), "more_ns": True, "index": False}
    worst = slow.sort(list(order), descending=list(order.values())).unique("device", keep="first", maintain_order=True)
    for row in worst.iter_rows(named=True):
        steps = plural(row["count"], f"{row['kind']} step")
        of = "the host" if row["part"] == HOST else "the GPU"
        longer = " Tokens in the cache, of which no label tells, may be why." * (of == "the GPU" and row["kv"] is None)
        yield words_of("slow-steps").finding(
            row["device"],
            f"{steps} took {time(row['all_ns'])} of {of} more than others of that kind with as many tokens, most in "
            f"step {row['index']}, {literal(row['label'])}: {time(row['ns'])}, by law {time(row['law_ns'])}.{longer}",
            None,
            min(int(row["all_ns"]), lengths.get(row["device"], 0)),
            headline=f"{steps} take longer than others with as many tokens",
            action=f"look into step {row['index']}; warm up with the lengths that will come",
            vague=True,
            general=True,
        )
