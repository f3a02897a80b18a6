"""What holds the tests themselves: mutants are other programs, and properties without cases fail."""

import ast
import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from support.shares import cases, holds, some

MUTANTS = runpy.run_path(str(Path(__file__).parent / "mutation" / "mutants.py"))["mutants"]


@pytest.mark.slow
def test_every_mutant_is_a_program_and_another_one():
    text = Path(__file__).with_name("mutation").joinpath("mutate.py").read_text()
    raw = text.encode()
    made = [(raw[: one.start] + one.text.encode() + raw[one.end :]).decode() for one in MUTANTS("m.py", raw)]
    assert len(made) > 30
    assert len(set(made)) == len(made)
    for one in made:
        assert ast.dump(ast.parse(one)) != ast.dump(ast.parse(text))


def test_a_loop_over_nothing_fails():
    with pytest.raises(AssertionError, match="a loop over nothing"):
        some([])


@pytest.mark.parametrize(
    ("most", "share", "message"), [(9, 0.05, None), (0, 0.05, "0 of 40 examples"), (9, 2, " of 40")]
)
def test_a_property_without_cases_fails(most, share, message):
    @cases(share)
    @settings(max_examples=40, deadline=None, database=None)
    @given(st.integers(0, 9), st.integers())
    def asks(number, _):
        if holds(number and number <= most):
            assert number > 0

    if message is None:
        asks()
    else:
        with pytest.raises(AssertionError, match=message):
            asks()


@pytest.mark.parametrize(("asked", "message"), [(lambda _: 1, "no example said"), (lambda _: holds(0), "False")])
def test_a_property_that_never_says_fails_and_what_fails_in_an_example_comes_through(asked, message):
    @cases(0.1)
    @given(st.integers())
    def asks(number):
        assert asked(number)

    with pytest.raises(AssertionError, match=message):
        asks()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", range(7))
def test_of_seven_similar_cases_the_first_fourth_and_seventh_are_quick(number, request):
    assert (request.node.get_closest_marker("slow") is None) == (number in {0, 3, 6})
