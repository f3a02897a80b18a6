"""Estimates without the profiler, held against runs without one: what counts as true, and recordings that hold it."""

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TABLE = runpy.run_path(str(BENCHMARKS / "unprofiled_table.py"))


def row(own, alone, *, at_least=False, recorded=12.0):
    return TABLE["Row"]("name", "nsys", own, at_least, alone, recorded, 1.0, 9.0, 10.0, 11.0)


@pytest.mark.parametrize(
    ("one", "true", "sure", "holds"),
    [
        (row(10, 10.5), 10, True, True),
        (row(10, 12), 10, False, True),
        (row(14, 14), 14, False, False),  # the recording was quicker
        (row(8, 10, at_least=True), 10, True, True),
        (row(8, None, at_least=True), None, False, False),
        (row(12, None), 12, True, False),
    ],
)
def test_what_a_step_takes_is_what_its_own_run_says_or_the_time_alone(one, true, sure, holds):
    assert (one.true, one.sure, one.holds, one.width) == (true, sure, holds, 0.1)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["cupy_ptychography", "text_writer", "sentence_encoder", "answers"])
def test_an_estimate_holds_what_the_step_takes_without_the_profiler(name):
    """Loads of modules, host code far from events, operators between calls, and a GPU that is the limit."""
    alone = 1.314 if name == "answers" else None
    found = TABLE["rows_at"](BENCHMARKS / f"diagnosis/captures/{name}.tar.xz", alone)
    assert found
    assert all(one.holds and one.width < 0.151 for one in found), found
