"""The metrics of ncu by kernel, as columns: speed of light, memory, occupancy, warps and stalls."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.counters._metrics import LATENCY, REASONS, measured_kernels, ratio, share, stall_metric, whole
from kanalyze.analyses.device._operations import SHAPE_COLUMNS
from kanalyze.analyses.shared.analysis import analysis
from kanalyze.report import Report
from kanalyze.schema import Column, Table

_L1: Final = "l1tex__"
_GLOBAL: Final = "pipe_lsu_mem_global_op"
_USED: Final = "smsp__sass_average_data_bytes_per_sector_mem_global_op"
_SHARED: Final = "pipe_lsu_mem_shared"
_OP: Final = "smsp__sass_inst_executed_op"

#: Bytes of a sector, the smallest transfer of a cache.
_SECTOR_BYTES: Final = 32

#: The maximum error of a number printed with two decimals.
_PRINTED: Final = 0.006

#: The limiters of resident blocks, as in the column `limiter`, with ncu's metric.
LIMITS: Final = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}

#: Columns that are one metric of ncu in percent: name, metric, meaning.
_SHARES: Final = (
    ("compute_share", "sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput of its peak."),
    (
        "memory_share",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput of its peak.",
    ),
    ("dram_share", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput of its peak."),
    ("l2_share", "lts__throughput.avg.pct_of_peak_sustained_elapsed", "L2 Cache Throughput of its peak."),
    ("l1_share", "l1tex__throughput.avg.pct_of_peak_sustained_active", "L1/TEX Cache Throughput of its peak."),
    ("l2_hit_share", "lts__t_sector_hit_rate.pct", "L2 Hit Rate."),
    ("l1_hit_share", "l1tex__t_sector_hit_rate.pct", "L1/TEX Hit Rate."),
    ("occupancy_share", "sm__maximum_warps_per_active_cycle_pct", "Theoretical Occupancy."),
    ("achieved_occupancy_share", "sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy."),
    ("issue_share", "smsp__issue_active.avg.pct_of_peak_sustained_active", "Cycles in which a scheduler issues."),
    (
        "tensor_share",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "Use of the tensor pipe, which executes register moves, too.",
    ),
    ("spill_share", "derived__local_spilling_requests_pct", "Requests of local memory that are register spills."),
)

#: Columns that are one unscaled metric of ncu: name, metric, meaning.
_VALUES: Final = (
    ("cycles", "gpc__cycles_elapsed.max", "Elapsed Cycles."),
    ("sm_clock_hz", "gpc__cycles_elapsed.avg.per_second", "SM Frequency."),
    ("dram_bytes_per_s", "dram__bytes.sum.per_second", "DRAM bandwidth, reads and writes."),
    ("dram_read_bytes", "dram__bytes_read.sum", "Bytes read from DRAM."),
    ("dram_write_bytes", "dram__bytes_write.sum", "Bytes written to DRAM."),
    ("waves", "launch__waves_per_multiprocessor", "Waves Per SM: the grid by the blocks that run at once."),
    ("ipc", "sm__inst_executed.avg.per_cycle_active", "Instructions that an SM executes per active cycle."),
    ("active_warps", "smsp__warps_active.avg.per_cycle_active", "Active Warps Per Scheduler."),
    ("eligible_warps", "smsp__warps_eligible.avg.per_cycle_active", "Eligible Warps Per Scheduler."),
    ("cycles_per_instruction", LATENCY, "Warp Cycles Per Issue."),
    ("threads_per_instruction", "smsp__thread_inst_executed_per_inst_executed.ratio", "Avg. Active Threads Per Warp."),
    ("instructions", "smsp__inst_executed.sum", "Executed Instructions, of warps."),
    ("bank_conflicts", f"{_L1}data_bank_conflicts_{_SHARED}.sum", "Bank conflicts of shared memory."),
    ("local_loads", f"{_OP}_local_ld.sum", "Loads from local memory: spilled registers and arrays."),
    ("local_stores", f"{_OP}_local_st.sum", "Stores to local memory."),
    ("spill_requests", "derived__local_spilling_requests", "Requests of local memory for spilled registers."),
    ("sms", "launch__sm_count", "SMs of the GPU."),
)  # fmt: skip
_COUNTED: Final = ("cycles", "dram_read_bytes", "dram_write_bytes", "instructions", "bank_conflicts", "local_loads",
                   "local_stores", "spill_requests", "sms", "sm_clock_hz", "dram_bytes_per_s")  # fmt: skip

#: Metrics from which columns are computed.
_SECTORS: Final = {op: f"{_L1}t_sectors_{_GLOBAL}_{op}.sum" for op in ("ld", "st")}
_REQUESTS: Final = {op: f"{_L1}t_requests_{_GLOBAL}_{op}.sum" for op in ("ld", "st")}
_BYTES: Final = {op: f"{_USED}_{op}.ratio" for op in ("ld", "st")}
_WAVEFRONTS: Final = f"{_L1}data_pipe_lsu_wavefronts_mem_shared.sum"
_EXCESSIVE: Final = "derived__memory_l2_theoretical_sectors_global_excessive"
_THEORETICAL: Final = "memory_l2_theoretical_sectors_global"
_SHARED_EXCESSIVE: Final = "derived__memory_l1_wavefronts_shared_excessive"

_METRICS: Final = (
    *(metric for _, metric, _ in (*_SHARES, *_VALUES)),
    *LIMITS.values(),
    *(metric for group in (_SECTORS, _REQUESTS, _BYTES) for metric in group.values()),
    *(_WAVEFRONTS, _EXCESSIVE, _THEORETICAL, _SHARED_EXCESSIVE),
    *(stall_metric(reason) for reason in REASONS),
)


def _plain(names: tuple[str, ...]) -> list[Column]:
    """The columns called `names`, each of one metric of ncu."""
    found = {name: (metric, doc) for name, metric, doc in (*_SHARES, *_VALUES)}
    return [
        Column(
            name,
            pl.Int64 if name in _COUNTED else pl.Float64,
            f"{found[name][1]} {found[name][0]}.",
            nullable=True,
        )
        for name in names
    ]


TABLE: Final = Table(
    "counters",
    "One kernel that ncu measured, as its details page prints it; what was not collected is null.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`, in the order of the report."),
        Column("name", pl.String, "Its name.", nullable=True),
        Column("device", pl.Int64, "The GPU, as in `devices`.", nullable=True),
        Column("dur_ns", pl.Int64, "Duration, alone and under replay: not that in the program.", nullable=True),
        *_plain(("cycles", "sm_clock_hz", "compute_share", "memory_share", "dram_share", "dram_bytes_per_s")),
        *_plain(("dram_read_bytes", "dram_write_bytes", "l2_share", "l2_hit_share", "l1_share", "l1_hit_share")),
        *SHAPE_COLUMNS,
        Column("registers_per_thread", pl.Int32, "Registers that a thread uses.", nullable=True),
        Column("static_shared_bytes", pl.Int64, "Static shared memory of a block.", nullable=True),
        Column("dynamic_shared_bytes", pl.Int64, "Dynamic shared memory of a block.", nullable=True),
        *_plain(("occupancy_share", "achieved_occupancy_share")),
        Column("limiter", pl.String, f"What allows no further block on an SM: {', '.join(LIMITS)}.", nullable=True),
        Column("blocks_per_sm", pl.Int64, "Blocks that an SM can hold: ncu's least Block Limit.", nullable=True),
        *_plain(("sms", "waves")),
        Column(
            "tail_share",
            pl.Float64,
            "The part of the blocks' room that the last wave leaves empty; 0 where there is but one wave.",
            nullable=True,
        ),
        *_plain(("instructions", "ipc", "issue_share", "active_warps", "eligible_warps", "cycles_per_instruction")),
        Column(
            "top_stall",
            pl.String,
            "What warps wait for longest, as `stalls` names it; not counting `selected` and `not_selected`.",
            nullable=True,
        ),
        Column("top_stall_share", pl.Float64, "Its part of cycles_per_instruction.", nullable=True),
        *_plain(("threads_per_instruction",)),
        *(
            Column(
                f"{what}_sectors_per_request",
                pl.Float64,
                f"Sectors of 32 bytes that a global {what} of a warp touches; 4 where 32 threads use 4 bytes each, "
                "side by side.",
                nullable=True,
            )
            for what in ("load", "store")
        ),
        *(
            Column(f"{what}_used_share", pl.Float64, f"Bytes of them that a global {what} uses.", nullable=True)
            for what in ("load", "store")
        ),
        Column(
            "uncoalesced_share",
            pl.Float64,
            f"Sectors of global accesses that ideal ones would not need. {_EXCESSIVE} by {_THEORETICAL}.",
            nullable=True,
        ),
        *_plain(("bank_conflicts",)),
        Column(
            "bank_conflict_share",
            pl.Float64,
            "Bank conflicts by all wavefronts of shared memory, of which each conflict adds one.",
            nullable=True,
        ),
        *_plain(("local_loads", "local_stores", "spill_requests", "spill_share", "tensor_share")),
    ),
    purpose="speed of light, memory, occupancy per kernel",
    telling=("dur_ns", "compute_share", "memory_share", "achieved_occupancy_share", "limiter", "top_stall"),
    counted=True,

)  # fmt: skip


@analysis
def counters(report: Report) -> pl.DataFrame:
    """The metrics of each kernel that ncu measured, in the order of the report.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    kernels = measured_kernels(report, TABLE, _METRICS)
    plain = {name: pl.col(metric) for name, metric, _ in _VALUES}
    found = kernels.with_columns(
        **{name: share(metric) for name, metric, _ in _SHARES},
        **{
            name: whole(metric) if name in _COUNTED else value
            for (name, metric, _), value in zip(_VALUES, plain.values(), strict=True)
        },
        **_memory(),
        blocks_per_sm=pl.min_horizontal(LIMITS.values()).cast(pl.Int64),
        limiter=_limiter(),
        tail_share=_tail(),
        **_top_stall(),
    )
    return TABLE.select(found)


