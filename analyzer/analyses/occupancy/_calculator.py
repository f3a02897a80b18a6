"""How many blocks of a launch an SM can hold at once, and what limits it: NVIDIA's occupancy calculation.

Sources: the occupancy calculation of the CUDA toolkit (cuda_occupancy.h), and for the shared memory of an SM what
Nsight Compute does (launch__occupancy_limit_shared_mem). The tests hold it against both, and against an H200.

What the report cannot tell is left out: clusters, of which all blocks have to find room together; green contexts and
other partitions with fewer SMs; more than two named barriers for each block that an SM can hold, which limit too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.capabilities import REGISTER_UNIT, SUB_PARTITIONS, capabilities

if TYPE_CHECKING:
    from kanalyze.report import Report

#: The resources that can limit, in the order in which they are named, each with the column of its limit.
LIMITS: Final = {
    "registers": "limit_registers",
    "shared memory": "limit_shared_memory",
    "warps": "limit_warps",
    "blocks": "limit_blocks",
}

#: The limiter where the SM was set up with less shared memory than it has, and with all of it would hold more blocks.
SHARED_SETTING: Final = "shared memory setting"

#: What the calculation needs of a launch, and of a device.
_OF_LAUNCH: Final = ("threads", "registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes")
_OF_DEVICE: Final = (
    "max_warps_per_sm",
    "max_blocks_per_sm",
    "max_threads_per_block",
    "threads_per_warp",
    "registers_per_sm",
    "shared_per_sm_bytes",
    "shared_per_block_bytes",
)
_OF_CAPABILITY: Final = ("shared_reserved_bytes", "shared_unit_bytes")

#: No limit and no size of a launch is larger; products of two of them fit 64 bits.
_MOST: Final = (1 << 31) - 1


def sm_limits(report: Report) -> pl.DataFrame:
    """What an SM of each device can hold: as the report says, else as its compute capability says.

    Columns device, sm_count, compute_capability, and those of :func:`kanalyze.capabilities.capabilities`; null where
    neither says.
    """
    known = capabilities()
    devices = report.devices.select("device", "sm_count", "compute_capability", *_OF_DEVICE)
    joined = devices.join(known, on="compute_capability", how="left", suffix="_usual", maintain_order="left")
    # a limit of 0 is no limit that a kernel could have run with: it says that the tool did not know
    told = {name: pl.when(pl.col(name).is_between(1, _MOST)).then(name) for name in ("sm_count", *_OF_DEVICE)}
    limits = [pl.coalesce(told[name], f"{name}_usual").alias(name) for name in _OF_DEVICE]
    return joined.select("device", told["sm_count"].alias("sm_count"), "compute_capability", *limits, *_OF_CAPABILITY)


def with_occupancy(launches: pl.DataFrame) -> pl.DataFrame:
    """`launches` with what an SM can hold of each.

    Args:
        launches: A row per launch: threads (of a block), registers_per_thread, static_shared_bytes,
            dynamic_shared_bytes, shared_config_bytes (null: all that the SM has), and the columns of
            :func:`sm_limits`.

    Returns:
        The rows with the columns limit_registers, limit_shared_memory, limit_warps and limit_blocks (blocks of an SM
        that each allows; null where it sets no limit), blocks_per_sm, warps_per_sm, occupancy_share, limiter, and
        unknown: why all of these are null. A launch that no SM can hold has 0 blocks and no limiter.
    """
    limited = launches.with_columns(unknown=_unknown()).with_columns(_limits())
    found = limited.with_columns(blocks_per_sm=pl.when(_told()).then(pl.min_horizontal(LIMITS.values())))
    warps = pl.col("blocks_per_sm") * _warps()
    return found.with_columns(
        warps.alias("warps_per_sm"), (warps / pl.col("max_warps_per_sm")).alias("occupancy_share"), _limiter()
    ).drop("limit_any_setting")


def _shared_per_block() -> pl.Expr:
    """The shared memory that a block takes of its SM: what it asks for and the system's part, in whole units."""
    asked = pl.sum_horizontal("static_shared_bytes", "dynamic_shared_bytes", "shared_reserved_bytes")
    return _up_to(asked, pl.col("shared_unit_bytes"))


def _registers_per_warp() -> pl.Expr:
    """The registers that a warp takes of its sub-partition, in whole units."""
    return _up_to(pl.col("registers_per_thread").cast(pl.Int64) * pl.col("threads_per_warp"), pl.lit(REGISTER_UNIT))


