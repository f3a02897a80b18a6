"""Kernels with much of a page's time that run far below their roof, by ncu's counters of the same kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.counters._bottleneck import COMPUTE, FEW_BLOCKS, LATENCY, MEMORY, UNKNOWN, bound, paragraph
from kanalyze.analyses.counters._kernel_rules import LOW
from kanalyze.analyses.counters.advice import kernel_facts
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.units import percent, time

if TYPE_CHECKING:
    from typing import Any

    from kanalyze.analyses.page.overview_page import PageKernels
    from kanalyze.report import Report

#: Kernels from this share of the time on are told.
_MUCH: Final = 0.1

#: At least this part of a kernel's time is in launch shapes that ncu measured.
_MEASURED: Final = 0.5

#: Launches of one shape are alike up to this factor between their durations: other data may take far more.
_ALIKE: Final = 1.5

#: What to do, by what holds a kernel back.
_ACTIONS: Final = {
    FEW_BLOCKS: "a block for each SM at least, or other kernels beside it",
    MEMORY: "fewer bytes: narrower types, reuse in the cache, neighbours side by side",
    COMPUTE: "another algorithm, narrower types, tensor cores",
    LATENCY: "more independent work in each thread, more resident warps",
    UNKNOWN: "ncu --set full says what holds it back",
}


def slow_kernels(joined: pl.DataFrame, ncu: Report, page: PageKernels) -> list[Finding]:
    """Findings on kernels that take a tenth of the page's time or more, at less than 60 % of their roof.

    `joined` is the table of that name; of it counts what `ncu` measured of the same launches, or of others of the same
    shape that took about as long.
    """
    took = pl.col("exclusive_ns").alias("took_ns")
    much = page.hot.filter(pl.col("exclusive_ns") >= max(_MUCH * page.whole_ns, 1)).select("name", took)
    slow = much.join(_roofs(joined), on="name", maintain_order="left").filter(pl.col("roof_share") < LOW)
    rows = [row for row in slow.iter_rows() if page.whole_ns and row[0] not in page.told]
    facts = {row["event_id"]: row for row in kernel_facts(ncu).to_dicts()} if rows else {}
    return [_finding(page, str(name), ns, roof, facts[event_id]) for name, ns, event_id, roof in rows]


def _roofs(joined: pl.DataFrame) -> pl.DataFrame:
    """How near each kernel comes to its roof, where ncu measured most of its time: name, event_id, roof_share.

    `event_id` is that of the launch shape with most of its time.
    """
    longer = pl.col("ncu_dur_ns") / pl.col("avg_ns")
    alike = (pl.col("ncu_match") == "shape") & longer.is_between(1 / _ALIKE, _ALIKE)
    same = (pl.col("ncu_match") == "exact") | alike.fill_null(value=False)
    sure = same & pl.col("event_id").is_not_null() & pl.col("roof_share").is_not_null()
    ns = pl.col("exclusive_ns").fill_null(0)
    measured = ns.filter(sure).sum()
    sums = (
        joined.sort("exclusive_ns", descending=True, nulls_last=True)
        .group_by("name", maintain_order=True)
        .agg(
            pl.col("event_id").filter(sure).first(),
            roof_share=(ns * pl.col("roof_share")).filter(sure).sum() / measured,
            part=measured / ns.sum(),
        )
    )
    return sums.filter(pl.col("part") >= _MEASURED).select("name", "event_id", "roof_share")


def _finding(page: PageKernels, name: str, took_ns: int, roof_share: float, facts: dict[str, Any]) -> Finding:
    action, roof = _ACTIONS[bound(facts)], percent(roof_share)
    told = (
        f"{{0}} takes {time(took_ns)}, {percent(took_ns / page.whole_ns)} of the time, and runs at {roof} of its roof."
    )
    return Finding(
        "far-from-roof",
        page.device,
        int(took_ns * (1 - roof_share)),
        f"{told} {literal(paragraph(facts))}",
        remedy=f"{action[0].upper()}{action[1:]}.",
        table="gains",
        names=(name,),
        headline=f"A kernel at {roof} of its roof: {{0}}",
        action=action,
        shortens=True,
    )
