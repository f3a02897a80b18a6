"""Attribution piece by piece: instant by instant as the model, and as the ledger of real reports."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.idle import _attribution
from kanalyze.analyses.idle._attribution import idle_pieces, ledger_pieces
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import call, kernel, report
from support.command import REPORTS, SAMPLES
from support.real_reports import real_report
from support.slow_model import SlowModel
from support.strategies import EVENTS, FEWER, WINDOWS

KEYS = ("device", "bucket")


def sums(frame, ns):
    told = frame.with_columns(pl.col("bucket").cast(pl.String)).group_by(KEYS).agg(ns=ns.sum())
    return told.filter(pl.col("ns") > 0).sort(KEYS).rows()


def assert_partition(found, of):
    """The pieces of a device follow each other, from the first moment of its window to the last."""
    for device, low, high in windows(of).select("device", "start", "end").iter_rows():
        own = found.filter(pl.col("device") == device)
        assert [low, *own.get_column("end")] == [*own.get_column("start"), high]


def test_a_wait_has_the_call_and_a_busy_moment_no_culprit():
    events = [call("cudaLaunchKernel", 0, 4, correlation=1), kernel(6, 10, correlation=1), kernel(14, 20, name="b")]
    found = ledger_pieces(report(events))
    assert found.select("start", "end", "bucket", "culprit").rows() == [
        (0, 6, "launch", "k"),
        (6, 10, "kernel", None),
        (10, 14, "host", "after cudaLaunchKernel"),
        (14, 20, "kernel", None),
    ]


@FEWER
@given(EVENTS, WINDOWS)
def test_each_instant_is_that_of_the_model(events, window):
    model, of = SlowModel(events, window), report(events).narrow(window=Window(*window))
    found = ledger_pieces(of)
    assert_partition(found, of)
    for device in windows(of).get_column("device"):
        own = found.filter(pl.col("device") == device).select("start", "end", "bucket")
        told = {at: bucket for start, end, bucket in own.iter_rows() for at in range(start, end)}
        assert told == {at: bucket for at, bucket, _ in model.instants(device)}


@FEWER
@given(EVENTS, WINDOWS, WINDOWS, st.sampled_from([0, 1 << 15]))
def test_pieces_are_the_same_whatever_was_attributed_before(events, window, before, few):
    of = report(events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_attribution, "_FEW", few)
        idle_pieces(of.narrow(window=Window(*before)))
        if few:
            idle_pieces(of)
        view, alone = of.narrow(window=Window(*window)), report(events).narrow(window=Window(*window))
        known, fresh = idle_pieces(view), idle_pieces(alone)
        assert ledger_pieces(view).equals(ledger_pieces(alone))
    assert {device: ours.equals(fresh[device]) for device, ours in known.items()} == dict.fromkeys(fresh, True)


@pytest.mark.parametrize(
    "path",
    [*sorted(REPORTS.glob("*.sqlite")), *SAMPLES.glob("*/torch.json.gz")],
    ids=lambda path: path.parent.name + path.stem,
)
def test_the_sums_of_real_reports_are_the_ledger(path):
    of = real_report(path)
    if not {"kernel", "memcpy"} & {*of.kinds}:
        pytest.skip("nothing ran on a device")
    found = ledger_pieces(of)
    assert_partition(found, of)
    assert sums(found, pl.col("end") - pl.col("start")) == sums(ledger(of), pl.col("ns"))
