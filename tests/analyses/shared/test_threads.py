"""Events of threads: how they nest, which is innermost, and how spans cut them, against walks instant by instant."""

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.shared.threads import (
    LINE,
    THREAD,
    innermost_line,
    innermost_lines,
    nested,
    next_greater,
    of_thread,
    overlaid,
    touched,
)
from support.slow_ops import nested as slowly_nested

TIMES = {"start": pl.Int64, "end": pl.Int64}
SPANS = st.lists(st.tuples(st.integers(0, 14), st.integers(-1, 9)), max_size=10)


@st.composite
def nesting(draw):
    """Starts and ends that often meet, some without duration, sorted as a thread's events are."""
    starts = draw(st.lists(st.integers(0, 12), max_size=16))
    found = [(start, start + draw(st.integers(0, 9))) for start in starts]
    return sorted(found, key=lambda span: (span[0], -span[1]))


def tree(spans):
    start, end = (pl.Series([span[side] for span in spans], dtype=pl.Int64) for side in (0, 1))
    found = nested(start, end)
    return found.get_column("parent").to_list(), found.get_column("stop").to_list()


@given(nesting())
def test_parents_are_those_of_torchs_stack_and_what_is_in_an_event_stands_before_its_stop(spans):
    parents, stops = tree(spans)
    assert parents == slowly_nested(spans)
    for place, stop in enumerate(stops):
        inside = {place}
        inside |= {later for later in range(place, len(spans)) if parents[later] in inside and not inside.add(later)}
        assert inside == set(range(place, stop))


@given(st.lists(st.integers(0, 6), max_size=40), st.data())
def test_the_next_greater_value(values, data):
    rows = data.draw(st.lists(st.integers(0, len(values) - 1), unique=True)) if values else []
    expected = [
        next((later for later in range(row + 1, len(values)) if values[later] > values[row]), len(values))
        for row in sorted(rows)
    ]
    found = next_greater(pl.Series(values, dtype=pl.Int64), pl.Series(sorted(rows), dtype=pl.Int64))
    assert found.to_list() == expected


@given(SPANS)
def test_every_instant_belongs_to_what_started_last(lengths):
    """Then to what ends first; of twins to the last one."""
    spans = [(start, start + length) for start, length in lengths]
    rows = [(start, end, place) for place, (start, end) in enumerate(spans)]
    line = innermost_line(pl.DataFrame(rows, schema=LINE, orient="row")).rows()
    assert all(start < end for start, end, _ in line)
    assert all(before[1] <= after[0] for before, after in pairwise(line))
    told = {at: row for start, end, row in line for at in range(start, end)}
    for at in range(30):
        here = [(start, -end, row) for row, (start, end) in enumerate(spans) if start <= at < end]
        assert told.get(at) == (max(here)[2] if here else None)


@st.composite
def apart(draw):
    """Stretches of time that do not overlap, sorted; some meet, some are empty."""
    edges = sorted(draw(st.lists(st.integers(0, 30), max_size=16)))
    return list(zip(edges[::2], edges[1::2], strict=False))


@given(apart(), apart())
def test_every_instant_of_a_piece_is_in_the_span_that_covers_it(pieces, spans):
    frame = pl.DataFrame(pieces, schema=TIMES, orient="row").with_row_index("piece")
    known = pl.DataFrame(spans, schema=TIMES, orient="row").with_row_index("span")
    told = [
        ((piece, at), span)
        for piece, start, end, span in overlaid(frame, known, "span").select("piece", "start", "end", "span").rows()
        for at in range(start, end)
    ]
    owner = {at: span for span, (start, end) in enumerate(spans) for at in range(start, end)}
    expected = [((piece, at), owner.get(at)) for piece, edges in enumerate(pieces) for at in range(*edges)]
    assert sorted(told, key=lambda one: one[0]) == expected


@given(apart(), apart())
def test_touched_pieces_overlap_a_span(pieces, spans):
    pieces, spans = ([one for one in some if one[0] < one[1]] for some in (pieces, spans))
    frame, known = (pl.DataFrame(rows, schema=TIMES, orient="row") for rows in (pieces, spans))
    expected = [any(start < stop and begin < end for begin, stop in spans) for start, end in pieces]
    assert touched(frame, known).to_list() == expected


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([None, *range(12)]), *[st.integers(-9, 40)] * 2)))
def test_every_thread_has_the_line_that_it_has_alone(rows):
    events = pl.DataFrame(rows, schema=dict.fromkeys((*THREAD, "start", "end"), pl.Int64), orient="row")
    events = events.with_row_index("row")
    alone = {key: innermost_line(own) for key, own in events.partition_by(THREAD, as_dict=True).items()}
    found = innermost_lines(events)
    assert {key: line.rows() for key, line in found.items()} == {
        key: line.select(*LINE).rows() for key, line in alone.items() if line.height
    }


@pytest.mark.parametrize(("key", "rows"), [((1, 2), [0]), ((1, None), [1]), ((None, None), [2])])
def test_a_thread_without_a_number_is_one_of_its_own(key, rows):
    frame = pl.DataFrame({"process_id": [1, 1, None], "thread_id": [2, None, None]}).with_row_index("row")
    assert frame.filter(of_thread(key)).get_column("row").to_list() == rows
