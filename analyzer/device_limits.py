"""Limits of GPUs: what each compute capability can hold, dense peaks and bandwidths, and which limits can be.

Sources of the limits: CUDA Programming Guide 13, section 5.1, tables "Device and Streaming Multiprocessor (SM)
Information" and "Memory Information per Compute Capability" (7.0 and 7.2: CUDA C++ Programming Guide 12, "Technical
Specifications per Compute Capability"; 10.1 is the number that CUDA 12 gave to 11.0). The units in which registers and
shared memory are handed out are those of cuda_occupancy.h in the CUDA toolkit 13.0; tests/occupancy holds its answers.
"""

from typing import Final, NamedTuple, TypeVar

import polars as pl

T = TypeVar("T")

#: Warp size and largest block, in threads; the same for every capability below.
THREADS_PER_WARP, MAX_THREADS_PER_BLOCK = 32, 1024

#: 32-bit registers per SM, which is also the limit per block, and per sub-partition (a quarter of an SM).
#: A warp lives in one sub-partition; its registers are allocated in units of 256, that is 8 per thread.
REGISTERS_PER_SM, SUB_PARTITIONS, REGISTER_UNIT = 64 * 1024, 4, 256

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
    return pl.DataFrame(_ROWS, schema=_FIELDS, orient="row").select(
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


#: From this part of that on, starting blocks is what a kernel takes its time for.
STARTING: Final = 0.9


def starts_share(blocks: pl.Expr, ns: pl.Expr) -> pl.Expr:
    """`blocks` as a part of those that a GPU (compute_capability) starts in so many `ns` at most; null if unknown."""
    # as kernels of 32 to 256 threads a block and up to four million blocks show on H100 and H200; of other
    # compute capabilities it is not known
    most = pl.col("compute_capability").cast(pl.String).replace_strict({"9.0": 1.66}, default=None)
    return blocks / (most.cast(pl.Float64) * ns)


class Peaks(NamedTuple):
    """One product: dense TFLOP/s by type, of tensor cores where it has them for that type; its last cache, MB, TB/s.

    0 stands for a type that it does not have, and for an unknown rate. Whitepapers that state sparse figures alone are
    halved.
    """

    fp16: float
    tf32: float
    fp32: float
    fp64: float
    fp8: float
    int8: float
    cache: int
    cache_tb_per_s: float = 0
    has_bf16: bool = True  # from Ampere and CDNA 2 on

    @property
    def bf16(self) -> float:
        """As fp16, where it has that type at all."""
        return self.fp16 * self.has_bf16


#: Peak memory bandwidth in GB/s and peaks by driver name of the GPU, each None where it is not known, or a shorter or
#: longer name tells it; the longest prefix wins. Sources: NVIDIA's and AMD's datasheets and architecture whitepapers.
#: Of caches what loops of reads reach (github.com/te42kyfo/gpu-benches, gpu-l2-cache: V100, A100, L40, MI210;
#: chipsandcheese.com: RTX 4090), of the L4 half as much as of the L40, with half the controllers. H100 and H200: a
#: tenth more than the fastest kernels that start, read and write once (5.1 and 6.3 in captures; loops reach 6.9, 9.7).
#: B200: 64 bytes a cycle of each SM. MI300: the peak by its whitepaper.
_GPUS: Final[dict[str, tuple[int | None, Peaks | None]]] = {
    "Tesla V100": (900, Peaks(125, 0, 15.7, 7.8, 0, 0, 6, 2.5, has_bf16=False)),
    "Tesla V100-PCIE": (None, Peaks(112, 0, 14, 7, 0, 0, 6, 2.5, has_bf16=False)),
    "Tesla T4": (320, Peaks(65, 0, 8.1, 0.25, 0, 130, 4, has_bf16=False)),
    "NVIDIA A10": (600, Peaks(125, 62.5, 31.2, 0.98, 0, 250, 6)),
    "NVIDIA A10G": (600, Peaks(70, 35, 31.5, 0.98, 0, 140, 6)),
    "NVIDIA A30": (933, Peaks(165, 82, 10.3, 10.3, 0, 330, 24)),
    "NVIDIA A40": (696, Peaks(149.7, 74.8, 37.4, 1.17, 0, 299.3, 6)),
    "NVIDIA A100": (None, Peaks(312, 156, 19.5, 19.5, 0, 624, 40, 5.4)),
    "NVIDIA A100-SXM4-40GB": (1555, None),
    "NVIDIA A100-PCIE-40GB": (1555, None),
    "NVIDIA A100-SXM4-80GB": (2039, None),
    "NVIDIA A100 80GB PCIe": (1935, None),
    "NVIDIA RTX A6000": (768, Peaks(154.8, 77.4, 38.7, 1.21, 0, 309.7, 6)),
    "NVIDIA L4": (300, Peaks(121, 60, 30.3, 0.49, 242, 242, 48, 2.6)),
    "NVIDIA L40": (864, Peaks(181, 90.5, 90.5, 1.41, 362, 362, 96, 5.3)),
    "NVIDIA L40S": (864, Peaks(362, 183, 91.6, 1.43, 733, 733, 96, 5.3)),
    "NVIDIA RTX 6000 Ada Generation": (960, None),
    "NVIDIA GeForce RTX 3090": (936, Peaks(71, 35.6, 35.6, 0.56, 0, 284, 6)),
    "NVIDIA GeForce RTX 4090": (1008, Peaks(165.2, 82.6, 82.6, 1.29, 330.3, 660.6, 72, 5)),
    "NVIDIA GeForce RTX 5090": (1792, Peaks(209.5, 104.8, 104.8, 1.64, 419, 838, 96)),
    "NVIDIA H100 80GB HBM3": (3350, Peaks(989.4, 494.7, 66.9, 66.9, 1978.9, 1978.9, 50, 5.5)),
    "NVIDIA H100 PCIe": (2000, Peaks(756, 378, 51, 51, 1513, 1513, 50, 5.5)),
    "NVIDIA H100 NVL": (3900, Peaks(835, 417, 60, 60, 1671, 1671, 50, 5.5)),
    "NVIDIA H800": (3350, Peaks(989.4, 494.7, 66.9, 1, 1978.9, 1978.9, 50, 5.5)),
    "NVIDIA H800 PCIe": (2000, Peaks(756, 378, 51, 0.8, 1513, 1513, 50, 5.5)),
    "NVIDIA GH200": (None, Peaks(989.4, 494.7, 66.9, 66.9, 1978.9, 1978.9, 60, 7)),
    "NVIDIA GH200 480GB": (4000, None),
    "NVIDIA GH200 144G HBM3e": (4900, None),
    "NVIDIA H200": (4800, Peaks(989.4, 494.7, 66.9, 66.9, 1978.9, 1978.9, 60, 7)),
    "NVIDIA H200 NVL": (None, Peaks(835, 417, 60, 60, 1671, 1671, 60, 7)),
    "NVIDIA H20": (4000, Peaks(148, 74, 44, 1, 296, 296, 60, 7)),
    "NVIDIA B200": (8000, Peaks(2250, 1125, 75, 37, 4500, 4500, 126, 18.6)),
    "NVIDIA GB200": (8000, Peaks(2500, 1250, 80, 40, 5000, 5000, 126, 18.6)),
    "NVIDIA B300": (8000, None),
    "NVIDIA GB300": (8000, None),
    "AMD Instinct MI210": (1638, Peaks(181, 0, 45.3, 45.3, 0, 181, 8, 5.1)),
    "AMD Instinct MI250": (1638, Peaks(181, 0, 45.3, 45.3, 0, 181, 8, 5.1)),  # of one of its two devices
    "AMD Instinct MI250X": (1638, Peaks(191.5, 0, 47.9, 47.9, 0, 191.5, 8, 5.1)),
    "AMD Instinct MI300A": (5300, None),
    "AMD Instinct MI300X": (5300, Peaks(1307.4, 653.7, 163.4, 163.4, 2614.9, 2614.9, 256, 17.2)),
    "AMD Instinct MI325X": (6000, Peaks(1307.4, 653.7, 163.4, 163.4, 2614.9, 2614.9, 256, 17.2)),
    "AMD Instinct MI350X": (8000, None),
    "AMD Instinct MI355X": (8000, None),
}


def memory_bandwidth_bytes_per_s(name: str | None) -> int | None:
    """Peak memory bandwidth of the GPU `name` in bytes/s; None if unknown."""
    gb_per_s = _longest_of({gpu: bandwidth for gpu, (bandwidth, _) in _GPUS.items()}, name)
    return None if gb_per_s is None else gb_per_s * 1_000_000_000


def peaks_of(name: str | None) -> Peaks | None:
    """The peaks of a GPU by the name that its driver gives; None if unknown."""
    return _longest_of({gpu: peaks for gpu, (_, peaks) in _GPUS.items()}, name)


def _longest_of(facts: dict[str, T | None], name: str | None) -> T | None:
    """The fact by the longest name that a GPU's begins with; None also for parts of a GPU, and for those of laptops."""
    if name is None or "Laptop" in name or "MIG" in name:
        return None
    fits = (gpu for gpu in facts if facts[gpu] is not None and (name == gpu or name.startswith((f"{gpu} ", f"{gpu}-"))))
    return facts.get(max(fits, key=len, default=""))


def gpus_with_peaks() -> list[str]:
    """Driver names of the GPUs whose peaks and bandwidth are known."""
    return [gpu for gpu, (bandwidth, _) in _GPUS.items() if bandwidth is not None and peaks_of(gpu) is not None]


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
    limits = [name for name in _MOST if name in devices.columns]
    return devices.with_columns(pl.when(_can_be(name)).then(name).alias(name) for name in limits)


def impossible(devices: pl.DataFrame) -> int:
    """The number of missing or implausible limits in `devices`, a frame with some columns of that table."""
    limits = [name for name in _MOST if name in devices.columns]
    lost = [(~_can_be(name)).fill_null(value=True).sum() for name in limits]
    return int(devices.select(pl.sum_horizontal(pl.lit(0), *lost)).item()) if devices.height else 0


def _can_be(name: str) -> pl.Expr:
    return pl.col(name).is_between(1, _MOST[name])
