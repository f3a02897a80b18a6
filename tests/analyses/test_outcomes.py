"""What a table is where nothing happened, and what it says where nothing was recorded or nobody knows a grouping."""

from functools import cache

import pytest

import kanalyze
from kanalyze.catalog import forms, table
from kanalyze.errors import CannotTellError, UnknownNameError
from support.build import call, graph, host, kernel, memcpy, nvtx, report

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
