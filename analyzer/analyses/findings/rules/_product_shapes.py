"""Shapes of matrix products and what they took, from operators whose shapes a trace recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import beside, gathered

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Operators of matrix products; of their inputs the last two with two dimensions or more are the matrices.
_PRODUCTS: Final = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::_addmm_activation")

#: The largest dimension that is believed, so that products of three stay exact in a float's exponent.
_LARGEST: Final = 1 << 40

_SCHEMA: Final = {"device": pl.Int64, "kernel": pl.String, "shapes": pl.String, "count": pl.Int64, "ns": pl.Int64}


class Product(NamedTuple):
    """A matrix product of one shape by one kernel, all its occurrences.

    Attributes:
        kernel: The name of the kernel, of several the one that took most.
        batch: How many products one occurrence is.
        m: Rows of the first matrix.
        k: Columns of the first, and rows of the second matrix.
        n: Columns of the second matrix.
        occurrences: How often.
        ns: Exclusive time of all their kernels.
    """

    kernel: str
    batch: int
    m: int
    k: int
    n: int
    occurrences: int
    ns: int

    @property
    def flop(self) -> float:
        """Floating-point operations of all occurrences."""
        return 2.0 * self.occurrences * self.batch * self.m * self.k * self.n

    def odd(self, multiple: int) -> int | None:
        """The dimension by which it is unaligned: one that is no multiple of `multiple`; None if all are.

        Rows of the result begin at multiples of n elements, those of the first matrix at multiples of k, or of m if it
        is transposed: that is the order in which they are asked.
        """
        return next((side for side in (self.n, self.k, self.m) if side % multiple), None)

    def __str__(self) -> str:
        """The two matrices: ``[8192, 768] × [768, 50257]``."""
        batch = f"{self.batch}, " if self.batch > 1 else ""
        return f"[{batch}{self.m}, {self.k}] × [{batch}{self.k}, {self.n}]"


def products(report: Report, device: int) -> list[Product]:
    """The products on a device whose shapes were recorded, most time first; empty where no shapes were."""
    found = []
    for kernel, shapes, count, ns in _sums(report).filter(pl.col("device") == device).drop("device").iter_rows():
        if sides := _sides(shapes):
            found.append(Product(kernel, *sides, count, ns))
    return found


@once_per_report
def _sums(report: Report) -> pl.DataFrame:
    """Time of the operators of products by device, kernel and shapes, most time first."""
    if not {"op", "kernel"}.issubset(report.kinds):
        return pl.DataFrame(schema=_SCHEMA)
    rows = host_tree(report).rows
    wanted = rows.select((pl.col("kind") == "op") & pl.col("name").cast(pl.String).is_in(_PRODUCTS)).to_series()
    work = launched_work(report).filter(pl.col("kind") == "kernel")
    work = work.filter(gathered(wanted, work.get_column("operator")).fill_null(value=False))
    longest = pl.col("name").sort_by("exclusive_ns").last().cast(pl.String).alias("kernel")
    each = work.group_by("device", "operator").agg(longest, pl.col("exclusive_ns").sum().alias("ns"))
    each = each.with_columns(event_id=gathered(rows.get_column("last_id"), each.get_column("operator")))
    known = beside(each, report.table("op_detail"), "input_shapes").drop_nulls(["input_shapes", "kernel"])
    keys = ["device", "kernel", "shapes"]
    named = known.with_columns(shapes=pl.col("input_shapes").cast(pl.String))
    sums = named.group_by(keys).agg(pl.len().cast(pl.Int64).alias("count"), pl.col("ns").sum())
    return sums.select(*_SCHEMA).sort("ns", *keys, descending=[True, False, False, False])


def _sides(text: str) -> tuple[int, int, int, int] | None:
    """Batch, m, k and n of the last two matrices in the shapes of an operator's inputs; None if they do not fit."""
    try:
        shapes = json.loads(text)
    except (ValueError, RecursionError):
        return None
    matrices = [shape for shape in shapes if _is_matrix(shape)] if isinstance(shapes, list) else []
    if len(matrices) < len("AB"):
        return None
    first, second = matrices[-2:]
    (m, k), (inner, n) = first[-2:], second[-2:]
    batch = first[0] if len(first) > len("mk") else 1
    return (batch, m, k, n) if k == inner else None


def _is_matrix(shape: object) -> bool:
    """True for the shape of a matrix, or of a batch of them."""
    sides = shape if isinstance(shape, list) else []
    known = all(isinstance(side, int) and not isinstance(side, bool) and 0 < side < _LARGEST for side in sides)
    return known and len(sides) in {len("mk"), len("bmk")}
