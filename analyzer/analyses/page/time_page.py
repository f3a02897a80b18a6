"""Time page: the answer to "where did the time go?" as one value, for any renderer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import polars as pl

from kanalyze.analyses.device import copies, occupancy
from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.findings import health
from kanalyze.analyses.findings._claims import MOST_REPLAYED
from kanalyze.analyses.findings.findings import by_gain
from kanalyze.analyses.host import api, launch_summary
from kanalyze.analyses.host._call_kinds import interface
from kanalyze.analyses.idle import code, culprits, exposure, ledger, utilisation
from kanalyze.analyses.launches import graphs, hot_kernels
from kanalyze.analyses.memory import memory, migrations
from kanalyze.analyses.operators import ops
from kanalyze.analyses.operators._host_names import told
from kanalyze.analyses.page._headline import made, page_answer, process_count, sampled_beside, windows_of
from kanalyze.analyses.ranges import range_gpu, ranges, steps
from kanalyze.analyses.streams import concurrency
from kanalyze.report import Meta, Report
from kanalyze.schema import Table
from kanalyze.tools import CUDA, worded
from kanalyze.window import Scope

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding


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
        interface: Programming interface, CUDA or another of :mod:`kanalyze.tools`.
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


#: The modules of the tables that every CUDA trace gives, and of those of optional traces, in the page's order.
_ALWAYS: Final = (ledger, exposure, hot_kernels, copies, launch_summary, api, health)
_OPTIONAL: Final = (
    *(culprits, utilisation, steps, ranges, range_gpu, occupancy, ops),
    *(graphs, migrations, memory, concurrency),
)

#: What the page asks of them beside the report.
_ASKED: Final[dict[str, dict[str, Any]]] = {
    "utilisation": {"chunks": 60},
    "ranges": {"by": range_gpu.BY_NAME},
    "range_gpu": {"by": range_gpu.BY_NAME, "graphs": True},
    "occupancy": {"by": "kernel"},
}

#: Of these modules another table.
_FORMS: Final = {occupancy: occupancy.BY_KERNEL, migrations: migrations.TOTALS}

#: The declarations of all these tables.
TABLES: Final[tuple[Table, ...]] = (
    *(_FORMS.get(module, module.TABLE) for module in (*_ALWAYS, *_OPTIONAL)),
    code.TABLE,
)

_NAMES: Final = [table.name for table in TABLES[: len(_ALWAYS)]]


def summarize(report: Report) -> Summary:
    """Makes the page of a report: all tables that it allows, the findings, and the headline."""
    tables, reasons = tables_of(report)
    spans, words = windows_of(report), interface(report)
    answer = " ".join(filter(None, (page_answer(report, spans, tables), sampled_beside(report, report))))
    processes = report.processes
    if report.scope.process is not None:
        processes = processes.filter(pl.col("process_id") == report.scope.process)
    # the sentence below a table
    tellers: dict[str, Callable[[pl.DataFrame], str]] = {
        "steps": steps.told,
        "memory": memory.told,
        "culprits": partial(told, report),
    }
    remarks = {name: tell(tables[name]) for name, tell in tellers.items() if name in tables}
    return Summary(
        meta=report.meta,
        scope=report.scope,
        answer=worded(answer, words),
        windows=spans,
        processes=processes,
        process_count=process_count(report) if device_operations(report).height else processes.height,
        tables=tables,
        findings=by_gain(report, MOST_REPLAYED) if "ledger" in tables else [],
        cannot_tell={name: reason for name, reason in reasons.items() if name in _NAMES},
        not_recorded={name: reason for name, reason in reasons.items() if name not in _NAMES},
        remarks={name: worded(text, words) for name, text in remarks.items() if text},
        interface=words,
        zero_ns=report.zero_ns,
    )


def tables_of(report: Report) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables of the page that the report allows by name, and the reason why for each other one."""
    makers = {
        table.name: partial(getattr(module, table.name), **_ASKED.get(table.name, {}))
        for module, table in zip((*_ALWAYS, *_OPTIONAL), TABLES[:-1], strict=True)
    }
    if code.has_lines(report):
        makers[code.TABLE.name] = partial(code.code)
    # idle time is attributed with names first, which serves the other tables, too
    first, reason = made(report, {"culprits": makers.pop("culprits")})
    tables, reasons = made(report, dict(sorted(makers.items(), key=lambda one: one[0] in _NAMES)))
    return first | tables, reason | reasons
