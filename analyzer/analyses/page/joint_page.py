"""Page of one program recorded by several tools: the time page with counters and operators joined to its kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import polars as pl

from kanalyze.analyses.counters._kernel_rules import (
    COMPUTE,
    FEW_BLOCKS,
    LATENCY,
    LOW,
    MEMORY,
    UNKNOWN,
    bound,
    paragraph,
)
from kanalyze.analyses.counters.advice import kernel_facts
from kanalyze.analyses.findings._doubts import with_late
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.joining._match_kernels import same_kernels
from kanalyze.analyses.joining._report_set import Together, together
from kanalyze.analyses.joining.gains import gains_among
from kanalyze.analyses.joining.joined import joined_of
from kanalyze.analyses.page.counters_page import CounterSummary, summarize_counters
from kanalyze.analyses.page.overview_page import Overview, overview
from kanalyze.analyses.page.time_page import Summary, summarize
from kanalyze.units import percent, time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Unpack

    from kanalyze.analyses.page.overview_page import PageKernels
    from kanalyze.report import Meta, Report, Where

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


@dataclass(frozen=True)
class JointSummary:
    """Content of the page of several reports.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        summary: The page of the report that gives the time.
        metas: Origin of all reports, that one first.
        joined: The table `joined`.
        gains: The table `gains`; None where no report has counters.
        outside: Number of kernel groups by other tool that have no time because they ran outside the window.
    """

    kind: ClassVar[Literal["joint"]] = "joint"

    summary: Summary
    metas: list[Meta]
    joined: pl.DataFrame
    gains: pl.DataFrame | None
    outside: Mapping[str, int]

    @property
    def tools(self) -> list[str]:
        """The distinct tools, the one that gives the time first."""
        return list(dict.fromkeys(meta.tool for meta in self.metas))


def summarize_together(*reports: Report, **where: Unpack[Where]) -> list[JointSummary | Summary | CounterSummary]:
    """Makes the pages of reports of one program by different tools: one per report that gives the time.

    A report that no other belongs to, or without kernels to join with, has a plain page. Reports that are then on no
    page have pages of their own at the end.

    Raises:
        CannotTellError: No report gives the time.
    """
    found = together("joined", reports, where)
    others = [summarize_counters(one) if one.meta.timeless else summarize(one) for one in _alone(found)]
    return [*map(_page, found), *others]


def overviews_together(
    *reports: Report, whole: bool = False, as_recorded: bool = False, **where: Unpack[Where]
) -> list[Overview | CounterSummary]:
    """Makes the first pages of reports of one program by different tools, as :func:`summarize_together` does."""
    found = together("joined", reports, where)
    page = partial(overview, whole=whole, as_recorded=as_recorded)
    others = [summarize_counters(one) if one.meta.timeless else page(one) for one in _alone(found)]
    return [*(_overview(each, page) for each in found), *others]


def _alone(found: Sequence[Together]) -> dict[Report, None]:
    """The reports that are on no page of others, in order."""
    joint = {one for each in found if _can_join(each) for one in each.given}
    return dict.fromkeys(one for each in found for one in each.given[1:] if one not in joint)


def _overview(found: Together, made: Callable[..., Overview]) -> Overview:
    if not _can_join(found):
        return made(found.base)
    ncu, rows = found.ncu, cache(partial(joined_of, found))
    beside = None if ncu is None else lambda kernels: slow_kernels(rows(), ncu, kernels)
    page = made(found.base, beside=beside)
    others = [one.meta for one in found.given[1:]]
    joined = rows() if page.steady is None else None
    return replace(page, others=others, joined=joined, tables=with_late(page.tables, found.base, found.given[1:]))


def _can_join(found: Together) -> bool:
    return len(found.reports) > 1 and "kernel" in found.base.kinds


def _page(found: Together) -> JointSummary | Summary:
    if not _can_join(found):
        return summarize(found.base)
    rows, summary = joined_of(found), summarize(found.base)
    return JointSummary(
        summary=replace(summary, tables=with_late(summary.tables, found.base, found.given[1:])),
        metas=[one.meta for one in found.given],
        joined=rows,
        gains=gains_among(rows, found.ncu) if found.ncu is not None else None,
        outside={other.meta.tool: _outside(found.base, other) for other in found.reports[1:]},
    )


def _outside(base: Report, other: Report) -> int:
    """Number of kernel groups of another report that match the whole of `base`, but not its narrowed part."""
    if base.whole is base:
        return 0
    inside = same_kernels(base, other)
    return same_kernels(base.whole, other).join(inside, on="right", how="anti").height


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
