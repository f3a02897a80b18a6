"""Counters of both sides, kernel by kernel, on what ncu measured."""

from pathlib import Path

import pytest

from kanalyze.analyses.comparing.kernels import _counters
from kanalyze.several import Asked
from kanalyze.several.sides import comparison

SAMPLES = Path(__file__).parents[3] / "sample_reports"


def counted(base, new):
    paths = [next((SAMPLES / name).glob("ncu*.ncu-rep"), SAMPLES / name / "ncu.raw.csv") for name in (base, new)]
    return comparison([paths[0]], [paths[1]], Asked({})).table("compare_counters")


@pytest.mark.slow
def test_a_report_against_itself_has_no_change():
    table = counted("square", "square")
    assert table.height
    assert not table.get_column("changed").any()
    assert table.get_column("base").equals(table.get_column("new").alias("base"))


@pytest.mark.slow
def test_durations_are_those_of_the_launches():
    table = counted("add", "add_parallel")
    rows = table.filter(table.get_column("counter") == "dur_ns")
    assert rows.get_column("changed").any()
    longest = rows.sort("base", descending=True, nulls_last=True).row(0, named=True)
    assert longest["base"] > 0
    assert longest["difference"] == longest["new"] - longest["base"] if longest["new"] is not None else True


def test_an_intensity_counts_by_the_bytes_that_a_kernel_moved():
    """By those that were measured: one whose reads are not known counts by what it wrote."""
    name = "intensity_flop_per_byte"
    known = {
        ("a", ""): {name: 1.0, "dram_read_bytes": 3.0, "dram_write_bytes": 1.0},
        ("b", ""): {name: 2.0, "dram_write_bytes": 4.0},
        ("c", ""): {name: 9.0, "dram_read_bytes": 4.0},
    }
    found = dict(_counters(known, dict.fromkeys(known, 2.0), together=True))
    assert found[name] == 4.0
