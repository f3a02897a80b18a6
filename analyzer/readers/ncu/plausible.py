"""Removes impossible values of a damaged ncu report, and notes them in health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    Note = tuple[str, int | None, int | None, str]

_DURATION: Final = "gpu__time_duration.sum"
_CYCLES, _CLOCK = "gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg.per_second"

#: Upper bound of any counter: the largest are peaks of operations per second, below 1e17.
_MOST: Final = 1e18
#: Differences of two measurements can be slightly negative.
_LEAST: Final = -1.0
#: Several times the largest percentage of a peak observed (212 %, of L1).
_MOST_PERCENT: Final = 1000.0
_PERCENT: Final = ".avg.pct_of_peak_sustained_"

#: Metrics with tighter bounds: minimum and maximum.
_LIMITS: Final = {
    _DURATION: (0.0, 1e15),
    _CYCLES: (0.0, 1e16),
    _CLOCK: (1e6, 1e11),
    "sm__cycles_elapsed.avg.per_second": (1e6, 1e11),
    "dram__cycles_elapsed.avg.per_second": (1e6, 1e12),
    "launch__sm_count": (1.0, 4096.0),
    "launch__registers_per_thread": (0.0, 256.0),
    "launch__shared_mem_per_block_static": (0.0, 1e7),
    "launch__shared_mem_per_block_dynamic": (0.0, 1e7),
    "launch__waves_per_multiprocessor": (0.0, 1e12),
    "sm__maximum_warps_per_active_cycle_pct": (0.0, 101.0),
}

#: Duration × clock = cycles: within 1.5 % in all reports examined.
_TOLERANCE: Final = 0.1
_NS: Final = 1e9

_SIZES: Final = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
#: Most threads per block on any GPU.
_THREADS: Final = 1024


def sound_metrics(metrics: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Replaces impossible metric values by text, with notes for health."""
    value = pl.col("value")
    percent = pl.col("metric").str.contains(_PERCENT, literal=True) & (value > _MOST_PERCENT)
    suspect = metrics.filter(pl.col("metric").is_in([*_LIMITS]) | ~value.is_between(_LEAST, _MOST) | percent)
    limits = pl.DataFrame(
        [(name, *both) for name, both in _LIMITS.items()], schema=["metric", "least", "most"], orient="row"
    )
    near = suspect.drop_nulls("value").join(limits, on="metric", how="left")
    within = value.is_between(pl.col("least").fill_null(_LEAST), pl.col("most").fill_null(_MOST))
    absurd = near.filter(~within | percent).sort("event_id", "metric").select("event_id", "metric", "value")
    if absurd.is_empty():
        return metrics, list(_contradictions(metrics))
    marked = metrics.join(
        absurd.rename({"value": "absurd"}), on=["event_id", "metric"], how="left", maintain_order="left"
    )
    wrong = pl.col("absurd").is_not_null()
    left = marked.with_columns(
        value=pl.when(~wrong).then("value"),
        text=pl.when(wrong).then(pl.col("absurd").cast(pl.String)).otherwise("text"),
    ).select(metrics.columns)
    first, metric, told = absurd.row(0)
    effect = f"they are left out, as if not collected: the first is {metric} = {told:g} of kernel {first}"
    note = ("metrics with values that cannot be", absurd.height, None, effect)
    return left, [note, *_contradictions(left)]


def _contradictions(metrics: pl.DataFrame) -> Iterator[Note]:
    names = (_DURATION, _CYCLES, _CLOCK)
    rows = metrics.filter(pl.col("metric").is_in(names)).select("event_id", "metric", "value")
    wide = rows.pivot(on="metric", on_columns=list(names), index="event_id", values="value", aggregate_function="first")
    by_clock = pl.col(_CYCLES) / pl.col(_CLOCK) * _NS
    odd = wide.filter((pl.col(_DURATION) / by_clock - 1).abs() > _TOLERANCE)
    if odd.height:
        effect = f"{_DURATION} is not {_CYCLES} by {_CLOCK}: one of these is wrong, and what is computed of it"
        yield ("durations that contradict cycles and clock", odd.height, None, effect)


def sound_launches(launches: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Removes grids and blocks that no GPU accepts, with notes for health."""
    sizes = pl.col(_SIZES)
    threads = pl.col("block_x").cast(pl.Float64) * pl.col("block_y") * pl.col("block_z")
    wrong = (pl.any_horizontal(sizes < 1) | (threads > _THREADS)).fill_null(value=False)
    count = launches.select(wrong.sum()).item()
    if not count:
        return launches, []
    effect = "a grid or block of 0, or a block of more threads than a GPU takes: they are left out, as if unknown"
    known = launches.with_columns(pl.when(~wrong).then(sizes))
    return known, [("launch shapes that cannot be", count, None, effect)]


def sound_rules(rules: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Removes rule estimates outside of 0 to 100 %, with notes for health."""
    share = pl.col("speedup_share")
    wrong = share.is_not_null() & ~share.is_between(0, 1)
    count = rules.select(wrong.sum()).item()
    if not count:
        return rules, []
    known = rules.with_columns(pl.when(~wrong).then("speedup_share").alias("speedup_share"))
    return known, [("estimates that cannot be", count, None, "no part of a duration: they are left out")]
