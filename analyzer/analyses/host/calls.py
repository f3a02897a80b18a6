"""CUDA calls by name; kernels with their launch calls, and sums of these; host time by library."""

from typing import Final

import polars as pl

from kanalyze import intervals, model, tools
from kanalyze.analyses.device import _operations, _windows
from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.shared import analysis, threads
from kanalyze.analyses.shared.analysis import named_ranges
from kanalyze.analyses.shared.statistics import DURATION_COLUMNS, duration_statistics, share_of_total, spread
from kanalyze.columns import mixed, positions, rows_at, shared, telling
from kanalyze.report import Report
from kanalyze.schema import Column, Table, columns

API: Final = Table(
    "api",
    "One CUDA runtime or driver call; time of calls inside calls counts in both.",
    (*columns("name text?: The call as nsys shows it: without the four-digit version of its form."), *DURATION_COLUMNS),
    purpose="CUDA calls by total time",
    equals="nsys stats cuda_api_sum",
)


@analysis.analysis
def api(report: Report) -> pl.DataFrame:
    """CUDA calls in scope by name, the longest in total first; with a device in scope, calls of its processes.

    Two versions of one call (``…_v3020`` and ``…_v12000``) are two rows, as in nsys.

    Returns:
        :data:`API`.

    Raises:
        CannotTellError: The report records no CUDA calls.
    """
    analysis.require(report, API, "api")
    sums = _operations.of_used_processes(report, report.seen("api")).group_by("name").agg(duration_statistics())
    form = pl.col("name").cast(pl.String)
    named = sums.with_columns(share_of_total(), shown(pl.col("name")).alias("name"), form=form)
    return API.select(named.sort("total_ns", "name", "form", descending=[True, False, False]))


