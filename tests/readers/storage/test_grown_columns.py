"""A frame that grows is what its parts are one below the other."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.readers.storage.sqlite_pages.blocks import GrownFrame

NUMBERS = st.none() | st.integers(0, 1) | st.integers(-(1 << 62), 1 << 62)
NAMES = st.none() | st.sampled_from("abc")
SCHEMA = {"number": pl.Int64, "small": pl.Int32, "name": pl.Categorical, "text": pl.String}
ROWS = st.tuples(NUMBERS, st.none() | st.integers(0, 1), NAMES, NAMES)
PARTS = st.lists(st.lists(ROWS, max_size=4), min_size=1, max_size=5)


@given(PARTS, st.integers(0, 3))
def test_a_grown_frame_is_its_parts_together(rows, spare):
    parts = [pl.DataFrame(part, schema=SCHEMA, orient="row") for part in rows]
    grown = GrownFrame(sum(map(len, rows)) + spare)
    for part in parts:
        grown.add(part)
    assert grown.frame().equals(pl.concat(parts), null_equal=True)
    assert grown.frame().schema == parts[0].schema
