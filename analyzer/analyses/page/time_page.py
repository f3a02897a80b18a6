"""Pages with all tables: of a recording ("where did the time go?"), of what ncu measured, and of one program's both."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, Unpack

import polars as pl

from kanalyze import machinery, schema, tools
from kanalyze.analyses import declarations, homes
from kanalyze.analyses.counters import advice, counters
from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.device._windows import process_count
from kanalyze.analyses.device.occupancy import BY_KERNEL
from kanalyze.analyses.findings._doubts import with_late
from kanalyze.analyses.findings.findings import by_gain, ordered
from kanalyze.analyses.findings.health import health
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.host._call_kinds import interface
from kanalyze.analyses.host.engine_marks import engine_marks
from kanalyze.analyses.idle import code
from kanalyze.analyses.joining._report_set import Together, together
from kanalyze.analyses.joining.joined import gains_among, joined_of
from kanalyze.analyses.memory import memory
from kanalyze.analyses.operators._host_names import told
from kanalyze.analyses.operators._kernel_groups import same_kernels
from kanalyze.analyses.page import overview_page
from kanalyze.analyses.page.overview_page import PageKernels, Summary, made, overview
from kanalyze.analyses.ranges import captured, instances, ranges
from kanalyze.report import Report, Where
from kanalyze.units import plural, time

with machinery.late():  # of programs that ncu measured
    from kanalyze.analyses.page import kernel_runs, proven_causes
with machinery.late():  # of reports with steps of an engine
    from kanalyze.analyses.serving import served

#: The tables that every CUDA trace gives, and those of optional traces, in the page's order; what it asks of them.
_ALWAYS: Final = ("ledger", "exposure", "hot_kernels", "copies", "launch_summary", "api", "health")
_OPTIONAL: Final = (
    *("culprits", "utilisation", "steps", "ranges", "range_gpu", "occupancy", "ops", "graphs", "captured"),
    *("migration_totals", "memory", "concurrency"),
)
_ASKED: Final[dict[str, dict[str, Any]]] = {
    "utilisation": {"chunks": 60},
    "ranges": {"by": ranges.BY_NAME},
    "range_gpu": {"by": ranges.BY_NAME, "graphs": True},
    "occupancy": {"by": "kernel"},
    "captured": {"by": "place"},
}

#: The declarations of all these tables, as they are asked for.
TABLES: Final[tuple[schema.Table, ...]] = tuple(
    {"occupancy": BY_KERNEL, "captured": captured.BY_PLACE}.get(name) or declarations(homes()[name])[name]
    for name in (*_ALWAYS, *_OPTIONAL, "code")
)


def summarize(report: Report) -> Summary:
    """Makes the page of a report: all tables that it allows, the findings, and the headline."""
    tables, reasons = tables_of(report)
    spans, words = overview_page.windows_of(report), interface(report)
    engine = served.served(report) if engine_marks(report).height else None
    sentences = (
        engine.sentence if engine else "",
        overview_page.page_answer(report, spans, tables),
        overview_page.sampled_beside(report, report),
    )
    answer = " ".join(filter(None, sentences))
    processes = report.processes
    if report.scope.process is not None:
        processes = processes.filter(pl.col("process_id") == report.scope.process)
    # the sentence below a table
    tellers: dict[str, Callable[[pl.DataFrame], str]] = {
        "steps": instances.in_words,
        "memory": memory.told,
        "culprits": partial(told, report),
    }
    remarks = {name: tell(tables[name]) for name, tell in tellers.items() if name in tables}
    return Summary(
        kind="time",
        meta=report.meta,
        scope=report.scope,
        answer=tools.worded(answer, words),
        windows=spans,
        processes=processes,
        process_count=process_count(report) if device_operations(report).height else processes.height,
        tables=tables | (engine.tables if engine else {}),
        findings=by_gain(report) if "ledger" in tables else [],
        cannot_tell={name: reason for name, reason in reasons.items() if name in _ALWAYS},
        not_recorded={name: reason for name, reason in reasons.items() if name not in _ALWAYS},
        remarks=(engine.remarks if engine else {})
        | {name: tools.worded(text, words) for name, text in remarks.items() if text},
        interface=words,
        zero_ns=report.zero_ns,
    )


def tables_of(report: Report) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables of the page that the report allows by name, and the reason why for each other one."""
    names = (*_ALWAYS, *_OPTIONAL)
    makers = {
        name: partial(getattr(import_module(homes()[name]), name), report, **_ASKED.get(name, {})) for name in names
    }
    if code.has_lines(report):
        makers["code"] = partial(code.code, report)
    # idle time is attributed with names first, which serves the other tables, too
    order = sorted(makers, key=lambda name: (name != "culprits", name in _ALWAYS))
    return made({name: makers[name] for name in order})


