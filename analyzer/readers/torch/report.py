"""Builds the report of a torch.profiler trace: its tables and its metadata."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, product
from pathlib import Path
from threading import RLock
from typing import Final

import polars as pl

from kanalyze import model, report
from kanalyze.columns import gathered, of_parts, positions, telling
from kanalyze.readers.torch import frames as of_trace

#: Copy directions as in Kineto's names (``Memcpy HtoD (Pageable -> Device)``), and in nsys.
_SIDES: Final = {"H": "Host", "D": "Device", "A": "Array"}
_DIRECTIONS: Final = {
    **{f"{source}to{target}": f"{_SIDES[source]}-to-{_SIDES[target]}" for source, target in product(_SIDES, repeat=2)},
    "PtoP": "Peer-to-Peer",
    "HtoD_UVM": "Unified Host-to-Device",
}
_COPY: Final = r"^(?:Memcpy|CopyDeviceToDevice|Copy)\s*(\w+)?(?:\s*\((.*?)\s*->\s*(.*?)\))?"
#: HIP's launch call whose grid is in work-items (threads), where all others take blocks. Kineto records the
#: arguments of the call.
IN_WORK_ITEMS: Final = "hipExtModuleLaunchKernel"
_SHAPE: Final = r"^\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]$"


def report_of(path: Path, frames: of_trace.Frames) -> report.Report:
    """The report of `frames`, read from `path`."""
    return report.Report(_meta(path, frames), TorchTables(path, of_trace.without_echoes(frames)))


def _meta(path: Path, frames: of_trace.Frames) -> report.Meta:
    properties = frames.properties
    schema, ranks = properties.get("schemaVersion"), properties.get("distributedInfo")
    ranks = ranks if isinstance(ranks, dict) else {}
    return report.Meta(
        path=path,
        tool="torch.profiler",
        schema_version=None if schema is None else str(schema),
        origin_unix_ns=of_trace.whole(properties.get("baseTimeNanoseconds")),
        # with several profilers the longest recording
        duration_ns=frames.frame("Span").select(pl.col("dur_ns").max()).item(),
        rank=of_trace.whole(ranks.get("rank")),
        world_size=of_trace.whole(ranks.get("world_size")),
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

    def __init__(self, path: Path, frames: of_trace.Frames) -> None:
        """Build tables from `frames`, read from `path`."""
        self._path = path
        self._frames = frames
        self._lock = RLock()  # most of it is shared by two tables

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that were recorded: those that occur, and those always recorded with them."""
        recorded = {kind for frame, kind in of_trace.FRAME_KINDS.items() if frame in self._frames.events}
        for kinds in _TOGETHER:
            if recorded.intersection(kinds):
                recorded.update(kinds)
        return tuple(kind for kind in model.KINDS if kind in recorded)

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, as :data:`kanalyze.model.EVENTS`."""
        name = next((frame for frame, known in of_trace.FRAME_KINDS.items() if known == kind), "")
        with self._lock:
            if name not in self._frames.events:
                return model.EVENTS.empty()
            placed = self._placed(name)
            columns: dict[str, pl.Expr | pl.Series] = {
                "event_id": self._ids(name),
                "kind": pl.lit(kind),
                "name": self._names(name),
                "dur_ns": pl.col("dur_ns").fill_null(0),
                "parent_id": self._parents(name),
            }
            if "correlation" in placed.columns:
                columns["correlation_id"] = pl.when(pl.col("correlation") > 0).then("correlation")
            if "context" in placed.columns:
                columns["context_id"] = pl.col("context")
            return model.EVENTS.select(model.EVENTS.completed(placed.with_columns(**columns)))

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""
        tables: dict[str, Callable[[], pl.DataFrame]] = {
            model.KERNEL_CONFIG.name: self._kernel_config,
            model.COPY_DETAIL.name: lambda: pl.concat(
                self._of_graphs(name, frame).hstack(copies_told(frame, memset=name == "Memset").drop("shown"))
                for name, frame in ((name, self._frames.frame(name)) for name in ("Copy", "Memset"))
            ),
            model.RANGE_DETAIL.name: lambda: self._frames.frame("Annotation").select(
                event_id=self._ids("Annotation"), style=pl.lit("PushPop")
            ),
            model.SYNC_DETAIL.name: lambda: self._frames.frame("Sync").select(
                event_id=self._ids("Sync"), cuda_event_id=known_id(pl.col("cuda_event_id")), record_id=_RECORDING
            ),
            model.EVENT_RECORDS.name: self._event_records,
            model.MEMORY_DETAIL.name: lambda: self._frames.frame("Memory").select(
                event_id=self._ids("Memory"),
                memory=pl.when(_ON_GPU).then(pl.lit("Device")).otherwise(pl.lit("Pageable")),
                address=pl.col("address").fill_null(0),
                size_bytes=pl.col("size_bytes").abs().fill_null(0),
                pool_size_bytes=pl.when(_ON_GPU).then("reserved_bytes"),
                pool_used_bytes=pl.when(_ON_GPU).then("allocated_bytes"),
            ),
            model.OP_DETAIL.name: self._op_detail,
            model.COLLECTIVE_DETAIL.name: lambda: self._frames.collectives.with_columns(
                event_id=pl.col("kind").replace_strict(self._first_ids, default=None, return_dtype=pl.Int64)
                + pl.col("row")
            ).drop_nulls("event_id"),
            "devices": lambda: of_trace.devices(self._frames, self._used),
            "processes": lambda: of_trace.processes(self._frames, self._used),
            "gpu_metrics": lambda: of_trace.gpu_metrics(self._frames.frame("Counter")),
            "notes": lambda: of_trace.notes(self._frames),
        }
        with self._lock:
            return model.reader_table(name, tables, self._path)

    def close(self) -> None:
        """Release the frames; no further tables can be built."""
        with self._lock:
            for name in ("_frames", "_owning"):
                vars(self).pop(name, None)

    def notes_of_read(self) -> pl.DataFrame:
        """All notes: the frames were read at once."""
        return self.table("notes")

    def _placed(self, name: str) -> pl.DataFrame:
        """A frame with `process_id` and, for host events, `thread_id`; for device events, `device` and `stream`."""
        frame = self._frames.frame(name)
        if name not in of_trace.ON_DEVICE:
            moved = frame.with_columns(process_id="pid", thread_id="tid")
            return moved.with_columns(device=pl.when(_ON_GPU).then("device")) if name == "Memory" else moved
        device, stream = pl.coalesce("device", "pid"), known_id(pl.coalesce("stream", "tid"))
        return frame.with_columns(process_id=self._processes(frame), device=device, stream=stream)

    @cached_property
    def _process_of_devices(self) -> int | None:
        """The default process of device events without a call: the one with most calls, else most operators."""
        for name in ("Call", "Op", "Annotation", "Python"):
            pids = self._frames.frame(name).get_column("pid").drop_nulls()
            if len(pids):
                return int(pids.value_counts(sort=True).item(0, 0))
        return max([pid for pid, _, _ in self._frames.names], default=None)

    @property
    def _used(self) -> pl.DataFrame:
        """Pairs of process and device used; the default process if there are none."""
        main = pl.DataFrame({"process_id": [self._process_of_devices], "device": None}, schema=_USED)
        work = [
            self._placed(name).select(pl.col(column).cast(pl.Int64) for column in _USED)
            for name in ("Kernel", "Copy", "Memset")
        ]
        return pl.concat([main, *work])

    def _names(self, name: str) -> pl.Expr | pl.Series:
        text = pl.col("name").cast(pl.String)
        if name in {"Copy", "Memset"}:
            shown = copies_told(self._frames.frame(name), memset=name == "Memset").get_column("shown")
            if self._frames.frame("Call").get_column("name").unique().cast(pl.String).str.contains("^hip[A-Z]").any():
                return shown.cast(pl.String).str.replace(r"^\[CUDA ", "[HIP ").cast(shown.dtype)
            return shown
        if name == "Memory":
            freed = pl.when(pl.col("size_bytes") < 0).then(pl.lit("Deallocation")).otherwise(pl.lit("Allocation"))
            return pl.when(text == "[OutOfMemory]").then(pl.lit("Out of memory")).otherwise(freed)
        return text.replace(SYNC_NAMES) if name == "Sync" else pl.col("name")

    def _kernel_config(self) -> pl.DataFrame:
        frame = self._frames.frame("Kernel")
        shapes = [*launch_shapes(frame.get_column("grid"), "grid"), *launch_shapes(frame.get_column("block"), "block")]
        return self._of_graphs("Kernel", self._in_blocks(frame.with_columns(*shapes))).with_columns(
            registers_per_thread="registers",
            static_shared_bytes=pl.when(pl.col("shared_bytes").is_not_null()).then(0),
            dynamic_shared_bytes="shared_bytes",
        )

    def _of_graphs(self, name: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows of a frame of device events with event_id, and what is known of them as nodes of CUDA graphs."""
        marks = [_marks(frame.get_column(column)) for column in ("mark", "mark_name", "mark_list")]
        nodes = frame.with_columns(event_id=self._ids(name), mark=pl.coalesce(marks), **_OF_GRAPH)
        return nodes.join(self._edges, on="event_id", how="left", maintain_order="left")

    @cached_property
    def _edges(self) -> pl.DataFrame:
        """What nodes of CUDA graphs wait for in their graph, by arrows: event_id and after_id, the last one to end."""
        links, at = self._frames.frame("Edge"), [*of_trace.PLACE]
        if links.is_empty():
            return pl.DataFrame(schema=dict.fromkeys(("event_id", "after_id"), pl.Int64))
        frames = ((name, self._frames.frame(name)) for name in ("Kernel", "Copy", "Memset"))
        nodes = [frame.select(*at, "dur_ns", event_id=self._ids(name)) for name, frame in frames]
        begun = pl.concat(nodes)
        ended = begun.with_columns(start_ns=pl.col("start_ns") + pl.col("dur_ns"))
        # an arrow goes from the end of a node to the begin of another one
        sides = [
            links.filter(pl.col("ph") == ph).unique("id", keep="none").join(some.unique(at, keep="none"), on=at)
            for ph, some in (("f", begun), ("s", ended))
        ]
        arrows = sides[0].join(sides[1], on="id", suffix="_before").sort("start_ns_before", "event_id_before")
        return arrows.unique("event_id", keep="last").select("event_id", after_id="event_id_before")

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

    def _op_detail(self) -> pl.DataFrame:
        annotations = self._frames.frame("Annotation").with_columns(event_id=self._ids("Annotation"))
        ops = self._frames.frame("Op").with_columns(
            event_id=self._ids("Op"),
            sequence_number=pl.when(pl.col("sequence_number") >= 0).then("sequence_number"),
            forward_id=self._forwards(),
        )
        return pl.concat([annotations, ops], how="diagonal")

    # Processes number their calls alike, so that most ids are those of several; then what the other events of the same
    # device and context belong to tells.

    @cached_property
    def _owning(self) -> tuple[pl.DataFrame, pl.DataFrame] | None:
        """The calls by correlation and process, and the process of each :data:`_GROUP`; None with one process alone."""
        calls = self._frames.frame("Call")
        if calls.is_empty() or calls.get_column("pid").n_unique() == 1:
            return None
        known = calls.select("correlation", process="pid", called="start_ns").drop_nulls()
        known = known.filter(pl.col("correlation") > 0)
        first = telling(known.group_by("correlation", "process").agg(pl.col("called").min()), ["correlation"])
        work = map(self._frames.frame, of_trace.ON_DEVICE)
        pairs = [frame.select(*_GROUP, "correlation", "start_ns").join(first, on="correlation") for frame in work]
        before = (pl.col("start_ns") < pl.col("called")).sum()
        votes = pl.concat(pairs).group_by(*_GROUP, "process").agg(joined=pl.len(), before=before)
        return known.select("correlation", "process").unique(), _elected(votes)

    def _processes(self, frame: pl.DataFrame) -> pl.Series:
        """The process of each device event in a frame."""
        main = pl.lit(self._process_of_devices, dtype=pl.Int64)
        if self._owning is None or "correlation" not in frame.columns:
            return frame.select(pl.repeat(self._process_of_devices, pl.len(), dtype=pl.Int64)).to_series()
        calls, groups = self._owning
        keys = frame.select(*_GROUP, "correlation")
        usual = keys.join(groups, on=_GROUP, how="left", nulls_equal=True, maintain_order="left")
        single = calls.unique("correlation", keep="none").select("correlation", single="process")
        usual = usual.join(single, on="correlation", how="left", maintain_order="left")
        return usual.select(pl.coalesce("single", "process", main)).to_series()

    def _event_records(self) -> pl.DataFrame:
        """Recorded CUDA events, numbered by their calls: those that the trace has, and those that were waited for."""
        parts = []
        for name, record, stream in (
            ("Record", pl.col("correlation"), "stream"),
            ("Sync", _RECORDING, "record_stream"),
        ):
            frame = self._frames.frame(name)
            event = pl.col("cuda_event_id") if name == "Record" else known_id(pl.col("cuda_event_id"))
            made = frame.with_columns(
                process_id=self._processes(frame),
                context_id="context",
                stream=known_id(pl.col(stream)),
                cuda_event_id=event,
                record_id=record,
                correlation_id=record,
            )
            parts.append(model.EVENT_RECORDS.select(made if name == "Record" else made.drop_nulls("record_id")))
        return pl.concat(parts).unique(["process_id", "record_id"], keep="first", maintain_order=True)

    # Links between events: call to operator, Python callee to caller, backward to forward operator. The event ids of a
    # frame are consecutive.

    @cached_property
    def _first_ids(self) -> dict[str, int]:
        """The event id of the first row of each frame."""
        heights = (self._frames.frame(name).height for name in of_trace.FRAME_KINDS)
        return dict(zip(of_trace.FRAME_KINDS, accumulate(heights, initial=0), strict=False))

    def _ids(self, name: str) -> pl.Expr:
        """The event ids of a frame's rows, as an expression."""
        first = self._first_ids[name]
        return pl.int_range(first, first + pl.len(), dtype=pl.Int64)

    def _parents(self, name: str) -> pl.Series:
        """The parent of each event in a frame: the operator or range by External id, the Python caller by Python id."""
        frame = self._frames.frame(name)
        if name == "Python":
            known = frame.select(caller="python_id", pid="pid", parent=self._ids("Python")).drop_nulls()
            known = known.unique(["caller", "pid"], keep="first")
            keys = frame.select("caller", "pid")
            return keys.join(known, on=["caller", "pid"], how="left", maintain_order="left").get_column("parent")
        if name == "Kernel" and "Launch" in self._frames.events:
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
        has_maker = pl.col("external_id") != pl.col("correlation").fill_null(-1)
        ids = (self._frames.frame(of).get_column("external_id") for of in ("Call", "Kernel", "Copy", "Memset"))
        has_maker = has_maker | pl.lit(name != "Sync" and any(some.has_nulls() for some in ids))
        pid = self._processes(frame) if name in of_trace.ON_DEVICE else frame.get_column("pid")
        keys = frame.select(pl.when(has_maker).then("external_id").alias("external_id"), pid.alias("pid"))
        parts = (
            self._frames.frame(of).select("external_id", "pid", event_id=self._ids(of)) for of in ("Op", "Annotation")
        )
        makers = pl.concat(parts).filter(pl.col("external_id") != 0)

        def of_process(key: tuple[int | None, ...], some: pl.DataFrame) -> pl.Series:
            own = makers.filter(pl.col("pid") == pl.lit(key[0], pl.Int64))
            at = positions(own.get_column("external_id"), some.get_column("external_id"))
            return gathered(own.get_column("event_id"), at)

        return of_parts(keys, ["pid"], pl.Int64, of_process).alias("event_id")

    def _launching(self, kernels: pl.DataFrame) -> pl.Series:
        """The operator of each kernel in traces of the first profilers, which link operators to kernels by flows.

        Such a kernel has the operator's name, and stands for all device work of the operator.
        """
        links = self._frames.events["Launch"]
        ends = {ph: links.filter(pl.col("ph") == ph).select("id", "tid", "start_ns") for ph in ("s", "f")}
        linked = ends["f"].join(ends["s"].unique("id", keep="first"), on="id", suffix="_op").drop("id")
        ops = self._frames.frame("Op").select("name", tid_op="tid", start_ns_op="start_ns", event_id=self._ids("Op"))
        at = ["tid_op", "start_ns_op"]
        ops = telling(ops.unique([*at, "name"], keep="last", maintain_order=True), at)
        known = linked.join(ops, on=at).unique(["tid", "start_ns", "name"], keep="last")
        keys = ["tid", "start_ns", "name"]
        parents = kernels.select(keys).join(known.select(*keys, "event_id"), on=keys, how="left", maintain_order="left")
        return parents.get_column("event_id")

    def _forwards(self) -> pl.Series:
        """The forward operator of each operator, by flow events; null if none."""
        op, links = self._frames.frame("Op"), self._frames.frame("Link")
        # of the operators that start together on a thread, the innermost one (recorded last) has the flow
        linked_at = pl.col("start_ns").is_in(links.get_column("start_ns").unique().implode())
        at = op.select(*of_trace.PLACE, event_id=self._ids("Op")).filter(linked_at).unique(of_trace.PLACE, keep="last")
        ends = {ph: links.filter(pl.col("ph") == ph).select("id", *of_trace.PLACE) for ph in ("s", "f")}
        linked = ends["f"].join(ends["s"].unique("id", keep="first"), on="id", suffix="_forward")
        before = [f"{name}_forward" for name in of_trace.PLACE]
        known = linked.join(at, left_on=before, right_on=of_trace.PLACE).select(*of_trace.PLACE, forward_id="event_id")
        known = known.unique(of_trace.PLACE, keep="first").join(at, on=of_trace.PLACE).select("event_id", "forward_id")
        rows = known.get_column("event_id") - self._first_ids["Op"]
        return _nothing(op).alias("forward_id").scatter(rows, known.get_column("forward_id"))


