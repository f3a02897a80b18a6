"""Builds the report of a torch.profiler trace: its tables and its metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Final

import polars as pl

from kanalyze.columns import telling
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
from kanalyze.readers.torch.frames import FRAME_KINDS, FRAME_OF, ON_DEVICE, PLACE, Frames
from kanalyze.readers.torch.machine import devices, gpu_metrics, notes, processes, whole, without_echoes
from kanalyze.report import Meta, Report

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
        # with several profilers the longest recording
        duration_ns=frames.frame("Span").select(pl.col("dur_ns").max()).item(),
        rank=whole(ranks.get("rank")),
        world_size=whole(ranks.get("world_size")),
    )


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
    """Tables of one trace; see :class:`kanalyze.schema.Source`."""

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
        made = self._placed(name)
        own: dict[str, pl.Expr | pl.Series] = {
            "event_id": self._links.ids(name),
            "kind": pl.lit(kind),
            "name": self._names(name),
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
            RANGE_DETAIL.name: lambda: self._frames.frame("Annotation").select(
                event_id=self._links.ids("Annotation"), style=pl.lit("PushPop")
            ),
            SYNC_DETAIL.name: lambda: sync_detail(self._frames.frame("Sync"), self._links.ids("Sync")),
            EVENT_RECORDS.name: lambda: event_records(
                self._frames.frame("Sync"), self._frames.frame("Record"), self._owners
            ),
            MEMORY_DETAIL.name: self._memory_detail,
            OP_DETAIL.name: self._op_detail,
            COLLECTIVE_DETAIL.name: self._collective_detail,
            "devices": lambda: devices(self._frames, self._used),
            "processes": lambda: processes(self._frames, self._used),
            "gpu_metrics": lambda: gpu_metrics(self._frames.frame("Counter")),
            "notes": lambda: notes(self._frames),
        }
        if name == COMPILED_KERNELS.name:
            raise CannotTellError.without_capture("compiled", self._path)
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

    def _placed(self, name: str) -> pl.DataFrame:
        """A frame with `process_id` and, for host events, `thread_id`; for device events, `device` and `stream`."""
        frame = self._frames.frame(name)
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
            self._placed(name).select(pl.col(column).cast(pl.Int64) for column in _USED)
            for name in ("Kernel", "Copy", "Memset")
        ]
        return pl.concat([main, *work])

    @cached_property
    def _links(self) -> Links:
        return Links(self._frames, self._owners)

    def _names(self, name: str) -> pl.Expr | pl.Series:
        text = pl.col("name").cast(pl.String)
        if name in {"Copy", "Memset"}:
            shown = copies_told(copy_names(self._frames.frame(name)), memset=name == "Memset").get_column("shown")
            calls = self._frames.frame("Call").get_column("name").unique().cast(pl.String)
            if calls.str.contains("^hip[A-Z]").any():
                return shown.cast(pl.String).str.replace(r"^\[CUDA ", "[HIP ").cast(shown.dtype)
            return shown
        if name == "Memory":
            freed = pl.when(pl.col("size_bytes") < 0).then(pl.lit("Deallocation")).otherwise(pl.lit("Allocation"))
            return pl.when(text == "[OutOfMemory]").then(pl.lit("Out of memory")).otherwise(freed)
        return text.replace(SYNC_NAMES) if name == "Sync" else pl.col("name")

    def _kernel_config(self) -> pl.DataFrame:
        frame = self._frames.frame("Kernel")
        shapes = [*launch_shapes(frame.get_column("grid"), "grid"), *launch_shapes(frame.get_column("block"), "block")]
        return self._in_blocks(frame.with_columns(*shapes)).with_columns(
            event_id=self._links.ids("Kernel"),
            registers_per_thread="registers",
            static_shared_bytes=pl.when(pl.col("shared_bytes").is_not_null()).then(0),
            dynamic_shared_bytes="shared_bytes",
            **_OF_GRAPH,
        )

    def _in_blocks(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """Converts the grids of kernels launched by a call that takes work-items to blocks."""
        calls = self._frames.frame("Call").filter(pl.col("name").cast(pl.String) == IN_WORK_ITEMS)
        ids = calls.get_column("correlation").drop_nulls().unique().implode()
        in_items = pl.col("correlation").is_in(ids).fill_null(value=False)
        sizes = ((pl.col(f"grid_{axis}"), pl.col(f"block_{axis}")) for axis in "xyz")
        return kernels.with_columns(
            pl.when(in_items & (block > 0))
            .then((grid.cast(pl.Int64) + block - 1) // block)
            .otherwise(grid)
            .cast(pl.Int32)
            for grid, block in sizes
        )

    def _copy_detail(self) -> pl.DataFrame:
        found = []
        for name in ("Copy", "Memset"):
            frame = self._frames.frame(name)
            told = copies_told(copy_names(frame), memset=name == "Memset").drop("shown")
            found.append(frame.with_columns(event_id=self._links.ids(name), **_OF_GRAPH).hstack(told))
        return pl.concat(found)

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


#: The graph that launched a device event; 0 becomes null.
_OF_GRAPH: Final = {
    name: pl.when(pl.col("graph_exec_id") > 0).then(name) for name in ("graph_exec_id", "graph_node_id")
}


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


# Links between events of a trace: call to operator, Python callee to caller, backward to forward operator.
#
# Everything is expressed in event ids: those of a frame are consecutive, beginning with its first row's.


@dataclass(frozen=True)
class Links:
    """Links between the events of `frames`; `owners` maps device events to processes."""

    frames: Frames
    owners: Owners

    @cached_property
    def first_ids(self) -> dict[str, int]:
        """The event id of the first row of each frame."""
        first, ids = 0, {}
        for name in FRAME_KINDS:
            ids[name] = first
            first += self.frames.frame(name).height
        return ids

    def ids(self, name: str) -> pl.Expr:
        """The event ids of a frame's rows, as an expression."""
        first = self.first_ids[name]
        return pl.int_range(first, first + pl.len(), dtype=pl.Int64)

    def parents(self, name: str) -> pl.Series:
        """The parent of each event in a frame: the operator or range by External id, the Python caller by Python id."""
        frame = self.frames.frame(name)
        if name == "Python":
            known = frame.select(caller="python_id", pid="pid", parent=self.ids("Python")).drop_nulls()
            known = known.unique(["caller", "pid"], keep="first")
            keys = frame.select("caller", "pid")
            return keys.join(known, on=["caller", "pid"], how="left", maintain_order="left").get_column("parent")
        if name == "Kernel" and "Launch" in self.frames.events:
            return self._launching(frame)
        if name in {"Op", "Annotation"} or "external_id" not in frame.columns:
            return _nothing(frame)
        return self._makers(name, frame)

    def _makers(self, name: str, frame: pl.DataFrame) -> pl.Series:
        """The operator or range that issued each call or device event; of repeated ids the first.

        From torch 1.11 to 2.2 (2.5 where there was no operator) `External id` is the event's own correlation id, which
        says nothing. Later versions leave it out where there was no operator; there the two are the same by chance,
        but for synchronisations, of which it still is the event's own.
        """
        told = pl.col("external_id") != pl.col("correlation").fill_null(-1)
        told = told | pl.lit(name != "Sync" and self._external_ids_may_lack)
        pid = self.owners.processes(frame) if name in ON_DEVICE else frame.get_column("pid")
        keys = frame.select(pl.when(told).then("external_id").alias("external_id"), pid.alias("pid"))
        parts = (
            self.frames.frame(of).select("external_id", "pid", event_id=self.ids(of)) for of in ("Op", "Annotation")
        )
        known = pl.concat(parts).filter(pl.col("external_id") != 0).unique(["external_id", "pid"], keep="first")
        found = keys.join(known, on=["external_id", "pid"], how="left", maintain_order="left")
        return found.get_column("event_id")

    @cached_property
    def _external_ids_may_lack(self) -> bool:
        """Whether any call or device event has no `External id`, as if issued outside of an operator."""
        frames = map(self.frames.frame, ("Call", "Kernel", "Copy", "Memset"))
        return any(frame.get_column("external_id").has_nulls() for frame in frames)

    def _launching(self, kernels: pl.DataFrame) -> pl.Series:
        """The operator of each kernel in traces of the first profilers, which link operators to kernels by flows.

        Such a kernel has the operator's name, and stands for all device work of the operator.
        """
        links = self.frames.events["Launch"]
        ends = {ph: links.filter(pl.col("ph") == ph).select("id", "tid", "start_ns") for ph in ("s", "f")}
        linked = ends["f"].join(ends["s"].unique("id", keep="first"), on="id", suffix="_op").drop("id")
        ops = self.frames.frame("Op").select("name", tid_op="tid", start_ns_op="start_ns", event_id=self.ids("Op"))
        at = ["tid_op", "start_ns_op"]
        ops = telling(ops.unique([*at, "name"], keep="last", maintain_order=True), at)
        known = linked.join(ops, on=at).unique(["tid", "start_ns", "name"], keep="last")
        keys = ["tid", "start_ns", "name"]
        found = kernels.select(keys).join(known.select(*keys, "event_id"), on=keys, how="left", maintain_order="left")
        return found.get_column("event_id")

    def forwards(self) -> pl.Series:
        """The forward operator of each operator, by flow events; null if none."""
        op, links = self.frames.frame("Op"), self.frames.frame("Link")
        if links.is_empty():
            return _nothing(op)
        # of the operators that start together on a thread, the innermost one (recorded last) has the flow
        linked_at = pl.col("start_ns").is_in(links.get_column("start_ns").unique().implode())
        at = op.select(*PLACE, event_id=self.ids("Op")).filter(linked_at).unique(PLACE, keep="last")
        ends = {ph: links.filter(pl.col("ph") == ph).select("id", *PLACE) for ph in ("s", "f")}
        linked = ends["f"].join(ends["s"].unique("id", keep="first"), on="id", suffix="_forward")
        before = [f"{name}_forward" for name in PLACE]
        known = linked.join(at, left_on=before, right_on=PLACE).select(*PLACE, forward_id="event_id")
        known = known.unique(PLACE, keep="first").join(at, on=PLACE).select("event_id", "forward_id")
        rows = known.get_column("event_id") - self.first_ids["Op"]
        return _nothing(op).alias("forward_id").scatter(rows, known.get_column("forward_id"))


