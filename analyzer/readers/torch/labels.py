"""Parses texts of a trace: copy directions, launch shapes, allocation events."""

from __future__ import annotations

from typing import Final

import polars as pl

#: Copy directions as in Kineto's names (``Memcpy HtoD (Pageable -> Device)``), and in nsys.
_DIRECTIONS: Final = {
    "HtoD": "Host-to-Device",
    "DtoH": "Device-to-Host",
    "DtoD": "Device-to-Device",
    "HtoH": "Host-to-Host",
    "HtoA": "Host-to-Array",
    "AtoH": "Array-to-Host",
    "AtoA": "Array-to-Array",
    "AtoD": "Array-to-Device",
    "DtoA": "Device-to-Array",
    "PtoP": "Peer-to-Peer",
    "HtoD_UVM": "Unified Host-to-Device",
}

_COPY: Final = r"^(?:Memcpy|CopyDeviceToDevice|Copy)\s*(\w+)?(?:\s*\((.*?)\s*->\s*(.*?)\))?"
#: HIP's launch call whose grid is in work-items (threads), where all others take blocks. Kineto records the
#: arguments of the call.
IN_WORK_ITEMS: Final = "hipExtModuleLaunchKernel"

_SHAPE: Final = r"^\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]$"


def copies_told(names: pl.Series, *, memset: bool) -> pl.DataFrame:
    """Parses names of copies or memsets, row by row.

    Columns: shown (the name as nsys writes it), direction, source_memory and target_memory; null where not told.
    """
    distinct = names.unique()
    texts = distinct.cast(pl.String).alias("text").to_frame()
    parts = pl.col("text").str.extract_groups(_COPY)
    made = texts.select(
        pl.col("text"),
        way=parts.struct.field("1"),
        source_memory=parts.struct.field("2"),
        target_memory=parts.struct.field("3"),
    )
    memory = {"source_memory": pl.String, "target_memory": pl.String}
    if memset:
        target = pl.col("text").str.extract(r"\((.+)\)")
        made = made.select(
            shown=pl.lit("[CUDA memset]"),
            direction=pl.lit(None, dtype=pl.String),
            source_memory=pl.lit(None, dtype=pl.String),
            target_memory=target,
        )
    else:
        direction = pl.col("way").replace(_DIRECTIONS)
        told = pl.when(pl.col("way").is_in(list(_DIRECTIONS))).then(direction)
        shown = pl.when(told.is_null()).then("text").otherwise(pl.format("[CUDA memcpy {}]", told))
        made = made.select(
            shown=shown,
            direction=told,
            **{name: pl.when(pl.col(name) != "Unknown").then(name) for name in memory},
        )
    typed = made.select(pl.col(name).cast(pl.Categorical) for name in made.columns)
    known = typed.insert_column(0, distinct.alias("name"))
    rows = names.alias("name").to_frame().join(known, on="name", how="left", nulls_equal=True, maintain_order="left")
    return rows.drop("name")


def launch_shapes(texts: pl.Series, prefix: str) -> list[pl.Series]:
    """Parses texts such as ``[256, 1, 1]`` into three series of sizes (``grid_x``…); 0 if absent."""
    distinct = texts.unique()
    parts = distinct.cast(pl.String).alias("text").to_frame().select(pl.col("text").str.extract_groups(_SHAPE))
    fields = parts.to_series().struct.unnest()
    sizes = fields.select(
        pl.col(str(number)).cast(pl.Int32, strict=False).fill_null(0).alias(f"{prefix}_{axis}")
        for number, axis in enumerate("xyz", 1)
    )
    known = sizes.insert_column(0, distinct.alias(prefix))
    rows = texts.alias(prefix).to_frame().join(known, on=prefix, how="left", nulls_equal=True, maintain_order="left")
    return rows.drop(prefix).get_columns()


def in_blocks(kernels: pl.DataFrame, these: pl.Expr) -> pl.DataFrame:
    """Converts the grids of the rows `these` from work-items to blocks."""
    return kernels.with_columns(
        pl.when(these.fill_null(value=False) & (pl.col(f"block_{axis}") > 0))
        .then((pl.col(f"grid_{axis}").cast(pl.Int64) + pl.col(f"block_{axis}") - 1) // pl.col(f"block_{axis}"))
        .otherwise(f"grid_{axis}")
        .cast(pl.Int32)
        .alias(f"grid_{axis}")
        for axis in "xyz"
    )


def memory_name() -> pl.Expr:
    """The name of an allocator event: allocation, free or out of memory."""
    out = pl.col("name").cast(pl.String) == "[OutOfMemory]"
    taken = pl.when(pl.col("size_bytes") < 0).then(pl.lit("Deallocation")).otherwise(pl.lit("Allocation"))
    return pl.when(out).then(pl.lit("Out of memory")).otherwise(taken)
