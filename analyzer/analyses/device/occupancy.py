"""Theoretical occupancy, waves and unused SM time of kernels, by launch shape."""

from typing import Final, Unpack

import polars as pl

from kanalyze.analyses.device._operations import RESOURCES, SHAPE, SHAPE_COLUMNS, kernel_shapes
from kanalyze.analyses.shared.analysis import check_grouping, once_per_report, require_kernels
from kanalyze.columns import part, product, wide
from kanalyze.device_limits import REGISTER_UNIT, SUB_PARTITIONS, capabilities
from kanalyze.model import KERNEL_CONFIG
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns
from kanalyze.tools import NAMES

# Theoretical occupancy: resident blocks per SM, and the limiting resource, by NVIDIA's occupancy calculation.
#
# Sources: the occupancy calculation of the CUDA toolkit (cuda_occupancy.h), and for the shared memory of an SM that of
# Nsight Compute (launch__occupancy_limit_shared_mem). The tests compare it with both, and with an H200.
#
# Not modelled, because reports do not record it: clusters, whose blocks have to be resident together; green contexts
# and other partitions with fewer SMs; the limit by more than two named barriers per resident block.

#: Limiting resources, in display order, each with the column of its limit.
LIMITS: Final = {
    "registers": "limit_registers",
    "shared memory": "limit_shared_memory",
    "warps": "limit_warps",
    "blocks": "limit_blocks",
}

#: The limiter where the SM was configured with less shared memory than it has, and would else hold more blocks.
SHARED_SETTING: Final = "shared memory setting"

#: Input columns of the calculation, of a launch, of a device, and by compute capability.
_OF_LAUNCH: Final = ("threads", "registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes")
_OF_DEVICE: Final = (
    *("max_warps_per_sm", "max_blocks_per_sm", "max_threads_per_block", "threads_per_warp"),
    *("registers_per_sm", "shared_per_sm_bytes", "shared_per_block_bytes"),
)
_OF_CAPABILITY: Final = ("shared_reserved_bytes", "shared_unit_bytes")

#: Largest valid limit and launch size; products of two fit 64 bits.
_LARGEST: Final = (1 << 31) - 1


def sm_limits(report: Report) -> pl.DataFrame:
    """SM limits of each device, as recorded in the report, else by its compute capability.

    Columns: device, sm_count, compute_capability, and those of :func:`kanalyze.device_limits.capabilities`; null where
    not known.
    """
    usual = capabilities()
    devices = report.devices.select("device", "sm_count", "compute_capability", *_OF_DEVICE)
    rows = devices.join(usual, on="compute_capability", how="left", suffix="_usual", maintain_order="left")
    # a recorded limit of 0 means that the tool did not know: no kernel could have run with it
    recorded = {name: pl.when(pl.col(name).is_between(1, _LARGEST)).then(name) for name in ("sm_count", *_OF_DEVICE)}
    limits = [pl.coalesce(recorded[name], f"{name}_usual").alias(name) for name in _OF_DEVICE]
    return rows.select("device", recorded["sm_count"].alias("sm_count"), "compute_capability", *limits, *_OF_CAPABILITY)


def with_occupancy(launches: pl.DataFrame) -> pl.DataFrame:
    """Adds theoretical occupancy and its limits to `launches`.

    Args:
        launches: A row per launch: threads (of a block), registers_per_thread, static_shared_bytes,
            dynamic_shared_bytes, shared_config_bytes (null: all that the SM has), and the columns of
            :func:`sm_limits`.

    Returns:
        The rows with the columns limit_registers, limit_shared_memory, limit_warps and limit_blocks (blocks per SM by
        resource; null for no limit), blocks_per_sm, warps_per_sm, occupancy_share, limiter, and unknown (the reason
        why all of these are null). A launch that does not fit on an SM has 0 blocks and no limiter.
    """
    limited = launches.with_columns(unknown=_unknown()).with_columns(_limits())
    known = pl.when(pl.col("unknown").is_null())
    with_blocks = limited.with_columns(blocks_per_sm=known.then(pl.min_horizontal(LIMITS.values())))
    warps, blocks = pl.col("blocks_per_sm") * _WARPS, pl.col("blocks_per_sm")
    # the limiting resources, or the shared memory configuration where only that limits
    limits = {**LIMITS, "shared memory": "limit_any_setting"}
    named = [pl.when(pl.col(column) == blocks).then(pl.lit(name)) for name, column in limits.items()]
    limiters = pl.concat_str(named, separator=", ", ignore_nulls=True)
    setting = pl.when(pl.min_horizontal(limits.values()) > blocks).then(pl.lit(SHARED_SETTING)).otherwise(limiters)
    return with_blocks.with_columns(
        warps_per_sm=warps,
        occupancy_share=warps / pl.col("max_warps_per_sm"),
        limiter=pl.when(blocks > 0).then(setting),
    ).drop("limit_any_setting")


