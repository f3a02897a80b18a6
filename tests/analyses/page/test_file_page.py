"""Content of the HTML report (distributions, what ncu measured, copies by size), and what shows a finding."""

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.counters.counters import hot_lines, stalls
from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.page.file_page import LARGE_BYTES, _of, copy_points, durations, evidence, file_pages, measured
from kanalyze.errors import UnknownNameError
from support.build import call, kernel, report
from support.command import REPORTS, SAMPLES
from support.real_reports import real_report

# What ncu measured, and copies by size: the rows of the tables, and nothing where nothing was measured.


@pytest.mark.slow
def test_of_a_capture_the_tables_and_the_kernels_with_most_time_of_the_program():
    reports = kanalyze.read_all(SAMPLES / "mlp_train")
    (page,) = file_pages(*reports, most=1000)
    ncu = next(one for one in reports if one.meta.tool == "ncu")
    found = page.measured
    names = [table.name for table, _ in found.tables]
    assert names == ["roofline", "stalls"]  # its pages have no lines
    assert found.tables[0][1].equals(roofline(ncu))
    assert found.tables[1][1].equals(stalls(ncu))
    times = found.kernels.get_column("time_ns").to_list()
    assert times == sorted(times, reverse=True)
    assert found.time_from == "nsys"
    first = found.kernels.row(0, named=True)
    exclusive = kanalyze.kernels(reports[0]).filter(pl.col("name") == first["name"])
    assert first["time_ns"] <= exclusive.get_column("total_ns").sum()
    for event_id in found.kernels.get_column("event_id"):
        own = stalls(ncu).filter(pl.col("event_id") == event_id)
        assert found.reasons.filter(pl.col("event_id") == event_id).equals(own.head(6))


@pytest.mark.slow
def test_lines_of_a_report_in_ncu_s_own_format():
    pytest.importorskip("ncu_report", reason="the module ncu_report is not installed (extra ncu)")
    found = measured(kanalyze.read_all(SAMPLES / "add_parallel_explicit"))
    ncu = next(one for one in kanalyze.read_all(SAMPLES / "add_parallel_explicit") if one.meta.tool == "ncu")
    lines = hot_lines(ncu).filter(pl.col("line").is_not_null() & (pl.col("samples") > 0))
    assert lines.height
    assert found.lines.equals(lines.head(8))


@pytest.mark.parametrize("name", ["add", "torch"])
def test_nothing_where_nothing_was_measured(name):
    found = real_report(REPORTS / f"{name}.sqlite")
    assert measured([found]) is None
    assert file_pages(found, most=1000)[0].measured is None


def test_copies_by_size_are_all_copies_and_the_line_is_the_fastest_large_one():
    found = kanalyze.read(SAMPLES / "streams" / "nsys.sqlite")
    points = copy_points(found)
    detail = found.copy_detail.select("event_id", "size_bytes", pl.col("direction").cast(pl.String))
    rows = found.kind("memcpy").join(detail, on="event_id").select("direction", "size_bytes", "dur_ns").rows()
    assert points.points.get_column("count").sum() + points.left_out == len(rows)
    expected = {}
    for direction, size, ns in rows:
        if size >= LARGE_BYTES:
            expected[direction] = max(expected.get(direction, 0), size / ns * 1e9)
    told = dict(points.links.select("direction", "bandwidth_bytes_per_s").iter_rows())
    assert told == pytest.approx(expected)
    for row in points.points.iter_rows(named=True):
        own = [ns for direction, size, ns in rows if (direction, size) == (row["direction"], row["size_bytes"])]
        assert row["total_ns"] <= sum(own)
        assert row["bandwidth_bytes_per_s"] == pytest.approx(row["size_bytes"] * row["count"] / row["total_ns"] * 1e9)


def test_no_large_copies_no_points():
    assert copy_points(report([kernel(0, 10)])) is None
    assert copy_points(real_report(REPORTS / "emit_nvtx.sqlite")) is None


# Distributions of durations: of the kernels with most time in sum, in bins of equal ratios.


def one_after_the_other(*launches):
    """A report of kernels, each a name and how long it ran."""
    events, at = [], 0
    for name, ns in launches:
        events.append(kernel(at, at + ns, name=name))
        at += ns
    return report(events)


def test_the_kernels_with_most_time_have_one():
    """40 of 42; what one launch takes, or their number, would choose others."""
    once = [(f"once{number:02}", 200) for number in range(39)]
    often, long, many = [("often", 30)] * 10, [("long", 150)], [("many", 1)] * 100
    rows = durations(one_after_the_other(*long, *many, *often, *once))
    assert rows.get_column("name").to_list() == ["often", *(name for name, _ in once)]


def test_a_launch_is_in_the_bin_of_its_logarithm():
    (row,) = durations(one_after_the_other(*(("k", ns) for ns in (10, 100, 100, 1_000)))).to_dicts()
    counts = row.pop("counts")
    assert row == {"name": "k", "least_ns": 10, "most_ns": 1_000}
    last = len(counts) - 1
    assert {at: count for at, count in enumerate(counts) if count} == {0: 1, len(counts) // 2: 2, last: 1}


# What a finding in a report is made of: lines, kernels and waits in the time that it claims.


EVENTS = [
    call("cudaLaunchKernel", 0, 100, correlation=1),
    kernel(200, 600, name="first", correlation=1),
    call("cudaStreamSynchronize", 400, 800),
    call("cudaLaunchKernel", 900, 1_000, correlation=2),
    kernel(1_100, 1_600, name="second", correlation=2),
]
LINES = [
    {"process_id": 1, "thread_id": 1, "start_ns": start, "dur_ns": end - start, "file": "a.py", "line": number}
    | {"function": "f", "text": f"line {number}"}
    for start, end, number in ((0, 300, 1), (300, 850, 2), (850, 2_000, 3))
]


def made_of(*claims, names=()):
    spans = pl.DataFrame(claims, schema=["start", "end"], orient="row") if claims else None
    found = Finding("rule", 0, 100, "Text.", "Remedy.", "gaps", names=names, claims=spans)
    return _of(report(EVENTS, source_lines=LINES), found)


def test_its_time_is_told_by_line_kernel_and_wait():
    found = made_of((400, 900))
    assert found.lines.rows() == [("a.py:2", "line 2", 250), ("a.py:1", "line 1", 200), ("a.py:3", "line 3", 50)]
    assert found.kernels.rows() == [("first", 1, 200)]
    assert found.waits.rows() == [
        ("sync", "cudaStreamSynchronize", 1, 200),
        ("host", "between cudaStreamSynchronize and cudaLaunchKernel", 1, 100),
    ]


def test_what_is_claimed_twice_counts_once():
    assert made_of((400, 900), (500, 700)).lines.equals(made_of((400, 900)).lines)


def test_without_a_claim_there_are_the_kernels_that_it_names():
    found = made_of(names=("second",))
    assert found.kernels.rows() == [("second", 1, 500)]
    assert found.lines.is_empty()
    assert found.waits.is_empty()


def test_a_report_without_the_finding_says_which_it_has():
    with pytest.raises(UnknownNameError, match="no finding of made by hand called 'tail'"):
        evidence(report(EVENTS), "tail")
