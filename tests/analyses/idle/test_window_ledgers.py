"""Ledgers of many windows, whatever was attributed before, against the ledger of each window alone."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.idle import _attribution
from kanalyze.analyses.idle._attribution import unknown_times, window_ledgers
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
        patch.setattr(_attribution, "_FEW", few)
        for spans in asked:
            sides = [(start, start + length) for start, length in spans]
            assert together(of, sides) == one_by_one(of, sides)


def unknown_by_ledger(of):
    """Idle time of unknown cause by device, and the waits for work from before the recording."""
    rows = ledger(of).filter(pl.col("bucket") == "unknown").with_columns(begins=pl.col("detail").is_not_null())
    sums = {(device, begins): ns for device, begins, ns in rows.select("device", "begins", "ns").iter_rows()}
    return [tuple(sums.get((device, begins), 0) for begins in (False, True)) for device in windows(of)["device"]]


@pytest.mark.slow
@FEWER
@given(EVENTS, st.booleans())
def test_idle_time_of_unknown_cause_is_that_of_the_ledger(events, known):
    of = report(events)
    if known:
        ledger(of)
    assert unknown_times(of) == unknown_by_ledger(report(events))


@pytest.mark.parametrize(
    "path", [*sorted(REPORTS.glob("*.sqlite")), SAMPLES / "mlp_train" / "torch.json.gz"], ids=lambda path: path.name
)
def test_idle_time_of_unknown_cause_of_real_reports(path):
    of = real_report(path)
    if {*kanalyze.model.DEVICE_KINDS}.isdisjoint(of.kinds):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_attribution, "_WHOLE", ())  # nothing was attributed
        told = unknown_times(of)
    assert told == unknown_by_ledger(of)
