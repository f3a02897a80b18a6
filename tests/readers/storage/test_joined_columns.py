"""A frame that is joined column by column is what its parts are one below the other."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.readers.storage.table_scan import joined

NUMBERS = st.none() | st.integers(0, 1) | st.integers(-(1 << 62), 1 << 62)
NAMES = st.none() | st.sampled_from("abc")
SCHEMA = {"number": pl.Int64, "small": pl.Int32, "name": pl.Categorical, "text": pl.String}
ROWS = st.tuples(NUMBERS, st.none() | st.integers(0, 1), NAMES, NAMES)
PARTS = st.lists(st.lists(ROWS, max_size=4), min_size=1, max_size=5)


@given(PARTS)
def test_a_joined_frame_is_its_parts_together(rows):
    parts = [pl.DataFrame(part, schema=SCHEMA, orient="row") for part in rows]
    together = pl.concat([parts[0].clear(), *parts])
    assert joined(parts).equals(together, null_equal=True)
    assert joined([together.clone()]).schema == together.schema
