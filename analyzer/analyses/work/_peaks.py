"""Peaks of the devices of a report, by type of arithmetic and of its memory, as frames."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from kanalyze.device_limits import gpus_with_peaks, peaks_of
from kanalyze.errors import UnknownNameError

#: Types of arithmetic, and those of tensors and of kernels' names that are done with it.
TYPES: Final = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")

#: A cache serves at most this many times what memory does (H100: 5.5 to 7 of 3.35 TB/s; RTX 4090: 5 of 1).
_CACHE_FASTER: Final = 5


def gpu_called(name: str) -> str:
    """The driver's name of a GPU that is called by it, or by a part such as ``H200`` or ``A100``; the first of several.

    Raises:
        UnknownNameError: No GPU whose peaks are known is called so.
    """
    gpus = gpus_with_peaks()
    part = re.compile(rf"(?i)\b{re.escape(name)}\b")
    matches = [one for one in gpus if re.search(r"\d", name) and part.search(one)]
    if not matches:
        raise UnknownNameError.of("GPU with known peaks", name, gpus)
    return min(matches, key=lambda one: one.casefold() != name.casefold())


def peaks(devices: pl.DataFrame) -> pl.DataFrame:
    """Peaks of the `devices` of a report (:data:`kanalyze.model.DEVICES`), one row per device and type.

    Columns: device; type, of :data:`TYPES`; flop_per_s, null where unknown or 0 on this device; flop_per_cycle, of all
    SMs: one does a power of two in a cycle, which tells them whatever clock the datasheet's peak is for.
    """
    rows = [
        (device, kind, (getattr(one, kind) * 1e12 or None) if one else None)
        for device, name in devices.select("device", "name").iter_rows()
        for one in [peaks_of(name)]
        for kind in TYPES
    ]
    rates = pl.DataFrame(rows, {"device": pl.Int64, "type": pl.String, "flop_per_s": pl.Float64}, orient="row")
    of_each = pl.col("flop_per_s") / pl.col("sm_count") / pl.col("clock_hz")
    in_cycle = pl.lit(2.0).pow((of_each.log(2) + 1 / 2).floor()) * pl.col("sm_count")
    rates = rates.join(devices.select("device", "sm_count", "clock_hz"), on="device", maintain_order="left")
    return rates.select("device", "type", "flop_per_s", flop_per_cycle=in_cycle)


def memory_roofs(devices: pl.DataFrame) -> pl.DataFrame:
    """Bandwidth and cache of the devices of a report: columns device, bytes_per_s, cache_bytes (0 where unknown)."""
    caches = [(one.cache << 20) if (one := peaks_of(name)) else 0 for name in devices.get_column("name")]
    cache = pl.coalesce("l2_bytes", pl.Series("cache", caches, dtype=pl.Int64))
    return devices.select("device", bytes_per_s="memory_bandwidth_bytes_per_s", cache_bytes=cache)


def memory_ns() -> pl.Expr:
    """The least time for `bytes`, given bytes_per_s and cache_bytes: what a cache may hold comes from it."""
    cached = pl.min_horizontal("bytes", "cache_bytes")
    return ((pl.col("bytes") - cached) + cached / _CACHE_FASTER) * 1e9 / pl.col("bytes_per_s")
