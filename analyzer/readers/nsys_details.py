"""What nsys records beside an event's name and times: the side tables keyed by event_id, and from which columns.

Source: as in :mod:`kanalyze.readers.nsys_events`. A column that a file lacks reads as null.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.readers.nsys_events import Named, absent_as_null

if TYPE_CHECKING:
    from collections.abc import Mapping

#: CUPTI's word for "no such id".
NO_ID: Final = 0xFFFFFFFF

#: A node's id holds the graph that it belongs to above its number there.
_NODES_OF_A_GRAPH: Final = 1 << 32


def known_id(column: str) -> pl.Expr:
    """An id; null where CUPTI says that there is none."""
    return pl.when(pl.col(column) != NO_ID).then(pl.col(column))


def graph_of_node(column: str) -> pl.Expr:
    """The graph that a node's id names; null where there is none, or where the id names no graph."""
    found = pl.col(column) // _NODES_OF_A_GRAPH
    return pl.when(found != 0).then(found)


#: The graph of a kernel, copy or memset.
_OF_GRAPH: Final = {"graph_exec_id": graph_of_node("graphNodeId"), "graph_node_id": absent_as_null("graphNodeId")}


@dataclass(frozen=True)
class Details:
    """The side table of one of nsys' tables.

    Attributes:
        source: nsys' table.
        columns: Each column as an expression over that table's integer columns.
        labels: Columns of text: the integer column and the table that spells it out.
    """

    source: str
    columns: Mapping[str, pl.Expr]
    labels: Mapping[str, Named] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The integer columns that are read."""
        plain = [name for made in self.columns.values() for name in made.meta.root_names()]
        return tuple(dict.fromkeys([*plain, *(named.column for named in self.labels.values())]))


def _copy(source: str) -> Details:
    return Details(
        source,
        {
            "size_bytes": pl.col("bytes"),
            "source_device": pl.col("srcDeviceId"),
            "target_device": pl.col("dstDeviceId"),
            "address": pl.col("virtualAddress"),
            **_OF_GRAPH,
        },
        {
            "direction": Named("copyKind", "ENUM_CUDA_MEMCPY_OPER"),
            "source_memory": Named("srcKind", "ENUM_CUDA_MEM_KIND"),
            "target_memory": Named("dstKind", "ENUM_CUDA_MEM_KIND"),
            "migration_cause": Named("migrationCause", "ENUM_CUDA_UNIF_MEM_MIGRATION"),
        },
    )


#: The side tables by name, each with the tables of nsys that it is made of.
DETAILS: Final = {
    "kernel_config": (
        Details(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            {
                "grid_x": pl.col("gridX"),
                "grid_y": pl.col("gridY"),
                "grid_z": pl.col("gridZ"),
                "block_x": pl.col("blockX"),
                "block_y": pl.col("blockY"),
                "block_z": pl.col("blockZ"),
                "registers_per_thread": pl.col("registersPerThread"),
                "static_shared_bytes": pl.col("staticSharedMemory"),
                "dynamic_shared_bytes": pl.col("dynamicSharedMemory"),
                "shared_config_bytes": absent_as_null("sharedMemoryExecuted"),
                "local_per_thread_bytes": pl.col("localMemoryPerThread"),
                **_OF_GRAPH,
            },
        ),
    ),
    "copy_detail": (_copy("CUPTI_ACTIVITY_KIND_MEMCPY"), _copy("CUPTI_ACTIVITY_KIND_MEMSET")),
    "sync_detail": (
        Details(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            {"cuda_event_id": known_id("eventId"), "record_id": known_id("eventSyncId")},
        ),
    ),
    "fault_detail": (
        Details(
            "CUDA_UM_CPU_PAGE_FAULT_EVENTS",
            {
                "side": pl.lit("CPU"),
                "address": pl.col("address"),
                "faults": pl.lit(1),
                "source_line": absent_as_null("sourceLine"),
            },
            {"function": Named("CpuInstruction"), "module": Named("module"), "source_file": Named("sourceFile")},
        ),
        Details(
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
            {"side": pl.lit("GPU"), "address": pl.col("address"), "faults": pl.col("numberOfPageFaults")},
            {"access": Named("faultAccessType", "ENUM_CUDA_UNIF_MEM_ACCESS_TYPE")},
        ),
    ),
    "memory_detail": (
        Details(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            {
                "address": pl.col("address"),
                "size_bytes": pl.col("bytes"),
                "pool": absent_as_null("localMemoryPoolAddress"),
                "pool_size_bytes": pl.col("localMemoryPoolSize"),
                "pool_used_bytes": pl.col("localMemoryPoolUtilizedSize"),
            },
            {"memory": Named("memKind", "ENUM_CUDA_MEM_KIND")},
        ),
    ),
    "graph_detail": (
        Details(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            {"graph_id": absent_as_null("graphId"), "graph_exec_id": absent_as_null("graphExecId")},
        ),
    ),
}
