"""Kernels that hand on results through memory: launches and counters in, finding out."""

from types import SimpleNamespace

import polars as pl
import pytest

from kanalyze.analyses.page import chained_kernels
from kanalyze.analyses.page.overview_page import PageKernels

MB = 1_000_000
LIBRARY = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


def told(monkeypatch, launches, counts, *, whole_ns=1_000, named=()):
    """What is found of `launches`: (name, ns) one after the other; `counts`: asked and moved MB, read and written."""
    names = [name for name, _ in launches]
    runs = pl.DataFrame({"name": names, "exclusive_ns": [ns for _, ns in launches], "row": range(len(names))})
    runs = runs.with_columns(start=pl.col("exclusive_ns").cum_sum() - pl.col("exclusive_ns"))
    kernels = {name: place for place, name in enumerate(counts)}
    code, measured = [], []
    for name, (read, written, moved_read, moved_written, share) in counts.items():
        code += [(kernels[name], "LDG.E R1", read * MB / 32), (kernels[name], "STG.E.128 R1", written * MB / 32)]
        measured.append((kernels[name], int(moved_read * MB), int(moved_written * MB), share))
    instructions = pl.DataFrame(code, schema=["event_id", "sass", "ideal_sectors"], orient="row")
    columns = ["event_id", "dram_read_bytes", "dram_write_bytes", "dram_share"]
    counted = pl.DataFrame(measured, schema=columns, orient="row")
    monkeypatch.setattr(chained_kernels, "counters", lambda _: counted)
    monkeypatch.setattr(chained_kernels, "measured_shapes", lambda frame: frame)
    joined = pl.DataFrame({"name": list(kernels), "event_id": list(kernels.values())})
    page = PageKernels(pl.DataFrame(), 0, whole_ns, set(named), runs)
    return chained_kernels.passing_on(joined, SimpleNamespace(table=lambda _: instructions), page)


MAP = (500, 500, 500, 480, 0.8)
CHAIN = [("a", 100), ("b", 100), ("c", 100)] * 2


def test_two_of_three_maps_are_spared(monkeypatch):
    (one,) = told(monkeypatch, CHAIN, dict.fromkeys("abc", MAP))
    assert (one.rule, one.names, one.at_stake_ns) == ("fusion", ("a", "b", "c"), 360)
    assert one.replayed == (None, 200, 400)
    assert one.headline == "3 kernels in a row pass results through memory: 60.0 %"
    assert "{0}, {1}, {2} follow each other and take 600 ns, 60.0 % of the time" in one.text


@pytest.mark.parametrize(
    ("change", "ns"),
    [
        ({"c": (500, 0.001, 500, 0.001, 0.8)}, 466),  # a sum at the end writes nothing
        ({"b": (1000, 500, 1000, 480, 0.8)}, 320),  # of two tensors
        ({"b": (2500, 500, 500, 480, 0.8)}, 0),  # a stencil asks for its neighbours, too
        ({"b": (500, 500, 20, 480, 0.8)}, 0),  # what L2 holds
        ({"b": (500, 500, 500, 480, 0.3)}, 0),  # it computes
        ({"b": (100, 100, 100, 90, 0.8)}, 0),  # other data
        ({"b": (500, 500, 500, 900, 0.8)}, 0),  # it writes apart
    ],
)
def test_what_passes_on_as_many_bytes_counts(monkeypatch, change, ns):
    findings = told(monkeypatch, CHAIN, dict.fromkeys("abc", MAP) | change)
    assert sum(one.replayed_high_ns for one in findings) == pytest.approx(ns, rel=0.01)


@pytest.mark.parametrize(
    ("launches", "more"),
    [
        ([("a", 100)] * 6, {}),  # passes of one kernel
        ([("a", 100), ("other", 5), ("b", 100)], {}),  # another kernel in between
        ([("a", 10), ("b", 10)], {}),  # little time
        ([("a", 100), (LIBRARY, 100)], {}),
        ([("a", 100), ("b", 100)], {"named": ["a"]}),  # another cause is told of it
    ],
)
def test_what_is_no_chain_is_not_told(monkeypatch, launches, more):
    assert told(monkeypatch, launches, dict.fromkeys(["a", "b", LIBRARY], MAP), **more) == []