def _nothing(frame: pl.DataFrame) -> pl.Series:
    return pl.Series([None], dtype=pl.Int64).new_from_index(0, frame.height)


# Assigns device events of a trace to processes.
#
# A device event names the device where a host event names the process. In a trace of one process that is no question;
# in several that were merged, a device event belongs to the process of the call with its correlation id. Processes
# number their calls alike, so that most ids are those of several; then what the other events of the same device and
# context belong to tells.

#: Key of a group of device events that belong to one process.
_GROUP: Final = ("pid", "device", "context")


@dataclass(frozen=True)
class Owners:
    """Maps device events to processes.

    Attributes:
        main: The default process.
        calls: The calls: correlation, process, called (their start); none where there is only one process.
        groups: The process of most events of a device and context: pid, device, context, process.
    """

    main: int | None
    calls: pl.DataFrame | None = None
    groups: pl.DataFrame | None = None

    @classmethod
    def of(cls, main: int | None, calls: pl.DataFrame, work: Iterable[pl.DataFrame]) -> Owners:
        """Infers the owners from the device events in `work`, joined to `calls` by correlation id."""
        if calls.is_empty() or calls.get_column("pid").n_unique() == 1:
            return cls(main)
        known = calls.select("correlation", process="pid", called="start_ns").drop_nulls()
        known = known.filter(pl.col("correlation") > 0)
        first = telling(known.group_by("correlation", "process").agg(pl.col("called").min()), ["correlation"])
        pairs = [frame.select(*_GROUP, "correlation", "start_ns").join(first, on="correlation") for frame in work]
        before = (pl.col("start_ns") < pl.col("called")).sum()
        votes = pl.concat(pairs).group_by(*_GROUP, "process").agg(joined=pl.len(), before=before)
        return cls(main, known, _elected(votes))

    def processes(self, frame: pl.DataFrame) -> pl.Series:
        """The process of each device event in a frame."""
        if self.calls is None or self.groups is None or "correlation" not in frame.columns:
            return pl.Series([self.main], dtype=pl.Int64).new_from_index(0, frame.height)
        keys = frame.select(*_GROUP, "correlation")
        own = self.calls.select("correlation", "process").unique()
        usual = keys.join(self.groups, on=_GROUP, how="left", nulls_equal=True, maintain_order="left")
        single = own.unique("correlation", keep="none").select("correlation", single="process")
        usual = usual.join(single, on="correlation", how="left", maintain_order="left")
        return usual.select(pl.coalesce("single", "process", pl.lit(self.main, dtype=pl.Int64))).to_series()


