"""The line below the page's kernels: what they do by their names, with the share of those that do not say."""

import polars as pl
import pytest

from kanalyze.analyses.launches.hot_kernels import TABLE
from kanalyze.renderers.page.sections import kernels


def line(**ns):
    """The line for so many nanoseconds of each family; `graph` stands for whole graphs, which have none."""
    rows = [
        {
            **dict.fromkeys(TABLE.schema),
            "name": family,
            "exclusive_ns": time,
            "window_share": 0.0,
            "busy_share": 0.0,
            "count": 1,
            "avg_ns": 1.0,
            "shapes": 0,
            "launch_bound": False,
            "family": None if family == "graph" else family,
        }
        for family, time in ns.items()
    ]
    return kernels({"hot_kernels": TABLE.check(pl.DataFrame(rows, schema=TABLE.schema))}, 8).foot


@pytest.mark.parametrize(
    ("ns", "told"),
    [
        ({"gemm": 3, "other": 1}, "families: gemm 75.0 %, other 25.0 %"),
        ({"gemm": 1, "graph": 9}, "families: gemm 100.0 %, other 0.0 %"),
        ({"other": 5}, "families: other 100.0 %"),
        ({"graph": 5}, ""),
        ({"gemm": 0}, ""),
        ({"sort": 1, "scan": 2, "fill": 1}, "families: scan 50.0 %, sort 25.0 %, fill 25.0 %, other 0.0 %"),
        (
            {"communication": 60, "normalization": 20, "elementwise": 10, "optimizer": 6, "other": 4},
            "families: communication 60.0 %, 3 more 36.0 %, other 4.0 %",
        ),
    ],
)
def test_the_heaviest_come_first_and_other_always_last(ns, told):
    assert line(**ns) == told


def test_the_line_fits_whatever_there_is():
    assert len(line(**{f"normalization{n}": 1000 + n for n in range(20)}, other=1)) <= 78