def _rounded_up(value: pl.Expr, unit: pl.Expr) -> pl.Expr:
    """Rounds `value` up to a multiple of `unit`."""
    return (value + unit - 1) // unit * unit


#: Warps per block.
_WARPS: Final = _rounded_up(pl.col("threads"), pl.col("threads_per_warp")) // pl.col("threads_per_warp")


def registers_for_one_more() -> pl.Expr:
    """Most registers per thread with which one more block than `blocks_per_sm` would fit."""
    warps = _rounded_up((pl.col("blocks_per_sm") + 1) * _WARPS, pl.lit(SUB_PARTITIONS)) // SUB_PARTITIONS
    per_warp = pl.col("registers_per_sm") // SUB_PARTITIONS // warps // REGISTER_UNIT * REGISTER_UNIT
    return per_warp // pl.col("threads_per_warp")


def shared_for_one_more() -> pl.Expr:
    """Most shared memory per block, in bytes, with which one more block than `blocks_per_sm` would fit."""
    unit, each = pl.col("shared_unit_bytes"), pl.col("shared_per_sm_bytes") // (pl.col("blocks_per_sm") + 1)
    return each // unit * unit - pl.col("shared_reserved_bytes")


def _limits() -> list[pl.Expr]:
    """Blocks per SM by resource; limit_any_setting is the limit by shared memory in its largest configuration."""
    # shared memory per block, the reserved part included, rounded up to the allocation unit
    shared_bytes = pl.sum_horizontal("static_shared_bytes", "dynamic_shared_bytes", "shared_reserved_bytes")
    shared = _rounded_up(shared_bytes, pl.col("shared_unit_bytes"))
    registers = pl.col("registers_per_thread").cast(pl.Int64) * pl.col("threads_per_warp")
    per_warp = _rounded_up(registers, pl.lit(REGISTER_UNIT))
    fits = pl.col("threads") <= pl.col("max_threads_per_block")
    # the hardware allocates the registers of a block as if its warps filled all sub-partitions
    assumed = per_warp * _rounded_up(_WARPS, pl.lit(SUB_PARTITIONS))
    by_registers = pl.col("registers_per_sm") // SUB_PARTITIONS // per_warp * SUB_PARTITIONS // _WARPS
    room = pl.col("shared_per_block_bytes") + pl.col("shared_reserved_bytes")
    set_up = pl.when(pl.col("shared_config_bytes") >= shared).then("shared_config_bytes")
    of_shared = pl.when(shared == 0).then(None).when(shared <= room)
    allowed = {
        "limit_registers": pl.when(assumed <= pl.col("registers_per_sm")).then(by_registers).otherwise(0),
        "limit_shared_memory": of_shared.then(pl.coalesce(set_up, "shared_per_sm_bytes") // shared).otherwise(0),
        "limit_any_setting": of_shared.then(pl.col("shared_per_sm_bytes") // shared).otherwise(0),
        "limit_warps": pl.when(fits).then(pl.col("max_warps_per_sm") // _WARPS).otherwise(0),
        "limit_blocks": pl.col("max_blocks_per_sm"),
    }
    # a launch without registers divides by 0, which is null: no limit
    known = pl.when(pl.col("unknown").is_null())
    return [known.then(limit).cast(pl.Int64).alias(name) for name, limit in allowed.items()]


def _unknown() -> pl.Expr:
    """The reason why the occupancy of a launch is unknown; null where it is known."""
    valid = [pl.col("threads") > 0, *(pl.col(name).is_between(0, _LARGEST) for name in _OF_LAUNCH)]
    launch = ~pl.all_horizontal(part.fill_null(value=False) for part in valid)
    device = pl.any_horizontal(pl.col(name).is_null() for name in _OF_DEVICE)
    capability = pl.any_horizontal(pl.col(name).is_null() for name in _OF_CAPABILITY)
    return (
        pl.when(launch)
        .then(pl.lit("the report lacks the block, registers or shared memory of the launch"))
        .when(pl.col("compute_capability").is_null())
        .then(pl.lit("the report lacks the GPU's compute capability"))
        .when(capability)
        .then(pl.format("how compute capability {} hands out shared memory is not known", "compute_capability"))
        .when(device)
        .then(pl.lit("the report lacks limits of the GPU"))
    )


_TIMES: Final = columns("""
    count int: Launches.
    total_ns int: Sum of their durations, overlaps counted as often as they occur.
    exclusive_ns int: Time in which they were what the device was doing; adds up over rows.
    alone_ns int: Time in which they ran and no other kernel did.
""")

_COSTS: Final = columns("""
    idle_sm_ns int?: alone_ns times the share of SMs for which the grid has no block.
    tail_ns int?: alone_ns times tail_share: what a last wave that fills the SMs can gain, if all blocks take equally
        long.
    low_occupancy_ns int?: What is left of alone_ns, times the part of the warps that the grid could have resident and
        the limiter keeps out: the most that a higher occupancy can gain; 0 where the whole grid is resident at once.
""")

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
        *columns(f"""
            blocks_per_sm int?: Blocks that an SM can hold at once: the least of the limits.
            warps_per_sm int?: Warps of these blocks.
            occupancy_share float?: Those warps as a part of all that an SM can hold.
            limiter text?: What allows no further block: {", ".join(LIMITS)}, or several; '{SHARED_SETTING}' where only
                the setting shared_config_bytes does, and all the SM's shared memory would allow more.
            waves float?: The grid's blocks by those that all SMs hold at once.
            full_waves int?: Whole waves of them.
            tail_share float?: The part of the blocks' room that the last wave leaves empty; 0 where there is but one
                wave.
            idle_sms int?: SMs for which the grid has no block.
        """),
        *_COSTS,
        Column("unknown", pl.String, "Why the occupancy cannot be told; null where it can.", nullable=True),
    ),
    purpose="warps that fit, what limits them, waves, tail",
    telling=("count", "exclusive_ns", "occupancy_share", "limiter", "waves", "tail_share"),
    tools=NAMES,
    equals="ncu launch__occupancy_limit_*, sm__maximum_warps_per_active_cycle_pct, launch__waves_per_multiprocessor",
    groupings=("kernel", "device"),
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
        *TABLE.columns[:2],
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
    """
    report = report.narrow(**where)
    require_kernels(report, TABLE)
    check_grouping(TABLE, by)
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
    launches = with_occupancy(shapes.join(sm_limits(report), on="device", how="left"))
    # those that would not fit on an SM ran: the recorded input is wrong
    wrong = pl.lit("by what the report says of the launch and the GPU, it could not have run")
    ran, answers = pl.col("blocks_per_sm") > 0, (*LIMITS.values(), "blocks_per_sm", "warps_per_sm", "occupancy_share")
    launches = launches.with_columns(
        pl.when(~ran).then(wrong).otherwise("unknown").alias("unknown"),
        *(pl.when(ran).then(answer).alias(answer) for answer in answers),
    )
    for added in (_waves(), _costs(), [_low_occupancy()]):
        launches = launches.with_columns(added)
    return _sorted(launches, "name", *SHAPE, *RESOURCES)


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
    known_ns = weight.filter(share.is_not_null()).sum()
    costs = [pl.when(pl.col(cost.name).count() > 0).then(pl.col(cost.name).sum()).alias(cost.name) for cost in _COSTS]
    return launches.group_by(keys).agg(
        pl.len().cast(pl.Int64).alias("shapes"),
        *(pl.col(time.name).sum() for time in _TIMES),
        known_ns.alias("known_ns"),
        pl.when(known_ns > 0).then((share * weight).sum() / known_ns).alias("occupancy_share"),
        share.min().alias("least_share"),
        *costs,
    )


def _sorted(rows: pl.DataFrame, *keys: str) -> pl.DataFrame:
    keys = tuple(dict.fromkeys([*keys, "device"]))
    return rows.sort(*_HEAVIEST_FIRST, *keys, descending=[*(True for _ in _HEAVIEST_FIRST), *(False for _ in keys)])
