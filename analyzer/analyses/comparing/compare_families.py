"""Families of kernels of an iteration before and after, for sides whose kernels have different names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._pair import CERTAINTY, COUNTS, TIMES, by_key, by_size
from kanalyze.decoder.decode import decode
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._pair import Pair
    from kanalyze.reduction.baselines import Digest

TABLE: Final = Table(
    "compare_families",
    "One family of kernels, or copies and memsets, in an iteration of base and of new; deltas sum to busy time.",
    (
        Column("family", pl.String, "The kernels' family, as in `kernels`; else the bucket of the operations."),
        *COUNTS,
        *TIMES,
        *CERTAINTY,
    ),
    purpose="families of kernels, before and after",
    telling=("family", "base_count", "new_count", "base_ns", "new_ns", "delta_ns"),
    sides=True,
)


def compare_families(pair: Pair) -> pl.DataFrame:
    """The operations of an iteration of both sides by what they do.

    Returns:
        :data:`TABLE`, the largest difference first; `base_ns` and `new_ns` sum to the busy buckets of `compare`.
    """
    rows = by_key(pair, _families, ("family",), "exclusive_ns", "count", whole=pair.busy_ns)
    return by_size(TABLE.select(rows), "family")


def _families(run: Digest) -> pl.DataFrame:
    names = run.slots.filter(pl.col("kind") == "kernel").get_column("name").drop_nulls().unique()
    family = pl.col("name").replace_strict({name: decode(name).family for name in names}, default=None)
    kernel = pl.when(pl.col("kind") == "kernel").then(family)
    return run.slots.with_columns(family=kernel.fill_null(pl.col("bucket")))
