"""Copies of pinned memory that could have overlapped kernels of their own stream, but ran alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, exclusive_operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.host._launching_call import calls_of
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.streams._serialised import LATENCY_NS, ordered
from kanalyze.analyses.streams._streams import placed_operations, stream_numbers, used_streams
from kanalyze.columns.lookup import beside
from kanalyze.units import plural, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report


_REMEDY: Final = (
    "Copy in a stream of its own, into a second buffer, while kernels work on the first; order what depends by events."
)


def find(report: Report) -> list[Finding]:
    """One finding per device with such copies."""
    if not any(worth_saying(report, ns) for ns in ledger(report).filter(bucket="memcpy").get_column("ns")):
        return []
    found = []
    for (device,), copies in serial_copies(report).partition_by("device", as_dict=True, maintain_order=True).items():
        stake = total(hidden_at_most(report, copies), "ns")
        if stake:
            streams = copies.get_column("stream").unique().sort()
            where = ", ".join(map(str, streams))
            text = (
                f"{plural(copies.height, 'copy')} of pinned memory, {size(total(copies, 'size_bytes'))}, ran alone for "
                f"{time(total(copies, 'exclusive_ns'))} between kernels of the same stream ({where}); the host had "
                "submitted both by then, and only the stream's order kept them apart."
            )
            found.append(Finding("serial-copy", device, stake, text, _REMEDY, "concurrency"))
    return found


# Copies of pinned memory that ran alone, serialised with kernels only by the order of their stream.
#
# A copy to the device that was submitted while an earlier kernel of its stream still ran copies data that the host had
# ready by then. A copy to the host, with a later kernel submitted before the copy ended, yields nothing that this
# kernel could depend on. With double buffering, either could overlap those kernels.

_PINNED: Final = "Pinned"
_TO_DEVICE: Final = "Host-to-Device"
_TO_HOST: Final = "Device-to-Host"
_KERNELS: Final = BUSY_BUCKETS.index("communication")

#: The columns of :func:`serial_copies`.
_SERIAL: Final = {
    "device": pl.Int64,
    "number": pl.UInt32,
    **dict.fromkeys(("stream", "size_bytes", "exclusive_ns", "low", "high"), pl.Int64),
}


@once_per_report
def serial_copies(report: Report) -> pl.DataFrame:
    """The serial copies on the devices in scope with any exclusive time in the window.

    Columns: device, number (of the stream, as in `used_streams`), stream, size_bytes, exclusive_ns, low and high (start
    and end of the time between the copy and the kernel that it could overlap, both included).
    """
    copies = _pinned_copies(report)
    if copies.is_empty():
        return pl.DataFrame(schema=_SERIAL)
    line = _neighbours(report, copies.get_column("number").unique())
    found = copies.join(line, on="row", maintain_order="left")
    to_device = found.filter(
        (pl.col("detail") == _TO_DEVICE) & (pl.col("before_end") > pl.col("call_end") + LATENCY_NS)
    ).with_columns(low="before_start", high="end", earlier="before_call")
    to_host = found.filter((pl.col("detail") == _TO_HOST) & (pl.col("after_ready") < pl.col("end"))).with_columns(
        low="start", high="after_end", earlier="call_start", call_start="after_call"
    )
    both = pl.concat([to_device, to_host])
    streams = used_streams(report).select("number", "stream")
    free = both.filter(~ordered(report, both)).join(streams, on="number", maintain_order="left")
    return free.select(list(_SERIAL)).sort("device")


def hidden_at_most(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """The upper bound of the gain from overlapping `copies` (of :func:`serial_copies`) with kernels, by stream.

    Columns: device, number, ns: their exclusive time, but at most the run time of the stream's kernels meanwhile.
    """
    sums = copies.group_by("device", "number").agg(
        pl.col("exclusive_ns").sum(), pl.col("low").min(), pl.col("high").max()
    )
    kernels = placed_operations(report).filter(pl.col("rank") <= _KERNELS).select("number", "start", "end")
    inside = kernels.join(sums, on="number").with_columns(pl.max_horizontal("start", "low").alias("start"))
    time = (pl.min_horizontal("end", "high") - pl.col("start")).clip(lower_bound=0)
    ran = inside.group_by("number").agg(kernel_ns=time.sum())
    return sums.join(ran, on="number").select(
        "device", "number", pl.min_horizontal("exclusive_ns", "kernel_ns").alias("ns")
    )


def _pinned_copies(report: Report) -> pl.DataFrame:
    """The asynchronous copies between pinned memory and the device, outside CUDA graphs, with any exclusive time.

    Columns: row, device, detail, number, size_bytes, exclusive_ns, call_start, call_end.
    """
    work = exclusive_operations(report).select("row", "event_id", "device", "kind", "detail", "exclusive_ns")
    work = work.filter((pl.col("kind") == "memcpy") & (pl.col("exclusive_ns") > 0))
    work = work.filter(pl.col("detail").cast(pl.String).is_in([_TO_DEVICE, _TO_HOST]))
    calls = calls_of(report, work.get_column("row"), "call_name", "call_start", "call_end")
    names = calls.get_column("call_name").unique().cast(pl.String).drop_nulls()
    asynchronous = names.filter(names.str.contains("Async", literal=True)).to_list()
    work = pl.concat([work, calls], how="horizontal").filter(pl.col("call_name").is_in(asynchronous))
    known = beside(work, report.copy_detail, "size_bytes", "source_memory", "target_memory")
    pinned = known.filter((pl.col("source_memory") == _PINNED) | (pl.col("target_memory") == _PINNED))
    numbers = stream_numbers(report).select("row", "number")
    return pinned.join(numbers, on="row", maintain_order="left").select(
        "row",
        "device",
        pl.col("detail").cast(pl.String),
        "number",
        "size_bytes",
        "exclusive_ns",
        "call_start",
        "call_end",
    )


def _neighbours(report: Report, numbers: pl.Series) -> pl.DataFrame:
    """The nearest kernels before and after each copy in its stream, for the streams `numbers`.

    Columns: row, start, end (of the copy), before_start, before_end and before_call (the previous kernel and its call),
    after_ready, after_end and after_call (the next one; ready: when it was certainly submitted).
    """
    columns = ("row", "rank", "start", "end")
    work = pl.concat(
        [device_operations(report).select(columns), stream_numbers(report).select("number")], how="horizontal"
    ).filter(pl.col("number").is_in(numbers.implode()) & (pl.col("end") > pl.col("start")))
    calls = calls_of(report, work.get_column("row"), "call_start", "call_end")
    line = pl.concat([work, calls], how="horizontal").sort("number", "start", "row")
    kernel = pl.when(pl.col("rank") <= _KERNELS)
    before = {"before_start": "start", "before_end": "end", "before_call": "call_start"}
    after = {
        "after_ready": pl.col("call_end") + LATENCY_NS,
        "after_end": pl.col("end"),
        "after_call": pl.col("call_start"),
    }
    marked = line.with_columns(
        *(kernel.then(pl.col(of)).forward_fill().over("number").alias(name) for name, of in before.items()),
        *(kernel.then(of).backward_fill().over("number").alias(name) for name, of in after.items()),
    )
    return marked.filter(pl.col("rank") > _KERNELS).select("row", "start", "end", *before, *after)