# What ncu measured, of its own report.


def summarize_counters(report: Report) -> Summary:
    """Makes the page of an ncu report.

    Its table `kernels` has a row per kernel: the columns of `counters` and `roofline`, blocks, family, product, and
    verdict and conclusion (:mod:`kanalyze.analyses.counters.advice`); `groups` those of one name and launch shape:
    first (event_id of the longest), count, total_ns, the longest total first.

    Raises:
        CannotTellError: The report has no counters, or a window is asked for: kernels of ncu have no place in time.
    """
    facts = advice.kernel_facts(report)
    rows = facts.to_dicts()
    texts = {"verdict": [advice.bound(row) for row in rows], "conclusion": [advice.paragraph(row) for row in rows]}
    kernels = facts.with_columns(pl.Series(name, lines, dtype=pl.String) for name, lines in texts.items())
    order = kernels.sort("dur_ns", "event_id", descending=[True, False], nulls_last=True)
    shape = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    groups = order.group_by("name", "device", *shape, maintain_order=True).agg(
        first=pl.col("event_id").first(), count=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum()
    )
    groups = groups.select("first", "count", "total_ns").sort("total_ns", "first", descending=[True, False])
    shown = pl.col("device").is_in(kernels.get_column("device").unique().implode())
    return Summary(
        kind="counters",
        meta=report.meta,
        scope=report.scope,
        answer=_answer(kernels, groups),
        tables={
            "devices": report.devices.filter(shown),
            "kernels": kernels,
            "groups": groups,
            "stalls": counters.stalls(report),
            "advice": advice.advice(report),
            "health": health(report),
        },
    )


def _answer(kernels: pl.DataFrame, groups: pl.DataFrame) -> str:
    """The headline: number of kernels, and their time by verdict."""
    if kernels.height == 1:
        row = kernels.row(0, named=True)
        duration = f" in {time(row['dur_ns'])}" if row["dur_ns"] is not None else ""
        return f"One kernel{duration}, measured alone. {row['conclusion']}"
    ns = pl.col("dur_ns")
    sums = kernels.group_by("verdict").agg(ns.sum(), timed=ns.count(), count=pl.len())
    sums = sums.sort("dur_ns", "verdict", descending=[True, False])
    timed = sums.get_column("timed").sum()
    verdicts = [f"{word} {count}{f' ({time(ns)})' if known else ''}" for word, ns, known, count in sums.iter_rows()]
    shapes = f", {groups.height} different" if groups.height < kernels.height else ""
    of = "" if timed == kernels.height else f" (of {timed} whose duration was collected)"
    length = f"{time(int(sums.get_column('dur_ns').sum()))} in all{of}" if timed else "of unknown duration"
    return (
        f"{plural(kernels.height, 'kernel')}{shapes}, {length}, each measured alone. "
        f"By what holds them back: {', '.join(verdicts)}."
    )


# One program recorded by several tools: the time page with counters and operators joined to its kernels.


def summarize_together(*reports: Report, **where: Unpack[Where]) -> list[Summary]:
    """Makes the pages of reports of one program by different tools: one per report that gives the time.

    A report that no other belongs to, or without kernels to join with, has a plain page. Reports that are then on no
    page have pages of their own at the end.

    Raises:
        CannotTellError: No report gives the time.
    """
    return _pages_of(reports, where, _joint, summarize)