LAUNCHES: Final = Table(
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
        *model.LAUNCH_SHAPE,
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


@analysis.analysis
def launches(report: Report) -> pl.DataFrame:
    """Kernels in scope with their launch calls, in the order of the calls: :data:`LAUNCHES`.

    Raises:
        CannotTellError: The report lacks kernels or CUDA calls.
    """
    analysis.require(report, LAUNCHES.name, "kernel")
    analysis.require(report, LAUNCHES, "api")
    joined = _operations.with_facts(report, joined_launches(report), *_operations.SHAPE, "stream")
    named = joined.with_columns(shown(pl.col("api")), pl.col("kernel").cast(pl.String))
    return LAUNCHES.select(named.sort("api_start_ns", "kernel_start_ns", "event_id"))


def joined_launches(report: Report) -> pl.DataFrame:
    """Kernels in scope joined with their calls, with the times of :data:`LAUNCHES`; a row per call of a shared id."""
    needed = ("row", "kind", "event_id", "began", "dur_ns", "device", "name")
    kernels = _operations.exclusive_operations(report).select(needed).filter(pl.col("kind") == "kernel")
    pairs = launch_pairs(report)
    at = positions(kernels.get_column("row"), pairs.get_column("row"))
    rows, at = pairs.get_column("call_row").filter(at.is_not_null()), at.drop_nulls()
    ran = kernels.select("row", "event_id", kernel_start_ns="began", kernel_ns="dur_ns", gpu="device", kernel="name")
    ran = rows_at(ran, at)
    del kernels, pairs  # as large as the result: frees memory before the next join
    called = report.kind("api").select(*threads.THREAD, api_start_ns="start_ns", api_ns="dur_ns", api="name")
    api_end = pl.col("api_start_ns") + pl.col("api_ns")
    kernel_end = pl.col("kernel_start_ns") + pl.col("kernel_ns")
    queue = pl.col("kernel_start_ns") - api_end
    return pl.concat([ran, rows_at(called, rows)], how="horizontal").with_columns(
        pl.when(queue >= 0).then(queue).alias("queue_ns"),
        (pl.max_horizontal(api_end, kernel_end) - pl.col("api_start_ns")).alias("total_ns"),
        pl.when(rows.is_first_distinct()).then(pl.col("api_ns")).otherwise(0).alias("charged_api_ns"),
        cuda_ordinal(report).alias("device"),
    )


def launch_pairs(report: Report) -> pl.DataFrame:
    """Joins kernels with all calls of their process and correlation id: row (of `operations`) and call_row.

    As nsys does: a kernel whose correlation id two calls share has two rows. An id that more than 64 calls share is not
    a usable key: its kernels have one row each, with the first call.
    """
    kernels = _operations.operations(report, "call_row").filter(pl.col("kind") == "kernel")
    single = kernels.select("row", "call_row").drop_nulls("call_row")
    keys = ["process_id", "correlation_id"]
    calls = report.kind("api").select(keys).with_row_index("call_row")
    several = telling(calls.filter(shared(calls.select(mixed(keys)).to_series())), keys)
    if several.is_empty():
        return single
    with_ids = _operations.with_facts(report, kernels.select("row", "process_id"), "correlation_id")
    doubled = with_ids.join(several, on=keys).select("row", "call_row")
    return pl.concat([single.join(doubled, on="row", how="anti"), doubled])


def cuda_ordinal(report: Report) -> pl.Expr:
    """The CUDA ordinal of a row's `gpu` in its process; the number of the GPU where the report lacks it."""
    differing = report.processes.drop_nulls().filter(pl.col("cuda_ordinal") != pl.col("device"))
    ordinal = pl.col("gpu")
    for process, number, gpu in differing.select("process_id", "cuda_ordinal", "device").iter_rows():
        here = (pl.col("process_id") == process) & (pl.col("gpu") == gpu)
        ordinal = pl.when(here).then(pl.lit(number, dtype=pl.Int64)).otherwise(ordinal)
    return ordinal


_MEASURES: Final = {
    "total": "call start to the end of kernel or call",
    "api": "the call",
    "queue": "call's return to kernel start, over the launches that have one",
    "kernel": "the kernel",
}


LAUNCH_SUMMARY: Final = Table(
    "launch_summary",
    "One kernel launched by one call on one thread and device.",
    (
        Column("process_id", pl.Int64, "Process that made the calls."),
        Column("thread_id", pl.Int64, "Thread that made the calls.", nullable=True),
        Column("device", pl.Int64, "What the process calls the GPU, as nsys prints it.", nullable=True),
        Column("count", pl.Int64, "Launches."),
        Column("queue_count", pl.Int64, "Launches whose kernel started after the call returned."),
        *(
            column
            for measure, doc in _MEASURES.items()
            for null in ("?" if measure == "queue" else "",)
            for column in columns(f"""
                {measure}_avg_ns float{null}: Mean: {doc}.
                {measure}_median_ns float{null}: Median: {doc}.
                {measure}_min_ns int{null}: Shortest: {doc}.
                {measure}_max_ns int{null}: Longest: {doc}.
                {measure}_stddev_ns float: Sample standard deviation: {doc}; 0 for fewer than two.
            """)
        ),
        Column("api", pl.String, "The call, as nsys shows it.", nullable=True),
        Column("kernel", pl.String, "Demangled name of the kernel.", nullable=True),
        *columns("charged_api_ns int: Time in these calls, each counted once also when it launched many kernels."),
    ),
    purpose="times from call to kernel, by kernel and call",
    telling=("count", "total_avg_ns", "api_avg_ns", "queue_avg_ns", "kernel_avg_ns"),
    equals="nsys stats cuda_kern_exec_sum",
)


@analysis.analysis
def launch_summary(report: Report) -> pl.DataFrame:
    """Statistics of the launches in scope, the longest mean total first: :data:`LAUNCH_SUMMARY`.

    Raises:
        CannotTellError: The report lacks kernels or CUDA calls.
    """
    analysis.require(report, LAUNCH_SUMMARY.name, "kernel")
    analysis.require(report, LAUNCH_SUMMARY, "api")
    keys = ["process_id", "thread_id", "device", "api", "kernel"]
    statistics = [part for measure in _MEASURES for part in spread(f"{measure}_ns", f"{measure}_", "_ns")]
    joined = joined_launches(report).select(*keys, *(f"{measure}_ns" for measure in _MEASURES), "charged_api_ns")
    sums = joined.group_by(keys).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("queue_ns").count().cast(pl.Int64).alias("queue_count"),
        *statistics,
        pl.col("charged_api_ns").sum(),
    )
    named = sums.with_columns(shown(pl.col("api")), pl.col("kernel").cast(pl.String))
    rows, keys = LAUNCH_SUMMARY.select(named), ["kernel", "thread_id"]
    keys += [name for name in rows.columns if name not in ("total_avg_ns", *keys)]  # a stable order of ties
    return rows.sort("total_avg_ns", *keys, descending=[True, *(False for _ in keys)])


