"""What the rules of ncu say: every result in every report is in `advice`, as it is."""

import csv
from collections import Counter

import polars as pl
import pytest

import kanalyze
from kanalyze.readers.ncu import module as ncu_module
from support.command import REPORTS, SAMPLES

PAGES = [*sorted((REPORTS / "ncu").glob("*.details.csv")), *sorted(SAMPLES.glob("*/ncu*.details.csv"))]
BINARY = sorted(SAMPLES.glob("*/ncu*.ncu-rep"))

needs_module = pytest.mark.skipif(ncu_module.module() is None, reason="ncu-report is not installed (extra ncu)")


def told(path) -> Counter:
    """The results in `advice`: kernel, rule, message."""
    rows = kanalyze.advice(kanalyze.read(path)).filter(pl.col("source") == "ncu")
    return Counter(rows.select("event_id", "rule", "sentence").iter_rows())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_result_on_a_page_is_in_advice(path):
    """Against the page as the standard library reads it."""
    rows = list(csv.DictReader(path.read_text().splitlines()))
    kernels = {number: place for place, number in enumerate(dict.fromkeys(row["ID"] for row in rows))}
    printed = Counter(
        (kernels[row["ID"]], row["Rule Name"], row["Rule Description"].strip()) for row in rows if row["Rule Name"]
    )
    assert printed
    assert told(path) == printed


@needs_module
@pytest.mark.parametrize("path", BINARY, ids=lambda path: path.parent.name)
def test_every_result_in_a_report_is_in_advice(path, tmp_path):
    """Against the module, results without a message included."""
    alone = tmp_path / path.name
    alone.write_bytes(path.read_bytes())
    report = ncu_module.module().load_report(str(alone))
    actions = [part.action_by_idx(at) for part in map(report.range_by_idx, range(report.num_ranges()))
               for at in range(part.num_actions())]  # fmt: skip
    every = Counter((at, one.rule_identifier()) for at, action in enumerate(actions) for one in action.rule_results())
    assert every
    found = Counter()
    for (event_id, rule, _), count in told(alone).items():
        found[event_id, rule] += count
    assert found == every


class Result:
    """A result of a rule, as the module gives it."""

    def __init__(self, message: str | None) -> None:
        self._message = message

    def rule_identifier(self):
        return "UncoalescedGlobalAccess"

    def section_identifier(self):
        return "SourceCounters"

    def name(self):
        return "Uncoalesced Global Accesses"

    def has_rule_message(self):
        return self._message is not None

    def rule_message(self):
        return {"title": "", "message": self._message, "type": 2}

    def has_speedup_estimation(self):
        return False


class Kernel:
    """A kernel with two results of one rule, of which the second is only a table of the source."""

    def __init__(self, marks: list[str]) -> None:
        self._marks = marks

    def rule_results(self):
        return [Result("This kernel has uncoalesced global accesses."), Result(None)]

    def source_markers(self):
        return [{"rule_identifier": "UncoalescedGlobalAccess", "message": mark} for mark in self._marks]


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        (["50% of this line's accesses are excessive.", "12% of …"],
         "Uncoalesced Global Accesses: 2 instructions marked, the first: 50% of this line's accesses are excessive."),
        ([], "Uncoalesced Global Accesses: a table of the source without a message."),
    ],
)  # fmt: skip
def test_a_result_without_a_message_says_what_it_marks(marks, said):
    rows = ncu_module._rules(Kernel(marks), ncu_module.Damage())  # noqa: SLF001 - there is no such report to read
    assert [row[1:4] for row in rows] == [
        ("UncoalescedGlobalAccess", "optimization", "This kernel has uncoalesced global accesses."),
        ("UncoalescedGlobalAccess", "information", said),
    ]
