"""Whole names of kernels, from the page of sources."""

import polars as pl
import pytest

from kanalyze.readers import read
from kanalyze.readers.ncu.csv import names_of_sources, with_whole_names
from support.command import SAMPLES


def named(short, whole):
    return with_whole_names(pl.DataFrame({"name": short}, schema={"name": pl.String}), whole)["name"].to_list()


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
    assert named(short, whole) == expected


def test_names_of_blocks_are_read_as_csv():
    page = b'"Kernel Name","void k<""a"", 2>(int)",\n"Address","Source"\n"0x0","NOP"\n"Kernel Name","b",\n'
    assert names_of_sources(page) == ['void k<"a", 2>(int)', "b"]


@pytest.mark.parametrize("workload", ["square", "gelu", "launch_bound_graph"])
def test_samples_have_the_names_that_nsys_prints(workload):
    kernels = read(SAMPLES / workload / "ncu.details.csv").kind("kernel").get_column("name").cast(pl.String)
    known = set(read(SAMPLES / workload / "nsys.sqlite").kind("kernel").get_column("name").cast(pl.String))
    assert set(kernels) <= known
