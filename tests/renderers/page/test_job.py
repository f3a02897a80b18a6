"""The page of a job's ranks: how their parts are drawn."""

import pytest

from kanalyze.renderers.page.job import _BAR, _bar


@pytest.mark.parametrize("whole", [1, 2, 1_000_000])
def test_a_bar_is_as_wide_as_its_rank_s_step_and_each_part_ends_where_the_sum_does(whole):
    assert _bar({"kernel": whole, "waiting": 0, "transfer": 0, "rest": 0}, whole) == "█" * _BAR
    halves = _bar({"kernel": whole, "waiting": whole}, 2 * whole)
    assert (halves.count("█"), halves.count("░")) == (_BAR // 2, _BAR // 2)


def test_nothing_has_no_bar():
    assert _bar({"kernel": 0, "waiting": 0}, 0) == ""
