"""What findings promise of remedies, against what these gained: programs with a fault, measured without a profiler."""

import json
from pathlib import Path

import pytest

from kanalyze.analyses.findings.findings import by_gain
from support.real_reports import real_report

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "reports" / "work" / "remedies"
TIMES = json.loads((FOLDER / "times.json").read_text())
STEPS = 4  # of each trace


@pytest.mark.parametrize("name", sorted(TIMES))
def test_a_remedy_gains_what_is_told_within_fifteen_hundredths(name):
    times = TIMES[name]
    found = by_gain(real_report(FOLDER / f"{name}.json.gz"), 1 << 18)
    told_ms = sum(one.gain_ns for one in found if one.rule == times["rule"]) / STEPS / 1e6
    assert told_ms == pytest.approx(times["fault_ms"] - times["remedy_ms"], rel=0.15)
