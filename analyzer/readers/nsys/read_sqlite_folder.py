"""Reads exports of nsys: SQLite files, and folders of Parquet or Arrow files, one per table.

``nsys export --type=sqlite``, ``parquetdir`` or ``arrowdir`` writes them. Facts about the tables: docs/formats.md.
Tables exist only if there was data; no table is required but one that says that nsys wrote the file.
"""

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import polars as pl

from kanalyze import columns, counter_model, errors, files, model, readers, reduction, report
from kanalyze.readers.nsys import samples, tables as nsys
from kanalyze.readers.storage.table_files import FORMS, SqliteFile, TableFile, TableFolder, tables_in
from kanalyze.schema import Table

#: A tenth of the int64 range, in nanoseconds: some 29 years.
_LATEST_NS: Final = (1 << 63) // 10
#: Names of the kernel, and of the library folder, of the Windows Subsystem for Linux.
_WSL: Final = re.compile(r"(?i)microsoft-standard|\bwsl2?\b|-wsl2?")
#: Export metadata tables; the second name is from 2022.
_EXPORT: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
#: Tables of calls, whose stacks are found by their rows, and which no analysis takes to be in order.
_CALLS: Final = {spec.table for spec in nsys.EVENT_TABLES if spec.kind in {"api", "osrt"}}
#: Tables of which any shows that nsys wrote the database.
_SIGNS: Final = (*_EXPORT, "META_DATA_CAPTURE", "TARGET_INFO_SESSION_START_TIME", "StringIds")

_MAGIC: Final = b"SQLite format 3\0"


def accepts(path: Path, head: bytes) -> bool:
    """Whether `path` is an SQLite database, a folder of table files, or one such file.

    :func:`open_report` checks that nsys wrote them.
    """
    if path.is_dir():
        return any(tables_in(path, form) for form in FORMS) and not reduction.is_reduction(path)
    return head.startswith(_MAGIC) or any(
        path.suffix == suffix and head.startswith(magic) for suffix, magic in FORMS.items()
    )


def open_report(path: Path, progress: readers.Progress, *, cache: bool) -> report.Report:
    """Opens the nsys export at `path`; of a file in a folder of tables, the folder.

    Raises UnknownFormatError if the tables are not an nsys export; DamagedReportError if the file is truncated, or its
    list of tables cannot be read; UnreadableReportError if the operating system refuses to list the folder.
    """
    del progress, cache  # opening is instant
    if not path.is_dir():
        with path.open("rb") as file:
            in_sqlite = file.read(len(_MAGIC)) == _MAGIC
        if in_sqlite:
            database = SqliteFile(path)
            if shows_nsys(database.tables):
                return report_of(database)
            some = ", ".join(sorted(database.tables)[:5]) or "none"
            raise errors.UnknownFormatError.of(path, f"an SQLite database that nsys did not write (tables: {some})")
    folder = path if path.is_dir() else path.parent
    tables_of_form = {form: tables_in(folder, form) for form in FORMS}
    for form, tables in tables_of_form.items():
        if shows_nsys(tables):
            return report_of(TableFolder(folder, form))
    some = ", ".join(next(tables for tables in tables_of_form.values() if tables)[:5])
    raise errors.UnknownFormatError.of(path, f"tables that nsys did not write ({some})")


def shows_nsys(tables: Iterable[str]) -> bool:
    """Whether `tables`, the tables of a file, are an nsys export."""
    return not {*_SIGNS}.isdisjoint(tables)


def report_of(database: TableFile) -> report.Report:
    """The report of an nsys export of any form; tables are read on demand."""
    return report.Report(_meta(database), NsysTables(database))


