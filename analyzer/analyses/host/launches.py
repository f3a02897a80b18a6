"""Kernels with their launch calls: call, queue and kernel time."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, calls_by_id, exclusive_operations, operations, with_facts
from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import first_seen, positions, rows_at, sure, telling
from kanalyze.model import LAUNCH_SHAPE
from kanalyze.report import Report
from kanalyze.schema import Table, columns

TABLE: Final = Table(
    "launches",
    "One kernel and the call that launched it; a call that launched several (a graph) has a row for each.",
    (
        *columns("""
            api_start_ns int: Start of the call.
            api_ns int: Duration of the call.
            queue_ns int?: From the call's return to the kernel's start; null if it started before.
            kernel_start_ns int: Start of the kernel.
            kernel_ns int: Duration of the kernel.
            total_ns int: From the start of the call to the end of the kernel or the call, the later one.
            process_id int: Process that made the call.
            thread_id int?: Thread that made the call.
            device int?: What the process calls the GPU that ran the kernel, as nsys prints it.
            api text?: The call, as nsys shows it.
        """),
        *LAUNCH_SHAPE,
        *columns("""
            kernel text?: Demangled name of the kernel.
            gpu int?: The GPU that ran the kernel, as in `devices`.
            stream int?: CUDA stream.
            charged_api_ns int: The call's duration once per call: 0 but for its kernel of the lowest event_id.
        """),
    ),
    purpose="each kernel with the call that launched it",
    telling=("kernel_start_ns", "kernel_ns", "api_ns", "queue_ns", "stream"),
    equals="nsys stats cuda_kern_exec_trace",
)


@analysis
def launches(report: Report) -> pl.DataFrame:
    """Kernels in scope with their launch calls, in the order of the calls.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report lacks kernels or CUDA calls.
    """
    require(report, TABLE.name, "kernel")
    require(report, TABLE, "api")
    found = with_facts(report, joined_launches(report), *SHAPE, "stream")
    named = found.with_columns(shown(pl.col("api")), pl.col("kernel").cast(pl.String))
    return TABLE.select(named.sort("api_start_ns", "kernel_start_ns", "event_id"))


def joined_launches(report: Report) -> pl.DataFrame:
    """Kernels in scope joined with their calls, with the times of :data:`TABLE`; a row per call of a shared id."""
    needed = ("row", "kind", "event_id", "began", "dur_ns", "device", "name")
    kernels = exclusive_operations(report).select(needed).filter(pl.col("kind") == "kernel")
    pairs = launch_pairs(report)
    at = positions(kernels.get_column("row"), pairs.get_column("row"))
    rows, at = pairs.get_column("call_row").filter(at.is_not_null()), at.drop_nulls()
    ran = kernels.select("row", "event_id", kernel_start_ns="began", kernel_ns="dur_ns", gpu="device", kernel="name")
    ran = rows_at(ran, at)
    del kernels, pairs  # as large as the result: frees memory before the next join
    called = report.kind("api").select(*THREAD, api_start_ns="start_ns", api_ns="dur_ns", api="name")
    joined = pl.concat([ran, rows_at(called, rows)], how="horizontal")
    api_end = pl.col("api_start_ns") + pl.col("api_ns")
    kernel_end = pl.col("kernel_start_ns") + pl.col("kernel_ns")
    queue = pl.col("kernel_start_ns") - api_end
    return joined.with_columns(
        pl.when(queue >= 0).then(queue).alias("queue_ns"),
        (pl.max_horizontal(api_end, kernel_end) - pl.col("api_start_ns")).alias("total_ns"),
        pl.when(first_seen(rows)).then(pl.col("api_ns")).otherwise(0).alias("charged_api_ns"),
        cuda_ordinal(report).alias("device"),
    )


def launch_pairs(report: Report) -> pl.DataFrame:
    """Joins kernels with all calls of their process and correlation id: row (of `operations`) and call_row.

    As nsys does: a kernel whose correlation id two calls share has two rows. An id that more than 64 calls share is not
    a usable key: its kernels have one row each, with the first call.
    """
    kernels = operations(report, "call_row").filter(pl.col("kind") == "kernel")
    single = kernels.select("row", "call_row").drop_nulls("call_row")
    shared = _shared_calls(report)
    if shared.is_empty():
        return single
    keys = ["process_id", "correlation_id"]
    own = with_facts(report, kernels.select("row", "process_id"), "correlation_id")
    doubled = own.join(shared, on=keys).select("row", "call_row")
    return pl.concat([single.join(doubled, on="row", how="anti"), doubled])


def _shared_calls(report: Report) -> pl.DataFrame:
    """Calls whose process and correlation id are not unique: process_id, correlation_id, call_row."""
    parts = [report.kind("api").select("process_id", "correlation_id", call_row=pl.lit(0, dtype=pl.UInt32)).clear()]
    for process in operations(report).get_column("process_id").unique().sort().drop_nulls():
        ids, rows = calls_by_id(report, process)
        same = (sure(ids == ids.shift(1)) | sure(ids == ids.shift(-1))).arg_true()
        if len(same):
            shared = {"correlation_id": ids.gather(same), "call_row": rows.gather(same)}
            parts.append(pl.DataFrame(shared).select(pl.lit(process, dtype=pl.Int64).alias("process_id"), pl.all()))
    return telling(pl.concat(parts), ["process_id", "correlation_id"])


def cuda_ordinal(report: Report) -> pl.Expr:
    """The CUDA ordinal of a row's `gpu` in its process; the number of the GPU where the report lacks it."""
    known = report.processes.drop_nulls().filter(pl.col("cuda_ordinal") != pl.col("device"))
    ordinal = pl.col("gpu")
    for process, number, gpu in known.select("process_id", "cuda_ordinal", "device").iter_rows():
        here = (pl.col("process_id") == process) & (pl.col("gpu") == gpu)
        ordinal = pl.when(here).then(pl.lit(number, dtype=pl.Int64)).otherwise(ordinal)
    return ordinal