def _nothing(frame: pl.DataFrame) -> pl.Series:
    return pl.Series([None], dtype=pl.Int64).new_from_index(0, frame.height)


#: Key of a group of device events that belong to one process.
_GROUP: Final = ("pid", "device", "context")


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
    elected: dict[tuple[int | None, ...], int] = {}
    while able:
        taken = set(elected.values())
        free = {group: [one for one in some if one not in taken] or some for group, some in able.items()}
        surest = min(free, key=lambda group: len(free[group]))
        elected[surest] = free[surest][0]
        del able[surest]
    rows = [(*group, process) for group, process in elected.items()]
    return pl.DataFrame(rows, schema={**dict.fromkeys(_GROUP, pl.Int64), "process": pl.Int64}, orient="row")


#: The graph that launched a device event; 0 becomes null. Of PyTorch 2.14 on a node has the number in its graph alone.
_NODE: Final = pl.col("graph_node_id") + pl.when(pl.col("graph_node_id") < model.NODES_OF_A_GRAPH).then(
    pl.col("graph_exec_id") * model.NODES_OF_A_GRAPH
).otherwise(0)
_OF_GRAPH: Final = {
    name: pl.when(pl.col("graph_exec_id") > 0).then(number)
    for name, number in (("graph_exec_id", "graph_exec_id"), ("graph_node_id", _NODE))
}


