"""Biases of convolutions that the batch normalization right after them takes away again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernel_sums import kernel_sums
from kanalyze.analyses.findings.rules._mendings import without
from kanalyze.analyses.findings.rules._places import place_of
from kanalyze.analyses.findings.rules._telling import per_iteration
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._paths import inherited
from kanalyze.analyses.operators._phases import forward_rows
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import beside, gathered
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.report import Report

_CONVOLUTIONS: Final = ("aten::conv1d", "aten::conv2d", "aten::conv3d")
_NORMALIZATION: Final = "aten::batch_norm"

#: The place of the bias among a convolution's inputs: image, weight, bias.
_BIAS: Final = 2

#: Operators that add the bias, forward, and that sum its gradient, backward, within those of a convolution.
_FORWARD: Final = "aten::add_"
_BACKWARD: Final = "aten::sum"


def bias_before_batchnorm(report: Report) -> list[Finding]:
    """One finding per device that adds such biases."""
    if not {"op", "kernel"}.issubset(report.kinds) or not _names(report).is_in([_NORMALIZATION]).any():
        return []
    useless = _useless(report)
    if useless.is_empty():
        return []
    work = _of_bias(report, useless)
    found = []
    for device in kernel_sums(report):
        own = work.filter(pl.col("device") == device.device)
        if ns := total(own, "exclusive_ns"):
            found.append(_biased(report, device.device, own, percent(ns / max(device.kernel_ns, 1))))
    return found


def _names(report: Report) -> pl.Series:
    return report.kind("op").get_column("name").unique().cast(pl.String)


def _useless(report: Report) -> pl.DataFrame:
    """The convolutions with a bias before a batch normalization: row (of the host tree), stop, in order of rows."""
    tree = host_tree(report)
    rows = tree.rows.select(*THREAD, "name", "parent", "stop", event_id="last_id").with_row_index("row")
    rows = rows.with_columns(pl.col("row").cast(pl.Int64), operator=tree.of_kinds("op"))
    around = tree.nearest(rows.get_column("parent"), rows.get_column("operator"))
    outermost = rows.filter(rows.get_column("operator") & around.is_null())
    named = outermost.with_columns(pl.col("name").cast(pl.String))
    # the normalization counts its batches before it begins
    counts = (pl.col("name") == _FORWARD) & (pl.col("name").shift(-1) == _NORMALIZATION)
    named = named.filter(~counts.fill_null(value=False))
    same = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift(-1)) for key in THREAD)
    follows = pl.col("name").is_in(_CONVOLUTIONS) & (pl.col("name").shift(-1) == _NORMALIZATION) & same
    found = named.filter(follows.fill_null(value=False)).select("row", "stop", "event_id")
    types = beside(found, report.table("op_detail"), "input_types").get_column("input_types").cast(pl.String)
    biased = [text for text in types.unique().drop_nulls() if _has_bias(text)]
    return found.filter(types.is_in(biased).fill_null(value=False)).select("row", "stop")


def _has_bias(text: str) -> bool:
    """Whether types of a convolution's inputs, as recorded, have one for the bias."""
    try:
        types = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(types, list) and len(types) > _BIAS and isinstance(types[_BIAS], str) and bool(types[_BIAS])


def _of_bias(report: Report, convolutions: pl.DataFrame) -> pl.DataFrame:
    """The kernels that add these convolutions' biases, and that sum their gradients."""
    rows = host_tree(report).rows
    work = launched_work(report).filter(pl.col("kind") == "kernel")
    operator = work.get_column("operator")
    cause = gathered(inherited(rows, forward_rows(report)), operator)
    names = gathered(rows.get_column("name"), operator).cast(pl.String)
    forward = (names == _FORWARD) & _within(operator, convolutions)
    backward = (names == _BACKWARD) & _within(cause, convolutions)
    return work.filter((forward | backward).fill_null(value=False))


def _within(rows: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """Whether each of some rows of the host tree lies in one of the subtrees `spans` (row, stop)."""
    last = spans.get_column("row").search_sorted(rows.cast(pl.Int64), side="right").cast(pl.Int64) - 1
    stop = gathered(spans.get_column("stop"), last.set((last < 0) | rows.is_null(), None))
    return (rows < stop).fill_null(value=False)


def _biased(report: Report, device: int, own: pl.DataFrame, share: str) -> Finding:
    told, ns = per_iteration(report), total(own, "exclusive_ns")
    text = (
        f"{told.plural(own.height, 'kernel')} add biases of convolutions, or sum their gradients, before a batch "
        f"normalization, which takes off the mean and the bias with it: {told.time(ns)}, {share} of kernel time."
    )
    return Finding(
        "bias-before-batchnorm",
        device,
        ns,
        text,
        "Leave the bias out: Conv2d(…, bias=False) where a BatchNorm follows, which has one of its own.",
        "op_kernels",
        headline=f"Biases before BatchNorm are {share} of kernel time",
        action="Conv2d(…, bias=False) before BatchNorm2d",
        where=place_of(report, pl.col("row").is_in(own.get_column("row").implode())),
        mending=lambda _: without(own),
    )


RULES: Final = (bias_before_batchnorm,)
