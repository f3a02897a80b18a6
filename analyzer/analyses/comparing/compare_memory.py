"""Memory before and after: peaks and allocations, by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.schema import Column, Table
from kanalyze.units import nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kanalyze.analyses.comparing._pair import Floats, Pair
    from kanalyze.digest import Digest

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

    Columns:
        memory, base_peak_bytes, new_peak_bytes, delta_bytes, ratio, base_allocations, new_allocations, changed.
    """
    keys, values = pair.per_iteration(_whole_peaks, ("memory",), ("peak_bytes", "allocations"))
    if keys.is_empty() or not all(any(one.memory.height for one in side.digests) for side in (pair.base, pair.new)):
        return TABLE.empty()
    least = pair.limits.least_effect
    peaks, numbers = (
        [pl.Series(name, side.mean(axis=1)) for name, side in zip(("base", "new"), values[what], strict=True)]
        for what in ("peak_bytes", "allocations")
    )
    base, new = (pl.Series(side.name, nearest(side), dtype=pl.Int64) for side in peaks)
    changed = _apart(*values["peak_bytes"], least) | _apart(*values["allocations"], least)
    frame = pl.DataFrame(
        [
            keys.get_column("memory"),
            base.alias("base_peak_bytes"),
            new.alias("new_peak_bytes"),
            (new - base).alias("delta_bytes"),
            *(side.alias(f"{side.name}_allocations") for side in numbers),
            pl.Series("changed", changed),
        ]
    )
    known = (pl.col("base_peak_bytes") > 0) & (pl.col("new_peak_bytes") > 0)
    ratio = pl.when(known).then(pl.col("new_peak_bytes") / pl.col("base_peak_bytes"))
    rows = TABLE.select(frame.with_columns(ratio=ratio))
    return rows.sort(pl.col("delta_bytes").abs(), "memory", descending=[True, False], nulls_last=True)


def _whole_peaks(digest: Digest) -> pl.DataFrame:
    """The memory of a run with peaks that are no sums of iterations, so that a part of an iteration is the peak."""
    return digest.memory.with_columns(pl.col("peak_bytes") * digest.about.iterations)


def _apart(base: Floats, new: Floats, least: float) -> NDArray[np.bool_]:
    """Whether each run of one side has more than each of the other [rows, runs], by more than the part `least`."""
    above = new.min(axis=1) > base.max(axis=1) * (1 + least)
    found: NDArray[np.bool_] = above | (base.min(axis=1) > new.max(axis=1) * (1 + least))
    return found
