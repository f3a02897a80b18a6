"""What all pages of time begin with: their tables, the devices with their windows, and the sentences that answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, exclusive_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings._doubts import unused_launches
from kanalyze.analyses.idle._attribution import host_time
from kanalyze.analyses.idle.culprits import culprits, own_samples
from kanalyze.analyses.iterations._steady import known_steady_part, sampling_cost
from kanalyze.analyses.launches._steady_window import steady_parts
from kanalyze.analyses.shared.buckets import MEANINGS
from kanalyze.analyses.shared.workers import side_by_side
from kanalyze.errors import CannotTellError, KanalyzeError
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table
from kanalyze.tools import again
from kanalyze.units import instant, percent, plural, shortened, time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from kanalyze.report import Meta, Report

    Maker: TypeAlias = Callable[[Report], pl.DataFrame]
    from kanalyze.report import Report

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

#: Wording for busy time without a compute kernel, by bucket, and the least share of the window to be mentioned.
_ONLY: Final = {"memcpy": "copying", "communication": "communicating", "memset": "setting memory"}
_NOTABLE: Final = 0.1

#: Share of the window that the steady part has to leave out to be mentioned in the headline.
_LEAST_ONE_TIME_SHARE: Final = 0.1


def process_count(report: Report) -> int:
    """Processes with device operations; where there are none, the processes in scope."""
    ran = device_operations(report).select(pl.col("process_id").n_unique()).item()
    return int(ran) or report.processes.height


def windows_of(report: Report) -> pl.DataFrame:
    """The devices and their windows, :data:`WINDOWS`."""
    busy = exclusive_operations(report).group_by("device").agg(busy_ns=pl.col("exclusive_ns").sum())
    spans = windows(report).rename({"start": "start_ns", "end": "end_ns"})
    joined = spans.join(busy, on="device", how="left").join(report.devices, on="device", how="left")
    lengths = joined.with_columns(
        window_ns=pl.col("end_ns") - pl.col("start_ns"), busy_ns=pl.col("busy_ns").fill_null(0)
    )
    return WINDOWS.select(lengths.sort("device"))


def page_answer(report: Report, spans: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> str:
    """One or two sentences that answer first: how busy each device was, and what most of the rest went to."""
    if "ledger" not in tables or spans.is_empty():
        lost = unused_launches(report).filter(~pl.col("captured")).height
        if lost:
            return _without_device(lost, report.meta)
    if "ledger" not in tables:
        calls = report.kind("api").height
        what = f"nothing that ran on a GPU ({plural(calls, 'CUDA call')})" if calls else "no CUDA activity"
        return f"The report records {what}, so there is no GPU time to account for."
    if spans.is_empty():
        calls = report.kind("api").height
        return f"No GPU did anything in this report: it holds no kernel, copy or memset ({calls:,} CUDA calls)."
    many, process = spans.height > 1, report.scope.process
    idle = _by_bucket(tables["ledger"], ~pl.col("bucket").is_in(BUSY_BUCKETS))
    beside = _by_bucket(tables["ledger"], pl.col("bucket").is_in([*_ONLY]))
    sentences = [
        _device_answer(row, idle.get(row["device"], {}), beside.get(row["device"], {}), many=many, process=process)
        + _contexts_answer(report, row, idle.get(row["device"], {}))
        + _steady_answer(report, row)
        for row in spans.iter_rows(named=True)
    ]
    return " ".join(sentences)


def _by_bucket(rows: pl.DataFrame, these: pl.Expr) -> dict[int, dict[str, int]]:
    """Time of the buckets selected by `these`, by device (ns)."""
    found: dict[int, dict[str, int]] = {}
    for device, bucket, ns in rows.filter(these).group_by("device", "bucket").agg(pl.col("ns").sum()).iter_rows():
        found.setdefault(device, {})[bucket] = ns
    return found


def _without_device(launches: int, meta: Meta) -> str:
    made = f"{plural(launches, 'launch')} {'was' if launches == 1 else 'were'} made"
    missing = "what the GPU did is missing here, or every launch failed, so there is no GPU time to account for"
    if not meta.recorder.one_trace:
        remedy = again(DEVICE_KINDS, meta.tool)
    elif meta.wsl:
        remedy = "In WSL2, nsys records the GPU's work only if driver and nsys support that: update both, or use Linux."
    else:  # it records calls and the GPU's work together
        remedy = "The CUDA trace was on: see whether the program's calls failed, and whether nsys supports the driver."
    return f"{made}, but no device activity was recorded: {missing}. {remedy}"


def _device_answer(
    row: dict[str, int], ns: dict[str, int], beside: dict[str, int], *, many: bool, process: int | None
) -> str:
    """Headline sentence of a device: its busy share, with what, and the largest part of idle time."""
    window, busy = max(row["window_ns"], 1), row["busy_ns"]
    who = f"GPU {row['device']}" if many else "The GPU"
    text = f"{who} was busy {percent(busy / window)} of {time(window)}"
    parts = [(bucket, beside.get(bucket, 0)) for bucket in _ONLY]
    told = [f"{percent(part / window)} only {_ONLY[bucket]}" for bucket, part in parts if part > _NOTABLE * window]
    text += f" ({', '.join(told)})" if told else ""
    if process is not None:
        text += f" with work of process {process} (that of others counts as idle here)"
    if not ns:
        return f"{text}."
    reason = max(ns, key=lambda bucket: (ns[bucket], bucket))
    return f"{text}; the largest part of the rest went to {MEANINGS[reason]} ({percent(ns[reason] / window)})."


def _contexts_answer(report: Report, row: dict[str, int], ns: dict[str, int]) -> str:
    """Headline sentence on contexts made outside of recorded calls, where most of the program's own time is theirs."""
    times = host_time(report).get(row["device"])
    making = intervals.length(times.unrecorded) if times is not None else 0
    if not making or max(ns, key=lambda bucket: (ns[bucket], bucket)) != "host" or 2 * making < ns["host"]:
        return ""
    share = percent(making / max(row["window_ns"], 1))
    return f" At most {share} went to making contexts outside recorded calls."


