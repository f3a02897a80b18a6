"""The page of a noise floor: what its figures are of."""

import pytest

from analyses.comparing.test_gate import side
from kanalyze.analyses.comparing._comparison import noise_of
from kanalyze.renderers.page.comparison import noise_page


@pytest.fixture
def noise():
    return noise_of(side([10_000, 10_050, 9_950, 10_030]))


def test_rows_say_how_far_two_runs_lie_apart(noise):
    """By a ratio of 1.02 two runs are within 2 % of each other."""
    _, kernels = noise_page(noise, 10).sections
    assert kernels.title == "KERNELS AND COPIES"
    assert [head.title for head in kernels.grid.heads] == [
        "mean",
        "varies by",
        "two runs within",
        "2 % needs",
        "kernel",
    ]
    assert {(row[1:4], row[4]) for row in kernels.grid.rows} == {(("0.4 %", "2.0 %", "3"), name) for name in "ab"}


def test_what_is_said_first_has_the_figures_of_an_iteration(noise):
    answer = noise_page(noise, 10).answer
    assert answer.startswith("Between 4 runs an iteration (")
    assert "Two single runs lie within 1.9 % of each other." in answer
    assert answer.endswith("1 %: 6, 2 %: 3, 5 %: 3.")
