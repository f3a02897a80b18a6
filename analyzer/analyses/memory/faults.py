"""Page faults of unified memory: on the CPU by instruction, on GPUs by the running kernel."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.memory._unified_moves import FAULT_CAUSES, faults_seen, moves
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.statistics import known_sum
from kanalyze.columns import nearest
from kanalyze.report import Report
from kanalyze.schema import Column, Table
from kanalyze.tools import recorders

TABLE: Final = Table(
    "faults",
    "The page faults of one CPU function or source line, or of one kernel by device and access.",
    (
        Column("side", pl.String, "CPU or GPU: who faulted."),
        Column("faults", pl.Int64, "Page faults."),
        Column(
            "function",
            pl.String,
            "CPU: the function of the instruction. GPU: the kernel that its device was running when the handling "
            "began; null where none was.",
            nullable=True,
        ),
        Column("source_file", pl.String, "CPU: source file of the instruction.", nullable=True),
        Column("source_line", pl.Int64, "CPU: its line there.", nullable=True),
        Column("module", pl.String, "CPU: program or library; null where it is not one.", nullable=True),
        Column("device", pl.Int64, "GPU: which.", nullable=True),
        Column("access", pl.String, "GPU: Read, Write, Atomic or Prefetch.", nullable=True),
        Column("groups", pl.Int64, "Events; the GPU's faults are handled in groups, the CPU's one by one."),
        Column("pages", pl.Int64, "Different addresses that faulted."),
        Column("min_address", pl.Int64, "Lowest of them."),
        Column("max_address", pl.Int64, "Highest of them."),
        Column(
            "total_ns",
            pl.Int64,
            "GPU: sum of the times in which groups were handled; null for the CPU, whose faults are instants.",
            nullable=True,
        ),
        Column(
            "moved_bytes",
            pl.Int64,
            "GPU: what page faults moved to the device while these were handled, each copy counted for the last group "
            "that began before it; null for the CPU.",
            nullable=True,
        ),
    ),
    purpose="page faults by function or kernel",
    tools=recorders("fault"),
    equals="nsys stats um_cpu_page_faults_sum (rows of the CPU)",
)

_KEYS: Final = ("side", "function", "source_file", "source_line", "device", "access")


@analysis
def faults(report: Report) -> pl.DataFrame:
    """The page faults in scope, those of the CPU first, then by count.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report records no page faults.
    """
    require(report, TABLE, "fault")
    seen = faults_seen(report)
    on_gpu = pl.col("side") == "GPU"
    rows = [_of_cpu(seen.filter(~on_gpu)), _of_gpu(report, seen.filter(on_gpu))]
    sums = (
        pl.concat(rows)
        .group_by(_KEYS)
        .agg(
            pl.col("faults").sum(),
            pl.when(pl.col("module").n_unique() == 1).then(pl.col("module").first()).alias("module"),
            pl.len().cast(pl.Int64).alias("groups"),
            pl.col("address").n_unique().cast(pl.Int64).alias("pages"),
            pl.col("address").min().alias("min_address"),
            pl.col("address").max().alias("max_address"),
            *(known_sum(name) for name in ("total_ns", "moved_bytes")),
        )
    )
    keys, texts = _KEYS[1:], pl.col("function", "source_file", "access").cast(pl.String)
    return TABLE.select(
        sums.with_columns(texts).sort("side", "faults", *keys, descending=[False, True, *(False for _ in keys)])
    )


_ROWS: Final = (
    "side",
    "function",
    "module",
    "source_file",
    "source_line",
    "device",
    "access",
    "faults",
    "address",
    "total_ns",
    "moved_bytes",
)


def _of_cpu(seen: pl.DataFrame) -> pl.DataFrame:
    none = pl.lit(None, dtype=pl.Int64)
    return seen.with_columns(none.alias("total_ns"), none.alias("moved_bytes")).select(_ROWS)


def _of_gpu(report: Report, seen: pl.DataFrame) -> pl.DataFrame:
    """The fault groups of the GPUs, with the kernel running when each began, and the bytes moved meanwhile."""
    groups = seen.with_columns(total_ns=pl.col("end") - pl.col("start")).sort("start", "event_id")
    groups = groups.with_row_index("group").with_columns(pl.lit(None, dtype=pl.Categorical).alias("function"))
    carried = _carried(report, groups)
    found = [
        _with_kernels(report, part, process, device)
        for (process, device), part in groups.partition_by("process_id", "device", as_dict=True).items()
    ]
    together = pl.concat([groups.clear(), *found]).join(carried, on="group", how="left")
    return together.with_columns(pl.col("moved_bytes").fill_null(0)).select(_ROWS)


def _with_kernels(report: Report, groups: pl.DataFrame, process: object, device: object) -> pl.DataFrame:
    """The groups of one process and device with the name of the kernel that owned the instant at which each began."""
    own = operations(report).filter(
        pl.col("kind").is_in(["kernel", "graph"])
        & pl.col("process_id").eq_missing(process)
        & pl.col("device").eq_missing(device)
    )
    line = intervals.first_come(own.sort("start", "event_id"))
    line = line.filter(pl.col("own_end") > pl.col("own_start"))
    known = line.select("own_start", "own_end", function="name")
    found = nearest(groups.drop("function"), known, ("start", "own_start"))
    ran = pl.col("own_end") > pl.col("start")
    return found.with_columns(function=pl.when(ran).then("function")).select(groups.columns)


def _carried(report: Report, groups: pl.DataFrame) -> pl.DataFrame:
    """Bytes moved to a device by page faults during each fault group: columns group, moved_bytes."""
    wanted = pl.col("cause").is_in(list(FAULT_CAUSES)) & (pl.col("way") == "to device")
    moved = moves(report).filter(wanted).select("process_id", "device", "size_bytes", at="start")
    begun = groups.select("process_id", "device", "group", "start", "end")
    held = nearest(moved, begun, ("at", "start"), ["process_id", "device"]).filter(pl.col("at") < pl.col("end"))
    return held.group_by("group").agg(moved_bytes=pl.col("size_bytes").sum())
