"""The path of programs that a simulator ran, of which it knows what released each operation."""

from hypothesis import given

from kanalyze.analyses.critical._path import nodes
from support.simulated import PROGRAMS, run


@given(PROGRAMS)
def test_each_operation_leads_to_what_released_it(program):
    made, released = run(program)
    through = nodes(made)
    for row, why in enumerate(released):
        following = int(through.next[row])
        found = following if following < through.operations else "launch"
        assert found in why, (row, found, why)
