"""Periods of series of codes: what is planted is found, what is random is not, and what is found does repeat."""

from collections import defaultdict
from random import Random
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kanalyze.analyses.launches import _graph_candidates
from kanalyze.analyses.launches._graph_candidates import _common_distances, periodic


def line(*stretches, series=0):
    """Stretches of codes, one after the other in one series."""
    codes = [code for stretch in stretches for code in stretch]
    numbers = [number for number, stretch in enumerate(stretches) for _ in stretch]
    frame = pl.DataFrame({"code": codes, "stretch": numbers}, schema={"code": pl.Int64, "stretch": pl.UInt32})
    return frame.with_row_index("place").with_columns(series=pl.lit(series, dtype=pl.UInt32))


def units(*stretches, fewest=5, nodes=4):
    """The places of each unit, and the sequence that it is one of."""
    found = defaultdict(list)
    for place, sequence, unit in periodic(line(*stretches), fewest=fewest, nodes=nodes).iter_rows():
        found[sequence, unit].append(place)
    return {places[0]: (sequence, sorted(places)) for (sequence, _), places in found.items()}


@pytest.mark.parametrize(
    ("stretches", "lengths"),
    [
        ([[9, *[1, 2, 3, 4] * 5, 8]], [4] * 5),  # a period that is long enough is the unit
        ([[1] * 21], [4] * 5),  # a short one is taken several times
        ([[1, 2, 3, 4] * 6 + [5, 6, 7, 8, 9] * 7], [4] * 6 + [5] * 7),  # two periods in one series
        ([[1, 1, 2, 2, 1, 2] * 6], [6] * 6),  # codes that come twice in a period
        ([[1, 2, 3, 4]] * 6, []),  # nothing repeats across stretches
        ([[1, 2, 3, 4] * 2, [1, 2, 3, 4] * 4], []),
        ([[1, 2, 3, 4] * 4], []),  # too few repetitions are none
        ([], []),
    ],
)
def test_units(stretches, lengths):
    found = units(*stretches)
    assert sorted(len(places) for _, places in found.values()) == lengths
    assert all(places == list(range(first, first + len(places))) for first, (_, places) in found.items())
    assert len({sequence for sequence, _ in found.values()}) == len({*lengths})


@pytest.mark.parametrize(("operations", "found"), [(8, 8), (6, 0)])
def test_a_series_of_twice_the_nodes_is_long_enough(operations, found):
    assert periodic(line([0, 1] * (operations // 2)), fewest=2, nodes=4).height == found


CODES = st.integers(0, 3)


@given(
    st.lists(st.integers(0, 9), max_size=12),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(24, 40),
    st.lists(st.integers(0, 9), max_size=12),
)
def test_what_is_planted_is_found(before, word, times, after):
    fewest, nodes = 5, 4
    planted = len(word) * times
    unit = len(word) * -(-nodes // len(word))
    found = periodic(line([*before, *word * times, *after]), fewest=fewest, nodes=nodes)
    inside = found.filter(pl.col("place").is_between(len(before), len(before) + planted, closed="left"))
    # what does not fill a unit is left at both ends
    assert inside.height >= planted - 2 * unit


@given(st.lists(st.lists(CODES, max_size=80), max_size=4), st.integers(2, 5), st.integers(1, 6))
@example([[0, 1] * 30], 3, 5)
def test_what_is_found_repeats(stretches, fewest, nodes):
    frame = line(*stretches)
    found = periodic(frame, fewest=fewest, nodes=nodes)
    assert found.get_column("place").is_unique().all()
    codes, of_stretch = frame.get_column("code").to_list(), frame.get_column("stretch").to_list()
    words = defaultdict(list)
    for (sequence, unit), part in found.group_by("sequence", "unit"):
        places = sorted(part.get_column("place"))
        assert places == list(range(unit, unit + len(places)))
        assert len({of_stretch[place] for place in places}) == 1
        assert len(places) >= nodes
        words[sequence].append([codes[place] for place in places])
    for same in words.values():
        assert len(same) >= fewest
        assert len({tuple(sorted(word)) for word in same}) == 1  # the same operations, in whatever turn


@given(st.integers(0, 10_000), st.integers(1, 2_000))
def test_nothing_is_found_in_noise(seed, size):
    noise = Random(seed).choices(range(50), k=size)  # noqa: S311 - no secret depends on it
    assert periodic(line(noise), fewest=5, nodes=32).is_empty()


def test_a_long_series_is_looked_at_in_slices(monkeypatch):
    monkeypatch.setattr(_graph_candidates, "_SLICE", 64)
    noise = [1_000 + place for place in range(500)]
    found = periodic(line([*noise, *[1, 2, 3, 4, 5] * 200, *noise]), fewest=5, nodes=4)
    assert found.height == 1_000


@given(
    st.lists(st.lists(st.lists(CODES, max_size=40), min_size=1, max_size=3), min_size=2, max_size=4),
    st.sampled_from([8, 1 << 16]),
)
@example([[[0, 1] * 15], [[0, 1] * 20, [1, 0] * 20]], 8)
def test_each_of_several_series_has_what_it_has_alone(each, size):
    frames, first = [], 0
    for number, stretches in enumerate(each):
        own = line(*stretches, series=7 * number)
        frames.append(own.with_columns(pl.col("stretch") + first))
        first += len(stretches)
    every = pl.concat(frames).drop("place").with_row_index("place")
    with patch.object(_graph_candidates, "_SLICE", size):
        together = periodic(every, fewest=3, nodes=4)
        alone = [
            periodic(every.filter(pl.col("series") == 7 * number), fewest=3, nodes=4) for number in range(len(each))
        ]
    assert together.select("place", "unit").sort("place").equals(pl.concat(alone).select("place", "unit").sort("place"))


def test_candidates_of_all_series_are_looked_for_at_once(monkeypatch):
    """A query for each series costs more than its codes, where every GPU has its own."""
    calls = []
    monkeypatch.setattr(
        _graph_candidates, "_common_distances", lambda line: calls.append(line) or _common_distances(line)
    )
    series = [line([1, 2, 3, 4] * 10, series=number).with_columns(stretch=pl.lit(number)) for number in range(20)]
    found = periodic(pl.concat(series).drop("place").with_row_index("place"), fewest=5, nodes=4)
    assert (found.height, len(calls)) == (800, 3)  # of 1, 4 and 16 codes
