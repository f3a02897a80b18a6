"""Ledgers of many windows, whatever was attributed before, against the ledger of each window alone."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.health import _told_by_ledger
from kanalyze.analyses.idle import _window_ledgers
from kanalyze.analyses.idle._idle_sums import want_names
from kanalyze.analyses.idle._window_ledgers import attributed, keep_attributed, unknown_times, window_ledgers
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import report
from support.command import REPORTS, SAMPLES
from support.real_reports import real_report
from support.strategies import EVENTS, FEWER

SPANS = st.lists(st.tuples(st.integers(-5, 40), st.integers(1, 30)), min_size=1, max_size=3)


def together(of, spans):
    """The sums of the ledgers of windows, by window, device and bucket."""
    sides = pl.DataFrame(spans, schema={"start": pl.Int64, "end": pl.Int64}, orient="row")
    sums = window_ledgers(of, sides).unpivot(index=["window", "device"], value_name="ns").filter(pl.col("ns") != 0)
    return {(window, device, name.removesuffix("_ns")): ns for window, device, name, ns in sums.iter_rows()}


def one_by_one(of, spans):
    found = {}
    for number, (start, end) in enumerate(spans):
        rows = ledger(of.narrow(window=Window(start, end))).group_by("device", "bucket").agg(pl.col("ns").sum())
        found |= {(number, device, bucket): ns for device, bucket, ns in rows.iter_rows() if ns}
    return found


@pytest.mark.slow
@FEWER
@given(EVENTS, st.lists(SPANS, min_size=1, max_size=5), st.sampled_from([0, 0, 1 << 15]))
def test_parts_attributed_one_after_the_other_give_the_ledger_of_each_window(events, asked, few):
    of = report(events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_window_ledgers, "_FEW", few)
        for spans in asked:
            sides = [(start, start + length) for start, length in spans]
            assert together(of, sides) == one_by_one(of, sides)


@pytest.mark.slow
@FEWER
@given(EVENTS, st.tuples(st.integers(-5, 30), st.integers(5, 40)), SPANS)
def test_what_the_ledger_of_a_part_keeps_is_what_its_windows_are_made_of(events, part, spans):
    of, (low, length) = report(events), part
    view = of.narrow(window=Window(low, low + length))
    want_names(view)
    keep_attributed(view)
    kanalyze.culprits(view)
    assert len(attributed(of)) <= 1
    sides = [(max(start, low), min(start + long, low + length)) for start, long in spans]
    sides = [(start, end) for start, end in sides if start < end]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_window_ledgers, "_attribute", None)  # nothing else is attributed
        found = together(of, sides) if sides and attributed(of) else None
    assert found is None or found == one_by_one(of, sides)


@pytest.mark.slow
@FEWER
@given(EVENTS)
def test_idle_time_of_unknown_cause_is_that_of_the_ledger(events):
    of = report(events)
    told = unknown_times(of)
    if told is not None:
        by_ledger = [times for times in _told_by_ledger(of) if times != (0, 0)]
        assert sorted(times for times in told if times != (0, 0)) == sorted(by_ledger)


@pytest.mark.parametrize(
    "path", [*sorted(REPORTS.glob("*.sqlite")), SAMPLES / "mlp_train" / "torch.json.gz"], ids=lambda path: path.name
)
def test_idle_time_of_unknown_cause_of_real_reports(path):
    of = real_report(path)
    if {*kanalyze.model.DEVICE_KINDS}.isdisjoint(of.kinds):
        return
    spans = windows(of)
    patched = pytest.MonkeyPatch()
    with patched.context() as patch:
        patch.setattr(_window_ledgers, "_known", lambda *_: None)  # nothing was attributed
        told = unknown_times(of)
    if told is not None:
        assert len(told) == spans.height
        assert sum(ns for ns, _ in told) == sum(ns for ns, _ in _told_by_ledger(of))
