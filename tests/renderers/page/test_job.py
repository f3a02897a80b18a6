"""The page of a job's ranks: how their parts are drawn, and one collective over its ranks."""

import polars as pl
import pytest

from kanalyze.renderers.page.job import _BAR, _bar, timeline

COLLECTIVE = {"id": 3, "kind": "all_reduce", "bytes": 4_000, "group": "0", "class": "exposed", "lateness_ns": 600}


def test_bars_are_on_a_scale_from_the_first_arrival_to_the_last_end():
    """Whenever the collective began."""
    ranks = pl.DataFrame({"rank": [0, 1], "start_ns": [5_000, 5_600], "dur_ns": [1_000, 400], "wait_ns": [600, None]})
    rows = ranks.with_columns(last_rank=1, **{name: pl.lit(value) for name, value in COLLECTIVE.items()})
    title, scale, first, second, legend = timeline(rows, 60).splitlines()
    assert title == "collective 3: all_reduce of 4.000 kB in 0, exposed"
    assert scale.split() == ["0", "1.000", "µs"]
    assert first.split() == ["rank", "0", "+0", "ns", "600", "ns", "░" * 20 + "▓" * 13]
    assert second.split() == ["rank", "1", "+600", "ns", "0", "ns", "▓" * 13]
    assert second.index("▓") == first.index("▓")
    assert legend.endswith("; rank 1 came last, by 600 ns")


@pytest.mark.parametrize("whole", [1, 2, 1_000_000])
def test_a_bar_is_as_wide_as_its_rank_s_step_and_each_part_ends_where_the_sum_does(whole):
    assert _bar({"kernel": whole, "waiting": 0, "transfer": 0, "rest": 0}, whole) == "█" * _BAR
    halves = _bar({"kernel": whole, "waiting": whole}, 2 * whole)
    assert (halves.count("█"), halves.count("░")) == (_BAR // 2, _BAR // 2)
