"""Every table that nsys prints too equals nsys' own CSV, row by row and column by column, on real reports.

The CSV files are what `nsys stats` wrote for the same files (tests/reports/expected/<report>/<nsys report>.csv).
nsys rounds averages, medians and deviations to one decimal and megabytes to three; integers must be equal.
"""

import csv
from pathlib import Path

import pytest

import kanalyze
from support.nsys_csv import TIMES
from support.real_reports import real_report

HERE = Path(__file__).parents[1]
EXPECTED = HERE / "reports" / "expected"
NAMES = sorted(folder.name for folder in EXPECTED.iterdir())

LAUNCH_TIMES = {
    f"{letter}{theirs} (ns)": f"{measure}_{ours}_ns"
    for letter, measure in {"T": "total", "A": "api", "Q": "queue", "K": "kernel"}.items()
    for theirs, ours in {
        "Avg": "avg",
        "Med": "median",
        "Min": "min",
        "Max": "max",
        "StdDev": "stddev",
    }.items()
}


def report_of(name: str) -> kanalyze.Report:
    return real_report(HERE / "reports" / f"{name}.sqlite")


def theirs_of(name: str, report: str) -> list[dict[str, str]]:
    with (EXPECTED / name / f"{report}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def shapes(row: dict[str, str]) -> dict[str, str]:
    """nsys' "GridXYZ" and "BlockXYZ" texts as six columns."""
    sizes = (*row["GridXYZ"].split(), *row["BlockXYZ"].split())
    return dict(zip(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), sizes, strict=True))


def assert_equal(ours, theirs, columns, key):
    """Rows equal after sorting both by `key`; numbers within half of nsys' last printed digit."""
    mine = sorted(ours.to_dicts(), key=lambda row: [str(row[name]) for name in key])
    other = [{ours_name: row[theirs_name] for theirs_name, ours_name in columns.items()} for row in theirs]
    other.sort(key=lambda row: [row[name] for name in key])
    assert len(mine) == len(other)
    for row, expected in zip(mine, other, strict=True):
        for name, text in expected.items():
            assert agrees(row[name], text), (name, row[name], text, row)


def agrees(value, text: str) -> bool:
    if value is None:
        return text == ""
    if isinstance(value, float):
        places = len(text.partition(".")[2])
        return abs(value - float(text)) <= 0.5 * 10**-places + 1e-9 * abs(value)
    return str(value) == text


def with_percent(frame):
    return frame.with_columns((frame["share"] * 100).alias("percent"))


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def report(name):
    return report_of(name)


def both_are_empty(theirs, ours) -> bool:
    """Whether nsys has no rows, for which it writes an empty file; ours must be an empty table then."""
    if not theirs:
        assert ours.is_empty()
    return not theirs


def test_kernels(name, report):
    theirs, ours = theirs_of(name, "cuda_gpu_kern_sum"), with_percent(kanalyze.kernels(report))
    if both_are_empty(theirs, ours):
        return
    assert_equal(ours, theirs, {**TIMES, "Time (%)": "percent", "Instances": "count", "Name": "name"}, ["name"])


def test_kernels_in_nsys_order(name, report):
    names = [row["Name"] for row in theirs_of(name, "cuda_gpu_kern_sum")]
    assert kanalyze.kernels(report)["name"].to_list() == names


def test_kernels_by_launch_shape(name, report):
    theirs, ours = theirs_of(name, "cuda_gpu_kern_gb_sum"), kanalyze.kernels(report, by="launch-shape")
    if both_are_empty(theirs, ours):
        return
    theirs = [{**row, **shapes(row)} for row in theirs]
    shape = {column: column for column in shapes(theirs[0])}
    columns = {**TIMES, "Time (%)": "percent", "Instances": "count", "Name": "name", **shape}
    assert_equal(with_percent(ours), theirs, columns, ["name", *shape])


def test_copies_by_time(name, report):
    theirs, ours = theirs_of(name, "cuda_gpu_mem_time_sum"), with_percent(kanalyze.copies(report))
    if both_are_empty(theirs, ours):
        return
    columns = {**TIMES, "Time (%)": "percent", "Count": "count", "Operation": "operation"}
    assert_equal(ours, theirs, columns, ["operation"])


def test_copies_by_size(name, report):
    theirs, ours = theirs_of(name, "cuda_gpu_mem_size_sum"), kanalyze.copies(report)
    if both_are_empty(theirs, ours):
        return
    sizes = {"Total": "total", "Avg": "avg", "Med": "median", "Min": "min", "Max": "max", "StdDev": "stddev"}
    megabytes = ours.with_columns(
        (ours[f"{ours_name}_bytes"] / 1e6).alias(f"{ours_name}_mb") for ours_name in sizes.values()
    )
    columns = {f"{theirs_name} (MB)": f"{ours_name}_mb" for theirs_name, ours_name in sizes.items()}
    assert_equal(megabytes, theirs, {**columns, "Count": "count", "Operation": "operation"}, ["operation"])


def test_api(name, report):
    theirs, ours = theirs_of(name, "cuda_api_sum"), with_percent(kanalyze.api(report))
    if both_are_empty(theirs, ours):
        return
    columns = {**TIMES, "Time (%)": "percent", "Num Calls": "count", "Name": "name"}
    assert_equal(ours, theirs, columns, ["name", "total_ns"])


def test_gpu(name, report):
    theirs, ours = theirs_of(name, "cuda_gpu_sum"), with_percent(kanalyze.gpu(report))
    if both_are_empty(theirs, ours):
        return
    columns = {
        **TIMES,
        "Time (%)": "percent",
        "Instances": "count",
        "Category": "category",
        "Operation": "operation",
    }
    assert_equal(ours, theirs, columns, ["operation"])


def test_launches(name, report):
    theirs, ours = theirs_of(name, "cuda_kern_exec_trace"), kanalyze.launches(report)
    if both_are_empty(theirs, ours):
        return
    theirs = [{**row, **shapes(row)} for row in theirs]
    columns = {
        "API Start (ns)": "api_start_ns",
        "API Dur (ns)": "api_ns",
        "Queue Dur (ns)": "queue_ns",
        "Kernel Start (ns)": "kernel_start_ns",
        "Kernel Dur (ns)": "kernel_ns",
        "Total Dur (ns)": "total_ns",
        "PID": "process_id",
        "TID": "thread_id",
        "DevId": "device",
        "API Function": "api",
        "Kernel Name": "kernel",
        **{column: column for column in shapes(theirs[0])},
    }
    assert_equal(ours, theirs, columns, ["api_start_ns", "kernel_start_ns", "process_id", "device"])


def test_launch_summary(name, report):
    theirs, ours = theirs_of(name, "cuda_kern_exec_sum"), kanalyze.launch_summary(report)
    if both_are_empty(theirs, ours):
        return
    columns = {
        "PID": "process_id",
        "TID": "thread_id",
        "DevId": "device",
        "Count": "count",
        "QCount": "queue_count",
        "API Name": "api",
        "Kernel Name": "kernel",
        **LAUNCH_TIMES,
    }
    assert_equal(ours, theirs, columns, ["process_id", "thread_id", "device", "api", "kernel"])
