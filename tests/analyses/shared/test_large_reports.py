"""What is done otherwise in large reports, on small ones: the page has to be the same."""

from pathlib import Path

import pytest

from kanalyze.analyses.page.time_page import summarize
from kanalyze.analyses.shared import workers
from kanalyze.columns import lookup
from kanalyze.readers import read

REPORTS = Path(__file__).parents[2] / "reports"
NAMES = ("findings", "graph_node", "two_processes", "thrash", "torch")


def page(name):
    told = summarize(read(REPORTS / f"{name}.sqlite"))
    tables = {key: table.write_csv() for key, table in told.tables.items()}
    findings = [(one.rule, one.device, one.at_stake_ns, one.text, one.names) for one in told.findings]
    return told.answer, tables, findings, told.cannot_tell, told.not_recorded


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NAMES)
def test_several_tables_at_once(name, monkeypatch):
    alone = page(name)
    monkeypatch.setattr(workers, "_WORTH_WHILE", 0)
    assert page(name) == alone


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_where_memory_counts(name, monkeypatch):
    whole = page(name)
    monkeypatch.setattr(workers, "_MANY", 0)
    monkeypatch.setattr(lookup, "_MANY_ROWS", 0)
    monkeypatch.setattr(lookup, "_SLICE", 7)
    assert page(name) == whole
