"""The machine in an nsys export: GPUs, processes, and which process calls which GPU by what number."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.device_limits import plausible
from kanalyze.model import DEVICES, PROCESSES, STREAMS
from kanalyze.readers.nsys.events import DEVICE_COLUMNS, EVENT_TABLES, process_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.readers.storage.table_file import TableFile


class Machine:
    """GPUs and processes of one database, each table read once."""

    def __init__(self, database: TableFile) -> None:
        """Read from `database` when something is first asked for."""
        self._database = database

    @cached_property
    def gpus(self) -> dict[tuple[int, int], int]:
        """The GPU by (process id, CUDA ordinal); empty where the file does not say."""
        columns = dict.fromkeys(("pid", "cudaId", "gpuId"), pl.Int64)
        rows = self._database.frame("TARGET_INFO_CUDA_DEVICE", columns).drop_nulls()
        return {(pid, ordinal): gpu for pid, ordinal, gpu in rows.iter_rows()}

    @property
    def to_gpu(self) -> Callable[[pl.DataFrame], pl.DataFrame]:
        """A function that adds the column `device`, the GPU, to rows with `deviceId`, the process's own ordinal.

        A process that the file says nothing about keeps its ordinals.
        """
        moved = {key: gpu for key, gpu in self.gpus.items() if gpu != key[1]}
        if not moved:
            return lambda raw: raw.with_columns(pl.col("deviceId").alias("device"))
        known = pl.DataFrame(
            [(pid, ordinal, gpu) for (pid, ordinal), gpu in moved.items()],
            schema={"pid": pl.Int64, "deviceId": pl.Int64, "device": pl.Int64},
            orient="row",
        )

        def add(raw: pl.DataFrame) -> pl.DataFrame:
            pid = pl.coalesce(process_of("globalTid"), process_of("globalPid")).alias("pid")
            joined = raw.with_columns(pid).join(known, on=["pid", "deviceId"], how="left", maintain_order="left")
            return joined.with_columns(pl.coalesce("device", "deviceId").alias("device"))

        return add

    def devices(self) -> pl.DataFrame:
        """The GPUs, as :data:`kanalyze.model.DEVICES`; one that only events name has nulls for its limits."""
        types = {found: DEVICES.schema[name] for name, found in DEVICE_COLUMNS.items()}
        types |= {"computeMajor": pl.Int64, "computeMinor": pl.Int64}
        rows = self._database.frame("TARGET_INFO_GPU", types).drop_nulls(DEVICE_COLUMNS["device"])
        capability = pl.format("{}.{}", "computeMajor", "computeMinor").alias("compute_capability")
        known = rows.select(capability, **{name: pl.col(found) for name, found in DEVICE_COLUMNS.items()})
        others = sorted(self._devices_used() - set(known.get_column("device")))
        named = pl.DataFrame({"device": others}, schema={"device": pl.Int64})
        every = pl.concat([plausible(known), named], how="diagonal")
        return DEVICES.select(every.unique("device", keep="first").sort("device"))

    def processes(self) -> pl.DataFrame:
        """The processes that CUDA events name, as :data:`kanalyze.model.PROCESSES`."""
        names = dict(self._database.frame("PROCESSES", {"pid": pl.Int64, "name": pl.String}).iter_rows())
        sees: dict[int, list[tuple[int | None, int | None]]] = {}
        for (pid, ordinal), gpu in self.gpus.items():
            sees.setdefault(pid, []).append((ordinal, gpu))
        for pid in self._processes_used():
            sees.setdefault(pid, [(None, None)])
        rows = [(pid, names.get(pid), *pair) for pid, pairs in sees.items() for pair in pairs]
        frame = pl.DataFrame(rows, schema=PROCESSES.schema, orient="row")
        return PROCESSES.select(frame.sort("process_id", "cuda_ordinal"))

    def _devices_used(self) -> set[int]:
        """GPUs by their ordinals, in files that say nothing of GPUs; empty in all others."""
        if self.gpus:
            return set(self.gpus.values())
        return self._distinct("deviceId", ("kernel", "graph", "memcpy", "memset"))

    def _processes_used(self) -> set[int]:
        if self.gpus:
            return {pid for pid, _ in self.gpus}
        threads = pl.DataFrame(
            {"globalTid": sorted(self._distinct("globalTid", ("api",)))}, schema={"globalTid": pl.Int64}
        )
        return set(threads.select(process_of("globalTid")).to_series().drop_nulls().to_list())

    def _distinct(self, column: str, kinds: tuple[str, ...]) -> set[int]:
        tables = (spec.table for spec in EVENT_TABLES if spec.kind in kinds)
        return set().union(*(self._database.distinct(table, column) for table in tables))


# The CUDA streams that an nsys export names: what kind each is, and its priority.
#
# Source: the column comments of TARGET_INFO_CUDA_STREAM, whose `flag` is CUPTI's CUpti_ActivityStreamFlag, and of the
# tables that name each context's null stream (TARGET_INFO_CUDA_CONTEXT_INFO, in older exports
# TARGET_INFO_CUDA_NULL_STREAM).

#: CUPTI calls a stream of cudaStreamDefault, which waits for the null stream, a "default stream".
_TYPES: Final = {1: "blocking", 2: "non-blocking", 3: "null"}

_KEYS: Final = ("processId", "contextId", "streamId")
_NULL_STREAMS: Final = {
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId",
    "TARGET_INFO_CUDA_NULL_STREAM": "streamId",
}

#: A priority is signed, and stands in the file as an unsigned number of 32 bits.
_SIGN: Final = 1 << 31


def streams(database: TableFile) -> pl.DataFrame:
    """The streams of one export, as :data:`kanalyze.model.STREAMS`, by process, context and number."""
    whole = dict.fromkeys((*_KEYS, "priority", "flag"), pl.Int64)
    made = database.frame("TARGET_INFO_CUDA_STREAM", whole).select(
        *_KEYS,
        pl.col("flag").replace_strict(_TYPES, default=None, return_dtype=pl.String).alias("type"),
        ((pl.col("priority") + _SIGN) % (2 * _SIGN) - _SIGN).alias("priority"),
    )
    null = [
        database.frame(table, dict.fromkeys(("processId", "contextId", column), pl.Int64)).select(
            "processId", "contextId", pl.col(column).alias("streamId"), pl.lit("null").alias("type")
        )
        for table, column in _NULL_STREAMS.items()
    ]
    known = pl.concat([*null, made], how="diagonal").drop_nulls(_KEYS)
    merged = known.group_by(_KEYS).agg(pl.col("type", "priority").drop_nulls().first())
    names = database.frame("TARGET_INFO_NVTX_CUDA_STREAM", {**dict.fromkeys(_KEYS, pl.Int64), "name": pl.String})
    named = merged.join(names.unique(_KEYS, keep="last", maintain_order=True), on=_KEYS, how="left")
    return STREAMS.select(
        named.select(
            "type", "priority", "name", process_id="processId", context_id="contextId", stream="streamId"
        ).sort("process_id", "context_id", "stream")
    )
