"""The ledger of an iteration before and after: where the difference between two sides went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._pair import CERTAINTY, TIMES, by_key
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._pair import Pair

TABLE: Final = Table(
    "compare",
    "One bucket of the ledger of an iteration, by detail, in base and in new; deltas sum to that of the iteration.",
    (
        Column("bucket", pl.String, "The ledger's bucket: " + ", ".join(BUCKETS) + "."),
        Column("detail", pl.String, "Its detail, as in `ledger`.", nullable=True),
        *TIMES,
        *CERTAINTY,
    ),
    purpose="where the difference of two sides went",
    telling=("bucket", "detail", "delta_ns", "base_ns", "new_ns", "changed"),
    sides=True,
)


def compare(pair: Pair) -> pl.DataFrame:
    """The ledger of an iteration of both sides.

    Returns:
        :data:`TABLE`, by bucket in the ledger's order; `base_ns` and `new_ns` sum to the time of an iteration.
    """
    frame = by_key(pair, lambda one: one.buckets, ("bucket", "detail"), "ns", whole=(pair.base_ns, pair.new_ns))
    places = {name: at for at, name in enumerate(BUCKETS)}  # a baseline may have another one
    order = pl.col("bucket").replace_strict(places, default=len(BUCKETS), return_dtype=pl.Int64)
    size = pl.max_horizontal("base_ns", "new_ns")
    return TABLE.select(frame.sort(order, size, "detail", descending=[False, True, False]))
