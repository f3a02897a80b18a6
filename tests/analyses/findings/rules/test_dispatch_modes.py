"""Modes of PyTorch, for which operators go through Python."""

import pytest

from kanalyze.analyses.findings.rules.cpu_work import dispatch_modes
from support.build import LAUNCH, again, host, in_line, kernel, launched
from support.measures import assert_told, measures
from support.steps import in_steps

STEP = 1_000_000
TEXTS = ["with FlopCounterMode(display=False) as counter:", "class CountingMode(TorchDispatchMode):"]
LINES = [in_line(0, 1, number, text) for number, text in enumerate(TEXTS)]


def operator(at, *, took=20_000, mode=True, launches=True, around=None):
    """An operator, in it the function of a mode for 70 µs, and that calls the operator again; or without a mode."""
    events = [host("op", around, at, at + 80_000 + took)] if around else []
    events.append(host("op", "aten::mm", at, at + 80_000 + took))
    if mode:
        inner = host("op", "aten::mm", at + 10_000, at + 10_000 + took)
        events += [host("op", "PythonDispatchMode", at + 5000, at + 75_000 + took), inner]
    ran = kernel(at + 78_000 + took, at + 79_000 + took)
    return events + launched(at + 11_000, at + 11_500, ran, LAUNCH) * launches


def program(*, times=(0, 100_000), steps=range(0, 10 * STEP, STEP), **keys):
    """Steps with operators in a mode, and each with one that is in none."""
    own = [one for at in times for one in operator(at, **keys)]
    others = again(range(0, 10 * STEP, STEP), *operator(600_000, mode=False))
    return in_steps([*again(steps, *own), *others], source_lines=LINES)


@pytest.mark.parametrize(
    ("how", "figures"),
    [
        # beside 10 µs of what it calls, or all where that waits or works
        ({}, (1_600_000, 0, 0, 1_600_000)),
        ({"took": 2000}, (1_400_000, 0, 0, 1_400_000)),
        ({"times": (0, 300_000), "took": 150_000}, (1_400_000, 0, 0, 1_400_000)),
        ({"mode": False}, ()),
        ({"launches": False}, ()),  # tensors that are none, as compilers trace them
        ({"around": "_compile.compile_inner"}, ()),
        ({"steps": [0]}, ()),  # for one step alone
    ],
)
def test_a_mode_is_told_by_what_goes_through_it(how, figures):
    of = program(**how)
    found = list(dispatch_modes(of))
    assert_told(found, [*figures[:1]], *(["on for 66.7 % of the operators", "[a.py:0]"] * bool(figures)))
    assert [measures(one, of) for one in found] == [figures] * bool(figures)
