"""Idle time in which its host thread was inside given intervals: by hand, then as parts of the ledger."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.idle._attribution import WITHIN, idle_within
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.intervals import AFTER_ALL, BEFORE_ALL
from kanalyze.window import Window
from support.build import call, kernel, launched, nvtx, report
from support.shares import cases, holds
from support.slow_gaps import gap_reports
from support.strategies import FEWER, WINDOWS

LAUNCH = "cudaLaunchKernel_v7000"
SPANS = dict.fromkeys(("process_id", "thread_id", "start", "end"), pl.Int64)


def spans(*rows):
    return pl.DataFrame(list(rows), schema=SPANS, orient="row")


def within(of, *rows):
    """Start, end, bucket and detail of the pieces of GPU 0."""
    pieces = idle_within(of, spans(*rows))[0]
    assert dict(pieces.schema) == WITHIN
    return pieces.sort("start").drop("process_id", "thread_id").rows()


PROGRAM = (
    *launched(0, 10, kernel(10, 20, correlation=1), LAUNCH),
    call("cudaStreamSynchronize_v3020", 15, 30),
    *launched(60, 70, kernel(80, 90, correlation=2), LAUNCH),
)


def test_idle_time_is_cut_by_the_intervals_and_told_by_bucket():
    of = report(PROGRAM)
    assert within(of, (1, 1, 25, 65), (1, 1, 40, 75)) == [
        (25, 30, "sync", "cudaStreamSynchronize"),
        (30, 60, "host", None),
        (60, 75, "launch", None),
    ]
    assert within(of, (1, 1, 10, 15), (1, 1, 20, 20), (1, 1, 80, 95)) == []


def test_only_intervals_of_the_thread_that_the_device_waits_for_count():
    assert within(report(PROGRAM), (1, 2, 0, 90), (2, 1, 0, 90), (1, None, 0, 90)) == []


def test_the_window_cuts_the_pieces():
    assert within(report(PROGRAM).narrow(window=Window(25, 50)), (1, 1, 0, 45)) == [
        (25, 30, "sync", "cudaStreamSynchronize"),
        (30, 45, "host", None),
    ]


@cases(0.3)
@FEWER
@given(gap_reports(), WINDOWS, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=4))
def test_the_pieces_are_parts_of_the_ledger(made, window, cut):
    """All of time gives each bucket of the ledger, but for what has no thread; and any part and the rest give all."""
    events, records = made
    of = report(events, event_records=records).narrow(window=Window(*window))
    keys = {(event.process, event.thread) for event in events if event.kind == "api"}
    if not keys:
        return
    whole = idle_within(of, spans(*((*key, BEFORE_ALL, AFTER_ALL) for key in keys)))
    part = spans(*((*key, min(sides), max(sides)) for key in keys for sides in cut))
    inside = idle_within(of, part)
    for device, pieces in whole.items():
        sums = sums_of(pieces)
        held = ledger(of).filter(device=device)
        held = dict(held.group_by("bucket").agg(pl.col("ns").sum()).cast({"bucket": pl.String}).iter_rows())
        for bucket, ns in sums.items():
            assert ns == held[bucket] if bucket != "unknown" else ns <= held[bucket]
        idle = {"loading", "allocation", "launch", "queued", "sync", "api", "host"} & held.keys()
        holds(idle and part.height)
        assert idle <= sums.keys()
        line = inside[device].sort("start")
        assert (line.get_column("start").shift(-1) >= line.get_column("end")).all()
        for bucket, ns in sums_of(line).items():
            assert ns <= sums[bucket]


def sums_of(pieces):
    sums = pieces.group_by(pl.col("bucket").cast(pl.String)).agg((pl.col("end") - pl.col("start")).sum())
    return dict(sums.iter_rows())


def test_ranges_are_no_matter():
    of = report([*PROGRAM, nvtx("data", 20, 50)])
    assert within(of, (1, 1, 30, 40)) == [(30, 40, "host", None)]