def _joint(group: Together) -> Summary:
    page, rows = summarize(group.base), joined_of(group)
    return replace(
        page,
        kind="joint",
        findings=_with_counters(page, group.base, rows, group.ncu) if group.ncu is not None else page.findings,
        tables=with_late(page.tables, group.base, group.given[1:]),
        others=[one.meta for one in group.given[1:]],
        joined=rows,
        gains=gains_among(rows, group.ncu) if group.ncu is not None else None,
        outside={other.meta.tool: _outside(group.base, other) for other in group.reports[1:]},
    )


def _with_counters(page: Summary, report: Report, joined: pl.DataFrame, ncu: Report) -> list[Finding]:
    """The findings of a page of one device with those that counters prove."""
    times = [*overview_page.device_times(page.tables).items()]
    if len(times) != 1 or "hot_kernels" not in page.tables:
        return page.findings
    on_kernels = partial(_of_counters, joined, ncu)
    proven = overview_page.proven(report, page.findings, page.tables["hot_kernels"], times[0], on_kernels)
    return ordered(report, overview_page.without_expected([*page.findings, *proven]))


def _outside(base: Report, other: Report) -> int:
    """Number of kernel groups of another report that match the whole of `base`, but not its narrowed part."""
    if base.whole is base:
        return 0
    return same_kernels(base.whole, other).join(same_kernels(base, other), on="right", how="anti").height


def overviews_together(
    *reports: Report, whole: bool = False, as_recorded: bool = False, **where: Unpack[Where]
) -> list[Summary]:
    """Makes the first pages of reports of one program by different tools, as :func:`summarize_together` does."""
    first_page = partial(overview, whole=whole, as_recorded=as_recorded)
    return _pages_of(reports, where, partial(_overview, first_page), first_page)


def _overview(first_page: Callable[..., Summary], group: Together) -> Summary:
    ncu, rows = group.ncu, cache(partial(joined_of, group))
    page = first_page(group.base, beside=ncu and (lambda kernels: _of_counters(rows(), ncu, kernels)))
    others, joined = [one.meta for one in group.given[1:]], rows() if page.steady is None else None
    return replace(page, others=others, joined=joined, tables=with_late(page.tables, group.base, group.given[1:]))


def _of_counters(joined: pl.DataFrame, ncu: Report, page: PageKernels) -> list[Finding]:
    """Findings that counters of ncu prove of the kernels of a page, of each kernel one."""
    found: list[Finding] = []
    for find in (kernel_runs.reads_of_host, proven_causes.slow_kernels, kernel_runs.passing_on):
        told = page.told.union(*(one.names for one in found))
        found += find(joined, ncu, page._replace(told=told))
    return found


def _pages_of(
    reports: Sequence[Report], where: Where, joint: Callable[[Together], Summary], page: Callable[[Report], Summary]
) -> list[Summary]:
    """A page of each report that gives the time, `joint` where others can be joined to it; then those of all others.

    A report of another program, which shares no kernel with that, is not joined to it.
    """
    beside = dict.fromkeys(one for each in together("joined", reports, where) for one in each.given[1:])
    groups = together("joined", reports, where, _may_be_one_program)
    given = {one for each in groups for one in each.given}
    others = [one for one in beside if one not in given]
    joining = [len(each.reports) > 1 and "kernel" in each.base.kinds for each in groups]
    joined = {one for each, joins in zip(groups, joining, strict=True) if joins for one in each.given}
    alone = [one for each in groups for one in each.given[1:] if one not in joined]
    alone += [one if one.meta.timeless else one.narrow(**where) for one in others]
    pages = [joint(each) if joins else page(each.base) for each, joins in zip(groups, joining, strict=True)]
    return pages + [summarize_counters(one) if one.meta.timeless else page(one) for one in dict.fromkeys(alone)]


def _may_be_one_program(base: Report, other: Report) -> bool:
    """Whether two reports are of one capture, or share a kernel, or one of them has none."""
    of_capture = base.meta.capture is not None and base.meta.capture == other.meta.capture
    if of_capture or "kernel" not in base.kinds or not (other.meta.timeless or "kernel" in other.kinds):
        return True
    return not same_kernels(base, other).is_empty()
