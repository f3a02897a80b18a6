"""Memory before and after: peaks and allocations, by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._pair import counts, whole_means
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kanalyze.analyses.comparing._pair import Floats, Pair
    from kanalyze.reduction.baselines import Digest

TABLE: Final = Table(
    "compare_memory",
    "One kind of memory in base and in new.",
    (
        Column("memory", pl.String, "Device, Pinned, Managed…", nullable=True),
        Column("base_peak_bytes", pl.Int64, "Most that was in use at once in base, the mean of its runs."),
        Column("new_peak_bytes", pl.Int64, "The same in new."),
        Column("delta_bytes", pl.Int64, "new_peak_bytes less base_peak_bytes."),
        Column("ratio", pl.Float64, "new_peak_bytes by base_peak_bytes; null where one is 0.", nullable=True),
        Column("base_allocations", pl.Float64, "Allocations in an iteration of base."),
        Column("new_allocations", pl.Float64, "The same of new."),
        Column(
            "changed",
            pl.Boolean,
            "Whether the peak, or the number of allocations, differs by more than the least effect between any run of "
            "base and any of new.",
        ),
    ),
    purpose="memory and allocations, before and after",
    telling=("memory", "base_peak_bytes", "new_peak_bytes", "base_allocations", "new_allocations", "changed"),
    sides=True,
)


def compare_memory(pair: Pair) -> pl.DataFrame:
    """The memory of both sides, by kind.

    Returns:
        :data:`TABLE`, the largest difference of the peak first; empty where no run recorded memory.
    """
    keys, values = pair.per_iteration(_whole_peaks, ("memory",), ("peak_bytes", "allocations"))
    if keys.is_empty() or not all(any(one.memory.height for one in side.digests) for side in (pair.base, pair.new)):
        return TABLE.empty()
    least = pair.limits.least_effect
    base, new = pl.col("base_peak_bytes"), pl.col("new_peak_bytes")
    rows = keys.with_columns(
        *whole_means("peak_bytes", values["peak_bytes"]),
        *(side.alias(side.name.replace("count", "allocations")) for side in counts(*values["allocations"])),
        changed=pl.Series(_apart(*values["peak_bytes"], least) | _apart(*values["allocations"], least)),
    ).with_columns(delta_bytes=new - base, ratio=pl.when((base > 0) & (new > 0)).then(new / base))
    rows = TABLE.select(rows)
    return rows.sort(pl.col("delta_bytes").abs(), "memory", descending=[True, False], nulls_last=True)


def _whole_peaks(digest: Digest) -> pl.DataFrame:
    """The memory of a run with peaks that are no sums of iterations, so that a part of an iteration is the peak."""
    return digest.memory.with_columns(pl.col("peak_bytes") * digest.about.iterations)


def _apart(base: Floats, new: Floats, least: float) -> NDArray[np.bool_]:
    """Whether each run of one side has more than each of the other [rows, runs], by more than the part `least`."""
    above = new.min(axis=1) > base.max(axis=1) * (1 + least)
    found: NDArray[np.bool_] = above | (base.min(axis=1) > new.max(axis=1) * (1 + least))
    return found
