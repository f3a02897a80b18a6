"""Bounds of plausible GPU limits; missing, zero or larger values are treated as unknown."""

from __future__ import annotations

from typing import Final

import polars as pl

#: Upper bounds with room for future GPUs; larger values are damaged or in another unit.
_MOST: Final = {
    "sm_count": 1 << 12,
    "memory_bytes": 1 << 44,
    "memory_bandwidth_bytes_per_s": 10**15,
    "l2_bytes": 1 << 36,
    "clock_hz": 10**11,
    "max_warps_per_sm": 1 << 10,
    "max_blocks_per_sm": 1 << 10,
    "max_threads_per_block": 1 << 14,
    "registers_per_sm": 1 << 24,
    "shared_per_sm_bytes": 1 << 26,
    "shared_per_block_bytes": 1 << 26,
    "threads_per_warp": 1 << 10,
}

#: Check name and effect of a reader's note about them.
IMPOSSIBLE: Final = "limits of GPUs that are missing or cannot be"
EFFECT: Final = "what is judged by them cannot be told"


def plausible(devices: pl.DataFrame) -> pl.DataFrame:
    """`devices`, a frame like :data:`kanalyze.model.DEVICES`, with implausible limits replaced by null."""
    known = [name for name in _MOST if name in devices.columns]
    return devices.with_columns(pl.when(_can_be(name)).then(name).alias(name) for name in known)


def impossible(devices: pl.DataFrame) -> int:
    """The number of missing or implausible limits in `devices`, a frame with some columns of that table."""
    known = [name for name in _MOST if name in devices.columns]
    lost = (pl.sum_horizontal((~_can_be(name)).fill_null(value=True).sum() for name in known)) if known else pl.lit(0)
    return int(devices.select(lost).item()) if devices.height else 0


def _can_be(name: str) -> pl.Expr:
    return pl.col(name).is_between(1, _MOST[name])
