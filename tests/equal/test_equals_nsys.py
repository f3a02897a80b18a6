"""Every table that nsys prints too equals nsys' own CSV, row by row and column by column, on real reports.

The CSV files are what `nsys stats` wrote for the same files (tests/reports/expected/<report>/<nsys report>.csv).
nsys rounds averages, medians and deviations to one decimal and megabytes to three; integers must be equal. Of tables of
ranges the order counts, too, but among rows that nsys' own ORDER BY leaves equal.
"""

import sqlite3
from contextlib import closing

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.ranges.ranges import range_gpu, range_kernels, ranges
from kanalyze.errors import CannotTellError
from support.nsys_csv import TIMES, assert_rows, path_of, report_of, reports_with, rows_of

SIZES = {"Total": "total", "Avg": "avg", "Med": "median", "Min": "min", "Max": "max", "StdDev": "stddev"}
SIDES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
SHAPE = {side: side for side in SIDES}
LAUNCH_TIMES = {
    f"{letter}{theirs} (ns)": f"{measure}_{ours}_ns"
    for letter, measure in {"T": "total", "A": "api", "Q": "queue", "K": "kernel"}.items()
    for theirs, ours in SIZES.items()
    if theirs != "Total"
}
THREAD = {"PID": "process_id", "TID": "thread_id", "DevId": "device"}
SHARES = {**TIMES, "Time (%)": "percent"}
LAUNCHES = {
    "API Start (ns)": "api_start_ns", "API Dur (ns)": "api_ns", "Queue Dur (ns)": "queue_ns",
    "Kernel Start (ns)": "kernel_start_ns", "Kernel Dur (ns)": "kernel_ns", "Total Dur (ns)": "total_ns",
    "API Function": "api", "Kernel Name": "kernel", **THREAD, **SHAPE,
}  # fmt: skip
CALLS = {"API Name": "api", "Kernel Name": "kernel", "Count": "count", "QCount": "queue_count", **THREAD}
OPERATIONS = {"Instances": "count", "Category": "category", "Operation": "operation"}
OF_LAUNCHES = ["process_id", "thread_id", "device", "api", "kernel"]

#: By the report of nsys: our table, our names of its columns, and those that both are sorted by.
TABLES = {
    "cuda_gpu_kern_sum": (kanalyze.kernels, {**SHARES, "Instances": "count", "Name": "name"}, ["name"]),
    "cuda_gpu_kern_gb_sum": (
        lambda report: kanalyze.kernels(report, by="launch-shape"),
        {**SHARES, "Instances": "count", "Name": "name", **SHAPE},
        ["name", *SIDES],
    ),
    "cuda_gpu_mem_time_sum": (kanalyze.copies, {**SHARES, "Count": "count", "Operation": "operation"}, ["operation"]),
    "cuda_gpu_mem_size_sum": (
        lambda report: kanalyze.copies(report).with_columns(
            (pl.col(f"{size}_bytes") / 1e6).alias(f"{size}_mb") for size in SIZES.values()
        ),
        {f"{theirs} (MB)": f"{ours}_mb" for theirs, ours in SIZES.items()}
        | {"Count": "count", "Operation": "operation"},
        ["operation"],
    ),
    "cuda_api_sum": (kanalyze.api, {**SHARES, "Num Calls": "count", "Name": "name"}, ["name", "total_ns"]),
    "cuda_gpu_sum": (kanalyze.gpu, {**SHARES, **OPERATIONS}, ["operation"]),
    "cuda_kern_exec_trace": (kanalyze.launches, LAUNCHES, ["api_start_ns", "kernel_start_ns", "process_id", "device"]),
    "cuda_kern_exec_sum": (kanalyze.launch_summary, {**CALLS, **LAUNCH_TIMES}, OF_LAUNCHES),
}


def shaped(row):
    """A row with nsys' "GridXYZ" and "BlockXYZ" texts as six columns."""
    sizes = [*row.get("GridXYZ", "").split(), *row.get("BlockXYZ", "").split()]
    return row | dict(zip(SIDES, sizes, strict=bool(sizes)))


def in_percent(frame):
    return frame.with_columns(percent=pl.col("share") * 100) if "share" in frame.columns else frame


@pytest.mark.parametrize(
    ("nsys_report", "name"),
    [(table, name) for table in TABLES for name in (*reports_with(table), *reports_with(table, "samples/"))],
)
def test_a_table_has_the_rows_of_nsys(nsys_report, name):
    compute, columns, key = TABLES[nsys_report]
    ours, theirs = in_percent(compute(report_of(name))), [shaped(row) for row in rows_of(name, nsys_report)]
    names = {ours: theirs for theirs, ours in columns.items()}
    theirs.sort(key=lambda row: [row[names[column]] for column in key])
    mine = ours.with_columns(pl.col(key).cast(pl.String).name.prefix("by ")).sort([f"by {column}" for column in key])
    assert_rows(mine, theirs, columns)


