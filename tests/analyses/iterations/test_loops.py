"""Iterations by the passes of the program's own loops."""

import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from itertools import pairwise
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.iterations._marks import marked_iterations, passes
from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.replay._unprofiled import lengths_of
from kanalyze.model import LOOP_PASSES
from kanalyze.readers import read
from support.build import kernel, launched, report
from support.command import ROOT

CAPTURE = ROOT / "sample_reports" / "launch_bound_plain"


def passes_of(rows, others=()):
    """The passes of loops (time, line) of one thread, and of another one."""
    threads = [2] * len(rows) + [3] * len(others)
    table = pl.DataFrame([*rows, *others], {"time_ns": pl.Int64, "line": pl.Int64}, orient="row").with_columns(
        pl.Series("thread_id", threads, pl.Int64), process_id=pl.lit(1, pl.Int64), file=pl.lit("train.py")
    )
    with patch("kanalyze.analyses.iterations._marks.loop_passes", return_value=LOOP_PASSES.select(table)):
        return passes(None)


@given(st.lists(st.sampled_from([0, 2, 3, 4, 5, 6]), min_size=3, max_size=12))
def test_passes_of_nested_loops_are_those_of_a_walk(counts):
    """Each outer pass runs an inner loop so many times, whose last jump finds that there is no further pass.

    Which of two loops is the outer one nothing tells where the inner one jumps once in each run.
    """
    rows, outer, inner, now = [], [], [], 0
    for count in counts:
        jumps = [now := now + 10 for _ in range(count)]
        rows += [(at, 20) for at in jumps]
        inner += [(start, end, "train.py:20") for start, end in pairwise(jumps)]
        now += 7
        rows.append((now, 10))
        outer.append(now)
    expected = [(start, end, "train.py:10") for start, end in pairwise(outer)]
    found = passes_of(rows).select("start", "end", "name").rows()
    assert [row for row in found if row[2] == "train.py:10"] == expected
    # an inner loop that runs in few passes of the other is not known to lie in it
    if 2 * sum(count > 0 for count in counts[1:]) > len(counts) - 1 and sum(counts) >= len(counts):
        assert [row for row in found if row[2] == "train.py:20"] == inner


@pytest.mark.parametrize("every", [2, 3])
def test_a_loop_in_no_more_than_half_of_the_passes_of_another_one_runs_beside_it(every):
    outer, inner = range(10, 140, 10), [at + more for at in range(20, 130, 10 * every) for more in (2, 4)]
    rows = passes_of([*((at, 10) for at in outer), *((at, 20) for at in inner)])
    found = rows.filter(pl.col("name") == "train.py:20").select("start", "end").rows()
    assert found == list(pairwise(inner))


@pytest.mark.parametrize(
    ("steps", "every", "known"),
    [
        (6, (2, 4), 0),  # layers that the thread of backward computes again in each step
        (6, (2,), 5),  # a loop that keeps step with the other one
        (5, (2, 4), 9),  # around it are too few passes
    ],
)
def test_a_loop_of_another_thread_that_runs_in_each_pass_is_a_part_of_it(steps, every, known):
    begun = [10 * number for number in range(steps)]
    rows = passes_of([(at, 10) for at in begun], [(at + more, 20) for at in begun for more in every])
    assert rows.filter(pl.col("name") == "train.py:20").height == known


def test_the_loop_that_launched_most_in_all_is_the_pass():
    events, rows, at = [], [], 1_000
    for line, lengths in ((7, [500, *[20] * 5]), (9, [100] * 12)):
        for length in lengths:
            rows.append((at, line))
            events += launched(at + 1, at + 3, kernel(at + 4, at + 4 + length, correlation=len(rows)))
            at += length + 10
        rows.append((at, line))
        at += 10_000
    keys = {"process_id": events[0].process, "thread_id": events[0].thread}
    table = pl.DataFrame(rows, {"time_ns": pl.Int64, "line": pl.Int64}, orient="row").with_columns(
        **{name: pl.lit(key, pl.Int64) for name, key in keys.items()}, file=pl.lit("train.py")
    )
    with patch("kanalyze.analyses.iterations._marks.loop_passes", return_value=LOOP_PASSES.select(table)):
        found = marked_iterations(report(events))
    told = sorted(found.group_by("name", "found_by").len().rows())
    assert told == [("pass", "loop train.py:9", 12), ("pass of train.py:7", "loop train.py:7", 6)]


@pytest.fixture
def unmarked(tmp_path):
    """A capture without the program's ranges."""
    folder = tmp_path / "capture"
    shutil.copytree(CAPTURE, folder)
    with closing(sqlite3.connect(folder / "nsys.sqlite")) as database, database:
        database.execute("DELETE FROM NVTX_EVENTS")
    return folder


@pytest.fixture
def looped(unmarked):
    """The same, with the program's loop, which began a pass with each 35th launch."""
    folder = unmarked
    with read(folder) as report:
        calls = report.kind("api").filter(pl.col("name").cast(pl.String).str.contains("LaunchKernel")).sort("start_ns")
        key = calls.select("process_id", "thread_id").row(0)
        times = (calls.get_column("start_ns")[::35] - 500).to_list()
        origin = report.meta.origin_unix_ns
    since = [after - before for before, after in zip([0, *times], times, strict=False)]
    content = {
        "schema": 1,
        "process": key[0],
        "exact": True,
        "clocks": [[origin, 0], [origin + 10**10, 10**10]],
        "files": ["train.py"],
        "places": [[0, 28, "main", "for batch in batches:"]],
        "threads": [
            {"id": key[1], "lines": {"times": [], "places": []}, "loops": {"times": since, "places": [0] * len(since)}}
        ],
    }
    (folder / "lines-nsys.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    return folder, times


@pytest.mark.slow
def test_a_loop_of_the_program_is_what_repeats(looped):
    folder, times = looped
    with read(folder) as report:
        steady = steady_part(report)
        rows = steady.rows.sort("start_ns")
    assert steady.each == "pass"
    assert steady.found_by == "loop train.py:28"
    assert rows.height == len(times) - 1
    assert rows.get_column("start_ns").to_list() == times[:-1]


@pytest.mark.slow
def test_without_the_loop_its_launches_tell_what_repeats(unmarked):
    with read(unmarked) as report:
        assert steady_part(report).found_by == "launches"


def test_ranges_of_the_program_come_before_its_loops(looped):
    folder, _ = looped
    shutil.copy(CAPTURE / "nsys.sqlite", folder)
    with read(folder) as report:
        assert steady_part(report).found_by == "ranges"


def test_a_run_without_a_profiler_may_have_a_last_pass_of_a_loop_that_is_none():
    starts = list(range(0, 110, 10))
    assert lengths_of({"train.py:28": starts}, "train.py:28", 10, 2, 9) == ("train.py:28", [10] * 7)
    assert lengths_of({"the outermost module's call": starts}, "train.py:28", 10, 2, 9) is None
