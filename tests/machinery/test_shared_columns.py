"""Columns in shared memory are what stands there, also after their frame is gone, and in any thread."""

import gc
from array import array
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.machinery.shared_columns import shared_frame

NUMBERS = st.integers(-(2**63), 2**63 - 1)
COLUMNS = st.integers(1, 70).flatmap(
    lambda rows: st.lists(
        st.lists(NUMBERS | st.none(), min_size=rows, max_size=rows) | NUMBERS | st.none(), min_size=1, max_size=5
    ).map(lambda columns: (rows, columns))
)


def written(columns):
    """Memory that holds the lists of `columns`, and the places of all of them."""
    memory, places = mmap(-1, 1 << 14), {}
    for number, values in enumerate(columns):
        name = f"c{number}"
        if not isinstance(values, list):
            places[name] = None, None, values
            continue
        at = memory.tell()
        memory.write(array("q", [value or 0 for value in values]).tobytes())
        places[name] = at, None, None
        if None in values:
            places[name] = at, memory.tell(), None
            bits = sum((value is not None) << bit for bit, value in enumerate(values))
            memory.write(bits.to_bytes(-(-len(values) // 64) * 8, "little"))
    return memory, places


@given(COLUMNS)
def test_a_frame_is_what_was_written(given_columns):
    rows, columns = given_columns
    memory, places = written(columns)
    wanted = {f"c{at}": one if isinstance(one, list) else [one] * rows for at, one in enumerate(columns)}
    frame = shared_frame(memory, rows, places)
    assert frame.schema == dict.fromkeys(wanted, pl.Int64)
    assert frame.to_dict(as_series=False) == wanted


def test_names_are_no_patterns():
    memory, places = written([[1, 2], 3, [5, 6]])
    names = ("^.*$", "*", "^a")
    frame = shared_frame(memory, 2, dict(zip(names, places.values(), strict=True)))
    assert frame.rows() == [(1, 3, 5), (2, 3, 6)]
    assert frame.columns == [*names]


def test_columns_live_on_without_their_frame():
    memory, places = written([list(range(1000)), [7, None] * 500])
    column = shared_frame(memory, 1000, places).get_column("c0")
    del memory
    gc.collect()
    with ThreadPoolExecutor(2) as pool:
        sums = [*pool.map(lambda _: (column + 1).sum(), range(20))]
    assert sums == [500_500] * 20
    again = column.set(column > 1, 0)
    assert (again.sum(), column.sum()) == (1, 499_500)