def registers_for_one_more() -> pl.Expr:
    """The registers per thread with which one more block than `blocks_per_sm` would find room."""
    warps = _up_to((pl.col("blocks_per_sm") + 1) * _warps(), pl.lit(SUB_PARTITIONS)) // SUB_PARTITIONS
    per_warp = pl.col("registers_per_sm") // SUB_PARTITIONS // warps // REGISTER_UNIT * REGISTER_UNIT
    return per_warp // pl.col("threads_per_warp")


def shared_for_one_more() -> pl.Expr:
    """The shared memory of a block, in bytes, with which one more block than `blocks_per_sm` would find room."""
    unit = pl.col("shared_unit_bytes")
    return pl.col("shared_per_sm_bytes") // (pl.col("blocks_per_sm") + 1) // unit * unit - pl.col(
        "shared_reserved_bytes"
    )


def _limits() -> list[pl.Expr]:
    """The blocks that each resource allows; limit_any_setting is that of shared memory if the SM gave all it has."""
    warps, per_warp, shared = _warps(), _registers_per_warp(), _shared_per_block()
    fits = pl.col("threads") <= pl.col("max_threads_per_block")
    # the hardware gives a block's registers as if its warps filled all sub-partitions
    assumed = per_warp * _up_to(warps, pl.lit(SUB_PARTITIONS))
    by_registers = pl.col("registers_per_sm") // SUB_PARTITIONS // per_warp * SUB_PARTITIONS // warps
    room = pl.col("shared_per_block_bytes") + pl.col("shared_reserved_bytes")
    set_up = pl.when(pl.col("shared_config_bytes") >= shared).then("shared_config_bytes")
    allowed = {
        "limit_registers": pl.when(assumed <= pl.col("registers_per_sm")).then(by_registers).otherwise(0),
        "limit_shared_memory": _of_shared(pl.coalesce(set_up, "shared_per_sm_bytes"), shared, room),
        "limit_any_setting": _of_shared(pl.col("shared_per_sm_bytes"), shared, room),
        "limit_warps": pl.when(fits).then(pl.col("max_warps_per_sm") // warps).otherwise(0),
        "limit_blocks": pl.col("max_blocks_per_sm"),
    }
    # a launch without registers divides by 0, which is null: no limit
    return [pl.when(_told()).then(limit).cast(pl.Int64).alias(name) for name, limit in allowed.items()]


def _of_shared(available: pl.Expr, shared: pl.Expr, room: pl.Expr) -> pl.Expr:
    return pl.when(shared == 0).then(None).when(shared <= room).then(available // shared).otherwise(0)


def _limiter() -> pl.Expr:
    """What allows no further block: all that do, or the SM's setting where nothing else would."""
    most = pl.min_horizontal("limit_any_setting", *(name for name in LIMITS.values() if name != "limit_shared_memory"))
    columns = {**LIMITS, "shared memory": "limit_any_setting"}
    named = [pl.when(pl.col(column) == pl.col("blocks_per_sm")).then(pl.lit(name)) for name, column in columns.items()]
    every = pl.concat_str(named, separator=", ", ignore_nulls=True)
    setting = pl.when(most > pl.col("blocks_per_sm")).then(pl.lit(SHARED_SETTING)).otherwise(every)
    return pl.when(pl.col("blocks_per_sm") > 0).then(setting).alias("limiter")


def _warps() -> pl.Expr:
    """Warps of a block."""
    return _up_to(pl.col("threads"), pl.col("threads_per_warp")) // pl.col("threads_per_warp")


def _up_to(value: pl.Expr, unit: pl.Expr) -> pl.Expr:
    """`value` rounded up to a multiple of `unit`."""
    return (value + unit - 1) // unit * unit


def _told() -> pl.Expr:
    return pl.col("unknown").is_null()


def _unknown() -> pl.Expr:
    """Why a launch's occupancy cannot be told; null where it can."""
    told = [pl.col("threads") > 0, *(pl.col(name).is_between(0, _MOST) for name in _OF_LAUNCH)]
    launch = ~pl.all_horizontal(part.fill_null(value=False) for part in told)
    device = pl.any_horizontal(pl.col(name).is_null() for name in _OF_DEVICE)
    capability = pl.any_horizontal(pl.col(name).is_null() for name in _OF_CAPABILITY)
    named = pl.format("how compute capability {} hands out shared memory is not known", "compute_capability")
    return (
        pl.when(launch)
        .then(pl.lit("the report lacks the block, registers or shared memory of the launch"))
        .when(pl.col("compute_capability").is_null())
        .then(pl.lit("the report lacks the GPU's compute capability"))
        .when(capability)
        .then(named)
        .when(device)
        .then(pl.lit("the report lacks limits of the GPU"))
    )
