"""Threads on one line of time, against the threads one by one."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.shared import thread_lanes
from kanalyze.analyses.shared.thread_lanes import LINE, lanes_of

KEYS = [(1, 1), (1, 2), (7, None)]


@st.composite
def lines(draw):
    """What each thread did: spans that are sorted and apart."""
    found = {}
    for key in KEYS[: draw(st.integers(1, 3))]:
        edges = sorted(draw(st.lists(st.integers(-20, 20), max_size=8, unique=True)))
        found[key] = [(start, end, row) for row, (start, end) in enumerate(zip(edges[::2], edges[1::2], strict=False))]
    return found


@given(lines(), st.integers(-10, 10), st.integers(0, 15), st.sampled_from([0, 60, 1 << 62]))
def test_lanes_hold_what_threads_did_from_low_to_high(threads, low, length, longest):
    high, frames = low + length, {}
    for key, spans in threads.items():
        frames[key] = pl.DataFrame(spans, schema=LINE, orient="row")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_lanes, "_LONGEST", longest)
        every = list(lanes_of([*threads], low, high))
    assert [key for lanes in every for key in lanes.keys] == [*threads]
    told = {}
    for lanes in every:
        line = lanes.line(frames)
        assert line.get_column("start").is_sorted()
        assert (line.get_column("start").shift(-1) >= line.get_column("end")).all()
        told |= {key: own.rows() for key, own in lanes.of_each(line)}
    for key, spans in threads.items():
        inside = [(start, end, row) for start, end, row in spans if end > low and start < high]
        if len(every) < len(threads):  # what sticks out of a lane is cut off where there is another one
            assert [row for *_, row in told.get(key, [])] == [row for *_, row in inside]
            cut = [(max(start, low), min(end, high)) for start, end, _ in inside]
            assert [(max(start, low), min(end, high)) for start, end, _ in told.get(key, [])] == cut
        else:
            assert told.get(key, []) == inside
