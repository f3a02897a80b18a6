"""What a table is where nothing happened or was recorded, and what it reads of a report, and when."""

from functools import cache

import pytest

import kanalyze
from kanalyze import catalog
from kanalyze.catalog import forms, table
from kanalyze.errors import CannotTellError, DamagedReportError, UnknownNameError
from kanalyze.readers import read
from support.build import call, graph, host, kernel, memcpy, nvtx, report
from support.command import REPORTS
from support.exports import altered

CALL, KERNEL, COPY, RANGE = call("cudaMalloc", 0, 10), kernel(0, 10), memcpy(0, 10), nvtx("a", 0, 10)
EVERY_KIND = frozenset({"api", "kernel", "memcpy", "memset", "graph", "range", "osrt", "memory", "fault", "op"})


@cache
def made(*events, kinds=EVERY_KIND):
    """The same report for all tables of the same events."""
    return report(events, kinds=kinds)


@pytest.mark.parametrize(
    ("name", "events", "options"),
    [
        ("ledger", [CALL], {}),
        ("culprits", [CALL], {}),
        ("gaps", [CALL], {}),
        ("gaps", [kernel(0, 5_000)], {"by": "culprit"}),
        ("syncs", [CALL], {}),
        ("syncs", [CALL], {"by": "api"}),
        ("utilisation", [], {}),
        ("utilisation", [], {"as_nsys": True}),
        ("concurrency", [], {}),
        ("concurrency", [], {"by": "pair"}),
        ("api", [KERNEL], {}),
        ("launches", [], {}),
        ("launch_summary", [], {}),
        ("libraries", [KERNEL, nvtx("mine", 0, 5)], {}),
        ("range_gpu", [RANGE, COPY], {}),
        ("range_gpu", [RANGE, COPY], {"trace": True}),
        ("range_kernels", [RANGE], {}),
        ("steps", [nvtx("step", 0, 10)], {}),
        ("cold", [], {}),
        ("cold", [], {"by": "kernel"}),
        ("graphs", [], {}),
        ("graphs", [CALL, KERNEL], {}),
        ("graphs", [CALL, KERNEL], {"by": "kernel"}),
        ("hot_kernels", [COPY], {}),
        ("gpu", [CALL], {}),
        ("copies", [KERNEL], {}),
        ("kernels", [COPY, graph(5, 10)], {}),
        ("critical_path", [CALL], {}),
        *(("migrations", [COPY], {"by": by}) for by in (None, "cause")),
        ("migration_totals", [COPY], {}),
        *((name, [COPY], {}) for name in ("findings", "faults")),
        *((name, [], {}) for name in ("ops", "op_kernels", "tree")),
        ("ops", [], {"as_torch": True}),
        *(("memory", [], how) for how in ({}, {"trace": True}, {"by": "device"}, {"by": "call"})),
        *(("occupancy", [], {"by": by}) for by in (None, "kernel", "device")),
    ],
)
def test_where_nothing_happened_a_table_is_empty(name, events, options):
    found = getattr(kanalyze, name)(made(*events), **options)
    assert found.is_empty()
    assert any({*form.schema} <= {*found.schema} for form in [table(name), *forms(name)])


ACTIVITIES = {"range", "api", "kernel"}


@pytest.mark.parametrize(
    ("name", "kinds", "lacking"),
    [
        *[(name, {"api"}, "") for name in ("ledger", "culprits", "gaps", "code", "graphs", "gpu", "occupancy")],
        *(("findings", {"api"}, ""), ("migration_totals", {"range"}, "")),
        *[(name, {"kernel"}, "api") for name in ("syncs", "api", "launches", "launch_summary", "cold")],
        *[(name, {"range"}, "") for name in ("utilisation", "concurrency", "critical_path", "migrations")],
        *[(name, {"api"}, "kernel") for name in ("launches", "launch_summary")],
        *[(name, {"memcpy"}, "kernel") for name in ("kernels", "hot_kernels")],
        ("copies", {"kernel"}, ""),
        *[(name, {"kernel"}, "op") for name in ("fusion", "roofs", "ops", "tree")],
        *(("memory", {"kernel"}, "memory"), ("faults", {"kernel"}, "fault"), ("op_kernels", {"op"}, "kernel")),
        ("libraries", {"kernel"}, ""),
        *[(name, {"api", "kernel"}, "range") for name in ("ranges", "steps")],
        *[(name, ACTIVITIES - {lacking}, "") for name in ("range_gpu", "range_kernels") for lacking in ACTIVITIES],
    ],
)
def test_where_nothing_was_recorded_a_table_cannot_tell(name, kinds, lacking):
    with pytest.raises(CannotTellError, match=f"cannot tell {name}.*{lacking}"):
        getattr(kanalyze, name)(made(kinds=frozenset(kinds)))


GROUPED = (
    "gaps syncs concurrency cold graphs ranges range_gpu occupancy memory kernels critical_path migrations culprits "
    "ops tree"
)


@pytest.mark.parametrize("name", GROUPED.split())
def test_an_unknown_grouping_is_said(name):
    with pytest.raises(UnknownNameError, match=f"(grouping|order) of {name}.*colour"):
        getattr(kanalyze, name)(made(KERNEL, CALL, RANGE, host("op", "a", 0, 5)), by="colour")


@pytest.mark.parametrize(
    ("name", "kinds"), [("api", {"api"}), ("kernels", {"kernel", "memcpy", "memset"}), ("steps", {"range"})]
)
def test_a_table_reads_the_kinds_that_it_uses(name, kinds):
    report = read(REPORTS / "nvtx.sqlite", cache=False)
    catalog.make(report, name)
    assert {kind for kind in report.kinds if report.was_read(kind)} - {"graph"} == kinds


def test_damage_does_not_hinder_tables_that_do_not_use_what_is_damaged(tmp_path):
    report = read(altered(tmp_path, REPORTS / "nvtx.sqlite", "UPDATE NVTX_EVENTS SET start = 'soon'"), cache=False)
    assert catalog.make(report, "ledger").height
    with pytest.raises(DamagedReportError):
        catalog.make(report, "ranges")


def test_a_table_that_lacks_a_second_report_reads_nothing_of_the_first():
    report = read(REPORTS / "add.sqlite", cache=False)
    with pytest.raises(CannotTellError):
        catalog.make(report, "agreement")
    assert not report.was_read("kernel")


def test_a_table_is_read_once(monkeypatch):
    of, asked = report([kernel(0, 5)]), []
    events = of.source.events
    monkeypatch.setattr(of.source, "events", lambda kind: asked.append(kind) or events(kind))
    for name in ("gpu", "kernels", "kernels"):
        catalog.make(of, name)
    assert asked.count("kernel") == 1
