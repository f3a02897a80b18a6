"""Which launches ncu profiles: the heaviest kernels, warm, never communication."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.collectors.base.options import Options
from kanalyze.collectors.tools.choose import main
from kanalyze.collectors.tools.launches import Launch, parse, select
from support.stand_ins import LAUNCHES


def launches(*runs):
    """Launches one after the other; each run is a kernel, its durations, and at will its shape."""
    found, at = [], 0
    for kernel, durations, *shape in runs:
        for dur in durations:
            found.append(Launch(kernel, tuple(map(str, shape)), ("GPU", "1"), at, dur))
            at += dur
    return found


#: Launches of one kernel in two shapes, which come in turns.
SHAPES = [("k", [5], 1), ("k", [5], 1), ("k", [100], 2), ("k", [5], 1), ("k", [90], 2), ("k", [100], 2)]


def test_a_listing_of_nsys_gives_kernels_in_order_and_no_copies():
    shape, owner = ("1", "1", "1", "1", "1", "1", "0.000", "0.000"), ("NVIDIA H200 (0)", "1")
    assert parse("Processing [a.sqlite] with [x.py]...\n\n" + LAUNCHES) == [
        Launch("_Z3addiPfS_", shape, owner, 200, 5000),
        Launch("_Z3addiPfS_", shape, owner, 6000, 100),
    ]


@pytest.mark.parametrize("text", ["", "SKIPPED: does not contain CUDA trace data.", LAUNCHES.partition("\n")[0]])
def test_a_listing_without_launches_is_empty(text):
    assert parse(text) == []


@pytest.mark.parametrize(
    ("runs", "options", "told"),
    [
        ([("light", [1, 1]), ("heavy", [900, 100, 100]), ("middle", [50, 50])], {"kernels": 2}, ["heavy|middle:2"]),
        ([("once", [10]), ("twice", [3, 3])], {}, ["once:1", "twice:2"]),
        # a second launch that is not typical gives way to one that is
        ([("k", [500, 400, 100, 101, 99])], {}, ["k:3"]),
        ([("k", [500, 100, 100, 100])], {"launches": 2}, ["k:2|3"]),
        # launches are counted by name whatever their shapes, and the heaviest shape decides
        (SHAPES, {}, ["k:3"]),
        (SHAPES, {"launches": 3}, ["k:3|5|6"]),
        # communication is never profiled, and names are taken literally
        ([("ncclDevKernel_AllReduce", [10**6] * 3), ("_Z7nvshmem_k", [10**6]), ("k", [1, 1])], {}, ["k:2"]),
        ([("_Z1a$x.y", [1, 1])], {}, [r"_Z1a\$x\.y:2"]),
    ],
)
def test_the_heaviest_kernels_share_a_run_at_a_warm_and_typical_launch(runs, options, told):
    found = [selection.expression for selection in select(launches(*runs), Options(**options))]
    assert found == [f"::regex:^({names})$:{numbers}" for names, numbers in (one.split(":") for one in told)]


def test_of_a_part_of_a_run_the_first_launches_are_taken():
    (found,) = select(launches(("a", [2, 2]), ("b", [1])), Options(cuda_profiler_api=True, launches=2))
    assert found.flags == ("--kernel-name-base", "mangled", "--kernel-name", "regex:^(a|b)$", "--launch-count", "4")


def test_long_names_are_given_to_ncu_in_parts():
    names = [letter * 3000 for letter in "abcd"]
    found = select(launches(*((name, [1, 1]) for name in names)), Options())
    assert [len(selection.kernels) for selection in found] == [2, 2]
    assert sorted(kernel for selection in found for kernel in selection.kernels) == names


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 1000), st.integers(0, 2)), max_size=60),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_every_filter_matches_what_it_says(rows, kernels, wanted):
    """As ncu counts: by name. Each chosen kernel is profiled, and as often as asked where it can be."""
    found = [Launch(name, (str(shape),), ("GPU", "1"), at, dur) for at, (name, dur, shape) in enumerate(rows)]
    chosen = select(found, Options(kernels=kernels, launches=wanted))
    totals = {name: sum(one.dur_ns for one in found if one.kernel == name) for name, _, _ in rows}
    names = [kernel for selection in chosen for kernel in selection.kernels]
    assert len(names) == len(set(names)) == min(kernels, len(totals))
    assert sorted(totals[name] for name in names) == sorted(totals.values())[-len(names) :] if names else not totals
    for selection in chosen:
        expression, numbers = re.fullmatch(r"::regex:(.*):([\d|]+)", selection.expression).groups()
        assert {name for name in totals if re.search(expression, name)} == set(selection.kernels)
        for name in selection.kernels:
            most = sum(one.kernel == name for one in found)
            assert 1 <= len(numbers.split("|")) <= wanted
            assert all(1 <= int(number) <= most for number in numbers.split("|"))


def test_the_dry_run_s_helper_prints_the_filter(tmp_path, capsys):
    listing = tmp_path / "launches.csv"
    listing.write_text(LAUNCHES)
    assert main([str(listing), "--kernels", "1"]) == 0
    assert main([str(listing), "--part"]) == 0
    assert capsys.readouterr().out == "::regex:^(_Z3addiPfS_)$:2\nregex:^(_Z3addiPfS_)$\n"
    listing.write_text("")
    assert main([str(listing)]) == 1
