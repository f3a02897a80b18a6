"""Two recordings of one program with other numbers of steps: what each step launches is compared, not the sums."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.joining._reasons import COUNTED, counted, measured_otherwise, shared_steps
from support.build import call, kernel, memcpy, nvtx, report
from support.strategies import few_given, slow_given


def recording(tool, steps, *, name="step", before=(), cut=()):
    """A recording of `steps`, each a list of kernels' names and sizes of copies; and of what came `before` them.

    What is in `cut` was launched before the recording began, and ran in it.
    """
    events, number, at = [kernel(10, 15, name=one, stream=7) for one in cut], 0, 20
    for place, work in enumerate([list(before), *steps]):
        begun = at
        for what in work:
            number += 1
            at += 10
            events.append(call("cudaLaunchKernel", at, at + 2, correlation=number))
            made = (
                kernel(at + 3, at + 8, name=what, correlation=number)
                if isinstance(what, str)
                else memcpy(at + 3, at + 8, size_bytes=what, correlation=number)
            )
            events.append(made)
        at += 10
        if place:
            events.append(nvtx(name.format(place + 3), begun + 1, at))
        at += 200
    kinds = ("kernel", "memcpy", "memset", "api", "range")
    return report(events, kinds=kinds, meta={"tool": tool, "path": Path(f"of {tool}")})


def verdicts(first, second):
    rows = kanalyze.agreement(first, second).filter(figure="launches").select("name", "verdict", "reason").rows()
    return {name: (verdict, reason) for name, verdict, reason in rows}


EXPLAINED, UNEXPLAINED = ("explained", "steps"), ("unexplained", None)


def test_annotations_and_ranges_of_one_name_are_held_against_each_other():
    nsys = recording("nsys", [["a", "a", "b"]] * 6, before=["init", "a"])
    torch = recording("torch.profiler", [["a", "a", "b"]] * 3)
    assert verdicts(nsys, torch) == {"a": EXPLAINED, "b": EXPLAINED, "init": EXPLAINED}
    assert verdicts(torch, nsys) == {"a": EXPLAINED, "b": EXPLAINED, "init": EXPLAINED}
    (why,) = kanalyze.agreement(nsys, torch).filter(name="a", figure="launches")["why"]
    assert why == "2 a step in both, of 6 (step) by nsys and 3 (step) by torch.profiler; beside them 1 and 0"


@pytest.mark.parametrize(
    ("steps", "other", "expected"),
    [
        # steps of the profiler are held against ranges of another name
        ([["a"]] * 6, {"steps": [["a"]] * 3, "name": "ProfilerStep#{}"}, {"a": EXPLAINED}),
        # a step that launches more or less is not explained
        *(
            ([["a", "a", "b"]] * 6, {"steps": steps, "name": name}, {"a": UNEXPLAINED, "b": EXPLAINED})
            for name in ("step", "ProfilerStep#{}")
            for steps in ([["a", "b"]] * 3, [["a"] * 3 + ["b"]] * 3, [["a", "a", "b"], ["a", "b"], ["a", "a", "b"]])
        ),
        # as many steps launch as many
        ([["a", "b"]] * 3, {"steps": [["a", "b"], ["a"], ["a", "b"]]}, {"a": ("equal", None), "b": UNEXPLAINED}),
        # what every other step does is explained
        ([["a"], ["a", "log"]] * 4, {"steps": [["a"], ["a", "log"], ["a"]]}, {"a": EXPLAINED, "log": EXPLAINED}),
        # the first step may do more, and the later ones may not
        ([["a"] * 5, *[["a"]] * 5], {"steps": [["a"]] * 3}, {"a": EXPLAINED}),
        ([["a"] * 5, *[["a"]] * 5], {"steps": [["a"] * 3] * 3}, {"a": UNEXPLAINED}),
        # what was launched before the recording is in no step
        ([["a"]] * 6, {"steps": [["a"]] * 3, "cut": ["a"]}, {"a": EXPLAINED}),
        ([["a"]] * 6, {"steps": [["a"]] * 3, "cut": ["a"] * 4}, {"a": UNEXPLAINED}),
    ],
)
def test_what_a_step_launches_is_compared(steps, other, expected):
    assert verdicts(recording("nsys", steps), recording("torch.profiler", **other)) == expected


def test_copies_and_bytes_are_held_against_each_other_by_step():
    nsys = recording("nsys", [[100, "a"]] * 6, before=[5000])
    rows = kanalyze.agreement(nsys, recording("torch.profiler", [[100, "a"]] * 3))
    assert set(rows.filter(figure="bytes copied")["reason"]) == {"steps"}
    rows = kanalyze.agreement(nsys, recording("torch.profiler", [[110, "a"]] * 3))
    assert set(rows.filter(figure="bytes copied")["verdict"]) == {"unexplained"}
    assert set(rows.filter(figure="copies")["reason"]) == {"steps"}


def test_a_window_of_some_steps_counts_those():
    nsys = recording("nsys", [["a"]] * 6)
    found = kanalyze.agreement(nsys, recording("torch.profiler", [["a"]] * 3), window="step#2")
    assert "unexplained" not in set(found["verdict"])


WORK = st.lists(st.sampled_from(["a", "b", 7, 9]), max_size=4)


@slow_given(st.lists(WORK, min_size=2, max_size=6), WORK)
def test_amounts_of_steps_are_those_of_the_slow_model(steps, before):
    made = recording("nsys", steps, before=before)
    shared = shared_steps(made, made)
    assert shared is not None
    counts = counted(made, [], shared[0])
    for row in counts.filter(figure="launches").to_dicts():
        expected = {Counter(step)[row["name"]] for step in steps}
        assert (set(row["in"]), row["beside"]) == (expected, Counter(before)[row["name"]])
    for row in counts.filter(figure="bytes copied").to_dicts():
        moved = {sum(one for one in step if isinstance(one, int)) for step in steps}
        assert (set(row["in"]), row["beside"]) == (moved, sum(x for x in before if isinstance(x, int)))


@few_given(st.lists(WORK, min_size=3, max_size=6), WORK, st.data())
def test_a_part_of_the_steps_is_always_explained(steps, before, data):
    low = data.draw(st.integers(0, len(steps) - 2))
    some = steps[low : data.draw(st.integers(low + 1, len(steps) - (low == 0)))]
    whole = recording("nsys", [[*step, "k"] for step in steps], before=before)
    part = recording("torch.profiler", [[*step, "k"] for step in some])
    rows = kanalyze.agreement(whole, part).filter(pl.col("figure").is_in(COUNTED))
    assert "unexplained" not in set(rows["verdict"])
    assert "explained" in set(rows["verdict"])


@pytest.mark.parametrize(
    ("clock", "said"), [(1_500_000_000, "up to 1,980 MHz without"), (1_980_000_000, "no less than")]
)
def test_what_is_said_of_clocks_is_what_was_measured(clock, said):
    row = {"low": 900, "high": 1000, "second": 1200.0, "sm_clock_hz": clock, "cold_share": 0.5}
    reason, why = measured_otherwise(row | {"tool": "nsys", "clock_hz": 1_980_000_000})
    assert said in why
    assert reason == ("clocks" if clock < 1_980_000_000 else "caches")