def _meta(database: TableFile) -> report.Meta:
    pair = {"name": pl.String, "value": pl.String}
    export = {name: value for table in _EXPORT for name, value in database.frame(table, pair).iter_rows()}
    environment = dict(database.frame("TARGET_INFO_SYSTEM_ENV", pair).iter_rows())
    started = database.frame("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": pl.Int64}).to_series()
    spans = database.frame("ANALYSIS_DETAILS", {"duration": pl.Int64, "stopTime": pl.Int64})
    version, driver = export.get("EXPORT_PRODUCT_VERSION"), environment.get("NvDriverVersion")
    return report.Meta(
        path=database.path,
        tool="nsys",
        tool_version=version.removesuffix(".0") if version else None,
        schema_version=export.get("EXPORT_SCHEMA_VERSION"),
        driver_version=_driver(driver),
        wsl=any(_WSL.search(value or "") for value in environment.values()),
        origin_unix_ns=started.item(0) if len(started) else None,
        duration_ns=spans.item(0, "duration") if spans.height else None,
        end_ns=spans.select(pl.max_horizontal("duration", "stopTime")).item(0, 0) if spans.height else None,
    )


def _driver(version: str | None) -> str | None:
    """The driver version; nsys of 2022 wrote 530.30.02 as 5303002, and all versions write 0 without a GPU."""
    run_together = re.fullmatch(r"(\d{3})(\d\d)(\d\d)", version or "")
    return ".".join(run_together.groups()) if run_together else version if version != "0" else None


