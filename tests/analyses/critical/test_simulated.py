"""The path of programs that a simulator ran, of which it knows what released each operation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.critical._path import nodes, path, span
from kanalyze.window import Window
from support.simulated import PROGRAMS, run


@given(PROGRAMS)
def test_each_operation_leads_to_what_released_it(program):
    made, released = run(program)
    through = nodes(made)
    for row, why in enumerate(released):
        following = int(through.next[row])
        found = following if following < through.operations else "launch"
        assert found in why, (row, found, why)


@pytest.mark.slow
@given(PROGRAMS, st.integers(0, 200), st.integers(1, 300))
def test_pieces_cover_any_window(program, low, length):
    made, _ = run(program)
    for part in (made, made.narrow(window=Window(low, low + length))):
        sides = span(part)
        if sides is None:
            continue
        pieces = path(part)
        assert pieces["start"].to_list()[:1] == [sides[0]]
        assert pieces["end"].to_list()[-1:] == [sides[1]]
        assert pieces["start"].to_list()[1:] == pieces["end"].to_list()[:-1]
