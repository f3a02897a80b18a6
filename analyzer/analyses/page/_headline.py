"""The headline of a page: the devices with their windows, and one or two sentences that answer first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings._doubts import unused_launches
from kanalyze.analyses.idle import ledger
from kanalyze.analyses.idle._idle_sums import idle_sums
from kanalyze.analyses.launches._steady_window import steady_parts
from kanalyze.analyses.shared.buckets import MEANINGS
from kanalyze.model import DEVICE_KINDS
from kanalyze.recording import again
from kanalyze.schema import Column, Table
from kanalyze.units import instant, percent, plural, time

if TYPE_CHECKING:
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

#: Key of unrecorded context creation, a part of the bucket `host` that the headline names on its own.
_CONTEXTS: Final = "contexts"
_MEANINGS: Final = {**MEANINGS, _CONTEXTS: "making contexts outside recorded calls"}

#: Wording for busy time without a compute kernel, by bucket, and the least share of the window to be mentioned.
_ONLY: Final = {"memcpy": "copying", "communication": "communicating", "memset": "setting memory"}
_NOTABLE: Final = 0.1

#: Share of the window that the steady part has to leave out to be mentioned in the headline.
_LEAST_ONE_TIME_SHARE: Final = 0.1


def process_count(report: Report) -> int:
    """Processes with device operations; where there are none, the processes in scope."""
    ran = device_operations(report).select(pl.col("process_id").n_unique()).item()
    return int(ran) or report.processes.height


def windows_of(report: Report, rows: pl.DataFrame | None) -> pl.DataFrame:
    """The devices and their windows, :data:`WINDOWS`, from the table `ledger`."""
    rows = ledger.TABLE.empty() if rows is None else rows
    busy = rows.filter(pl.col("bucket").is_in(BUSY_BUCKETS)).group_by("device").agg(busy_ns=pl.col("ns").sum())
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
            return _without_device(lost, report.meta.tool)
    if "ledger" not in tables:
        calls = report.kind("api").height
        what = f"nothing that ran on a GPU ({plural(calls, 'CUDA call')})" if calls else "no CUDA activity"
        return f"The report records {what}, so there is no GPU time to account for."
    if spans.is_empty():
        calls = report.kind("api").height
        return f"No GPU did anything in this report: it holds no kernel, copy or memset ({calls:,} CUDA calls)."
    many, process = spans.height > 1, report.scope.process
    idle, beside = _idle(report, tables["ledger"]), _busy_without_kernels(tables["ledger"])
    sentences = [
        _device_answer(row, idle.get(row["device"], {}), beside.get(row["device"], {}), many=many, process=process)
        + _steady_answer(report, row)
        for row in spans.iter_rows(named=True)
    ]
    return " ".join(sentences)


def _idle(report: Report, rows: pl.DataFrame) -> dict[int, dict[str, int]]:
    """Idle time by device and bucket (ns), unrecorded context creation as a key of its own."""
    sums = rows.filter(~pl.col("bucket").is_in(BUSY_BUCKETS)).group_by("device", "bucket").agg(pl.col("ns").sum())
    found: dict[int, dict[str, int]] = {}
    for device, bucket, ns in sums.iter_rows():
        found.setdefault(device, {})[bucket] = ns
    for device, idle in idle_sums(report).items():
        if idle.unrecorded_ns:
            found[device]["host"] -= idle.unrecorded_ns
            found[device][_CONTEXTS] = idle.unrecorded_ns
    return found


def _without_device(launches: int, tool: str) -> str:
    made = f"{plural(launches, 'launch')} {'was' if launches == 1 else 'were'} made"
    missing = "what the GPU did is missing here, or every launch failed, so there is no GPU time to account for"
    return f"{made}, but no device activity was recorded: {missing}. {again(DEVICE_KINDS, tool)}"


def _busy_without_kernels(rows: pl.DataFrame) -> dict[int, dict[str, int]]:
    """Busy time without a compute kernel, by device and bucket (ns)."""
    sums = rows.filter(pl.col("bucket").is_in([*_ONLY])).group_by("device", "bucket").agg(pl.col("ns").sum())
    found: dict[int, dict[str, int]] = {}
    for device, bucket, ns in sums.iter_rows():
        found.setdefault(device, {})[bucket] = ns
    return found


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
    most = "at most " if reason == _CONTEXTS else ""
    return f"{text}; the largest part of the rest went to {_MEANINGS[reason]} ({most}{percent(ns[reason] / window)})."


def _steady_answer(report: Report, row: dict[str, int]) -> str:
    """Headline sentence on the steady part of a device; empty if that is nearly the window, or not known."""
    steady = steady_parts(report).get(row["device"])
    if steady is None or steady.ns >= (1 - _LEAST_ONE_TIME_SHARE) * row["window_ns"]:
        return ""
    start, end = (instant(at, report.zero_ns) for at in (steady.start, steady.end))
    return f" Without one-time costs, from {start} to {end}, it was busy {percent(steady.busy_ns / steady.ns)}."
