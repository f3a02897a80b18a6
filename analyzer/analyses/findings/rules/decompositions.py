"""Decompositions of matrices of which a program needs less: inverses that are multiplied at once, long SVDs."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings import on_gpu, on_host
from kanalyze.analyses.findings.on_gpu import Work
from kanalyze.analyses.findings.rules import Findings, Rule, literal
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.report import Report

_INVERTS: Final = r"^aten::(?:linalg_pinv|linalg_inv|linalg_inv_ex|inverse|pinverse)$"
_SPLITS: Final = r"^aten::(?:linalg_svd|svd)$"
_PRODUCTS: Final = r"^aten::(?:matmul|mm|mv|bmm|addmm|addmv|einsum|linear|dot)$"
_WORTH: Final = 0.2  # of the kernel time
_LEAST: Final = 64  # the least side of a matrix: small ones are solved in no less time
_MATRIX: Final = (-2, -1)  # the sides of a matrix; others are of a batch
_LONG: Final = 8  # a matrix has so many times as many rows as columns, or columns as rows


@Rule
def decompositions(report: Report) -> Findings:
    """At most one finding per device on inverses whose product follows, and one on SVDs of long matrices."""
    height, width = (on_host.side(0, at) for at in _MATRIX)
    shorter, longer = pl.min_horizontal(height, width), pl.max_horizontal(height, width)
    every = on_host.working(report).with_columns(
        after=pl.col("name").shift(-1).over(THREAD), shorter=shorter, longer=longer
    )
    large = pl.col("shorter") >= _LEAST
    square = large & (pl.col("shorter") == pl.col("longer"))
    factors = [
        pl.all_horizontal(on_host.side(which, at).shift(-1).over(THREAD) == pl.col("longer") for at in _MATRIX)
        for which in range(3)
    ]
    follows = pl.col("after").str.contains(_PRODUCTS) & pl.any_horizontal(factors)
    multiplied = every.filter(square & follows & pl.col("name").str.contains(_INVERTS))
    long = large & (pl.col("longer") >= _LONG * pl.col("shorter"))
    split = every.filter(long & pl.col("name").str.contains(_SPLITS))
    for words, which in (("decompositions: inverse", multiplied), ("decompositions: long", split)):
        yield from _told(report, words, which) if which.height else ()


def _told(report: Report, words: str, which: pl.DataFrame) -> Findings:
    """The kernels of some operators, if they take a good part of the kernel time."""
    launched = on_host.within(report, which).mending.gone
    name, height, width = which.select("name", "longer", "shorter").row(0)
    operator = literal(name.removeprefix("aten::"))
    for device in on_gpu.kernel_sums(report):
        own = (pl.col("kind") == "kernel") & (pl.col("device") == device.device)
        rows = exclusive_operations(report).filter(own & pl.col("row").is_in(launched.implode()))
        work = Work(report, device, rows)
        if rows.height:
            yield work.finding(
                words,
                f"`{operator}` of matrices of {height:.0f} × {width:.0f} takes {work.took} (most {{0}}).",
                work.most,
                left=None,
                least=_WORTH,
                at_most=True,
            )
