"""Groups of kernels with what all tools tell of their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses._common import once_per_report
from kanalyze.analyses._kernel_groups import GROUP_KEYS, kernel_groups, kernels_in
from kanalyze.analyses._lookup import beside

if TYPE_CHECKING:
    from kanalyze.report import Report

_LEAST, _MOST = 0.05, 0.95


@once_per_report
def groups_with_config(report: Report) -> pl.DataFrame:
    """The groups of kernels with registers (of a thread), shared (bytes of a block), duration (mean, in ns), low, high.

    Nine in ten launches take from `low` to `high`. Registers and shared memory are null where launches of a group
    differ in them.
    """
    memory = pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes")
    config = report.kernel_config.select("event_id", registers="registers_per_thread", shared=memory)
    kernels = beside(kernels_in(report), config, "registers", "shared")
    sums = kernels.group_by(*GROUP_KEYS).agg(
        duration=pl.col("dur_ns").mean(),
        low=pl.col("dur_ns").quantile(_LEAST, "nearest"),
        high=pl.col("dur_ns").quantile(_MOST, "nearest"),
        **{name: _only(name) for name in ("registers", "shared")},
    )
    return kernel_groups(report).join(sums, on=GROUP_KEYS, nulls_equal=True)


def _only(name: str) -> pl.Expr:
    return pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first())