def _marks(texts: pl.Series) -> pl.Series:
    """The marks in JSON values: a text, or what a list of names tells as its last one; null for any other."""
    marks = {text: _marked(text) for text in texts.unique().cast(pl.String).drop_nulls()}
    return texts.cast(pl.String).replace_strict(marks, default=None, return_dtype=pl.String)


def _marked(text: str) -> str | None:
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        listed = json.loads(value) if isinstance(value, str) and value.startswith("[{") else [{"name": value}]
        names = [one.get("name", one.get("str")) for one in listed if isinstance(one, dict)]
        return next((name for name in reversed(names) if isinstance(name, str)), None)
    return None


def copies_told(copies: pl.DataFrame, *, memset: bool) -> pl.DataFrame:
    """Parses names of copies or memsets, as Kineto writes them; those of PyTorch 2.15 are in their arguments.

    Columns: shown (the name as nsys writes it), direction, source_memory and target_memory; null where not told.
    """
    names = copies.get_column("name")
    if not copies.get_column("copy_kind").is_null().all():
        ways = (pl.col(f"{what}_kind").cast(pl.String).str.strip_chars('"') for what in ("copy", "source", "target"))
        way, *memory = ways
        source, target = (one.str.replace_all("_", " ").str.to_titlecase() for one in memory)
        full_name = pl.coalesce(pl.format("Memcpy {} ({} -> {})", way, source, target), pl.col("name").cast(pl.String))
        names = copies.select(full_name.cast(names.dtype)).to_series()
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


#: Kineto's names of synchronisations, mapped to nsys' names.
SYNC_NAMES: Final = {
    "Event Sync": "Event sync",
    "Stream Wait Event": "Stream wait sync",
    "Stream Sync": "Stream sync",
    "Context Sync": "Context sync",
    "Unknown Sync": "Unknown",
}


def known_id(ids: pl.Expr) -> pl.Expr:
    """Ids with invalid ones replaced by null."""
    # CUPTI's invalid id is the last one, or -1 in some versions
    return pl.when(ids.is_between(0, 0xFFFFFFFF, closed="left")).then(ids)


#: The recorded CUDA event that a synchronisation waited for, provided that it was recorded before. Kineto names it by
#: the correlation id of the call that made it, and the stream that it was recorded into; both in the context of the
#: wait itself (libkineto/src/CuptiActivityProfiler.cpp). -1 is none.
_RECORDING: Final = pl.when(pl.col("record_correlation").is_between(1, pl.col("correlation"), closed="left")).then(
    "record_correlation"
)