def _elected(votes: pl.DataFrame) -> pl.DataFrame:
    """Elects the process of each group: the one with most of its events, none of them before its call.

    Where several did, it is one that no other group belongs to; and the first group belongs to the first process, as
    ranks are started. `votes` has for each group and process how many events they share, and how many of these began
    before their calls.
    """
    most = (pl.col("joined") == pl.col("joined").max()).over(_GROUP)
    least = (pl.col("before") == pl.col("before").min()).over(_GROUP)
    line = votes.filter(most).filter(least).sort(*_GROUP, "process")
    able: dict[tuple[int | None, ...], list[int]] = {}
    for *group, process in line.select(*_GROUP, "process").iter_rows():
        able.setdefault(tuple(group), []).append(process)
    found: dict[tuple[int | None, ...], int] = {}
    while able:
        taken = set(found.values())
        free = {group: [one for one in some if one not in taken] or some for group, some in able.items()}
        surest = min(free, key=lambda group: len(free[group]))
        found[surest] = free[surest][0]
        del able[surest]
    rows = [(*group, process) for group, process in found.items()]
    return pl.DataFrame(rows, schema={**dict.fromkeys(_GROUP, pl.Int64), "process": pl.Int64}, orient="row")


# Synchronisations in a trace: their names, and the recorded CUDA event that they waited for.
#
# Kineto names the recording that a wait waits for by the correlation id of the call that made it, and the stream that
# it was recorded into; both in the context of the wait itself (libkineto/src/CuptiActivityProfiler.cpp). -1 is none.

