"""CUDA calls of an iteration before and after, those that block the host among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._rows import CERTAINTY, COUNTS, TIMES, by_size, compared, counts
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._pair import Pair

TABLE: Final = Table(
    "compare_calls",
    "One CUDA call, in an iteration of base and of new, by the host's time; calls inside calls count in both.",
    (
        Column("name", pl.String, "The call.", nullable=True),
        Column("blocking", pl.Boolean, "Whether it waits for the GPU: synchronisations, copies, frees."),
        *COUNTS,
        *TIMES,
        *CERTAINTY,
    ),
    purpose="CUDA calls and waits, before and after",
    telling=("name", "blocking", "base_count", "new_count", "delta_ns"),
    sides=True,
)


def compare_calls(pair: Pair) -> pl.DataFrame:
    """The CUDA calls of an iteration of both sides.

    Returns:
        :data:`TABLE`, the largest difference first.

    Columns:
        name, blocking, base_count, new_count, base_ns, new_ns, delta_ns, ratio, ratio_low, ratio_high, changed.
    """
    keys, values = pair.per_iteration(lambda one: one.calls, ("name", "blocking"), ("count", "total_ns"))
    if keys.is_empty():
        return TABLE.empty()
    frame = pl.DataFrame([*keys, *counts(*values["count"]), *compared(pair, *values["total_ns"])])
    return TABLE.select(by_size(frame, "name"))
