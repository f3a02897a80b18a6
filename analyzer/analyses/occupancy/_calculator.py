"""Theoretical occupancy: resident blocks per SM, and the limiting resource, by NVIDIA's occupancy calculation.

Sources: the occupancy calculation of the CUDA toolkit (cuda_occupancy.h), and for the shared memory of an SM that of
Nsight Compute (launch__occupancy_limit_shared_mem). The tests compare it with both, and with an H200.

Not modelled, because reports do not record it: clusters, whose blocks have to be resident together; green contexts and
other partitions with fewer SMs; the limit by more than two named barriers per resident block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.capabilities import REGISTER_UNIT, SUB_PARTITIONS, capabilities

if TYPE_CHECKING:
    from kanalyze.report import Report

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
    "max_warps_per_sm",
    "max_blocks_per_sm",
    "max_threads_per_block",
    "threads_per_warp",
    "registers_per_sm",
    "shared_per_sm_bytes",
    "shared_per_block_bytes",
)
_OF_CAPABILITY: Final = ("shared_reserved_bytes", "shared_unit_bytes")

#: Largest valid limit and launch size; products of two fit 64 bits.
_LARGEST: Final = (1 << 31) - 1


def sm_limits(report: Report) -> pl.DataFrame:
    """SM limits of each device, as recorded in the report, else by its compute capability.

    Columns: device, sm_count, compute_capability, and those of :func:`kanalyze.capabilities.capabilities`; null where
    not known.
    """
    known = capabilities()
    devices = report.devices.select("device", "sm_count", "compute_capability", *_OF_DEVICE)
    joined = devices.join(known, on="compute_capability", how="left", suffix="_usual", maintain_order="left")
    # a recorded limit of 0 means that the tool did not know: no kernel could have run with it
    told = {name: pl.when(pl.col(name).is_between(1, _LARGEST)).then(name) for name in ("sm_count", *_OF_DEVICE)}
    limits = [pl.coalesce(told[name], f"{name}_usual").alias(name) for name in _OF_DEVICE]
    return joined.select("device", told["sm_count"].alias("sm_count"), "compute_capability", *limits, *_OF_CAPABILITY)


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
    found = limited.with_columns(blocks_per_sm=pl.when(_is_known()).then(pl.min_horizontal(LIMITS.values())))
    warps = pl.col("blocks_per_sm") * _warps()
    return found.with_columns(
        warps.alias("warps_per_sm"), (warps / pl.col("max_warps_per_sm")).alias("occupancy_share"), _limiter()
    ).drop("limit_any_setting")


def _shared_per_block() -> pl.Expr:
    """Shared memory per block in bytes, the reserved part included, rounded up to the allocation unit."""
    asked = pl.sum_horizontal("static_shared_bytes", "dynamic_shared_bytes", "shared_reserved_bytes")
    return _rounded_up(asked, pl.col("shared_unit_bytes"))


def _registers_per_warp() -> pl.Expr:
    """Registers per warp, rounded up to the allocation unit."""
    return _rounded_up(
        pl.col("registers_per_thread").cast(pl.Int64) * pl.col("threads_per_warp"), pl.lit(REGISTER_UNIT)
    )


def registers_for_one_more() -> pl.Expr:
    """Most registers per thread with which one more block than `blocks_per_sm` would fit."""
    warps = _rounded_up((pl.col("blocks_per_sm") + 1) * _warps(), pl.lit(SUB_PARTITIONS)) // SUB_PARTITIONS
    per_warp = pl.col("registers_per_sm") // SUB_PARTITIONS // warps // REGISTER_UNIT * REGISTER_UNIT
    return per_warp // pl.col("threads_per_warp")


def shared_for_one_more() -> pl.Expr:
    """Most shared memory per block, in bytes, with which one more block than `blocks_per_sm` would fit."""
    unit = pl.col("shared_unit_bytes")
    return pl.col("shared_per_sm_bytes") // (pl.col("blocks_per_sm") + 1) // unit * unit - pl.col(
        "shared_reserved_bytes"
    )


def _limits() -> list[pl.Expr]:
    """Blocks per SM by resource; limit_any_setting is the limit by shared memory in its largest configuration."""
    warps, per_warp, shared = _warps(), _registers_per_warp(), _shared_per_block()
    fits = pl.col("threads") <= pl.col("max_threads_per_block")
    # the hardware allocates the registers of a block as if its warps filled all sub-partitions
    assumed = per_warp * _rounded_up(warps, pl.lit(SUB_PARTITIONS))
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
    return [pl.when(_is_known()).then(limit).cast(pl.Int64).alias(name) for name, limit in allowed.items()]


def _of_shared(available: pl.Expr, shared: pl.Expr, room: pl.Expr) -> pl.Expr:
    return pl.when(shared == 0).then(None).when(shared <= room).then(available // shared).otherwise(0)


def _limiter() -> pl.Expr:
    """The limiting resources, or the shared memory configuration where only that limits."""
    most = pl.min_horizontal("limit_any_setting", *(name for name in LIMITS.values() if name != "limit_shared_memory"))
    columns = {**LIMITS, "shared memory": "limit_any_setting"}
    named = [pl.when(pl.col(column) == pl.col("blocks_per_sm")).then(pl.lit(name)) for name, column in columns.items()]
    every = pl.concat_str(named, separator=", ", ignore_nulls=True)
    setting = pl.when(most > pl.col("blocks_per_sm")).then(pl.lit(SHARED_SETTING)).otherwise(every)
    return pl.when(pl.col("blocks_per_sm") > 0).then(setting).alias("limiter")


def _warps() -> pl.Expr:
    """Warps per block."""
    return _rounded_up(pl.col("threads"), pl.col("threads_per_warp")) // pl.col("threads_per_warp")


def _rounded_up(value: pl.Expr, unit: pl.Expr) -> pl.Expr:
    """Rounds `value` up to a multiple of `unit`."""
    return (value + unit - 1) // unit * unit


def _is_known() -> pl.Expr:
    return pl.col("unknown").is_null()


def _unknown() -> pl.Expr:
    """The reason why the occupancy of a launch is unknown; null where it is known."""
    told = [pl.col("threads") > 0, *(pl.col(name).is_between(0, _LARGEST) for name in _OF_LAUNCH)]
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
