"""What all pages of time begin with: their tables, the devices with their windows, and the sentences that answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, exclusive_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings._doubts import unused_launches
from kanalyze.analyses.idle import culprits
from kanalyze.analyses.idle._attribution import host_time
from kanalyze.analyses.idle.culprits import own_samples
from kanalyze.analyses.iterations._steady import known_steady_part, sampling_cost
from kanalyze.analyses.launches._launch_costs import steady_parts
from kanalyze.analyses.shared.analysis import side_by_side
from kanalyze.analyses.shared.statistics import MEANINGS
from kanalyze.errors import CannotTellError, KanalyzeError
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Meta, Report
from kanalyze.schema import Column, Table
from kanalyze.tools import again
from kanalyze.units import instant, percent, plural, shortened, time

Maker: TypeAlias = Callable[[Report], pl.DataFrame]

WINDOWS: Final = Table(
    "windows",
    "One GPU that did something, and the time that its ledger accounts for.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("start_ns", pl.Int64, "Start of the window, in the trace's own origin."),
        Column("end_ns", pl.Int64, "End of the window."),
        Column("window_ns", pl.Int64, "Its length."),
        Column("busy_ns", pl.Int64, "Time in it in which the device ran anything."),
        Column("name", pl.String, "Marketing name of the GPU.", nullable=True),
        Column(
            "compute_capability",
            pl.String,
            "Major and minor, such as 9.0; of AMD's GPUs gfx942 or the like.",
            nullable=True,
        ),
        Column("sm_count", pl.Int64, "Streaming multiprocessors.", nullable=True),
    ),
)


def made(report: Report, makers: Mapping[str, Maker]) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables that `makers` make of a report by name, and the reason why for each that it cannot give."""

    def table_or_reason(report: Report, make: Maker) -> pl.DataFrame | str:
        try:
            return make(report)
        except CannotTellError as reason:
            return str(reason)

    found = side_by_side(report, [partial(table_or_reason, make=make) for make in makers.values()])
    named = dict(zip(makers, found, strict=True))
    tables = {name: table for name, table in named.items() if not isinstance(table, str)}
    return tables, {name: reason for name, reason in named.items() if isinstance(reason, str)}


def process_count(report: Report) -> int:
    """Processes with device operations; where there are none, the processes in scope."""
    ran = device_operations(report).select(pl.col("process_id").n_unique()).item()
    return int(ran) or report.processes.height


def windows_of(report: Report) -> pl.DataFrame:
    """The devices and their windows, :data:`WINDOWS`."""
    busy = exclusive_operations(report).group_by("device").agg(busy_ns=pl.col("exclusive_ns").sum())
    spans = windows(report).rename({"start": "start_ns", "end": "end_ns"})
    joined = spans.join(busy, on="device", how="left").join(report.devices, on="device", how="left")
    lengths = joined.with_columns(pl.col("busy_ns").fill_null(0), window_ns=pl.col("end_ns") - pl.col("start_ns"))
    return WINDOWS.select(lengths.sort("device"))


# The headline.

#: Wording for busy time without a compute kernel, by bucket, and the least share of the window to be mentioned.
_ONLY: Final = {"memcpy": "copying", "communication": "communicating", "memset": "setting memory"}
_NOTABLE: Final = 0.1

#: A function is told from that share of host time on, if so many samples tell it.
_SAMPLES: Final = 20
_OF: Final = "of the time in which the GPU waits for the program's own code"


