"""Attribution piece by piece, as the model and real ledgers have it: by window, and inside intervals of the host."""

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.idle._attribution import idle_pieces, idle_within, ledger_pieces, window_ledgers
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.intervals import AFTER_ALL, BEFORE_ALL
from kanalyze.window import Window
from support.build import report
from support.large import in_batches
from support.shares import cases, holds
from support.slow_gaps import gap_reports
from support.strategies import EVENTS, FEWER, WINDOWS


@pytest.mark.slow
@FEWER
@given(EVENTS, WINDOWS, WINDOWS, st.sampled_from([1, 1 << 13]), st.booleans())
def test_pieces_are_the_same_whatever_was_attributed_before(events, window, before, batch, whole):
    of = report(events)
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        idle_pieces(of.narrow(window=Window(*before)))
        if whole:
            idle_pieces(of)
        view, alone = of.narrow(window=Window(*window)), report(events).narrow(window=Window(*window))
        known, fresh = idle_pieces(view), idle_pieces(alone)
        assert ledger_pieces(view).equals(ledger_pieces(alone))
    assert {device: ours.equals(fresh[device]) for device, ours in known.items()} == dict.fromkeys(fresh, True)


SPANS = st.lists(st.tuples(st.integers(-5, 40), st.integers(1, 30)), min_size=1, max_size=3)


def one_by_one(of, spans):
    found = {}
    for number, (start, end) in enumerate(spans):
        rows = ledger(of.narrow(window=Window(start, end))).group_by("device", "bucket").agg(pl.col("ns").sum())
        found |= {(number, device, bucket): ns for device, bucket, ns in rows.iter_rows() if ns}
    return found


@pytest.mark.slow
@FEWER
@given(EVENTS, st.lists(SPANS, min_size=1, max_size=5), st.sampled_from([1, 1 << 13]))
def test_parts_attributed_one_after_the_other_give_the_ledger_of_each_window(events, asked, batch):
    of = report(events)
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        for spans in asked:
            sides = [(start, start + length) for start, length in spans]
            frame = pl.DataFrame(sides, schema={"start": pl.Int64, "end": pl.Int64}, orient="row")
            sums = window_ledgers(of, frame).unpivot(index=["window", "device"], value_name="ns")
            found = {(at, device, name.removesuffix("_ns")): ns for at, device, name, ns in sums.iter_rows() if ns}
            assert found == one_by_one(of, sides)


INTERVALS = dict.fromkeys(("process_id", "thread_id", "start", "end"), pl.Int64)


def spans(*rows):
    return pl.DataFrame(list(rows), schema=INTERVALS, orient="row")


@pytest.mark.slow
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