class NsysTables:
    """Tables of one nsys export; see :class:`kanalyze.schema.Source`."""

    def __init__(self, database: TableFile) -> None:
        """Read from `database` on demand."""
        self._database = database
        self._seen = nsys.Seen({}, [], {})
        self._labels = nsys.Labels(database, self._seen.undecoded)
        self._machine = nsys.Machine(database)
        self._samples = samples.Samples(database, self._labels, self._seen.undecoded)
        self._orders: dict[str, pl.Series | None] = {}

    def close(self) -> None:
        """Close the export."""
        self._database.close()

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of events that were recorded.

        nsys leaves a table out when it has no rows, or (`--lazy=false`) writes all tables, most of them empty. So one
        without rows means "none" if the trace was on (what META_DATA_CAPTURE says, or rows of the same trace), and
        "not recorded" otherwise.
        """
        recorded = {spec.kind for spec in nsys.EVENT_TABLES if self._database.last_row(spec.table)}
        settings = dict(self._database.frame("META_DATA_CAPTURE", {"name": pl.String, "value": pl.String}).iter_rows())
        for trace, kinds in nsys.TRACES.items():
            if recorded.intersection(kinds) or settings.get(f"PROCESS_0:{trace}") == "true":
                recorded.update(kinds)
        return tuple(kind for kind in model.KINDS if kind in recorded)

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, as :data:`kanalyze.model.EVENTS`."""
        specs = [spec for spec in nsys.EVENT_TABLES if spec.kind == kind and spec.table in self._database.tables]
        frames = [self._ranges() if kind == "range" else self._events_of(spec) for spec in specs]
        return pl.concat(frames) if frames else model.EVENTS.empty()

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""
        tables: dict[str, Callable[[], pl.DataFrame]] = {
            **{side: partial(self._side_table, model.READER_TABLES[side]) for side in nsys.DETAILS},
            "range_detail": self._range_detail,
            "communicator_calls": lambda: communicator_calls(
                self._database, self._first_ids[nsys.RANGES], self._seen.undecoded
            ),
            "event_records": self._event_records,
            "graph_nodes": self._graph_nodes,
            "streams": partial(nsys.streams, self._database),
            "devices": self._machine.devices,
            "processes": self._machine.processes,
            "symbols": self._symbols,
            "cpu_samples": self._samples.cpu_samples,
            "python_samples": lambda: self._samples.python[0],
            "call_stacks": lambda: self._samples.call_stacks(self._first_ids),
            "stack_frames": self._samples.stack_frames,
            "scheduling": self._samples.scheduling,
            "gpu_metrics": partial(samples.gpu_metrics, self._database, self._seen.undecoded),
            "network_metrics": partial(samples.network_metrics, self._database),
            "notes": lambda: nsys.notes(self._database, self._seen),
        }
        return model.reader_table(name, tables, self._database.path)

    def mapped(self, name: str, transform: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
        """See :class:`kanalyze.schema.PartedSource`."""
        if name == counter_model.CPU_SAMPLES.name:
            return self._samples.mapped_cpu_samples(transform)
        return transform(self.table(name))

    def notes_of_read(self) -> pl.DataFrame:
        """Notes on tables that were read already or are small."""
        return nsys.notes(self._database, self._seen, of_read=True)

    @cached_property
    def _first_ids(self) -> dict[str, int]:
        """The first event id of each table; ids run through the tables in the order of EVENT_TABLES."""
        tables = [spec.table for spec in nsys.EVENT_TABLES]
        return dict(zip(tables, accumulate(map(self._database.last_row, tables), initial=0), strict=False))

    def _numbered(self, table: Table, source: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Adds event ids to `frame`, all rows of `source` in order."""
        first = self._first_ids[source]
        if source not in _CALLS and (order := self._order(source, frame)) is not None:
            frame = frame[order]
        numbered = frame.with_columns(pl.int_range(first, first + frame.height).alias("event_id"))
        return self._as_declared(table, source, numbered)

    def _order(self, source: str, frame: pl.DataFrame) -> pl.Series | None:
        """The rows of `source`, read as `frame`, by start; None if sorted, as in exports before nsys 2025.6."""
        if source not in self._orders:
            if "start_ns" not in frame.columns:
                frame = self._database.integers(source, ("start",), lambda part: part.rename({"start": "start_ns"}))
            starts = frame.get_column("start_ns")
            ties = ("end", "correlationId", "globalPid", "globalTid", "deviceId", "streamId")
            keys = [name for name in ties if name in self._database.columns(source)]
            self._orders[source] = None
            if not starts.is_sorted():
                raw = self._database.integers(source, ("start", *keys), lambda part: part)
                self._orders[source] = raw.select(pl.arg_sort_by("start", *keys, maintain_order=True)).to_series()
        return self._orders[source]

    def _as_declared(self, table: Table, source: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Casts `frame` to `table`; raises DamagedReportError where `source` lacks a required value."""
        frame = table.completed(frame)
        nulls = frame.null_count()
        for column in table.columns:
            if not column.nullable and (missing := nulls.item(0, column.name)):
                raise self._database.damaged(source, f"{missing:,} rows have no {column.name}")
        for name in ("start_ns", "dur_ns") if table is model.EVENTS else ():  # sums and differences would overflow
            low, high = frame.select(low=pl.col(name).min(), high=pl.col(name).max()).row(0)
            if low is not None and max(-low, high) > _LATEST_NS:
                raise self._database.damaged(source, f"a time ({name}) is out of all bounds")
        try:
            return table.select(frame)
        except pl.exceptions.PolarsError as error:
            raise self._database.damaged(source, "a number is out of all bounds") from error

    def _events_of(self, spec: nsys.EventTable) -> pl.DataFrame:
        have = {*self._database.columns(spec.table)}
        made = {name: made for name, (source, made) in nsys.EVENT_COLUMNS.items() if have.intersection(source)}
        name = self._labels.namer(spec.named)
        if spec.instant:
            made["dur_ns"] = pl.lit(0)

        def transform(raw: pl.DataFrame) -> pl.DataFrame:
            if spec.only:
                column, value = spec.only
                raw = raw.filter((pl.col(column) == value).fill_null(value=True))
            if "device" in made:
                raw = self._machine.to_gpu(raw)
            if spec.kind == "api" and nsys.RETURNED in have:
                failed = raw.filter(~pl.col(nsys.RETURNED).is_in(nsys.SUCCESSES))
                self._seen.failed.append(failed.select("correlationId", nsys.process_of("globalTid").alias("pid")))
            return raw.select(name(raw).alias("name"), **made)

        frame = self._database.integers(spec.table, spec.wanted, transform)
        self._seen.endless[spec.table] = frame.get_column("dur_ns").null_count() if "dur_ns" in frame.columns else 0
        if self._seen.endless[spec.table]:
            frame = frame.with_columns(pl.col("dur_ns").fill_null(0))
        # the kind comes last, because constant columns of a complete frame take no memory
        return self._numbered(model.EVENTS, spec.table, frame.with_columns(_kind(spec.kind)))

    def _ranges(self) -> pl.DataFrame:
        ranges = self._range_rows.select(
            "event_id",
            pl.col("name").cast(pl.Categorical),
            "process_id",
            start_ns="start",
            dur_ns=pl.col("end") - pl.col("start"),
            thread_id=nsys.thread_of("globalTid"),
        )
        return self._as_declared(model.EVENTS, nsys.RANGES, ranges.with_columns(_kind("range")))

    @cached_property
    def _range_rows(self) -> pl.DataFrame:
        """The rows of NVTX_EVENTS that are ranges, with event_id, name and domain added."""
        source = nsys.RANGES
        raw = self._database.integers(source, nsys.RANGE_COLUMNS, lambda part: part)
        text = self._database.texts(source, "text")
        if len(text) != raw.height:
            raise self._database.damaged(source, "its rows cannot be counted")
        registered = self._labels.namer(nsys.Named("textId"))(raw).cast(pl.String)
        first, is_domain = self._first_ids[source], pl.col("eventType") == nsys.DOMAIN_CREATED
        named = raw.with_columns(
            pl.int_range(first, first + raw.height).alias("event_id"),
            text.zip_with(text.is_not_null(), registered).alias("name"),
            nsys.process_of("globalTid").alias("process_id"),
            pl.when(pl.col("end").is_null())
            .then(pl.max_horizontal(pl.col("start").max(), pl.col("end").max()))
            .alias("open_until_ns"),
        )
        domains = named.filter(is_domain).sort("start").unique(["process_id", "domainId"], keep="first")
        domains = domains.select("process_id", "domainId", domain="name").drop_nulls()
        ranges = named.filter(pl.col("eventType").is_in(list(nsys.RANGE_STYLES)))
        return ranges.join(domains, on=["process_id", "domainId"], how="left", maintain_order="left")

    def _range_detail(self) -> pl.DataFrame:
        detail = self._range_rows.select(
            "event_id",
            "domain",
            "open_until_ns",
            style=pl.col("eventType").replace_strict(nsys.RANGE_STYLES, return_dtype=pl.String),
            end_thread_id=pl.when(pl.col("endGlobalTid") != pl.col("globalTid")).then(nsys.thread_of("endGlobalTid")),
            category=nsys.absent_as_null("category"),
        )
        return self._as_declared(model.RANGE_DETAIL, nsys.RANGES, detail)

    def _event_records(self) -> pl.DataFrame:
        source = nsys.EVENT_RECORDS
        records = self._database.integers(source, nsys.EVENT_RECORD_COLUMNS, self._machine.to_gpu).select(
            "device",
            process_id=nsys.process_of("globalPid"),
            context_id=nsys.absent_as_null("contextId"),
            stream=nsys.absent_as_null("streamId"),
            correlation_id=nsys.absent_as_null("correlationId"),
            cuda_event_id="eventId",
            record_id=nsys.known_id("eventSyncId"),
        )
        return self._as_declared(model.EVENT_RECORDS, source, records)

    def _graph_nodes(self) -> pl.DataFrame:
        """Nodes of graphs, those of executable ones joined with the nodes that they were instantiated from."""
        source = next((table for table in nsys.GRAPH_NODES if "graphNodeId" in self._database.columns(table)), None)
        if source is None:
            return model.GRAPH_NODES.empty()
        raw = self._database.integers(source, nsys.OF_GRAPH_NODES, lambda part: part).drop_nulls("graphNodeId")
        nodes = graph_nodes(raw.drop_nulls("start").sort("start", maintain_order=True))
        return self._as_declared(model.GRAPH_NODES, source, nodes)

    def _symbols(self) -> pl.DataFrame:
        """Kernel functions by symbol name."""
        source = next(spec.table for spec in nsys.EVENT_TABLES if spec.kind == "kernel")
        name, symbol = (self._labels.namer(named) for named in (nsys.KERNEL_NAME, nsys.SYMBOL))
        wanted = (nsys.KERNEL_NAME.column, nsys.SYMBOL.column)
        pairs = self._database.integers(source, wanted, lambda part: part.unique()).unique(maintain_order=True)
        named = pairs.select(name(pairs).cast(pl.String).alias("name"), symbol(pairs).cast(pl.String).alias("symbol"))
        return counter_model.SYMBOLS.select(named.drop_nulls().unique()).sort(*counter_model.SYMBOLS.schema)

    def _side_table(self, table: Table) -> pl.DataFrame:
        frames = [table.empty()]
        for part in (part for part in nsys.DETAILS[table.name] if part.source in self._database.tables):
            labels = {name: self._labels.namer(named) for name, named in part.labels.items()}
            made = [made.cast(table.schema[name]).alias(name) for name, made in part.columns.items()]
            try:
                frame = self._database.integers(part.source, part.wanted, partial(_detailed, made=made, labels=labels))
            except pl.exceptions.PolarsError as error:
                raise self._database.damaged(part.source, "a number is out of all bounds") from error
            frames.append(self._numbered(table, part.source, frame))
        return pl.concat(frames)


def _detailed(raw: pl.DataFrame, made: Sequence[pl.Expr], labels: Mapping[str, nsys.Namer]) -> pl.DataFrame:
    return raw.with_columns(namer(raw).alias(name) for name, namer in labels.items()).select(*made, *labels)


def _kind(kind: str) -> pl.Expr:
    return pl.lit(kind, dtype=model.EVENTS.schema["kind"]).alias("kind")


# Payloads of NCCL's own NVTX ranges: communicator, message size, peer and root of each call.
#
# Fields lie at the offsets that NVTX_PAYLOAD_SCHEMA_ENTRIES gives. The export has payloads with
# ``--include-blobs=true``; else they are null.

#: Entries of schemas by name: the column, and how the value is packed.
_FIELDS: Final = {
    "NCCL communicator ID": ("communicator", "<Q"),
    "Message size [bytes]": ("message_bytes", "<Q"),
    "Peer rank": ("peer_rank", "<i"),
    "Root": ("root_rank", "<i"),
    "No. of ranks": ("size", "<i"),
    "Rank": ("rank", "<i"),
}


def communicator_calls(database: TableFile, first_id: int, undecoded: dict[str, int]) -> pl.DataFrame:
    """The calls of NCCL with a payload: :data:`kanalyze.model.COMMUNICATOR_CALLS`.

    `first_id` is the event id of the first row of NVTX_EVENTS; `undecoded` takes how many payloads cannot be decoded.
    """
    wanted = {"schemaId": pl.Int64, "type": pl.Int64, "name": pl.String, "offset": pl.Int64}
    every: dict[int, dict[str, tuple[str, int]]] = {}  # of each schema the format and offset by column
    for schema, _, name, offset in database.frame("NVTX_PAYLOAD_SCHEMA_ENTRIES", wanted).iter_rows():
        if schema is not None and name in _FIELDS:
            column, packed = _FIELDS[name]
            every.setdefault(schema, {})[column] = packed, offset or 0
    schemas = {schema: fields for schema, fields in every.items() if "communicator" in fields}
    if not schemas or "binaryData" not in database.columns(nsys.RANGES):
        return model.COMMUNICATOR_CALLS.empty()
    blobs = database.frame(nsys.RANGES, {"binaryData": pl.Object}).get_column("binaryData").to_list()
    calls = [{} if blob is None else _fields(blob, schemas) for blob in blobs]
    rows = [{"event_id": first_id + at, **call} for at, call in enumerate(calls) if call]
    undecoded["payloads of ranges that cannot be decoded"] = calls.count(None)
    return pl.DataFrame(rows, schema=model.COMMUNICATOR_CALLS.schema)


def _fields(blob: object, schemas: dict[int, dict[str, tuple[str, int]]]) -> dict[str, Any] | None:
    """The fields of a payload; none where it is none of NCCL's, None where it is shorter than its schema says."""
    payload = files.Payload.of(blob)
    if payload is None or payload.number == 0:
        return None
    fields: dict[str, Any] = {}
    for column, (packed, offset) in schemas.get(payload.schema, {}).items():
        if offset < 0 or offset + struct.calcsize(packed) > len(payload.data):
            return None
        value = struct.unpack_from(packed, payload.data, offset)[0]
        fields[column] = f"{value:016x}" if column == "communicator" else value if value < 1 << 63 else None
    return fields


# Nodes of CUDA graphs from nsys' rows of their creation: what each was made of, and when and where that was captured.
#
# A node that is captured, or added by a call, has one row without an origin. Copies of it, in an executable graph or as
# the child of another graph, have two, the second with the node that they are copies of. A graph's number is in the
# high bits of its nodes' numbers, in the order in which they were begun. An executable graph has no children: CUDA puts
# their nodes behind its own, of each child and then of what is inside it, as the copies of these graphs are numbered.
# nsys has no rows for them, but at times for the next nodes. So it was in eight graphs of kernels that tell
# themselves apart: two and three children, one of them twice, nested ones, made in one order and run in another (nsys
# 2025.3, CUDA 13).


def graph_nodes(raw: pl.DataFrame) -> pl.DataFrame:
    """The table `graph_nodes` of nsys' rows, sorted by time."""
    rows = raw.select(
        process_id=nsys.process_of("globalTid"),
        thread_id=nsys.thread_of("globalTid"),
        at="start",
        graph=nsys.graph_of_node("graphNodeId"),
        node="graphNodeId",
        origin="originalGraphNodeId",
    )
    copied = pl.col("origin").is_not_null().any().over("process_id", "graph")
    rows = pl.concat([rows, _of_children(rows.filter(copied))])
    own = rows.filter(pl.col("origin").is_not_null() | ~copied)
    first = columns.rows_at(own.select("thread_id", "at"), _captured_rows(own))
    nodes = own.select(
        "process_id",
        "thread_id",
        graph_exec_id="graph",
        graph_node_id="node",
        graph_id=nsys.graph_of_node("origin"),
        original_node_id="origin",
        made_ns="at",
    )
    nodes = nodes.hstack(first.select(captured_ns="at", captured_thread_id="thread_id"))
    return nodes.drop_nulls("graph_exec_id").unique(maintain_order=True)


def _captured_rows(rows: pl.DataFrame) -> pl.Series:
    """Row that made the node which each of `rows` goes back to, through graphs made of graphs.

    Of several rows of an origin the last one by then counts. Null where the origin is older than the recording.
    """
    copied = rows.get_column("origin").is_not_null()
    asked = rows.filter(copied).select("process_id", "at", node="origin")
    origins = pl.int_range(rows.height, dtype=pl.UInt32, eager=True)
    of_row = origins.scatter(copied.arg_true(), columns.last_of(asked, rows.select("process_id", "at", "node")))
    for _ in range(16):  # so deep are graphs made of graphs at most
        if (further := columns.gathered(of_row, origins)).equals(origins):
            break
        origins = further
    return origins


def _of_children(copies: pl.DataFrame) -> pl.DataFrame:
    """Rows for the nodes that executable graphs have of children: `copies` are the rows of graphs made of graphs.

    A graph that was begun after another and ended before it, on one thread, is inside it.
    """
    key, made = ["process_id", "graph"], copies.filter(pl.col("origin").is_not_null())
    made = made.unique([*key, "node"], keep="last").sort(*key, "node")
    graphs = made.group_by(key).agg(pl.col("thread_id").first(), pl.len().alias("own"), ended=pl.col("at").max())
    pairs, around = [], list[tuple[int, int, int, int]]()
    for process, thread, graph, ended in (
        graphs.select("process_id", "thread_id", "graph", "ended").sort("process_id", "thread_id", "graph").iter_rows()
    ):
        while around and (around[-1][:2] != (process, thread) or around[-1][3] < ended):
            around.pop()
        pairs += [(process, outer[2], graph) for outer in around]
        around.append((process, thread, graph, ended))
    inside = pl.DataFrame(pairs, {"process_id": pl.Int64, "outer": pl.Int64, "graph": pl.Int64}, orient="row")
    inside = inside.join(made, on=key).join(graphs.select(key[0], "own", outer="graph"), on=["process_id", "outer"])
    inside = inside.sort("process_id", "outer", "graph", "node")
    place = pl.int_range(pl.len()).over("process_id", "outer") + pl.col("own")
    nodes = inside.with_columns(origin="node", graph="outer", node=pl.col("outer") * model.NODES_OF_A_GRAPH + place)
    # rows of the next nodes, where there are some, say how many there are
    further = copies.join(made, on=["process_id", "node"], how="anti").group_by(key).agg(pl.col("node").min())
    counts = nodes.group_by(key).agg(pl.col("node").max() + 1)
    other = further.join(counts, on=key, suffix="_after").filter(pl.col("node") != pl.col("node_after"))
    return nodes.join(other, on=key, how="anti").select(copies.columns)
