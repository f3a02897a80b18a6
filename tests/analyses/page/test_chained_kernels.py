"""Kernels that hand on results through memory: launches and counters in, finding out."""

from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.page import kernel_runs
from kanalyze.analyses.page.overview_page import PageKernels

MB = 1_000_000
LIBRARY = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


def told(monkeypatch, launches, counts, **more):
    """What is found of `launches`: (name, ns) one after the other; `counts`: asked and moved MB, read and written."""
    of = {"whole_ns": 1_000, "named": (), "streams": (7,), "between": 1} | more
    streams = of["streams"]
    rows = [
        {"name": name, "exclusive_ns": ns, "dur_ns": ns, "start": 100 * place, "row": place, "process_id": 1}
        | {"stream": streams[place % len(streams)], "place": of["between"] * (place // len(streams))}
        for place, (name, ns) in enumerate(launches)
    ]
    kernels = {name: place for place, name in enumerate(counts)}
    code, measured = [], []
    for name, (read, written, moved_read, moved_written, dram, sms) in counts.items():
        code += [(kernels[name], "LDG.E R1", read * MB / 32), (kernels[name], "STG.E.128 R1", written * MB / 32)]
        measured.append((kernels[name], int(moved_read * MB), int(moved_written * MB), dram, sms, 100))
    instructions = pl.DataFrame(code, schema=["event_id", "sass", "ideal_sectors"], orient="row")
    columns = ["event_id", "dram_read_bytes", "dram_write_bytes", "dram_share", "compute_share", "dur_ns"]
    counted = pl.DataFrame(measured, schema=columns, orient="row")
    monkeypatch.setattr(kernel_runs, "counters", lambda _: counted)
    monkeypatch.setattr(kernel_runs, "measured_shapes", lambda frame: frame)
    joined = pl.DataFrame({"name": list(kernels), "event_id": list(kernels.values())})
    page = PageKernels(pl.DataFrame(), 0, of["whole_ns"], set(of["named"]), pl.DataFrame(rows))
    return kernel_runs.passing_on(joined, SimpleNamespace(table=lambda _: instructions), page)


MAP = (500, 500, 500, 480, 0.8, 0.4)
CHAIN = [("a", 100), ("b", 100), ("c", 100)] * 2


def test_two_of_three_maps_are_spared(monkeypatch):
    (one,) = told(monkeypatch, CHAIN, dict.fromkeys("abc", MAP))
    assert (one.rule, one.names, one.at_stake_ns) == ("fusion", ("a", "b", "c"), 360)
    assert one.replayed == (None, 200, 400)
    assert one.headline == "3 kernels in a row may pass on results by memory: 60.0 %"
    assert "{0}, {1}, {2} follow each other and take 600 ns, 60.0 % of the time" in one.text


@pytest.mark.parametrize(
    ("change", "ns"),
    [
        ({"c": (500, 0.001, 500, 0.001, 0.8, 0.4)}, 500),  # a sum at the end writes nothing
        ({"b": (1000, 500, 1000, 480, 0.8, 0.4)}, 333),  # of two tensors
        ({"b": (5000, 500, 5000, 480, 0.8, 0.4)}, 118),  # of others, but what it writes
        ({"b": (2500, 500, 500, 480, 0.8, 0.4)}, 0),  # a stencil asks for its neighbours, too
        ({"b": (500, 500, 20, 480, 0.8, 0.4)}, 0),  # what L2 holds
        ({"b": (500, 500, 500, 480, 0.3, 0.2)}, 0),
        ({"b": (500, 500, 500, 480, 0.6, 0.9)}, 0),  # it computes
        ({"b": (100, 100, 100, 90, 0.8, 0.4)}, 0),  # other data
        ({"b": (500, 500, 500, 900, 0.8, 0.4)}, 0),  # it writes apart
    ],
)
def test_what_passes_on_as_many_bytes_counts(monkeypatch, change, ns):
    findings = told(monkeypatch, CHAIN, dict.fromkeys("abc", MAP) | change)
    assert sum(one.replayed_high_ns for one in findings) == pytest.approx(ns, abs=1)


@pytest.mark.parametrize(
    ("launches", "more"),
    [
        ([("a", 100)] * 6, {}),  # passes of one kernel
        ([("a", 100), ("other", 5), ("b", 100)], {}),  # another kernel in between
        (CHAIN, {"between": 2}),  # or a memset
        (CHAIN, {"streams": (7, 8, 9)}),
        ([("a", 100), ("b", 10)], {}),  # of other data than was measured
        ([("a", 100), ("b", 100)], {"whole_ns": 2_000}),  # little time
        ([("a", 100), (LIBRARY, 100)], {}),
        ([("a", 100), ("b", 100)], {"named": ["a"]}),  # another cause is told of it
    ],
)
def test_what_is_no_chain_is_not_told(monkeypatch, launches, more):
    assert told(monkeypatch, launches, dict.fromkeys(["a", "b", "c", LIBRARY], MAP), **more) == []


def test_the_chain_that_takes_most_is_told(monkeypatch):
    launches = [("a", 100), ("b", 100), ("other", 5), ("c", 120), ("d", 120)]
    (one,) = told(monkeypatch, launches, dict.fromkeys("abcd", MAP))
    assert (one.names, one.replayed_high_ns) == (("c", "d"), 120)


def test_of_many_kernels_the_first_are_named(monkeypatch):
    (one,) = told(monkeypatch, [(name, 100) for name in "abcdefg"], dict.fromkeys("abcdefg", MAP))
    assert len(one.names) == 7
    assert "{0}, {1}, {2}, 4 more follow each other" in one.text


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_no_more_is_spared_than_the_kernels_take(sizes):
    counts = {f"k{place}": (*each, *each, 0.8, 0.4) for place, each in enumerate(sizes)}
    with pytest.MonkeyPatch.context() as patched:
        findings = told(patched, [(name, 100) for name in counts], counts, whole_ns=1)
    assert all(one.replayed_high_ns <= 100 * len(one.names) for one in findings)
