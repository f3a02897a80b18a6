"""The operators of PyTorch behind the operations of a report: its own, or those of the trace beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, with_facts
from kanalyze.analyses.naming._host_names import host_names
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered, positions

if TYPE_CHECKING:
    from kanalyze.report import Report

#: PyTorch's own operators, and autograd's around what runs backward.
_OWN: Final = "aten::"
_NODE: Final = "autograd::engine::evaluate_function: "

#: What is told of the operator of an operation.
_TOLD: Final = ("inner", "outer", "node")


@once_per_report
def launching_operators(report: Report) -> pl.DataFrame:
    """The operator of each of ``exclusive_operations`` (row): the innermost and the outermost one of PyTorch's own.

    Columns: row, inner, outer, node (autograd's, of what runs backward). All are null where no operator is known. What
    is not aligned with the trace beside the report has the operator of most kernels of its name and launch shape.
    """
    work = with_facts(report, exclusive_operations(report), *THREAD, "call_start", *SHAPE)
    work = work.select("row", "name", *SHAPE, *THREAD, at="call_start")
    if report.kind("op").height:
        launched = launched_work(report)
        at = positions(launched.get_column("row"), work.get_column("row"))
        return _named(report, work, gathered(launched.get_column("operator"), at))
    trace = report.beside()
    if trace is None or trace.kind("op").is_empty():
        unknown = [pl.lit(None, dtype=pl.String).alias(name) for name in _TOLD]
        return work.select("row", *unknown)
    tree, there = host_tree(trace), _launches_there(report, work)
    named = _named(trace, work, tree.innermost(there, tree.of_kinds("op")))
    alike = pl.concat([named, work.select("name", *SHAPE)], how="horizontal")
    keys = ["name", *SHAPE]
    counts = alike.drop_nulls("inner").group_by(*keys, *_TOLD).len().sort("len", *_TOLD)
    usual = counts.unique(keys, keep="last")
    both = alike.join(usual, on=keys, how="left", nulls_equal=True, maintain_order="left", suffix="_usual")
    told = pl.col("inner").is_not_null()
    return both.select("row", *(pl.when(told).then(name).otherwise(f"{name}_usual").alias(name) for name in _TOLD))


def _launches_there(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Where the trace made the launches of `work` (process_id, thread_id, at): the same columns; null for unknown."""
    numbered = work.select(*THREAD, "at").with_row_index("point")
    found = [numbered.clear()]
    for pair in host_names(report).threads:
        own = numbered.filter(pl.col(name).eq_missing(key) for name, key in zip(THREAD, pair.left, strict=True))
        call = positions(pair.calls.get_column("start"), own.get_column("at"))
        partner = gathered(pair.pairs.get_column("right"), positions(pair.pairs.get_column("left"), call))
        right = [pl.lit(key, dtype=pl.Int64).alias(name) for name, key in zip(THREAD, pair.right, strict=True)]
        found.append(own.select("point", *right, gathered(pair.others.get_column("start"), partner).alias("at")))
    known = pl.concat(found).drop_nulls("at")
    return numbered.select("point").join(known, on="point", how="left", maintain_order="left").drop("point")


def _named(report: Report, work: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """What is told of the operators in some rows of the host tree of a report: row (of `work`) and :data:`_TOLD`."""
    tree = host_tree(report)
    names, parents = (tree.rows.get_column(name) for name in ("name", "parent"))
    texts = names.unique().drop_nulls()
    own, nodes = (
        names.is_in(texts.filter(texts.cast(pl.String).str.starts_with(start)).implode()).fill_null(value=False)
        for start in (_OWN, _NODE)
    )
    inner, node = tree.nearest(rows, own), tree.nearest(rows, nodes)
    outer, above = inner, tree.nearest(gathered(parents, inner), own)
    while above.is_not_null().any():
        outer = outer.zip_with(above.is_null(), above)
        above = tree.nearest(gathered(parents, above), own)
    told = [gathered(names, at).cast(pl.String).alias(name) for name, at in (("inner", inner), ("outer", outer))]
    told.append(gathered(names, node).cast(pl.String).str.strip_prefix(_NODE).alias("node"))
    return pl.DataFrame([work.get_column("row"), *told])
