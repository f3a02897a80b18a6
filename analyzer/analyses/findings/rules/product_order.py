"""Products of three matrices in the order that costs more: a large matrix between two long and narrow ones."""

from __future__ import annotations

import math
import re
from typing import Final

import polars as pl

from kanalyze.analyses.findings import on_gpu, on_host
from kanalyze.analyses.findings.on_host import SPAN
from kanalyze.analyses.findings.rules import Findings, Rule
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.threads import THREAD, outermost
from kanalyze.columns import told_of
from kanalyze.report import Report

_PRODUCTS: Final = ("aten::mm", "aten::bmm", "aten::addmm", "aten::mv")
#: Operators that give each row or column of a matrix another factor or order, or only look at it.
_LINEAR: Final = (
    r"^aten::(?:einsum|linear|matmul|sum|copy_|clone|contiguous|to|_to_copy|t|transpose|permute|view|_unsafe_view|reshape"
    r"|expand|as_strided|unsqueeze|squeeze|detach|alias|empty\w*|slice|select|resolve_conj|_reshape_alias)$"
)
_SCALES: Final = r"^aten::(?:mul|div)_?$"
_OTHERS: Final = 0.05  # so much of their time may be in kernels that no operator tells of
_CHEAPER: Final = 4  # so many times the arithmetic of the other order
_LEAST: Final = 256  # the least side of the matrix in the middle


@Rule
def product_order(report: Report) -> Findings:
    """At most one finding per device on pairs of products whose other order takes a quarter of the arithmetic."""
    pairs = _pairs(on_host.forward(report))
    m, n, times = pairs.select("m", "n", "times").sort("times").head(1).row(0) if pairs.height else (0, 0, 1)
    nodes = on_host.gradients(report, pairs)
    for work in on_host.works_within(report, outermost(pl.concat([pairs.select(SPAN), nodes]))):
        inner = on_gpu.with_operators(report, work.rows).get_column("inner")
        others = work.rows.filter(~inner.str.starts_with("aten::").fill_null(value=False))
        if total(others, "exclusive_ns") <= _OTHERS * work.ns:  # a kernel that no operator tells of may do anything
            yield work.finding("product-order", work.most, left=1 / times, at_most=True, m=m, n=n, times=times)


def _pairs(every: pl.DataFrame) -> pl.DataFrame:
    """Products with that after them: :data:`SPAN`, m and n (sides of the matrix between), times."""
    shapes, name, added = pl.col("input_shapes"), pl.col("name"), pl.col("name") == "aten::addmm"
    left, right = (
        pl.when(added).then(on_host.sides(shapes, at + 1)).otherwise(on_host.sides(shapes, at)) for at in (0, 1)
    )
    m, k = (pl.col("left").list.get(at, null_on_oob=True) for at in (-2, -1))
    n = pl.when(name == "aten::mv").then(1.0).otherwise(pl.col("right").list.get(-1, null_on_oob=True))
    batch = pl.when(name == "aten::bmm").then(pl.col("left").list.first()).otherwise(1.0)
    every = every.with_columns(product=name.is_in(_PRODUCTS))
    products = every.filter("product").with_columns(left=left, right=right).with_columns(m=m, k=k, n=n, batch=batch)
    # what a matrix is added to has no other order
    plain = ~added | (on_host.elements() < pl.col("m") * pl.col("n"))
    products = _unbroken(every, products).with_columns(linear=pl.col("linear") & plain)
    after = {f"next_{one}": pl.col(one).shift(-1).over(THREAD) for one in ("m", "k", "n", "batch", "end")}
    products = products.with_columns(**after)
    sides = (pl.min_horizontal("m", "n"), pl.max_horizontal("m", "n"))
    by_left, by_right = (
        (pl.min_horizontal(*of) == sides[0]) & (pl.max_horizontal(*of) == sides[1])
        for of in (("next_m", "next_k"), ("next_k", "next_n"))
    )
    other = pl.when(by_left).then("next_n").when(by_right).then("next_m")
    pairs = products.with_columns(other=other).filter(
        pl.col("other").is_not_null() & (pl.col("batch") == pl.col("next_batch")) & (sides[0] >= _LEAST)
    )
    now = pl.col("m") * pl.col("n") * (pl.col("k") + pl.col("other"))
    then = (pl.col("m") + pl.col("n")) * pl.col("k") * pl.col("other")
    pairs = pairs.with_columns(times=now / then).filter(pl.col("times") >= _CHEAPER, "linear")
    return _used_once(products, pairs).select(*THREAD, "start", "m", "n", "times", end="next_end")


def _unbroken(every: pl.DataFrame, products: pl.DataFrame) -> pl.DataFrame:
    """Adds `linear` to products: whether all that is done before the next one may as well be done after it.

    What has inputs smaller than one matrix of the result does nothing to it; of what has no shapes that is not known.
    """
    line = every.with_columns(which=pl.col("product").cum_sum().over(THREAD))
    line = line.filter(~pl.col("product") & ~pl.col("name").str.contains(_LINEAR))
    products = products.with_columns(which=pl.int_range(1, pl.len() + 1).over(THREAD))
    line = line.join(products.select(*THREAD, "which", made=pl.col("m") * pl.col("n")), on=[*THREAD, "which"])
    shapes = line.get_column("input_shapes").cast(pl.String)
    line = line.with_columns(
        told_of(shapes, _largest, pl.Float64).alias("largest"), told_of(shapes, _factor).alias("factor")
    )
    may = pl.col("name").str.contains(_SCALES) & (pl.col("factor") == "yes")
    breaks = ~may.fill_null(value=False) & (pl.col("largest").is_null() | (pl.col("largest") >= pl.col("made")))
    broken = line.filter(breaks.fill_null(value=True)).select(*THREAD, "which").unique()
    products = products.join(broken.with_columns(linear=False), on=[*THREAD, "which"], how="left")
    return products.with_columns(pl.col("linear").fill_null(value=True))


def _inputs(shapes: str) -> list[list[int]]:
    """The shapes of the tensors among an operator's inputs, of lists of tensors too."""
    return [[*map(int, re.findall(r"\d+", one))] for one in re.findall(r"\[[\d, ]*\]", shapes)]


def _largest(shapes: str) -> str | None:
    """How many elements the largest input has; None where no shape was recorded."""
    return None if shapes == "[]" else str(max(map(math.prod, _inputs(shapes)), default=1))


def _factor(shapes: str) -> str:
    """``yes`` where the smaller of two inputs has one value for all of a row, or of a column, or of all."""
    factor = min(_inputs(shapes)[:2], key=math.prod, default=[2, 2])
    return "yes" if len(factor) <= 1 or 1 in factor[-2:] else "no"


def _used_once(products: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Pairs whose matrices no further product of the thread takes: as many take such ones as there are pairs."""
    sides = [
        (pl.min_horizontal(*of).alias("short"), pl.max_horizontal(*of).alias("long")) for of in (("m", "k"), ("k", "n"))
    ]
    taken = pl.concat(products.select("row", *THREAD, *of) for of in sides).unique()
    counts = taken.group_by(*THREAD, "short", "long").agg(taking=pl.len())
    keys = [*THREAD, "short", "long"]
    pairs = pairs.with_columns(short=pl.min_horizontal("m", "n"), long=pl.max_horizontal("m", "n"))
    pairs = pairs.join(counts, on=keys, how="left", maintain_order="left")
    return pairs.filter(pl.len().over(keys) == pl.col("taking"))