LIBRARIES: Final = Table(
    "libraries",
    "One call or range of a library, or one operating system call.",
    (
        Column("library", pl.String, "The library, by the name of its ranges' domain; OS runtime for system calls."),
        Column("name", pl.String, "The call or range; null where the report has no name for it.", nullable=True),
        *(
            Column(column.name, column.dtype, "Their part of the sum of the library's total_ns.")
            if column.name == "share"
            else column
            for column in DURATION_COLUMNS
        ),
        *columns("""
            idle_ns int?: What of total_ns all devices were idle for, inside their windows; null where no device is
                known.
        """),
    ),
    purpose="calls of cuBLAS, NCCL and others, of the OS",
    no_rows="no call of a library or of the operating system was recorded, and all ranges are of the default domain; "
    "nsys records such calls with `--trace=cublas,cudnn,osrt`",
    tools=tools.recorders("osrt"),
    equals="nsys stats osrt_sum (rows of the library OS runtime)",
)

#: Libraries by prefix of a call's name, where the report does not record the library.
_BY_CALL: Final = {"(?i)^cublas": "cuBLAS", "(?i)^cudnn": "cuDNN"}


@analysis.analysis
def libraries(report: Report) -> pl.DataFrame:
    """Library and system calls in scope, by library; with a device in scope, those of its processes.

    Every NVTX domain counts as a library, since libraries put their ranges into a domain; ranges of the default domain
    belong to the program and are left out. Nested calls and ranges count for both.

    Returns:
        :data:`LIBRARIES`: the library with the longest total first, then its rows, the longest total first.

    Raises:
        CannotTellError: The report records neither library calls, nor NVTX ranges, nor system calls.
    """
    analysis.require(report, LIBRARIES, "library", "osrt", "range")
    # a range that was never closed ends with the last NVTX event
    ranges = intervals.overlapping(named_ranges(report).filter(pl.col("domain").is_not_null()), report.scope.sides)
    of_domains = _operations.of_used_processes(report, ranges).select(
        "name", "start", library=pl.col("domain").cast(pl.String), dur_ns=pl.col("end") - pl.col("start")
    )
    rows = pl.concat([of_domains, *(_calls(report, kind) for kind in ("library", "osrt"))])
    start = rows.get_column("start")
    idle = intervals.overlap(start, start + rows.get_column("dur_ns"), _windows.all_idle_spans(report))
    idle_sum = pl.lit(None, dtype=pl.Int64) if _windows.windows(report).is_empty() else pl.col("idle_ns").sum()
    by_name = rows.with_columns(idle.alias("idle_ns")).group_by("library", "name")
    sums = by_name.agg(*duration_statistics(), idle_ns=idle_sum)
    whole = pl.col("total_ns").sum().over("library")
    share = pl.when(whole > 0).then(pl.col("total_ns") / whole).otherwise(0.0)
    shares, order = sums.with_columns(share=share, whole=whole), ("whole", "library", "total_ns", "name")
    return LIBRARIES.select(shares.sort(order, descending=[True, False, True, False]))


def _calls(report: Report, kind: str) -> pl.DataFrame:
    events = _operations.of_used_processes(report, report.seen(kind))
    name = pl.col("name").cast(pl.String)
    by_call = (pl.when(name.str.contains(pattern)).then(pl.lit(title)) for pattern, title in _BY_CALL.items())
    library = pl.lit("OS runtime") if kind == "osrt" else pl.coalesce(*by_call, pl.lit("other"))
    return events.select(name, start="start_ns", library=library, dur_ns=pl.col("dur_ns").fill_null(0))
