"""Tables for reading: the column that may be long stands last, names between others are short."""

import polars as pl
import pytest

from kanalyze.renderers.tables.frame import joined, laid_out

LONG = "void at::native::elementwise_kernel<128, 4, at::native::BinaryFunctor<float, float, MulFunctor<float>>>(int)"


def cells(grid, column):
    at = [head.title for head in grid.heads].index(column)
    return [row[at] for row in grid.rows]


def test_the_long_column_stands_last():
    frame = pl.DataFrame({"name": ["gemm"], "count": [1], "total_ns": [1500]})
    grid = laid_out(frame)
    assert [head.title for head in grid.heads] == ["count", "total_ns", "name"]
    assert grid.rows == [("1", "1.500 µs", "gemm")]
    assert grid.named


def test_a_name_in_the_middle_is_shortened_and_the_last_one_is_whole():
    frame = pl.DataFrame({"ended_by": [LONG], "kernel": [LONG]})
    grid = laid_out(frame)
    (middle,), (last,) = cells(grid, "ended_by"), cells(grid, "kernel")
    assert len(middle) <= 48 < len(LONG)
    assert middle.startswith("elementwise")
    assert last == LONG


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("after ", " on stream 7"),
        ("after ", " on the same stream"),
        ("after ", " on another stream"),
        ("after ", " on GPU 1 stream 7"),
        ("after ", " on process 12"),
    ],
)
def test_a_name_within_a_phrase_is_shortened_alone(before, after):
    (shown,) = cells(laid_out(pl.DataFrame({"waited_for": [f"{before}{LONG}{after}"], "ns": [1]})), "waited_for")
    assert shown.startswith(before)
    assert shown.endswith(after)
    assert len(shown) <= 48 + len(before) + len(after)


def test_quantities_are_in_the_unit_that_suits_them():
    frame = pl.DataFrame(
        {
            "start_ns": [1_234_567],
            "dur_ns": [1_234_567],
            "size_bytes": [2048],
            "bandwidth_bytes_per_s": [3e9],
            "clock_hz": [1_980_000_000],
            "busy_share": [0.25],
            "count": [12_345],
            "event_id": [12_345],
            "odd": [True],
            "waves": [1.25],
            "stream": pl.Series([None], dtype=pl.Int64),
        }
    )
    assert laid_out(frame).rows == [
        (
            "1.234567 ms",
            "1.235 ms",
            "2.048 kB",
            "3.000 GB/s",
            "1980 MHz",
            "25.0 %",
            "12,345",
            "12345",
            "yes",
            "1.25",
            "",
        )
    ]


def test_the_tables_of_several_windows_are_one():
    one, two = pl.DataFrame({"ns": [1, 2]}), pl.DataFrame({"ns": [3]})
    assert joined({None: one}) is one
    found = joined({"step#1": one, "step#2": two})
    assert found.rows() == [("step#1", 1), ("step#1", 2), ("step#2", 3)]
    assert found.columns == ["instance", "ns"]
