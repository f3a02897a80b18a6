"""Limits of GPUs: what each compute capability can hold, and which limits in a report can be.

Sources of the limits: CUDA Programming Guide 13, section 5.1, tables "Device and Streaming Multiprocessor (SM)
Information" and "Memory Information per Compute Capability" (7.0 and 7.2: CUDA C++ Programming Guide 12, "Technical
Specifications per Compute Capability"; 10.1 is the number that CUDA 12 gave to 11.0). The units in which registers and
shared memory are handed out are those of cuda_occupancy.h in the CUDA toolkit 13.0; tests/occupancy holds its answers.
"""

from __future__ import annotations

from typing import Final

import polars as pl

#: Warp size and largest block, in threads; the same for every capability below.
THREADS_PER_WARP: Final = 32
MAX_THREADS_PER_BLOCK: Final = 1024

#: 32-bit registers per SM, which is also the limit per block, and per sub-partition (a quarter of an SM).
#: A warp lives in one sub-partition; its registers are allocated in units of 256, that is 8 per thread.
REGISTERS_PER_SM: Final = 64 * 1024
SUB_PARTITIONS: Final = 4
REGISTER_UNIT: Final = 256

_KIB: Final = 1024


#: What is told of each compute capability; sizes in KiB, except for the allocation unit of shared memory in bytes.
_FIELDS: Final = (
    *("compute_capability", "max_warps_per_sm", "max_blocks_per_sm"),
    *("shared_per_sm", "shared_per_block", "shared_reserved", "shared_unit_bytes"),
)
_ROWS: Final = (
    ("7.0", 64, 32, 96, 96, 0, 256),
    ("7.2", 64, 32, 96, 96, 0, 256),
    ("7.5", 32, 16, 64, 64, 0, 256),
    ("8.0", 64, 32, 164, 163, 1, 128),
    ("8.6", 48, 16, 100, 99, 1, 128),
    ("8.7", 48, 16, 164, 163, 1, 128),
    ("8.9", 48, 24, 100, 99, 1, 128),
    ("9.0", 64, 32, 228, 227, 1, 128),
    ("10.0", 64, 32, 228, 227, 1, 128),
    ("10.1", 48, 24, 228, 227, 1, 128),
    ("10.3", 64, 32, 228, 227, 1, 128),
    ("11.0", 48, 24, 228, 227, 1, 128),
    ("12.0", 48, 24, 100, 99, 1, 128),
    ("12.1", 48, 24, 100, 99, 1, 128),
)


def capabilities() -> pl.DataFrame:
    """Limits of all known compute capabilities, one row each.

    Returns:
        Columns compute_capability; max_warps_per_sm; max_blocks_per_sm; max_threads_per_block; threads_per_warp;
        registers_per_sm; shared_per_sm_bytes; shared_per_block_bytes, which a block can opt in to;
        shared_reserved_bytes, which the system takes of each block's shared memory, beside what the block asks for;
        and shared_unit_bytes, in which shared memory is handed out.
    """
    rows = pl.DataFrame(_ROWS, schema=_FIELDS, orient="row")
    return rows.select(
        "compute_capability",
        "max_warps_per_sm",
        "max_blocks_per_sm",
        pl.lit(MAX_THREADS_PER_BLOCK, dtype=pl.Int64).alias("max_threads_per_block"),
        pl.lit(THREADS_PER_WARP, dtype=pl.Int64).alias("threads_per_warp"),
        pl.lit(REGISTERS_PER_SM, dtype=pl.Int64).alias("registers_per_sm"),
        *((pl.col(name) * _KIB).alias(f"{name}_bytes") for name in ("shared_per_sm", "shared_per_block")),
        shared_reserved_bytes=pl.col("shared_reserved") * _KIB,
        shared_unit_bytes="shared_unit_bytes",
    )


#: Peak memory bandwidth in GB/s by driver name of the GPU; the longest matching prefix wins.
#: Sources: NVIDIA's and AMD's datasheets of these products.
_BANDWIDTHS: Final = {
    "Tesla V100": 900,
    "Tesla T4": 320,
    "NVIDIA A10": 600,
    "NVIDIA A10G": 600,
    "NVIDIA A30": 933,
    "NVIDIA A40": 696,
    "NVIDIA A100-SXM4-40GB": 1555,
    "NVIDIA A100-PCIE-40GB": 1555,
    "NVIDIA A100-SXM4-80GB": 2039,
    "NVIDIA A100 80GB PCIe": 1935,
    "NVIDIA RTX A6000": 768,
    "NVIDIA L4": 300,
    "NVIDIA L40": 864,
    "NVIDIA L40S": 864,
    "NVIDIA RTX 6000 Ada Generation": 960,
    "NVIDIA GeForce RTX 3090": 936,
    "NVIDIA GeForce RTX 4090": 1008,
    "NVIDIA GeForce RTX 5090": 1792,
    "NVIDIA H100 80GB HBM3": 3350,
    "NVIDIA H100 PCIe": 2000,
    "NVIDIA H100 NVL": 3900,
    "NVIDIA H800": 3350,
    "NVIDIA GH200 480GB": 4000,
    "NVIDIA GH200 144G HBM3e": 4900,
    "NVIDIA H200": 4800,
    "NVIDIA H20": 4000,
    "NVIDIA B200": 8000,
    "NVIDIA GB200": 8000,
    "NVIDIA B300": 8000,
    "NVIDIA GB300": 8000,
    "AMD Instinct MI210": 1638,
    "AMD Instinct MI250": 3277,
    "AMD Instinct MI250X": 3277,
    "AMD Instinct MI300A": 5300,
    "AMD Instinct MI300X": 5300,
    "AMD Instinct MI325X": 6000,
    "AMD Instinct MI350X": 8000,
    "AMD Instinct MI355X": 8000,
}


def memory_bandwidth_bytes_per_s(name: str | None) -> int | None:
    """Peak memory bandwidth of the GPU `name` in bytes/s; None if unknown."""
    fitting = [known for known in _BANDWIDTHS if name == known or (name or "").startswith((f"{known} ", f"{known}-"))]
    return _BANDWIDTHS[max(fitting, key=len)] * 1_000_000_000 if fitting else None


def named_gpus() -> list[str]:
    """Driver names of the GPUs whose bandwidth is known."""
    return [*_BANDWIDTHS]


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
    lost = [(~_can_be(name)).fill_null(value=True).sum() for name in known]
    return int(devices.select(pl.sum_horizontal(pl.lit(0), *lost)).item()) if devices.height else 0


def _can_be(name: str) -> pl.Expr:
    return pl.col(name).is_between(1, _MOST[name])
