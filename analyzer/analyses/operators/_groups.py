"""Sums over operators, by shape, module, phase or Python stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.operators._events import host_tree, in_subtrees, sums_by
from kanalyze.analyses.operators._paths import (
    MODULE,
    PHASE,
    forward_rows,
    inherited,
    path_nodes,
    path_numbers,
    path_texts,
    phases,
    plain_names,
)
from kanalyze.analyses.operators._work import MEMORY, OPERATOR_KINDS, host_work, launched_work, operator_work
from kanalyze.columns.lookup import beside, gathered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.report import Report

#: The columns that tables of operators sum.
_OF_HOST: Final = ("count", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns", *MEMORY)
_OF_DEVICE: Final = ("exclusive_device_ns", "operations")


def by_operator(report: Report, further: pl.DataFrame | None = None) -> pl.DataFrame:
    """Sums by name and kind of operators and annotations, and by the columns `further` of the host tree's rows.

    Operations launched by no operator have a null name.
    """
    tree, keys = host_tree(report), [] if further is None else further.columns
    work, ran = operator_work(report).filter(pl.col("kind").is_in(OPERATOR_KINDS)), launched_work(report)
    one = pl.lit(1, dtype=pl.Int64)
    host = work.with_columns(one.alias("count"), self_cpu_ns="self_ns", cpu_ns="dur_ns")
    host = host.select("name", "kind", *_OF_HOST, *_zero(_OF_DEVICE))
    device = ran.select(*_zero(_OF_HOST), exclusive_device_ns="exclusive_ns", operations=one)
    by = ran.get_column("operator")
    device = device.with_columns(gathered(tree.rows.get_column(name), by) for name in ("name", "kind")).select(
        host.columns
    )
    if further is not None:
        at = tree.row_of(work.get_column("event_id"))
        host = host.hstack([gathered(column, at) for column in further.get_columns()])
        device = device.hstack([gathered(column, by) for column in further.get_columns()])
    sums, named = pl.col(*_OF_HOST, *_OF_DEVICE).sum(), ["name", "kind", *keys]
    parts = [part.group_by(named).agg(sums) for part in (host, device)]
    return pl.concat(parts).group_by(named).agg(sums).with_columns(pl.col("kind").cast(pl.String))


def _zero(names: Sequence[str]) -> list[pl.Expr]:
    return [pl.lit(0, dtype=pl.Int64).alias(name) for name in names]


def by_shape(report: Report) -> pl.DataFrame:
    """Sums by name, kind, input_shapes and input_types."""
    rows = host_tree(report).rows.select("event_id")
    shapes = ("input_shapes", "input_types")
    return by_operator(report, beside(rows, report.table("op_detail"), *shapes).select(shapes))


def by_stack(report: Report) -> pl.DataFrame:
    """Sums by name, kind and Python stack, outermost function first, separated by semicolons."""
    tree = host_tree(report)
    python, names = tree.of_kinds("python"), plain_names(tree.rows)
    numbers = path_numbers(tree.rows, python, names)
    texts = path_texts(path_nodes(tree.rows, numbers, python, names), lambda above, label: above + pl.lit(";") + label)
    sums = by_operator(report, numbers.to_frame())
    return sums.join(texts, on="path", how="left").rename({"text": "stack"})


def by_phase(report: Report) -> pl.DataFrame:
    """Sums by phase: the number of operators, and the time of all host events and operations."""
    tree, phase = host_tree(report), phases(report)
    ran = launched_work(report)
    around = gathered(phase, tree.rows.get_column("parent"))
    outermost = around.ne_missing(phase)
    own = sums_by(ran.get_column("maker"), ran.get_column("dur_ns"), tree.rows.height)
    device = in_subtrees(tree.rows, own)
    work = host_work(report)
    row = work.get_column("row")
    found = work.with_columns(
        phase.gather(row), outermost.gather(row).alias("outermost"), device.gather(row).alias("all")
    )
    host = found.group_by("phase").agg(
        (pl.col("kind") == "op").sum().cast(pl.Int64).alias("count"),
        pl.col("self_ns").sum().alias("self_cpu_ns"),
        pl.col("dur_ns").filter("outermost").sum().alias("cpu_ns"),
        pl.col("all").filter("outermost").sum().alias("device_ns"),
    )
    maker = gathered(phase, ran.get_column("maker")).fill_null("other").cast(PHASE)
    return _joined(host, _device_sums(ran.with_columns(maker.alias("phase")), "phase"), "phase")


def by_module(report: Report) -> pl.DataFrame:
    """Sums by nn.Module and enclosing modules, with module, path, and backward_device_ns.

    An event belongs to the innermost enclosing module. Operations launched by a backward operator count for the module
    of its forward operator; its host time does not, since it is on another thread.
    """
    rows = host_tree(report).rows
    module, label = modules(rows)
    numbers = path_numbers(rows, module, label)
    work, ran = host_work(report), launched_work(report)
    at = work.get_column("row")
    host = work.with_columns(numbers.gather(at), module.gather(at).alias("call")).group_by("path")
    calls = host.agg(
        pl.col("call").sum().cast(pl.Int64).alias("count"),
        pl.col("self_ns").sum().alias("self_cpu_ns"),
        pl.col("dur_ns").filter("call").sum().alias("cpu_ns"),
    )
    back = inherited(rows, forward_rows(report))
    of_forward = gathered(numbers, gathered(back, ran.get_column("maker"))).alias("path")
    own = gathered(numbers, ran.get_column("maker")).fill_null(0)
    ran = ran.with_columns(of_forward.zip_with(of_forward.is_not_null() & (own == 0), own))
    ran = ran.with_columns(backward=pl.when(of_forward.is_not_null()).then("exclusive_ns").otherwise(0))
    device = _device_sums(ran, "path", pl.col("backward").sum().alias("backward_device_ns"))
    return _named(_joined(calls, device, "path"), path_nodes(rows, numbers, module, label))


def modules(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """A mask of the rows that are calls of an nn.Module, and the module's name."""
    name = rows.get_column("name").cast(pl.String)
    python = rows.select(pl.col("kind") == "python").to_series()
    return python & name.str.starts_with(MODULE).fill_null(value=False), name.str.strip_prefix(MODULE)


def _named(sums: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Adds name and path to the sums by module path, and device_ns including nested modules."""
    texts = path_texts(nodes)
    outer = nodes.select("path", "outer")
    level, parts = sums.select("path", "self_device_ns"), []
    while level.height:  # launches count for all enclosing modules, too
        parts.append(level)
        level = (
            level.join(outer, on="path")
            .filter(pl.col("outer") != 0)
            .select("outer", "self_device_ns")
            .rename({"outer": "path"})
        )
    inside = pl.concat(parts or [level]).group_by("path").agg(device_ns=pl.col("self_device_ns").sum())
    names = nodes.select("path", module="label").join(texts, on="path")
    found = sums.join(inside, on="path", how="left").join(names, on="path", how="left")
    return found.drop("path").rename({"text": "path"})


def _device_sums(ran: pl.DataFrame, key: str, *further: pl.Expr) -> pl.DataFrame:
    return ran.group_by(key).agg(
        pl.col("dur_ns").sum().alias("self_device_ns"),
        pl.col("exclusive_ns").sum().alias("exclusive_device_ns"),
        pl.len().cast(pl.Int64).alias("operations"),
        *further,
    )


def _joined(host: pl.DataFrame, device: pl.DataFrame, key: str) -> pl.DataFrame:
    """Joins both sums by `key`; missing ones are 0."""
    both = host.join(device, on=key, how="full", coalesce=True)
    return both.with_columns(pl.exclude(key).fill_null(0))
