"""NVTX ranges by name."""

import pytest
from hypothesis import given

from kanalyze.analyses.ranges.ranges import ranges
from kanalyze.window import Window
from support.build import kernel, launched, nvtx, report, rows_of
from support.slow_ranges import OPEN_UNTIL, name_of, reports, spread


def test_ranges_by_domain_name_and_style():
    events = [
        nvtx("step", 0, 100),
        nvtx("step", 200, 260, thread=2),
        nvtx("step", 10, 50, domain="solver"),
        nvtx("step", 0, 20, style="StartEnd"),
    ]
    assert ranges(report(events)).to_dicts() == rows_of(
        "range style count total_ns share avg_ns median_ns min_ns max_ns stddev_ns open_count threads "
        "cross_thread_count process_busy_ns process_operations",
        (":step", "PushPop", 2, 160, 160 / 220, 80.0, 80.0, 60, 100, pytest.approx(28.28427), 0, 2, 0, 0, 0),
        ("solver:step", "PushPop", 1, 40, 40 / 220, 40.0, 40.0, 40, 40, 0.0, 0, 1, 0, 0, 0),
        (":step", "StartEnd", 1, 20, 20 / 220, 20.0, 20.0, 20, 20, 0.0, 0, 1, 0, 0, 0),
    )


def counts(of, *columns, **where):
    return ranges(of, **where).select("range", *columns).rows()


def test_a_range_that_was_never_closed_lasts_until_the_latest_nvtx_event():
    events = [nvtx("open", 10, None, open_until_ns=90), nvtx("closed", 0, 20)]
    assert counts(report(events), "total_ns", "open_count") == [(":open", 80, 1), (":closed", 20, 0)]


def test_a_range_that_another_thread_ended_is_counted():
    events = [nvtx("handed over", 0, 10, style="StartEnd", end_thread_id=2)]
    assert counts(report(events), "total_ns", "cross_thread_count") == [(":handed over", 10, 1)]


def test_ranges_that_overlap_the_window_count_whole():
    events = [
        nvtx("before", 0, 10),
        nvtx("into", 5, 15),
        nvtx("instant", 10, 10),
        nvtx("open", 8, None, open_until_ns=50),
    ]
    found = counts(report(events), "total_ns", window=Window(10, 20))
    assert found == [(":open", 42), (":into", 10), (":instant", 0)]
    assert counts(report(events), "total_ns", window=Window(20, 30)) == [(":open", 42)]


def test_of_a_device_those_of_the_processes_that_used_it():
    events = [
        nvtx("a", 0, 10),
        nvtx("b", 0, 10, process=2),
        *launched(1, 2, kernel(3, 4, correlation=1, device=1)),
        *launched(1, 2, kernel(3, 4, correlation=1, device=0, process=2), process=2),
    ]
    made = report(events)
    assert counts(made, "count", device=1) == [(":a", 1)]
    assert counts(made, "count", process=2) == [(":b", 1)]


@given(reports())
@pytest.mark.slow
def test_sums(events):
    lengths = {}
    for event in events:
        if event.kind == "range":
            end = OPEN_UNTIL if event.end is None else event.end
            lengths.setdefault((name_of(event), event.side["style"]), []).append(end - event.start)
    found = {(row["range"], row["style"]): row for row in ranges(report(events)).to_dicts()}
    assert found.keys() == lengths.keys()
    for key, values in lengths.items():
        row = found[key]
        assert (row["count"], row["total_ns"]) == (len(values), sum(values))
        assert {name: row[name] for name in spread(values)} == pytest.approx(spread(values))
    totals = [row["total_ns"] for row in ranges(report(events)).to_dicts()]
    assert totals == sorted(totals, reverse=True)
