"""The tables of NVTX ranges equal nsys' own CSV, row by row and column by column, on real reports.

Order counts, but among rows that nsys' own ORDER BY leaves equal.
"""

import sqlite3
from contextlib import closing

import polars as pl
import pytest

from kanalyze.analyses.ranges.ranges import range_gpu, range_kernels, ranges
from kanalyze.errors import CannotTellError
from support.nsys_csv import TIMES, assert_rows, fields_of, path_of, report_of, reports_with, rows_of

STYLED = {"Range": "range", "Style": "style"}
PROJECTED = {
    "Total Proj Time (ns)": "projected_ns",
    "Total Range Time (ns)": "total_ns",
    "Range Instances": "count",
    "Proj Avg (ns)": "avg_ns",
    "Proj Med (ns)": "median_ns",
    "Proj Min (ns)": "min_ns",
    "Proj Max (ns)": "max_ns",
    "Proj StdDev (ns)": "stddev_ns",
    "Total GPU Ops": "gpu_ops",
    "Avg GPU Ops": "avg_gpu_ops",
    "Avg Range Lvl": "avg_level",
    "Avg Num Child": "avg_children",
}
TRACED = {
    "Name": "range",
    "Projected Start (ns)": "projected_start_ns",
    "Projected Duration (ns)": "projected_ns",
    "Orig Start (ns)": "start_ns",
    "Orig Duration (ns)": "dur_ns",
    "Style": "style",
    "PID": "process_id",
    "TID": "thread_id",
    "NumGPUOps": "gpu_ops",
    "Lvl": "level",
    "NumChild": "children",
    "RangeId": "range_id",
    "ParentId": "range_parent_id",
    "RangeStack": "range_stack",
}
BY_KERNEL = {
    "NVTX Range": "range",
    "Style": "style",
    "PID": "process_id",
    "TID": "thread_id",
    "NVTX Inst": "range_count",
    "Kern Inst": "count",
    "Kernel Name": "kernel",
    **TIMES,
}


def table(compute, name, theirs, **options):
    """Our table of a report; where nsys printed nothing it has no rows, or cannot be made."""
    try:
        ours = compute(report_of(name), **options)
    except CannotTellError:
        assert not theirs
        return pl.DataFrame()
    assert theirs or ours.is_empty()
    return ours


def ordered(rows, *keys):
    """nsys' rows sorted by some of its columns, each with whether it is descending."""
    for key, descending in reversed(keys):
        numbers = all(row[key].isdigit() for row in rows)
        rows = sorted(rows, key=lambda row: int(row[key]) if numbers else row[key], reverse=descending)
    return rows


def test_a_field_in_which_nsys_left_quotes():
    assert fields_of('1,":comma, "quote" and: colon",,"a, b"') == ["1", ':comma, "quote" and: colon', "", "a, b"]


@pytest.mark.parametrize("name", reports_with("nvtx_sum"))
def test_ranges(name):
    theirs = rows_of(name, "nvtx_sum")
    ours = table(ranges, name, theirs)
    theirs = ordered(theirs, ("Total Time (ns)", True), ("Range", False), ("Style", False))
    percent = ours.with_columns(percent=ours["share"] * 100) if theirs else ours
    assert_rows(percent, theirs, {"Time (%)": "percent", "Instances": "count", **STYLED, **TIMES})


@pytest.mark.parametrize("name", reports_with("nvtx_gpu_proj_sum"))
def test_range_gpu(name):
    theirs = rows_of(name, "nvtx_gpu_proj_sum")
    ours = table(range_gpu, name, theirs)
    theirs = ordered(theirs, ("Total Proj Time (ns)", True), ("Range", False), ("Style", False))
    assert_rows(ours, theirs, {**STYLED, **PROJECTED})


@pytest.mark.parametrize("name", reports_with("nvtx_gpu_proj_trace"))
def test_range_gpu_by_instance(name):
    theirs = rows_of(name, "nvtx_gpu_proj_trace")
    ours = table(range_gpu, name, theirs, trace=True)
    theirs = ordered(theirs, ("Projected Start (ns)", False), ("Projected Duration (ns)", True), ("RangeId", False))
    assert_rows(with_nsys_ids(ours, name) if theirs else ours, theirs, TRACED)


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


@pytest.mark.parametrize("name", reports_with("nvtx_kern_sum"))
def test_range_kernels(name):
    theirs = rows_of(name, "nvtx_kern_sum")
    ours = table(range_kernels, name, theirs)
    keys = ["NVTX Range", "PID", "TID", "Total Time (ns)", "Style", "Kernel Name"]
    theirs = ordered(theirs, *((key, key == "Total Time (ns)") for key in keys))
    assert_rows(ours, theirs, BY_KERNEL)
