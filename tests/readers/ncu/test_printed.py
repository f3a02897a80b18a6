"""Numbers as ncu prints them in any locale, units that it scaled, and names that it shortened."""

import polars as pl
import pytest

import kanalyze
from kanalyze.readers.ncu.csv import COMMA, POINT, AmbiguousError, base_unit, numbers, separators
from kanalyze.readers.ncu.read_csv_rep import with_whole_names
from support.command import SAMPLES


def read(*texts: str) -> list[float | None]:
    """The numbers in a file that holds only `texts`."""
    frame = pl.DataFrame({"text": texts}, schema={"text": pl.String})
    return frame.select(numbers("text", separators(frame.get_column("text")))).to_series().to_list()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        *((("16,896", "28.71"), [16896, 28.71]), (("16.896", "27.595.520"), [16896, 27595520])),
        *((("16.896,50", "3"), [16896.5, 3]), (("16.896", "28,71"), [16896, 28.71])),
        *((("16\u202f896,50", "1 234"), [16896.5, 1234]), (("16'896.50",), [16896.5])),
        (("16,896",), [16896]),  # ncu prints no number with three decimals
        (("0.381", "1.484"), [0.381, 1.484]),  # no group of thousands begins with 0
        *((("1484.092", "2.614"), [1484.092, 2.614]), (("4096.000000", "2,230"), [4096, 2230])),
        *((("-0.14", "1e-05", "+3"), [-0.14, 1e-05, 3]), (("PolicySpread", "all", "0x10"), [None, None, None])),
        (("nan", "inf", "-nan", "1.5"), [None, None, None, 1.5]),
        (("1,160,192 (340,352; 141,440)", "0.5"), [1160192, 0.5]),  # --print-metric-instances
        ((), []),
    ],
)
def test_numbers_are_read_as_they_were_meant(texts, expected):
    assert read(*texts) == expected


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (("16.896",), "'16.896' can be a number of thousands or one with decimals"),
        (("16.896", "12,345"), "'16.896' can be a number of thousands or one with decimals, and '12,345' occurs, too"),
        (("1,50", "1.50"), "'1.50' has a decimal point, '1,50' a decimal comma"),
    ],
)
def test_numbers_that_can_be_read_in_two_ways_are_refused(texts, reason):
    with pytest.raises(AmbiguousError, match=f"^{reason}$"):
        read(*texts)


@pytest.mark.parametrize(
    ("text", "value", "way"), [("16.896", 16896, COMMA), ("16.896", 16.896, POINT), ("1,024", 1024, POINT)]
)
def test_a_value_that_is_known_from_elsewhere_decides(text, value, way):
    assert separators(pl.Series([text]), [(text, value)]) == way
    for other in ("16.897", "1.6.896x", "16896"):  # not written so
        with pytest.raises(AmbiguousError):
            separators(pl.Series(["16.896"]), [(other, 16896)])


UNITS = """
ns 1 ns, us 1e3 ns, ms 1e6 ns, s 1e9 ns, usecond 1e3 ns, second 1e9 ns, byte 1 byte, Mbyte 1e6 byte,
Tbyte/s 1e12 byte/s, Gbyte/second 1e9 byte/s, Kbyte/block 1e3 byte/block, Kbyte/cycle 1e3 byte/cycle,
Ghz 1e9 hz, Mhz 1e6 hz, cycle/nsecond 1e9 hz, sector/ns 1e9 sector/s, sector/us 1e6 sector/s, sector/s 1 sector/s,
%/Kbyte 1e3 %/byte, % 1 %, pass 1 pass, SM 1 SM, inst/cycle 1 inst/cycle
"""


def test_scaling_of_units_is_undone():
    for unit, factor, base in (row.split() for row in UNITS.split(",")):
        assert base_unit(unit) == (float(factor), base)
    assert base_unit("") == (1, "")


@pytest.mark.parametrize(
    ("short", "whole", "expected"),
    [
        (["void at::k<4>(int)"], ["void at::native::k<(int)4>(int)"], ["void at::native::k<(int)4>(int)"]),
        (
            ["void un>::k<un>::T<4>"],
            ["void at::<un>::k<at::<un>::T<(int)4>>"],
            ["void at::<un>::k<at::<un>::T<(int)4>>"],
        ),
        (["b", "a"], ["x::b", "x::b", "y::a"], ["x::b", "y::a"]),  # a kernel of two functions
        (["b", "a"], ["x::a", "x::b"], ["b", "a"]),  # of another order: nothing is guessed
        (["k<4>"], ["k<8>"], ["k<4>"]),
        (["k", None], ["k", "k"], ["k", None]),
        ([], ["k"], []),
    ],
)
def test_names_are_completed_in_order_or_not_at_all(short, whole, expected):
    frame = pl.DataFrame({"name": short}, schema={"name": pl.String})
    assert with_whole_names(frame, whole)["name"].to_list() == expected


@pytest.mark.parametrize("workload", ["square", "gelu", "launch_bound_graph"])
def test_samples_have_the_names_that_nsys_prints(workload):
    kernels = kanalyze.read(SAMPLES / workload / "ncu.details.csv").kind("kernel").get_column("name").cast(pl.String)
    known = set(kanalyze.read(SAMPLES / workload / "nsys.sqlite").kind("kernel").get_column("name").cast(pl.String))
    assert set(kernels) <= known