def _steady_answer(report: Report, row: dict[str, int]) -> str:
    """Headline sentence on the steady part of a device; empty if that is nearly the window, or not known."""
    steady = steady_parts(report).get(row["device"])
    if steady is None or steady.ns >= (1 - _LEAST_ONE_TIME_SHARE) * row["window_ns"]:
        return ""
    start, end = (instant(at, report.zero_ns) for at in (steady.start, steady.end))
    return f" Without one-time costs, from {start} to {end}, it was busy {percent(steady.busy_ns / steady.ns)}."


def made(report: Report, makers: Mapping[str, Maker]) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables that `makers` make of a report by name, and the reason why for each that it cannot give."""

    def table_or_reason(report: Report, make: Maker) -> pl.DataFrame | str:
        try:
            return make(report)
        except CannotTellError as reason:
            return str(reason)

    found = side_by_side(report, [partial(table_or_reason, make=make) for make in makers.values()])
    told = dict(zip(makers, found, strict=True))
    tables = {name: table for name, table in told.items() if not isinstance(table, str)}
    return tables, {name: reason for name, reason in told.items() if isinstance(reason, str)}


#: A function is told from this share of host time on, if so many samples tell it.
_NOTABLE_SAMPLED: Final = 0.1
_SAMPLES: Final = 20

_OF: Final = "of the time in which the GPU waits for the program's own code"

#: Longer names are shortened.
_LONGEST: Final = 48


def sampled_beside(report: Report, view: Report) -> str:
    """Function that the GPU waited for by samples, and what they cost; empty without samples.

    They are those of another run that a capture has for them, which are told of the whole report alone; else the
    report's own, of `view`, the part that the page is of.
    """
    other = report.sampled() if report.whole is report else None
    try:
        if other is not None:
            return f"{_most_waited_for(_steady(other), 'In a run with samples')}{sampling_cost(report, other)}"
        return _most_waited_for(view, "By samples").strip() if own_samples(report) else ""
    except KanalyzeError:  # which is noted
        return ""


def _steady(report: Report) -> Report:
    steady = known_steady_part(report)
    return report if steady is None else report.narrow(window=steady.window)


def _most_waited_for(report: Report, by: str) -> str:
    """The function with most of the host time, on the GPU with most of it, and how much the thread was not let run.

    Empty without samples, where neither is a good part, or where the GPU hardly waits.
    """
    try:
        rows = culprits(report, by="function")
    except KanalyzeError:
        return ""
    waited = rows.group_by("device").agg(pl.col("ns", "share").sum()).sort("ns", "device", descending=[True, False])
    if waited.is_empty() or waited.item(0, "share") < _NOTABLE_SAMPLED:
        return ""
    own = rows.join(waited.head(1), on="device", how="semi")
    by_stack = pl.col("host_share").filter(pl.col("evidence") == "call stack").sum()
    sums = own.drop_nulls("function").group_by("function").agg(pl.col("host_share", "samples").sum(), stack=by_stack)
    # a stack of each call tells all of it, without samples
    enough = (pl.col("samples") >= _SAMPLES) | (pl.col("stack") >= pl.col("host_share") / 2)
    best = sums.filter((pl.col("host_share") >= _NOTABLE_SAMPLED) & enough).sort(
        "host_share", "function", descending=[True, False]
    )
    ready = float(own.filter(pl.col("state") == "runnable").get_column("host_share").sum())
    told = []
    if not best.is_empty():
        name = str(best.item(0, "function"))
        blocked = _blocked(own.filter(pl.col("function") == name))
        told.append(f"{shortened(name, _LONGEST)} is {percent(best.item(0, 'host_share'))} {_OF}{blocked}")
    if ready >= _NOTABLE_SAMPLED:
        told.append(f"its thread is ready but on no processor for {percent(ready)} {'of it' if told else _OF}")
    return f"{by}, {', and '.join(told)}. " if told else ""


def _blocked(rows: pl.DataFrame) -> str:
    """Clause on what a function waits for, where that is most of its time; else empty."""
    sums = rows.drop_nulls("waits_on").group_by("waits_on").agg(pl.col("host_share").sum())
    best = sums.sort("host_share", "waits_on", descending=[True, False]).head(1)
    if best.is_empty() or 2 * best.item(0, "host_share") <= rows.get_column("host_share").sum():
        return ""
    return f" (most of it waiting: {best.item(0, 'waits_on')})"