@pytest.mark.parametrize("name", reports_with("cuda_gpu_kern_sum"))
def test_kernels_are_in_nsys_order(name):
    names = [row["Name"] for row in rows_of(name, "cuda_gpu_kern_sum")]
    assert kanalyze.kernels(report_of(name))["name"].to_list() == names


STYLED = {"Range": "range", "Style": "style"}
PROJECTED = {
    "Total Proj Time (ns)": "projected_ns", "Total Range Time (ns)": "total_ns", "Range Instances": "count",
    "Proj Avg (ns)": "avg_ns", "Proj Med (ns)": "median_ns", "Proj Min (ns)": "min_ns", "Proj Max (ns)": "max_ns",
    "Proj StdDev (ns)": "stddev_ns", "Total GPU Ops": "gpu_ops", "Avg GPU Ops": "avg_gpu_ops",
    "Avg Range Lvl": "avg_level", "Avg Num Child": "avg_children",
}  # fmt: skip
TRACED = {
    "Name": "range", "Projected Start (ns)": "projected_start_ns", "Projected Duration (ns)": "projected_ns",
    "Orig Start (ns)": "start_ns", "Orig Duration (ns)": "dur_ns", "Style": "style", "PID": "process_id",
    "TID": "thread_id", "NumGPUOps": "gpu_ops", "Lvl": "level", "NumChild": "children", "RangeId": "range_id",
    "ParentId": "range_parent_id", "RangeStack": "range_stack",
}  # fmt: skip
BY_KERNEL = {
    "NVTX Range": "range", "Style": "style", "PID": "process_id", "TID": "thread_id", "NVTX Inst": "range_count",
    "Kern Inst": "count", "Kernel Name": "kernel", **TIMES,
}  # fmt: skip

#: By the report of nsys: our table, our names of its columns, and nsys' columns by which it is sorted; - is descending.
OF_RANGES = {
    "nvtx_sum": (ranges, {"Time (%)": "percent", "Instances": "count", **STYLED, **TIMES},
                 ["-Total Time (ns)", "Range", "Style"]),
    "nvtx_gpu_proj_sum": (lambda report: range_gpu(report).filter(pl.col("count") > 0), {**STYLED, **PROJECTED},
                          ["-Total Proj Time (ns)", "Range", "Style"]),
    "nvtx_gpu_proj_trace": (lambda report: range_gpu(report, trace=True), TRACED,
                            ["Projected Start (ns)", "-Projected Duration (ns)", "RangeId"]),
    "nvtx_kern_sum": (lambda report: range_kernels(report).filter(via="launch"), BY_KERNEL,
                      ["NVTX Range", "PID", "TID", "-Total Time (ns)", "Style", "Kernel Name"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("nsys_report", "name"),
    [(table, name) for table in OF_RANGES for name in (*reports_with(table), *reports_with(table, "samples/"))],
)
def test_a_table_of_ranges_has_the_rows_of_nsys_in_its_order(nsys_report, name):
    compute, columns, order = OF_RANGES[nsys_report]
    theirs = rows_of(name, nsys_report)
    try:
        ours = in_percent(compute(report_of(name)))
    except CannotTellError:  # where nsys printed nothing it has no rows, or cannot be made
        assert not theirs
        return
    if name.startswith("samples/"):  # nsys 2024.2 prints no empty domain
        ours = ours.with_columns(pl.col("range").cast(pl.String).str.strip_prefix(":"))
    if nsys_report == "nvtx_gpu_proj_trace" and theirs:
        ours = with_nsys_ids(ours, name)
    for key in reversed(order):
        column = key.removeprefix("-")
        numbers = all(row[column].isdigit() for row in theirs)
        theirs.sort(key=lambda row: int(row[column]) if numbers else row[column], reverse=key.startswith("-"))
    assert_rows(ours, theirs, columns)


def with_nsys_ids(trace, name):
    """The trace with nsys' numbers of the ranges, which are those of the rows of its table."""
    with closing(sqlite3.connect(path_of(name))) as database:
        first_row = database.execute(
            "SELECT min(rowid) FROM NVTX_EVENTS WHERE eventType IN (59, 60, 70, 71)"
        ).fetchone()[0]
    before = report_of(name).kind("range")["event_id"].min() - first_row
    stack = pl.col("stack").str.slice(1).str.split(":").cast(pl.List(pl.Int64)).list.eval(pl.element() - before)
    return trace.with_columns(
        range_id=pl.col("event_id") - before,
        range_parent_id=pl.col("parent_id") - before,
        range_stack=":" + stack.cast(pl.List(pl.String)).list.join(":"),
    )
