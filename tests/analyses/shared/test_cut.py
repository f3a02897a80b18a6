"""Pieces of time that are cut by spans, instant by instant."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.shared.thread_nesting import overlaid, touched


@st.composite
def apart(draw):
    """Stretches of time that do not overlap, sorted; some meet, some are empty."""
    edges = sorted(draw(st.lists(st.integers(0, 30), max_size=16)))
    return list(zip(edges[::2], edges[1::2], strict=False))


@given(apart(), apart())
def test_every_instant_of_a_piece_is_in_the_span_that_covers_it(pieces, spans):
    frame = pl.DataFrame(pieces, schema={"start": pl.Int64, "end": pl.Int64}, orient="row").with_row_index("piece")
    known = pl.DataFrame(spans, schema={"start": pl.Int64, "end": pl.Int64}, orient="row").with_row_index("span")
    cut = overlaid(frame, known, "span")
    told = {}
    for piece, start, end, span in cut.select("piece", "start", "end", "span").iter_rows():
        for at in range(start, end):
            assert (piece, at) not in told
            told[piece, at] = span
    owner = {at: span for span, (start, end) in enumerate(spans) for at in range(start, end)}
    expected = {(piece, at): owner.get(at) for piece, (start, end) in enumerate(pieces) for at in range(start, end)}
    assert told == expected


@given(apart(), apart())
def test_touched_pieces_overlap_a_span(pieces, spans):
    spans = [span for span in spans if span[0] < span[1]]
    frame, known = (
        pl.DataFrame(rows, schema=["start", "end"], orient="row").cast(pl.Int64) for rows in (pieces, spans)
    )
    expected = [any(start < stop and begin < end for begin, stop in spans) for start, end in pieces]
    lasting = [start < end for start, end in pieces]
    found = touched(frame, known).to_list()
    assert [one for one, lasts in zip(found, lasting, strict=True) if lasts] == [
        one for one, lasts in zip(expected, lasting, strict=True) if lasts
    ]
