"""Compiled kernels beside their launches, joined by name."""

from kanalyze.analyses.fusion.compiled import compiled
from support.build import kernel, report

KEYS = ("name", "hash", "registers", "variants", "count", "total_ns", "avg_ns")


def row(name, key, registers=None):
    return {"name": name, "source": "triton", "hash": key, "registers": registers}


def rows(of, **where):
    return compiled(of, **where).select(KEYS).rows()


def made(rows):
    events = [
        *(kernel(0, 10, name="gelu"), kernel(20, 50, name="gelu"), kernel(60, 61, name="other")),
        kernel(100, 200, name="tuned"),
    ]
    return report(events, compiled_kernels=rows)


def test_each_compiled_kernel_has_the_launches_of_its_name():
    of = made([row("gelu", "A", 32), row("never", "B"), row("tuned", "C"), row("tuned", "D")])
    assert rows(of) == [
        ("tuned", "C", None, 2, 1, 100, 100.0),
        ("tuned", "D", None, 2, 1, 100, 100.0),
        ("gelu", "A", 32, 1, 2, 40, 20.0),
        ("never", "B", None, 1, 0, 0, None),
    ]


def test_a_window_counts_its_launches_only():
    assert rows(made([row("gelu", "A")]), window="..15ns") == [("gelu", "A", None, 1, 1, 10, 10.0)]


def test_where_nothing_was_compiled_the_table_is_empty():
    assert rows(made([])) == []
