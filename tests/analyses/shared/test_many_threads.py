"""Threads on lanes of one time axis nest as each does alone."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.shared.thread_lanes import LINE, THREAD, laned
from kanalyze.analyses.shared.thread_nesting import innermost_line, innermost_lines

EVENTS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([None, *range(12)]), *[st.integers(-9, 40)] * 2))


@given(EVENTS)
def test_every_thread_has_the_line_that_it_has_alone(rows):
    events = pl.DataFrame(rows, schema=dict.fromkeys((*THREAD, "start", "end"), pl.Int64), orient="row")
    events = events.with_row_index("row")
    alone = {key: innermost_line(own) for key, own in events.partition_by(THREAD, as_dict=True).items()}
    found = innermost_lines(events)
    assert {key: line.rows() for key, line in found.items()} == {
        key: line.select(*LINE).rows() for key, line in alone.items() if line.height
    }


def test_threads_that_no_axis_holds_together_come_apart():
    rows = [(1, thread, 0, 1 << 61) for thread in range(5)]
    events = pl.DataFrame(rows, schema=[*THREAD, "start", "end"], orient="row")
    assert [own.height for _, own in laned(events)] == [1, 1, 1, 1, 1]
