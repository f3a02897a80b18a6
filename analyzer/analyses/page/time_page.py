"""Time page: the answer to "where did the time go?" as one value, for any renderer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import polars as pl

from kanalyze.analyses.device import copies
from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.findings import findings, health
from kanalyze.analyses.findings._replays import MOST_REPLAYED, with_replays
from kanalyze.analyses.findings.findings import ranked_with_samples
from kanalyze.analyses.host import api, launch_summary
from kanalyze.analyses.host._call_kinds import interface
from kanalyze.analyses.idle import culprits, exposure, ledger, utilisation
from kanalyze.analyses.idle._idle_sums import want_names
from kanalyze.analyses.launches import graphs, hot_kernels
from kanalyze.analyses.memory import memory, migration_totals
from kanalyze.analyses.naming._host_names import told
from kanalyze.analyses.occupancy import occupancy
from kanalyze.analyses.operators import ops
from kanalyze.analyses.page._headline import page_answer, windows_of
from kanalyze.analyses.page._reading_plan import forget_threads, read_first, reads_of
from kanalyze.analyses.page._sampled_beside import sampled_beside
from kanalyze.analyses.ranges import range_gpu, ranges, steps
from kanalyze.analyses.shared.workers import many_events, side_by_side
from kanalyze.analyses.streams import concurrency
from kanalyze.errors import CannotTellError
from kanalyze.wording import CUDA, worded

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.report import Meta, Report
    from kanalyze.window import Scope


@dataclass(frozen=True)
class Summary:
    """Content of the time page, with complete tables; a renderer decides how many rows to print.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        meta: Where the report came from.
        scope: The part of the report that was analysed.
        answer: Headline, one or two sentences.
        windows: The devices and their windows, :data:`WINDOWS`.
        processes: The table of processes, as read.
        process_count: Processes with device operations; where there are none, processes with CUDA calls.
        tables: The other tables by name, without those that the report cannot give.
        findings: The findings, what gains most first.
        cannot_tell: Reason by table, for missing tables that every CUDA trace gives.
        not_recorded: Reason by table, for missing tables of optional traces.
        remarks: One-sentence summary by table, for some tables.
        interface: Programming interface, CUDA or another of :mod:`kanalyze.wording`.
        zero_ns: Origin of displayed times.
    """

    kind: ClassVar[Literal["time"]] = "time"

    meta: Meta
    scope: Scope
    answer: str
    windows: pl.DataFrame
    processes: pl.DataFrame
    process_count: int
    tables: dict[str, pl.DataFrame]
    findings: list[Finding]
    cannot_tell: dict[str, str]
    not_recorded: dict[str, str]
    remarks: dict[str, str]
    interface: str = CUDA
    zero_ns: int = 0


#: Chunks of the utilisation chart, one character each.
_CHUNKS: Final = 60

#: The tables that every CUDA trace gives.
_MAKERS: Final[dict[str, Callable[[Report], pl.DataFrame]]] = {
    "ledger": ledger.ledger,
    "exposure": exposure.exposure,
    "hot_kernels": hot_kernels.hot_kernels,
    "copies": copies.copies,
    "launch_summary": launch_summary.launch_summary,
    "api": api.api,
    "health": health.health,
}

#: The tables of optional traces.
_MORE: Final[dict[str, Callable[[Report], pl.DataFrame]]] = {
    "culprits": culprits.culprits,
    "utilisation": partial(utilisation.utilisation, chunks=_CHUNKS),
    "steps": steps.steps,
    "ranges": partial(ranges.ranges, by=range_gpu.BY_NAME),
    "range_gpu": partial(range_gpu.range_gpu, by=range_gpu.BY_NAME, graphs=True),
    "occupancy": partial(occupancy.occupancy, by="kernel"),
    "ops": ops.ops,
    "graphs": graphs.graphs,
    "migration_totals": migration_totals.migration_totals,
    "memory": memory.memory,
    "concurrency": concurrency.concurrency,
}

#: The declarations of all these tables, in the page's order.
TABLES: Final = (
    ledger.TABLE,
    exposure.TABLE,
    hot_kernels.TABLE,
    copies.TABLE,
    launch_summary.TABLE,
    api.TABLE,
    health.TABLE,
    culprits.TABLE,
    utilisation.TABLE,
    steps.TABLE,
    ranges.TABLE,
    range_gpu.TABLE,
    occupancy.BY_KERNEL,
    ops.TABLE,
    graphs.TABLE,
    migration_totals.TABLE,
    memory.TABLE,
    concurrency.TABLE,
)

#: What the page is computed from: what its tables and findings are, the headline, and the lists of GPUs and processes.
READS: Final = reads_of((*TABLES, findings.TABLE), "devices", "processes")


#: Functions for the sentence below a table.
_REMARKS: Final[dict[str, Callable[[pl.DataFrame], str]]] = {"steps": steps.told, "memory": memory.told}


def summarize(report: Report) -> Summary:
    """Makes the page of a report: all tables that it allows, the findings, and the headline."""
    tables, reasons = tables_of(report)
    spans = windows_of(report, tables.get("ledger"))
    answer = " ".join(filter(None, (page_answer(report, spans, tables), sampled_beside(report, report))))
    processes = report.processes
    if report.scope.process is not None:
        processes = processes.filter(pl.col("process_id") == report.scope.process)
    return Summary(
        meta=report.meta,
        scope=report.scope,
        answer=worded(answer, interface(report)),
        windows=spans,
        processes=processes,
        process_count=device_operations(report).select(pl.col("process_id").n_unique()).item() or processes.height,
        tables=tables,
        findings=_findings(report) if "ledger" in tables else [],
        cannot_tell={name: reason for name, reason in reasons.items() if name in _MAKERS},
        not_recorded={name: reason for name, reason in reasons.items() if name in _MORE},
        remarks={
            name: worded(said, interface(report))
            for name, tell in (_REMARKS | {"culprits": partial(told, report)}).items()
            if name in tables and (said := tell(tables[name]))
        },
        interface=interface(report),
        zero_ns=report.zero_ns,
    )


def _findings(report: Report) -> list[Finding]:
    """The findings, what gains most first."""
    return sorted(with_replays(report, ranked_with_samples(report), MOST_REPLAYED), key=lambda one: -one.gain_ns)


def tables_of(report: Report) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables of the page that the report allows by name, and the reason why for each other one."""
    read_first(report, READS)
    everything = _MAKERS | _MORE
    want_names(report)
    # idle attribution takes longest, so it starts first and other tables are made in parallel
    order = sorted(everything, key=lambda name: (name != "culprits", name in _MAKERS))
    tables, reasons, made = {}, {}, []
    makers = [partial(_table_or_reason, make=everything[name]) for name in order]
    if many_events(report):
        made.append(makers.pop(0)(report))
        culprits.context_culprits(report)
        forget_threads(report)
    made += side_by_side(report, makers)
    for name, found in zip(order, made, strict=True):
        if isinstance(found, str):
            reasons[name] = found
        else:
            tables[name] = found
    return tables, reasons


def _table_or_reason(report: Report, make: Callable[[Report], pl.DataFrame]) -> pl.DataFrame | str:
    try:
        return make(report)
    except CannotTellError as reason:
        return str(reason)
