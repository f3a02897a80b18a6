"""The changes that tests/mutation makes: each gives another program, and none is of what only people read."""

import ast
import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.shares import cases, holds, some

MUTANTS = runpy.run_path(str(Path(__file__).parent / "mutation" / "mutants.py"))["mutants"]


def changed(text):
    """Every mutant of `text`, as it then is."""
    raw = text.encode()
    return [(raw[: one.start] + one.text.encode() + raw[one.end :]).decode() for one in MUTANTS("m.py", raw)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b <= c", ["a <= b <= c", "a < b < c"]),
        ("a is not b", ["a is b"]),
        ("x = (a +\n     b) * c", ["x = (a -\n     b) * c", "x = (a +\n     b) + c"]),
        ("a and b or c", ["a or b or c", "a and b and c"]),
        ("x = 5", ["x = 6"]),
        ("x = 0.05", ["x = 0.1"]),
        ("x = True", ["x = False"]),
        ("x = a.b.sum().c", ["x = a.b.max().c"]),
        ("x = max(a, b)", ["x = min(a, b)"]),
        ("x = not a", ["x = a"]),
        ("x = ~(a & b)", ["x = (a & b)", "x = ~(a | b)"]),
        ('x = a.join(b, how="left")', ['x = a.join(b, how="inner")']),
        ("x = f(a, b, c)", ["x = f(b, a, c)"]),
        ("f(a)", ["pass"]),
        ("x += a", ["pass"]),
        ("x = 'µ' if a > 1 else b", ["x = 'µ' if a >= 1 else b", "x = 'µ' if a > 2 else b"]),
    ],
)
def test_what_is_changed(text, expected):
    assert sorted(changed(text)) == sorted(expected)


@pytest.mark.parametrize(
    "text",
    [
        *('"""A docstring."""', "def f(a: list[1]) -> int:\n    '''One.'''"),
        *("if TYPE_CHECKING:\n    from a import b", "raise Error(1 + 2)", "x = zip(a, b)", "assert a == b"),
        *("x = ReportError.at(a, b)", "x = 'a' + b"),
    ],
)
def test_what_is_left_alone(text):
    assert changed(text) == []


@pytest.mark.slow
def test_every_mutant_is_a_program_and_another_one():
    text = Path(__file__).with_name("mutation").joinpath("mutate.py").read_text()
    made = changed(text)
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


def test_a_property_that_never_says_fails():
    @cases(0.1)
    @given(st.integers())
    def asks(number):
        assert number == number + 0

    with pytest.raises(AssertionError, match="no example said"):
        asks()


def test_what_fails_in_an_example_comes_through():
    @cases(0.1)
    @given(st.integers())
    def asks(number):
        assert holds(number == number + 1)

    with pytest.raises(AssertionError, match="holds"):
        asks()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", range(7))
def test_of_seven_similar_cases_the_first_fourth_and_seventh_are_quick(number, request):
    assert (request.node.get_closest_marker("slow") is None) == (number in {0, 3, 6})