def _limiter() -> pl.Expr:
    """All limiters that allow the minimum number of blocks."""
    least = pl.min_horizontal(LIMITS.values())
    named = [pl.when(pl.col(metric) == least).then(pl.lit(name)) for name, metric in LIMITS.items()]
    return pl.when(least.is_not_null()).then(pl.concat_str(named, separator=", ", ignore_nulls=True))


def _tail() -> pl.Expr:
    """The tail share, from waves as printed (two decimals), or exactly from blocks and capacity unless in clusters."""
    told = pl.col("launch__waves_per_multiprocessor")
    blocks = pl.col("grid_x").cast(pl.Float64) * pl.col("grid_y") * pl.col("grid_z")
    exact = blocks / (pl.min_horizontal(LIMITS.values()) * pl.col("launch__sm_count"))
    waves = pl.when((exact - told).abs() < _PRINTED).then(exact).otherwise(told)
    return pl.when(waves > 1).then((waves.ceil() - waves) / waves.ceil()).when(waves.is_not_null()).then(0.0)


def _memory() -> dict[str, pl.Expr]:
    words = {"load": "ld", "store": "st"}
    return {
        **{f"{what}_sectors_per_request": ratio(_SECTORS[op], _REQUESTS[op]) for what, op in words.items()},
        **{
            # 0 bytes in some sectors: copies to shared memory, which this metric does not count
            f"{what}_used_share": pl.when(pl.col(_BYTES[op]) > 0).then(pl.col(_BYTES[op]) / _SECTOR_BYTES)
            for what, op in words.items()
        },
        "uncoalesced_share": ratio(_EXCESSIVE, _THEORETICAL),
        "bank_conflict_share": ratio(f"{_L1}data_bank_conflicts_{_SHARED}.sum", _WAVEFRONTS),
    }


def _top_stall() -> dict[str, pl.Expr]:
    waiting = [reason for reason, (_, waits) in REASONS.items() if waits]
    most = pl.max_horizontal(stall_metric(reason) for reason in waiting)
    named = [pl.when((pl.col(stall_metric(reason)) == most) & (most > 0)).then(pl.lit(reason)) for reason in waiting]
    return {
        "top_stall": pl.coalesce(named),
        "top_stall_share": ratio(most, LATENCY),
    }
