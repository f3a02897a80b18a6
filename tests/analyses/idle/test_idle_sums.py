"""Sums over parts of idle time, against a dict."""

from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.idle import _idle_sums
from kanalyze.analyses.idle._idle_sums import coded, last_of_runs, of_each_gap

PARTS = st.lists(
    st.tuples(
        st.integers(3, 6), st.sampled_from(["host", "sync"]), st.sampled_from([None, "a", "b"]), st.integers(0, 9)
    ),
    max_size=20,
)
SCHEMA = {"gap": pl.UInt32, "bucket": pl.Enum(["sync", "host"]), "culprit": pl.Categorical, "ns": pl.Int64}


@given(PARTS, st.sampled_from([0, 1 << 62]))
def test_each_gap_and_culprit_has_one_sum(rows, largest):
    parts = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    numbered, size = coded(parts, ("bucket", "culprit"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_idle_sums, "LARGEST", largest)
        each = of_each_gap(parts.get_column("gap"), numbered, size)
    told = parts.select(pl.col("gap", "bucket", "culprit").gather(each.get_column("at")))
    expected = Counter()
    for gap, bucket, culprit, ns in rows:
        expected[gap, bucket, culprit] += ns
    assert dict(zip(told.iter_rows(), each.get_column("ns"), strict=True)) == expected
    assert told.height == len(expected)
    assert told.select("gap", "bucket").equals(told.select("gap", "bucket").sort("gap", "bucket"))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-9, 9)), max_size=12))
def test_runs_are_summed_one_by_one(rows):
    frame = pl.DataFrame(rows, schema={"same": pl.Int64, "ns": pl.Int64}, orient="row").with_row_index("at")
    found = last_of_runs(frame, frame.get_column("same"))
    expected = []
    for at, (same, ns) in enumerate(rows):
        if at and rows[at - 1][0] == same:
            expected[-1] = (at, same, expected[-1][2] + ns)
        else:
            expected.append((at, same, ns))
    assert found.rows() == expected
