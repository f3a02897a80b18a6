"""The changes that tests/mutation makes: each gives another program, and none is of what only people read."""

import ast
import runpy
from pathlib import Path

import pytest

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
