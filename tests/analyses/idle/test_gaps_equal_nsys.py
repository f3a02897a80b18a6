"""The gaps between operations are those of nsys' rule `gpu_gaps`, to the nanosecond, on real reports.

nsys looks at each process alone and names its devices by their CUDA ordinals. It leaves out the time before the first
operation and after the last one, and does not see graphs that were traced whole.
"""

import polars as pl
import pytest

import kanalyze
from support.nsys_csv import report_of, reports_with, rows_of

ONE_MS = 1_000_000

#: Reports with graphs that were traced whole.
WHOLE_GRAPHS = {"graph_graph", "two_processes"}


def between_operations(report, process, threshold_ns):
    """Our gaps of one process as nsys prints them: start, duration, CUDA ordinal."""
    found = kanalyze.gaps(report, process=process, threshold_ns=threshold_ns).drop_nulls("ended_by")
    first = pl.col("start_ns") == pl.col("start_ns").min().over("device")
    leading = kanalyze.gaps(report, process=process, threshold_ns=0).filter(first).select("device", "start_ns")
    ordinals = report.processes.filter(pl.col("process_id") == process).select("device", "cuda_ordinal")
    inner = found.join(leading, on=["device", "start_ns"], how="anti").join(ordinals, on="device")
    return sorted(inner.select("start_ns", "dur_ns", "cuda_ordinal").rows())


@pytest.mark.one_in(6)
@pytest.mark.parametrize("threshold_ms", [0, 1])
@pytest.mark.parametrize("name", sorted({*reports_with("gpu_gaps-0")} - WHOLE_GRAPHS))
def test_gaps_equal_those_of_nsys(name, threshold_ms):
    report = report_of(name)
    columns = ("Start (ns)", "Duration (ns)", "Device ID")
    rows = rows_of(name, f"gpu_gaps-{threshold_ms}")
    used = {*report.kind("kernel").get_column("process_id"), *(int(row["PID"]) for row in rows)}
    for process in used:
        expected = sorted(tuple(int(row[column]) for column in columns) for row in rows if int(row["PID"]) == process)
        assert between_operations(report, process, threshold_ms * ONE_MS) == expected
