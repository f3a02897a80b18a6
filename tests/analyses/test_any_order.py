"""Every table of a report, asked twice and in any order, before the page and after it: each is the same."""

from functools import cache

import polars as pl
import pytest

from kanalyze import catalog
from kanalyze.analyses.idle import _attribution
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.page.time_page import summarize
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS
from kanalyze.readers import read
from support.command import ADD_UM, REPORTS

SAMPLES = {name: REPORTS / f"{name}.sqlite" for name in ("graph_node", "torch")}
SAMPLES |= {"add_um": ADD_UM, "trace": REPORTS / "torch" / "with_modules.json.gz"}
SAMPLES |= {"ncu": REPORTS / "ncu" / "add.details.csv"}
COLUMNS = ("event_id", "name", "start_ns", "dur_ns")


def opened(name):
    return read(SAMPLES[name], cache=False)


def page(report):
    told = summarize(report)
    tables = {key: table.write_json() for key, table in told.tables.items()}
    findings = [one._replace(claims=one.claims is not None and one.claims.write_json()) for one in told.findings]
    return told.answer, tables, findings, told.cannot_tell, told.not_recorded, told.remarks


def asked(report, name):
    """A table, as a text, or why there is none."""
    try:
        return page(report) if name == "page" else catalog.make(report, name).write_json()
    except CannotTellError as reason:
        return str(reason)


@cache
def alone(name):
    """Each of them of one of five reports, of which every fifth is asked."""
    questions = [one for one in catalog.names() if not catalog.table(one).together] + ["page"] * (name != "ncu")
    reports = [opened(name) for _ in range(5)]
    return {one: asked(reports[number % 5], one) for number, one in enumerate(questions)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graph_node", "add_um", "trace", "ncu"])
def test_every_table_twice_in_any_order(name):
    expected = alone(name)
    report = opened(name)
    order = pl.Series([*expected, *expected]).shuffle(seed=sum(map(ord, name))).to_list()  # another one for each
    assert [one for one in order if asked(report, one) != expected[one]] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graph_node", "add_um", "trace"])
def test_every_table_after_the_page(name):
    expected = alone(name)
    report = opened(name)
    assert page(report) == expected["page"]
    assert [one for one in reversed(expected) if asked(report, one) != expected[one]] == []


@pytest.mark.parametrize("name", ["torch", "graph_node"])
def test_asking_for_several_kinds_again_changes_none_of_them(name):
    report = opened(name)
    kinds = [kind for kind in DEVICE_KINDS if kind in report.kinds]
    first = report.of_kinds(kinds, *COLUMNS)
    frames_of = {kind: report.kind(kind) for kind in kinds}
    assert report.of_kinds(kinds, *COLUMNS).equals(first)
    assert all(report.kind(kind) is frame for kind, frame in frames_of.items())
    assert all(opened(name).kind(kind).equals(frame) for kind, frame in frames_of.items())
    assert first.equals(pl.concat([frame.select(COLUMNS) for frame in frames_of.values()]))


def test_columns_stacked_one_after_the_other_leave_the_events_as_they_are():
    report, fresh = opened("torch"), opened("torch")
    kept = [fresh.kind(kind) for kind in DEVICE_KINDS]
    for names in (("device", "start_ns"), ("start_ns", "process_id", "parent_id"), COLUMNS):
        assert report.of_kinds(DEVICE_KINDS, *names).equals(pl.concat(events.select(names) for events in kept))
        assert all(report.kind(kind).equals(events) for kind, events in zip(DEVICE_KINDS, kept, strict=True))


@cache
def by_itself(table):
    return table(opened("torch"))


@pytest.mark.parametrize("order", [(ledger, culprits), (culprits, ledger)])
def test_one_pass_serves_ledger_and_culprits_in_any_order(order, monkeypatch):
    passes, find = [], _attribution.idle_intervals
    monkeypatch.setattr(_attribution, "idle_intervals", lambda *given: passes.append(given) or find(*given))
    report = opened("torch")
    tables = {table: table(report) for table in order}
    assert len(passes) == 1
    for table, found in tables.items():
        assert found.equals(by_itself(table))
