"""Dense peaks of GPUs by type of arithmetic, as their vendors' datasheets state them, and the size of their caches."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import polars as pl

from kanalyze.device_limits import named_gpus
from kanalyze.errors import UnknownNameError


class Peaks(NamedTuple):
    """One product: dense TFLOP/s by type, of tensor cores where it has them for that type, and its last cache, MB.

    0 stands for a type that it does not have. Whitepapers that state sparse figures alone are halved.
    """

    bf16: float
    tf32: float
    fp32: float
    fp64: float
    fp8: float
    int8: float
    cache: int


#: Sources: NVIDIA's and AMD's datasheets and architecture whitepapers of these products; the longest prefix wins.
_PEAKS: Final = {
    "Tesla V100": Peaks(125, 0, 15.7, 7.8, 0, 0, 6),
    "Tesla T4": Peaks(65, 0, 8.1, 0.25, 0, 130, 4),
    "NVIDIA A10": Peaks(125, 62.5, 31.2, 0.98, 0, 250, 6),
    "NVIDIA A10G": Peaks(70, 35, 31.5, 0.98, 0, 140, 6),
    "NVIDIA A30": Peaks(165, 82, 10.3, 10.3, 0, 330, 24),
    "NVIDIA A40": Peaks(149.7, 74.8, 37.4, 1.17, 0, 299.3, 6),
    "NVIDIA A100": Peaks(312, 156, 19.5, 19.5, 0, 624, 40),
    "NVIDIA RTX A6000": Peaks(154.8, 77.4, 38.7, 1.21, 0, 309.7, 6),
    "NVIDIA L4": Peaks(121, 60, 30.3, 0.49, 242, 242, 48),
    "NVIDIA L40": Peaks(181, 90.5, 90.5, 1.41, 362, 362, 96),
    "NVIDIA L40S": Peaks(362, 183, 91.6, 1.43, 733, 733, 96),
    "NVIDIA GeForce RTX 3090": Peaks(71, 35.6, 35.6, 0.56, 0, 284, 6),
    "NVIDIA GeForce RTX 4090": Peaks(165.2, 82.6, 82.6, 1.29, 330.3, 660.6, 72),
    "NVIDIA GeForce RTX 5090": Peaks(209.5, 104.8, 104.8, 1.64, 419, 838, 96),
    "NVIDIA H100 80GB HBM3": Peaks(989.4, 494.7, 66.9, 66.9, 1978.9, 1978.9, 50),
    "NVIDIA H100 PCIe": Peaks(756, 378, 51, 51, 1513, 1513, 50),
    "NVIDIA H100 NVL": Peaks(835, 417, 60, 60, 1671, 1671, 50),
    "NVIDIA H800": Peaks(989.4, 494.7, 66.9, 1, 1978.9, 1978.9, 50),
    "NVIDIA GH200": Peaks(989.4, 494.7, 66.9, 66.9, 1978.9, 1978.9, 60),
    "NVIDIA H200": Peaks(989.4, 494.7, 66.9, 66.9, 1978.9, 1978.9, 60),
    "NVIDIA H20": Peaks(148, 74, 44, 1, 296, 296, 60),
    "NVIDIA B200": Peaks(2250, 1125, 75, 37, 4500, 4500, 126),
    "NVIDIA GB200": Peaks(2500, 1250, 80, 40, 5000, 5000, 126),
    "AMD Instinct MI210": Peaks(181, 0, 45.3, 45.3, 0, 181, 8),
    "AMD Instinct MI250": Peaks(181, 0, 45.3, 45.3, 0, 181, 8),
    "AMD Instinct MI250X": Peaks(191.5, 0, 47.9, 47.9, 0, 191.5, 8),
    "AMD Instinct MI300X": Peaks(1307.4, 653.7, 163.4, 163.4, 2614.9, 2614.9, 256),
    "AMD Instinct MI325X": Peaks(1307.4, 653.7, 163.4, 163.4, 2614.9, 2614.9, 256),
}

#: Types of arithmetic, and those of tensors and of kernels' names that are done with it.
TYPES: Final = ("bf16", "tf32", "fp32", "fp64", "fp8", "int8")

#: A cache serves at most this many times what memory does (H100: 5.5 to 7 of 3.35 TB/s; A100: 4 to 5 of 2).
_CACHE_FASTER: Final = 3


def peaks_of(name: str | None) -> Peaks | None:
    """The peaks of a GPU by the name that its driver gives; None if unknown."""
    fitting = [one for one in _PEAKS if name == one or (name or "").startswith((f"{one} ", f"{one}-"))]
    return _PEAKS[max(fitting, key=len)] if fitting else None


def gpu_called(name: str) -> str:
    """The driver's name of a GPU that is called by it, or by a part such as ``H200`` or ``A100``; the first of several.

    Raises:
        UnknownNameError: No GPU whose peaks are known is called so.
    """
    every = [one for one in named_gpus() if peaks_of(one) is not None]
    words = [one for one in every if name.casefold() in {word.casefold() for word in re.split(r"[ -]", one)}]
    found = [one for one in every if one.casefold() == name.casefold()] + words
    if not found:
        raise UnknownNameError.of("GPU with known peaks", name, every)
    return found[0]


def peaks(devices: pl.DataFrame) -> pl.DataFrame:
    """Peaks of the devices of a report, one row per device and type.

    Args:
        devices: The report's :data:`kanalyze.model.DEVICES`.

    Returns:
        Columns device; type, of :data:`TYPES`; flop_per_s, null where unknown or 0 on this device.
    """
    rows = []
    for device, name in devices.select("device", "name").iter_rows():
        one = peaks_of(name)
        rows += [(device, kind, (getattr(one, kind) * 1e12 or None) if one else None) for kind in TYPES]
    return pl.DataFrame(rows, schema={"device": pl.Int64, "type": pl.String, "flop_per_s": pl.Float64}, orient="row")


def memory_roofs(devices: pl.DataFrame) -> pl.DataFrame:
    """Bandwidth and cache of the devices of a report: columns device, bytes_per_s, cache_bytes (0 where unknown)."""
    caches = [(one.cache << 20) if (one := peaks_of(name)) else 0 for name in devices.get_column("name")]
    cache = pl.coalesce("l2_bytes", pl.Series("cache", caches, dtype=pl.Int64))
    return devices.select("device", bytes_per_s="memory_bandwidth_bytes_per_s", cache_bytes=cache)


def memory_ns() -> pl.Expr:
    """The least time for `bytes`, given bytes_per_s and cache_bytes: what a cache may hold comes from it."""
    cached = pl.min_horizontal("bytes", "cache_bytes")
    return ((pl.col("bytes") - cached) + cached / _CACHE_FASTER) * 1e9 / pl.col("bytes_per_s")