#: Kineto's names of synchronisations, mapped to nsys' names.
SYNC_NAMES: Final = {
    "Event Sync": "Event sync",
    "Stream Wait Event": "Stream wait sync",
    "Stream Sync": "Stream sync",
    "Context Sync": "Context sync",
    "Unknown Sync": "Unknown",
}

#: CUPTI's invalid id, which some versions write as -1.
_NO_ID: Final = 0xFFFFFFFF


def known_id(ids: pl.Expr) -> pl.Expr:
    """Ids with invalid ones replaced by null."""
    return pl.when(ids.is_between(0, _NO_ID, closed="left")).then(ids)


def sync_detail(syncs: pl.DataFrame, ids: pl.Expr) -> pl.DataFrame:
    """Stream or event that each of `syncs` waited for: :data:`kanalyze.model.SYNC_DETAIL`; `ids` are event ids."""
    event = known_id(pl.col("cuda_event_id"))
    return syncs.select(event_id=ids, cuda_event_id=event, record_id=_recording())


def event_records(syncs: pl.DataFrame, records: pl.DataFrame, owners: Owners) -> pl.DataFrame:
    """Recorded CUDA events, as :data:`kanalyze.model.EVENT_RECORDS`.

    They are `records` where the trace has them (Kineto since November 2025), and those that `syncs` waited for. A
    recording is numbered by the call that made it.
    """
    recorded = records.with_columns(
        process_id=owners.processes(records),
        context_id="context",
        stream=known_id(pl.col("stream")),
        correlation_id="correlation",
        record_id="correlation",
    )
    awaited = syncs.with_columns(process_id=owners.processes(syncs), record_id=_recording()).drop_nulls("record_id")
    awaited = awaited.with_columns(
        context_id="context",
        stream=known_id(pl.col("record_stream")),
        correlation_id="record_id",
        cuda_event_id=known_id(pl.col("cuda_event_id")),
    )
    return pl.concat(map(EVENT_RECORDS.select, (recorded, awaited))).unique(
        ["process_id", "record_id"], keep="first", maintain_order=True
    )


def _recording() -> pl.Expr:
    """The recorded CUDA event each synchronisation waited for, provided that it was recorded before."""
    record = pl.col("record_correlation")
    return pl.when((record > 0) & (record < pl.col("correlation"))).then(record)
