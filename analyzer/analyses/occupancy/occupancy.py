"""Theoretical occupancy, waves and unused SM time of kernels, by launch shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._launch_shapes import RESOURCES, SHAPE, SHAPE_COLUMNS, kernel_shapes
from kanalyze.analyses.occupancy._calculator import LIMITS, SHARED_SETTING, sm_limits, with_occupancy
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.requirements import require_kernels
from kanalyze.errors import UnknownNameError
from kanalyze.exact import part, product, wide
from kanalyze.model import DEVICE_KINDS, KERNEL_CONFIG
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from typing import Unpack

    from kanalyze.report import Report, Where

_TIMES: Final = (
    Column("count", pl.Int64, "Launches."),
    Column("total_ns", pl.Int64, "Sum of their durations, overlaps counted as often as they occur."),
    Column("exclusive_ns", pl.Int64, "Time in which they were what the device was doing; adds up over rows."),
    Column("alone_ns", pl.Int64, "Time in which they ran and no other kernel did."),
)

_COSTS: Final = (
    Column(
        "idle_sm_ns",
        pl.Int64,
        "alone_ns times the share of SMs for which the grid has no block.",
        nullable=True,
    ),
    Column(
        "tail_ns",
        pl.Int64,
        "alone_ns times tail_share: what a last wave that fills the SMs can gain, if all blocks take equally long.",
        nullable=True,
    ),
    Column(
        "low_occupancy_ns",
        pl.Int64,
        "What is left of alone_ns, times the part of the warps that the grid could have resident and the limiter keeps "
        "out: the most that a higher occupancy can gain; 0 where the whole grid is resident at once.",
        nullable=True,
    ),
)

TABLE: Final = Table(
    "occupancy",
    "One kernel in one launch shape with its registers and shared memory, on one device.",
    (
        Column("name", pl.String, "Demangled name of the kernel.", nullable=True),
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        *_TIMES,
        *SHAPE_COLUMNS,
        *(column for column in KERNEL_CONFIG.columns if column.name in RESOURCES),
        *(
            Column(
                column,
                pl.Int64,
                f"Blocks of an SM that the {name} allow{'s' * (name == 'shared memory')}; null where that is no limit.",
                nullable=True,
            )
            for name, column in LIMITS.items()
        ),
        Column(
            "blocks_per_sm", pl.Int64, "Blocks that an SM can hold at once: the least of the limits.", nullable=True
        ),
        Column("warps_per_sm", pl.Int64, "Warps of these blocks.", nullable=True),
        Column("occupancy_share", pl.Float64, "Those warps as a part of all that an SM can hold.", nullable=True),
        Column(
            "limiter",
            pl.String,
            f"What allows no further block: {', '.join(LIMITS)}, or several; '{SHARED_SETTING}' where only the setting "
            "shared_config_bytes does, and all the SM's shared memory would allow more.",
            nullable=True,
        ),
        Column("waves", pl.Float64, "The grid's blocks by those that all SMs hold at once.", nullable=True),
        Column("full_waves", pl.Int64, "Whole waves of them.", nullable=True),
        Column(
            "tail_share",
            pl.Float64,
            "The part of the blocks' room that the last wave leaves empty; 0 where there is but one wave.",
            nullable=True,
        ),
        Column("idle_sms", pl.Int64, "SMs for which the grid has no block.", nullable=True),
        *_COSTS,
        Column("unknown", pl.String, "Why the occupancy cannot be told; null where it can.", nullable=True),
    ),
    equals="ncu launch__occupancy_limit_*, sm__maximum_warps_per_active_cycle_pct, launch__waves_per_multiprocessor",
    groupings=("kernel", "device"),
    reads=(*DEVICE_KINDS, "kernel_config", "collective_detail", "devices"),
)

_SUMS: Final = (
    *_TIMES,
    Column("known_ns", pl.Int64, "The part of exclusive_ns whose occupancy can be told."),
    Column("occupancy_share", pl.Float64, "Mean theoretical occupancy, weighted by exclusive_ns.", nullable=True),
    Column("least_share", pl.Float64, "The lowest theoretical occupancy.", nullable=True),
    *_COSTS,
)

#: The table that ``by="kernel"`` gives.
BY_KERNEL: Final = Table(
    "occupancy",
    "One kernel on one device, all its launch shapes.",
    (
        Column("name", pl.String, "Demangled name of the kernel.", nullable=True),
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("shapes", pl.Int64, "Different launch shapes."),
        *_SUMS,
    ),
    when="--by kernel",
)

#: The table that ``by="device"`` gives.
BY_DEVICE: Final = Table(
    "occupancy",
    "One device, all its kernels.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("shapes", pl.Int64, "Different kernels and launch shapes."),
        *_SUMS,
    ),
    when="--by device",
)

_HEAVIEST_FIRST: Final = ("exclusive_ns", "total_ns", "count")


def occupancy(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """Theoretical occupancy of kernels in scope, the longest exclusive time first.

    Args:
        report: The report; kernels that overlap its window count.
        by: ``kernel`` sums the launch shapes of each kernel, ``device`` those of each device.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, :data:`BY_KERNEL` or :data:`BY_DEVICE`.

    Raises:
        CannotTellError: The report records no kernels; or a window is asked for of a report of ncu, whose kernels
            were measured one by one: their durations are those under ncu, and each had the device for itself.
        UnknownNameError: There is no such grouping.

    Columns:
        name, device, count, total_ns, exclusive_ns, alone_ns, grid_x, grid_y, grid_z, block_x, block_y, block_z,
        registers_per_thread, static_shared_bytes, dynamic_shared_bytes, shared_config_bytes, limit_registers,
        limit_shared_memory, limit_warps, limit_blocks, blocks_per_sm, warps_per_sm, occupancy_share, limiter, waves,
        full_waves, tail_share, idle_sms, idle_sm_ns, tail_ns, low_occupancy_ns, unknown.
    """
    report = report.narrow(**where)
    require_kernels(report, TABLE)
    if by not in (None, *TABLE.groupings):
        raise UnknownNameError.of("grouping of occupancy", by, TABLE.groupings)
    if by is None:
        return TABLE.select(launch_occupancy(report))
    keys, table = (["name", "device"], BY_KERNEL) if by == "kernel" else (["device"], BY_DEVICE)
    return table.select(_sorted(_summed(launch_occupancy(report), keys), *keys))


@once_per_report
def launch_occupancy(report: Report) -> pl.DataFrame:
    """Theoretical occupancy by launch shape: columns of :data:`TABLE` and :func:`sm_limits`, bucket, blocks, threads.

    `blocks` counts those of the grid, `threads` those of a block. Sorted as :data:`TABLE`.
    """
    blocks, threads = (product(*(pl.col(f"{what}_{axis}") for axis in "xyz")) for what in ("grid", "block"))
    shapes = kernel_shapes(report).with_columns(
        pl.col("name").cast(pl.String), pl.when(blocks > 0).then(blocks).alias("blocks"), threads.alias("threads")
    )
    found = _without_impossible(with_occupancy(shapes.join(sm_limits(report), on="device", how="left")))
    return _sorted(
        found.with_columns(_waves()).with_columns(_costs()).with_columns(_low_occupancy()), "name", *SHAPE, *RESOURCES
    )


def _without_impossible(launches: pl.DataFrame) -> pl.DataFrame:
    """Clears the results of launches that would not fit on an SM: they ran, so the recorded input is wrong."""
    wrong = pl.lit("by what the report says of the launch and the GPU, it could not have run")
    ran, answers = pl.col("blocks_per_sm") > 0, (*LIMITS.values(), "blocks_per_sm", "warps_per_sm", "occupancy_share")
    return launches.with_columns(
        pl.when(~ran).then(wrong).otherwise("unknown").alias("unknown"),
        *(pl.when(ran).then(answer).alias(answer) for answer in answers),
    )


def _waves() -> list[pl.Expr]:
    room = pl.col("blocks_per_sm") * pl.col("sm_count")
    waves = pl.col("blocks") / room
    partly = pl.when(waves > 1).then(1 - waves / waves.ceil()).otherwise(0.0)
    return [
        waves.alias("waves"),
        (pl.col("blocks") // room).alias("full_waves"),
        pl.when(waves.is_not_null()).then(partly).alias("tail_share"),
        (pl.col("sm_count") - pl.col("blocks")).clip(lower_bound=0).alias("idle_sms"),
    ]


def _costs() -> list[pl.Expr]:
    room, blocks = pl.col("blocks_per_sm") * pl.col("sm_count"), wide(pl.col("blocks"))
    dealt = (blocks + room - 1) // room * room
    empty = pl.when(blocks > room).then(dealt - blocks).when(room.is_not_null()).then(0)
    return [
        part(pl.col("alone_ns"), pl.col("idle_sms"), pl.col("sm_count")).alias("idle_sm_ns"),
        part(pl.col("alone_ns"), empty, dealt).alias("tail_ns"),
    ]


def _low_occupancy() -> pl.Expr:
    """Time lost to low occupancy, the tail aside: the share of the grid's warps that cannot be resident."""
    blocks, sms = wide(pl.col("blocks")), pl.col("sm_count")
    warps = pl.col("warps_per_sm") // pl.col("blocks_per_sm")
    could = pl.min_horizontal(blocks * warps, sms * pl.col("max_warps_per_sm"))
    kept_out = (could - sms * pl.col("warps_per_sm")).clip(lower_bound=0)
    return part(pl.col("alone_ns") - pl.col("tail_ns"), kept_out, could).alias("low_occupancy_ns")


def _summed(launches: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Sums `launches` by `keys`; a cost is null where it is known for no launch."""
    share, weight = pl.col("occupancy_share"), pl.col("exclusive_ns")
    known = weight.filter(share.is_not_null()).sum()
    costs = [pl.when(pl.col(cost.name).count() > 0).then(pl.col(cost.name).sum()).alias(cost.name) for cost in _COSTS]
    return launches.group_by(keys).agg(
        pl.len().cast(pl.Int64).alias("shapes"),
        *(pl.col(time.name).sum() for time in _TIMES),
        known.alias("known_ns"),
        pl.when(known > 0).then((share * weight).sum() / known).alias("occupancy_share"),
        share.min().alias("least_share"),
        *costs,
    )


def _sorted(rows: pl.DataFrame, *keys: str) -> pl.DataFrame:
    keys = tuple(dict.fromkeys([*keys, "device"]))
    return rows.sort(*_HEAVIEST_FIRST, *keys, descending=[*(True for _ in _HEAVIEST_FIRST), *(False for _ in keys)])
