"""Kernels that read the host's memory in place: launches and counters in, finding out."""

import polars as pl
import pytest

from kanalyze.analyses.page import kernel_runs
from kanalyze.analyses.page.overview_page import PageKernels

LIBRARY = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


def told(monkeypatch, launches, **more):
    """What is found of launches: (name, ns, waits of the host before) one after the other; the first was measured."""
    of = {"gigabytes_per_s": 50, "busy": (0.2, 0.1), "whole_ns": 10_000, "named": ()} | more
    rows = [
        {"name": name, "exclusive_ns": ns, "dur_ns": ns, "process_id": 1, "stream": 7, "place": place, "waits": waits}
        for place, (name, ns, waits) in enumerate(launches)
    ]
    counted = [(0, *of["busy"], 1000), (1, 0.5, 0.5, 1000)]
    columns = ["event_id", "compute_share", "dram_share", "dur_ns"]
    counted = pl.DataFrame(counted, schema=columns, orient="row")
    metric = pl.DataFrame({"event_id": [0, 1], kernel_runs.FROM_HOST: [of["gigabytes_per_s"] * 1000 / 32, 0]})
    monkeypatch.setattr(kernel_runs, "counters", lambda _: counted)
    monkeypatch.setattr(kernel_runs, "metric_columns", lambda *_: metric)
    monkeypatch.setattr(kernel_runs, "measured_shapes", lambda frame: frame)
    own = launches[0][0]
    joined = pl.DataFrame({"name": [own, "other"], "event_id": [0, 1]})
    page = PageKernels(pl.DataFrame(), 0, of["whole_ns"], set(of["named"]), pl.DataFrame(rows))
    return kernel_runs.reads_of_host(joined, None, page)


READS, OTHER, WAITED = ("k", 1000, 3), ("other", 500, 3), ("k", 1000, 4)


def test_a_kernel_that_reads_the_host_in_each_launch(monkeypatch):
    (one,) = told(monkeypatch, [READS] * 4 + [OTHER] + [READS] * 2)
    # a fifth is computing, and one read of each row is left
    assert (one.rule, one.names, one.at_stake_ns, one.replayed) == ("zero-copy-reads", ("k",), 2800, (None, 0, 3500))
    assert "each launch reads 50.00 kB of memory of the host in place" in one.text
    assert "at 50.00 GB/s, and so do 3 launches in a row" in one.text


@pytest.mark.parametrize(
    ("launches", "more", "ns"),
    [
        ([READS] * 2 + [WAITED] * 2, {}, 2 * 600),
        ([READS] * 2 + [WAITED] * 2, {"busy": (0.1, 0.4)}, 2 * 200),
        ([READS, WAITED] * 4, {}, 0),  # the host may write in between
        ([READS, OTHER] * 4, {}, 0),
        ([("k", 1000, 3), ("k", 3000, 3), ("k", 3000, 3)], {}, 0),  # of other data
        ([READS] * 4, {"gigabytes_per_s": 5}, 0),
        ([READS] * 4, {"busy": (0.7, 0.1)}, 0),
        ([READS] * 4, {"busy": (None, None)}, 3000),
        ([READS] * 4, {"named": ("k",)}, 0),
        ([READS] * 4, {"whole_ns": 100_000}, 0),  # little of the time
        ([(LIBRARY, 1000, 3)] * 4, {}, 0),
        ([READS], {}, 0),
    ],
)
def test_launches_in_a_row_between_waits_count(monkeypatch, launches, more, ns):
    found = told(monkeypatch, launches, **{"whole_ns": 1000, **more})
    assert sum(one.at_stake_ns for one in found) == ns
