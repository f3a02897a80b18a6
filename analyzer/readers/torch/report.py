"""Builds the report of a torch.profiler trace: its tables and its metadata."""

from __future__ import annotations

from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.errors import CannotTellError
from kanalyze.model import (
    COLLECTIVE_DETAIL,
    COMPILED_KERNELS,
    COPY_DETAIL,
    EVENT_RECORDS,
    EVENTS,
    KERNEL_CONFIG,
    KINDS,
    MEMORY_DETAIL,
    OP_DETAIL,
    RANGE_DETAIL,
    READER_TABLES,
    SYNC_DETAIL,
)
from kanalyze.readers.torch.frames import FRAME_KINDS, FRAME_OF, ON_DEVICE
from kanalyze.readers.torch.links import SYNC_NAMES, Links, Owners, event_records, known_id, sync_detail
from kanalyze.readers.torch.machine import devices, gpu_metrics, notes, processes, whole, without_echoes
from kanalyze.report import Meta, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kanalyze.readers.torch.frames import Frames

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


def report_of(path: Path, frames: Frames) -> Report:
    """The report of `frames`, read from `path`."""
    return Report(_meta(path, frames), TorchTables(path, without_echoes(frames)))


def _meta(path: Path, frames: Frames) -> Meta:
    told = frames.properties
    schema, ranks = told.get("schemaVersion"), told.get("distributedInfo")
    ranks = ranks if isinstance(ranks, dict) else {}
    return Meta(
        path=path,
        tool="torch.profiler",
        schema_version=None if schema is None else str(schema),
        origin_unix_ns=whole(told.get("baseTimeNanoseconds")),
        duration_ns=_length_ns(frames),
        rank=whole(ranks.get("rank")),
        world_size=whole(ranks.get("world_size")),
    )


def _length_ns(frames: Frames) -> int | None:
    """The recorded time span; with several profilers the longest."""
    longest: int | None = frames.frame("Span").select(pl.col("dur_ns").max()).item()
    return longest


# Tables of a torch.profiler trace, built on demand from its frames (:mod:`kanalyze.readers.torch.frames`).
#
# Facts about the format: docs/formats.md. A trace holds one process, or several that were merged; its device events
# name the device where a host event names the process, so that a device event belongs to the process of the call with
# its correlation id.

#: Kinds recorded together: if one occurs, all were recorded. Calls imply nothing, as CPU-only profiles have them too.
_TOGETHER: Final = (("kernel", "memcpy", "memset"), ("op", "range"))

_USED: Final = {"process_id": pl.Int64, "device": pl.Int64}

#: Whether an allocation is on a GPU, by `device_type` (c10::DeviceType): CUDA, HIP, XPU.
_ON_GPU: Final = pl.col("device_type").is_in((1, 6, 12))


