"""Counters of a timeline: bytes are spread over the bins that they moved in, and utilisation is the table's."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.device.kernels import copies
from kanalyze.analyses.idle.ledger import utilisation
from kanalyze.analyses.timeline._tracks import counters, means, timeline
from support.build import kernel, report
from support.command import REPORTS, SAMPLES
from support.real_reports import real_report

MOVED = st.lists(st.tuples(st.integers(-20, 120), st.integers(0, 40), st.integers(1, 10**6)), min_size=1, max_size=12)


def brute(moved, from_ns, until_ns):
    """Bytes per second between two times, nanosecond by nanosecond."""
    told = 0.0
    for start, length, size in moved:
        long = max(length, 1)
        told += size / long * len(range(max(start, from_ns), min(start + long, until_ns)))
    return told / (until_ns - from_ns) * 1e9


@given(MOVED, st.integers(0, 40), st.integers(1, 80), st.integers(1, 30))
def test_bytes_are_spread_over_the_bins_they_moved_in(moved, low, length, width):
    rows = [(start, start + long, size) for start, long, size in moved]
    frame = pl.DataFrame(rows, schema=["start", "end", "size_bytes"], orient="row")
    found = means(frame, low, low + length, width)
    starts = [*range(low, low + length, width)]
    expected = [brute(moved, at, min(at + width, low + length)) for at in starts]
    assert found.get_column("t_ns").to_list() == starts
    assert found.get_column("value").to_list() == pytest.approx(expected, rel=1e-6, abs=1)


def test_utilisation_and_bandwidth_of_a_real_report():
    found = real_report(SAMPLES / "mlp_train" / "nsys.sqlite")
    drawn = {one.label: one for one in counters(found, 0, 1 << 60)}
    table = utilisation(found, 2000)
    moved = copies(found).filter(pl.col("operation").str.contains("memcpy"))
    assert drawn["utilisation"].points.head(2000).get_column("value").to_list() == table["busy_share"].to_list()
    assert drawn["utilisation"].bin_ns == table.item(0, "dur_ns")
    told = [one for label, one in drawn.items() if label.startswith("copied ")]
    length = pl.col("t_ns").diff().shift(-1).fill_null(0)
    in_all = sum(one.points.select((pl.col("value") * length).sum()).item() / 1e9 for one in told)
    assert len(told) == moved.height == 3
    assert in_all == pytest.approx(moved.get_column("total_bytes").sum(), rel=1e-6)


def test_a_kernel_alone_has_utilisation_and_no_copies_and_without_devices_there_are_no_counters():
    labels = [one.label for one in timeline(report([kernel(0, 10), kernel(30, 40)]), 100).counters]
    assert labels == ["utilisation"]
    assert [*counters(real_report(REPORTS / "empty.sqlite"), 0, 1)] == []