def page_answer(report: Report, spans: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> str:
    """One or two sentences that answer first: how busy each device was, and what most of the rest went to."""
    calls = report.kind("api").height
    if "ledger" not in tables or spans.is_empty():
        lost = unused_launches(report).filter(~pl.col("captured")).height
        if lost:
            return _without_device(lost, report.meta)
    if "ledger" not in tables:
        what = f"nothing that ran on a GPU ({plural(calls, 'CUDA call')})" if calls else "no CUDA activity"
        return f"The report records {what}, so there is no GPU time to account for."
    if spans.is_empty():
        return f"No GPU did anything in this report: it holds no kernel, copy or memset ({calls:,} CUDA calls)."
    sums = tables["ledger"].group_by("device", "bucket").agg(pl.col("ns").sum())
    sentences = [
        _device_answer(report, row, dict(sums.filter(device=row["device"]).drop("device").iter_rows()), spans.height)
        for row in spans.iter_rows(named=True)
    ]
    return " ".join(sentences)


def _without_device(launches: int, meta: Meta) -> str:
    counted = f"{plural(launches, 'launch')} {'was' if launches == 1 else 'were'} made"
    missing = "what the GPU did is missing here, or every launch failed, so there is no GPU time to account for"
    if not meta.recorder.one_trace:
        remedy = again(DEVICE_KINDS, meta.tool)
    elif meta.wsl:
        remedy = "In WSL2, nsys records the GPU's work only if driver and nsys support that: update both, or use Linux."
    else:  # it records calls and the GPU's work together
        remedy = "The CUDA trace was on: see whether the program's calls failed, and whether nsys supports the driver."
    return f"{counted}, but no device activity was recorded: {missing}. {remedy}"


def _device_answer(report: Report, row: dict[str, Any], ledger_ns: dict[str, int], devices: int) -> str:
    """Sentences of a device: its busy share, with what, the largest part of idle time, contexts, the steady part."""
    window, busy, device = max(row["window_ns"], 1), row["busy_ns"], row["device"]
    text = f"{f'GPU {device}' if devices > 1 else 'The GPU'} was busy {percent(busy / window)} of {time(window)}"
    parts = {doing: ledger_ns.get(bucket, 0) for bucket, doing in _ONLY.items()}
    only = [f"{percent(ns / window)} only {doing}" for doing, ns in parts.items() if ns > _NOTABLE * window]
    text += f" ({', '.join(only)})" if only else ""
    if report.scope.process is not None:
        text += f" with work of process {report.scope.process} (that of others counts as idle here)"
    idle = {bucket: ns for bucket, ns in ledger_ns.items() if bucket not in BUSY_BUCKETS}
    if idle:
        reason = max(idle, key=lambda bucket: (idle[bucket], bucket))
        text += f"; the largest part of the rest went to {MEANINGS[reason]} ({percent(idle[reason] / window)})."
        times = host_time(report).get(device) if reason == "host" else None
        making = intervals.length(times.unrecorded) if times is not None else 0
        if making and 2 * making >= idle[reason]:  # most of the program's own time
            text += f" At most {percent(making / window)} went to making contexts outside recorded calls."
    else:
        text += "."
    steady = steady_parts(report).get(device)
    if steady is None or steady.ns >= (1 - _NOTABLE) * row["window_ns"]:
        return text
    start, end = (instant(at, report.zero_ns) for at in (steady.start, steady.end))
    return f"{text} Without one-time costs, from {start} to {end}, it was busy {percent(steady.busy_ns / steady.ns)}."


def sampled_beside(report: Report, view: Report) -> str:
    """Function that the GPU waited for by samples, and what they cost; empty without samples.

    They are those of another run that a capture has for them, which are told of the whole report alone; else the
    report's own, of `view`, the part that the page is of.
    """
    other = report.sampled() if report.whole is report else None
    try:
        if other is None:
            return _most_waited_for(view, "By samples").strip() if own_samples(report) else ""
        steady = known_steady_part(other)
        part = other if steady is None else other.narrow(window=steady.window)
        return f"{_most_waited_for(part, 'In a run with samples')}{sampling_cost(report, other)}"
    except KanalyzeError:  # which is noted
        return ""


def _most_waited_for(report: Report, by: str) -> str:
    """The function with most of the host time, on the GPU with most of it, and how much the thread was not let run.

    Empty without samples, where neither is a good part, or where the GPU hardly waits.
    """
    try:
        rows = culprits.culprits(report, by="function")
    except KanalyzeError:
        return ""
    waited = rows.group_by("device").agg(pl.col("ns", "share").sum()).sort("ns", "device", descending=[True, False])
    if waited.is_empty() or waited.item(0, "share") < _NOTABLE:
        return ""
    of_device = rows.join(waited.head(1), on="device", how="semi")
    share = pl.col("host_share")
    by_stack = share.filter(pl.col("evidence") == "call stack").sum()
    sums = (
        of_device.drop_nulls("function").group_by("function").agg(share.sum(), pl.col("samples").sum(), stack=by_stack)
    )
    # a stack of each call tells all of it, without samples
    enough = (pl.col("samples") >= _SAMPLES) | (pl.col("stack") >= share / 2)
    best = sums.filter((share >= _NOTABLE) & enough).sort("host_share", "function", descending=[True, False])
    ready = float(of_device.filter(state="runnable").get_column("host_share").sum())
    clauses = []
    for name, part in best.select("function", "host_share").head(1).iter_rows():
        clauses.append(f"{shortened(name, 48)} is {percent(part)} {_OF}{_blocked(of_device.filter(function=name))}")
    if ready >= _NOTABLE:
        where = "of it" if clauses else _OF
        clauses.append(f"its thread is ready but on no processor for {percent(ready)} {where}")
    return f"{by}, {', and '.join(clauses)}. " if clauses else ""


def _blocked(rows: pl.DataFrame) -> str:
    """Clause on what a function waits for, where that is most of its time; else empty."""
    sums = rows.drop_nulls("waits_on").group_by("waits_on").agg(pl.col("host_share").sum())
    best = sums.sort("host_share", "waits_on", descending=[True, False]).head(1)
    if best.is_empty() or 2 * best.item(0, "host_share") <= rows.get_column("host_share").sum():
        return ""
    return f" (most of it waiting: {best.item(0, 'waits_on')})"