class TorchTables:
    """Tables of one trace; see :class:`kanalyze.source.Source`."""

    def __init__(self, path: Path, frames: Frames) -> None:
        """Build tables from `frames`, read from `path`."""
        self._path = path
        self._frames = frames
        self._lock = RLock()  # most of it is shared by two tables

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that were recorded: those that occur, and those always recorded with them."""
        found = {kind for frame, kind in FRAME_KINDS.items() if frame in self._frames.events}
        for kinds in _TOGETHER:
            if found.intersection(kinds):
                found.update(kinds)
        return tuple(kind for kind in KINDS if kind in found)

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, as :data:`kanalyze.model.EVENTS`."""
        with self._lock:
            return self._events(kind)

    def _events(self, kind: str) -> pl.DataFrame:
        name = FRAME_OF.get(kind, "")
        if name not in self._frames.events:
            return EVENTS.empty()
        frame = self._frames.frame(name)
        made = self._placed(name, frame)
        own: dict[str, pl.Expr | pl.Series] = {
            "event_id": self._links.ids(name),
            "kind": pl.lit(kind),
            "name": self._names(name, frame),
            "dur_ns": pl.col("dur_ns").fill_null(0),
            "parent_id": self._links.parents(name),
        }
        if "correlation" in made.columns:
            own["correlation_id"] = pl.when(pl.col("correlation") > 0).then("correlation")
        if "context" in made.columns:
            own["context_id"] = pl.col("context")
        return EVENTS.select(EVENTS.completed(made.with_columns(**own)))

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""
        tables: dict[str, Callable[[], pl.DataFrame]] = {
            KERNEL_CONFIG.name: self._kernel_config,
            COPY_DETAIL.name: self._copy_detail,
            RANGE_DETAIL.name: self._range_detail,
            SYNC_DETAIL.name: lambda: sync_detail(self._frames.frame("Sync"), self._links.ids("Sync")),
            EVENT_RECORDS.name: lambda: event_records(
                self._frames.frame("Sync"), self._frames.frame("Record"), self._owners
            ),
            MEMORY_DETAIL.name: self._memory_detail,
            OP_DETAIL.name: self._op_detail,
            COLLECTIVE_DETAIL.name: self._collective_detail,
            COMPILED_KERNELS.name: self._no_capture,
            "devices": lambda: devices(self._frames, self._used),
            "processes": lambda: processes(self._frames, self._used),
            "gpu_metrics": lambda: gpu_metrics(self._frames.frame("Counter")),
            "notes": lambda: notes(self._frames),
        }
        declared = READER_TABLES[name]
        with self._lock:
            return declared.select(declared.completed(tables[name]())) if name in tables else declared.empty()

    def close(self) -> None:
        """Release the frames; no further tables can be built."""
        with self._lock:
            for name in ("_frames", "_links", "_owners"):
                vars(self).pop(name, None)

    def notes_of_read(self) -> pl.DataFrame:
        """All notes: the frames were read at once."""
        return self.table("notes")

    def _no_capture(self) -> pl.DataFrame:
        raise CannotTellError.without_capture("compiled", self._path)

    def _placed(self, name: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Adds `process_id` and, for host events, `thread_id`; for device events, `device` and `stream`."""
        if name not in ON_DEVICE:
            moved = frame.with_columns(process_id="pid", thread_id="tid")
            return moved.with_columns(device=pl.when(_ON_GPU).then("device")) if name == "Memory" else moved
        device, stream = pl.coalesce("device", "pid"), known_id(pl.coalesce("stream", "tid"))
        return frame.with_columns(process_id=self._owners.processes(frame), device=device, stream=stream)

    @cached_property
    def _process_of_devices(self) -> int | None:
        """The default process of device events without a call: the one with most calls, else most operators."""
        for name in ("Call", "Op", "Annotation", "Python"):
            pids = self._frames.frame(name).get_column("pid").drop_nulls()
            if len(pids):
                return int(pids.value_counts(sort=True).item(0, 0))
        named = [pid for pid, _, _ in self._frames.names]
        return max(named, default=None)

    @cached_property
    def _owners(self) -> Owners:
        return Owners.of(self._process_of_devices, self._frames.frame("Call"), map(self._frames.frame, ON_DEVICE))

    @property
    def _used(self) -> pl.DataFrame:
        """Pairs of process and device used; the default process if there are none."""
        main = pl.DataFrame({"process_id": [self._process_of_devices], "device": None}, schema=_USED)
        work = [
            self._placed(name, self._frames.frame(name)).select(pl.col(column).cast(pl.Int64) for column in _USED)
            for name in ("Kernel", "Copy", "Memset")
        ]
        return pl.concat([main, *work])

    @cached_property
    def _links(self) -> Links:
        return Links(self._frames, self._owners)

    def _names(self, name: str, frame: pl.DataFrame) -> pl.Expr | pl.Series:
        if name in {"Copy", "Memset"}:
            texts = copies_told(copy_names(frame), memset=name == "Memset")
            shown = texts.get_column("shown")
            return shown.cast(pl.String).str.replace(r"^\[CUDA ", "[HIP ").cast(shown.dtype) if self._in_hip else shown
        if name == "Memory":
            return memory_name()
        if name == "Sync":
            return pl.col("name").cast(pl.String).replace(SYNC_NAMES)
        return pl.col("name")

    def _kernel_config(self) -> pl.DataFrame:
        frame = self._frames.frame("Kernel")
        shapes = [*launch_shapes(frame.get_column("grid"), "grid"), *launch_shapes(frame.get_column("block"), "block")]
        return self._in_blocks(frame.with_columns(*shapes)).with_columns(
            event_id=self._links.ids("Kernel"),
            registers_per_thread="registers",
            static_shared_bytes=pl.when(pl.col("shared_bytes").is_not_null()).then(0),
            dynamic_shared_bytes="shared_bytes",
            **_of_graph(),
        )

    @cached_property
    def _in_hip(self) -> bool:
        """Whether the program uses HIP."""
        names = self._frames.frame("Call").get_column("name").unique().cast(pl.String)
        return bool(names.str.contains("^hip[A-Z]").any())

    def _in_blocks(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """Converts the grids of kernels launched by a call that takes work-items to blocks."""
        calls = self._frames.frame("Call").filter(pl.col("name").cast(pl.String) == IN_WORK_ITEMS)
        ids = calls.get_column("correlation").drop_nulls().unique().implode()
        in_items = pl.col("correlation").is_in(ids).fill_null(value=False)
        return kernels.with_columns(
            pl.when(in_items & (pl.col(f"block_{axis}") > 0))
            .then((pl.col(f"grid_{axis}").cast(pl.Int64) + pl.col(f"block_{axis}") - 1) // pl.col(f"block_{axis}"))
            .otherwise(f"grid_{axis}")
            .cast(pl.Int32)
            .alias(f"grid_{axis}")
            for axis in "xyz"
        )

    def _copy_detail(self) -> pl.DataFrame:
        found = []
        for name in ("Copy", "Memset"):
            frame = self._frames.frame(name)
            told = copies_told(copy_names(frame), memset=name == "Memset").drop("shown")
            found.append(frame.with_columns(event_id=self._links.ids(name), **_of_graph()).hstack(told))
        return pl.concat(found)

    def _range_detail(self) -> pl.DataFrame:
        return self._frames.frame("Annotation").select(event_id=self._links.ids("Annotation"), style=pl.lit("PushPop"))

    def _memory_detail(self) -> pl.DataFrame:
        return self._frames.frame("Memory").select(
            event_id=self._links.ids("Memory"),
            memory=pl.when(_ON_GPU).then(pl.lit("Device")).otherwise(pl.lit("Pageable")),
            address=pl.col("address").fill_null(0),
            size_bytes=pl.col("size_bytes").abs().fill_null(0),
            pool_size_bytes=pl.when(_ON_GPU).then("reserved_bytes"),
            pool_used_bytes=pl.when(_ON_GPU).then("allocated_bytes"),
        )

    def _op_detail(self) -> pl.DataFrame:
        annotations = self._frames.frame("Annotation").with_columns(event_id=self._links.ids("Annotation"))
        ops = self._frames.frame("Op").with_columns(
            event_id=self._links.ids("Op"),
            sequence_number=pl.when(pl.col("sequence_number") >= 0).then("sequence_number"),
            forward_id=self._links.forwards(),
        )
        return pl.concat([annotations, ops], how="diagonal")

    def _collective_detail(self) -> pl.DataFrame:
        first = pl.col("kind").replace_strict(self._links.first_ids, default=None, return_dtype=pl.Int64)
        return self._frames.collectives.with_columns(event_id=first + pl.col("row")).drop_nulls("event_id")


def _of_graph() -> dict[str, pl.Expr]:
    """The graph that launched a device event; 0 becomes null."""
    names = ("graph_exec_id", "graph_node_id")
    return {name: pl.when(pl.col("graph_exec_id") > 0).then(name) for name in names}


def copy_names(copies: pl.DataFrame) -> pl.Series:
    """The names of copies or memsets, as Kineto writes them; those of PyTorch 2.15 are in their arguments."""
    names = copies.get_column("name")
    if copies.get_column("copy_kind").is_null().all():
        return names
    way, *memory = (
        pl.col(name).cast(pl.String).str.strip_chars('"') for name in ("copy_kind", "source_kind", "target_kind")
    )
    source, target = (one.str.replace_all("_", " ").str.to_titlecase() for one in memory)
    told = pl.coalesce(pl.format("Memcpy {} ({} -> {})", way, source, target), pl.col("name").cast(pl.String))
    return copies.select(told.cast(names.dtype)).to_series().alias("name")


def copies_told(names: pl.Series, *, memset: bool) -> pl.DataFrame:
    """Parses names of copies or memsets, row by row.

    Columns: shown (the name as nsys writes it), direction, source_memory and target_memory; null where not told.
    """
    text, nothing = pl.col("text"), pl.lit(None, dtype=pl.String)
    if memset:
        shown, direction, source, target = pl.lit("[CUDA memset]"), nothing, nothing, text.str.extract(r"\((.+)\)")
    else:
        way, *memory = (text.str.extract(_COPY, group) for group in (1, 2, 3))
        direction = pl.when(way.is_in([*_DIRECTIONS])).then(way.replace(_DIRECTIONS))
        shown = pl.when(direction.is_null()).then(text).otherwise(pl.format("[CUDA memcpy {}]", direction))
        source, target = (pl.when(one != "Unknown").then(one) for one in memory)
    columns = {"shown": shown, "direction": direction, "source_memory": source, "target_memory": target}
    return _parsed(names, {name: column.cast(pl.Categorical) for name, column in columns.items()})


def launch_shapes(texts: pl.Series, prefix: str) -> list[pl.Series]:
    """Parses texts such as ``[256, 1, 1]`` into three series of sizes (``grid_x``…); 0 if absent."""
    sizes = {
        f"{prefix}_{axis}": pl.col("text").str.extract(_SHAPE, number).cast(pl.Int32, strict=False).fill_null(0)
        for number, axis in enumerate("xyz", 1)
    }
    return _parsed(texts, sizes).get_columns()


def _parsed(texts: pl.Series, columns: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """The `columns`, expressions over a column "text", of all `texts`; each distinct text is parsed once."""
    distinct = texts.unique()
    known = distinct.cast(pl.String).alias("text").to_frame().select(**columns).insert_column(0, distinct.alias("key"))
    rows = texts.alias("key").to_frame().join(known, on="key", how="left", nulls_equal=True, maintain_order="left")
    return rows.drop("key")


def memory_name() -> pl.Expr:
    """The name of an allocator event: allocation, free or out of memory."""
    out = pl.col("name").cast(pl.String) == "[OutOfMemory]"
    taken = pl.when(pl.col("size_bytes") < 0).then(pl.lit("Deallocation")).otherwise(pl.lit("Allocation"))
    return pl.when(out).then(pl.lit("Out of memory")).otherwise(taken)
