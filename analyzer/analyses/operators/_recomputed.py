"""Operators that run forward again within the backward pass, as under activation checkpointing."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.operators._host_tree import host_tree
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.report import Report

#: Operators that layers call forward, and that no node of autograd calls by itself; several of them are a layer.
OF_LAYERS: Final = tuple(
    f"aten::{name}"
    for name in (
        *("linear", "conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm", "batch_norm", "group_norm", "embedding"),
        *("gelu", "relu", "silu", "dropout", "softmax", "scaled_dot_product_attention", "max_pool2d", "lstm", "gru"),
        *("relu_", "silu_", "leaky_relu", "conv_transpose2d", "instance_norm"),
    )
)
FEWEST_OF_LAYERS: Final = 2

_NODE: Final = "autograd::engine::evaluate_function: "


@once_per_process
def recomputed(report: Report) -> pl.Series:
    """Whether each row of the host tree runs forward again: from the first to the last layer in a node of autograd."""
    tree = host_tree(report)
    names = tree.rows.get_column("name")
    texts = names.unique().drop_nulls()
    sized = texts.cast(pl.String).str.extract(r"^([^,]*)")  # without what ranges of nsys add
    nodes, layers = (
        names.is_in(texts.filter(wanted).implode()).fill_null(value=False)
        for wanted in (texts.cast(pl.String).str.starts_with(_NODE), sized.is_in(OF_LAYERS))
    )
    every = pl.int_range(tree.rows.height, dtype=pl.Int64, eager=True)
    inside = tree.rows.select("start", "end", layer=layers, name=names).with_columns(node=tree.nearest(every, nodes))
    again = pl.col("layer") & pl.col("node").is_not_null()
    if inside.filter(again).get_column("name").cast(pl.String).str.extract(r"^([^,]*)").n_unique() < FEWEST_OF_LAYERS:
        return pl.repeat(value=False, n=tree.rows.height, eager=True)
    first, last = (pl.col(side).filter(pl.col("layer")) for side in ("start", "end"))
    within = (pl.col("start") >= first.min().over("node")) & (pl.col("start") < last.max().over("node"))
    return inside.select((within & pl.col("node").is_not_null()).fill_null(value=False)).to_series()
