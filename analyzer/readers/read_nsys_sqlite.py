"""Reads what ``nsys export --type=sqlite`` writes.

Facts about the format: docs/formats.md. Tables exist only if there was data; no table is required but one that
says that nsys wrote the file.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.errors import UnknownFormatError
from kanalyze.model import COPY_DETAIL, EVENTS, KERNEL_CONFIG, KINDS
from kanalyze.readers import nsys_events as nsys
from kanalyze.readers.nsys_labels import Labels, lookup
from kanalyze.readers.nsys_machine import Machine
from kanalyze.readers.nsys_notes import notes
from kanalyze.readers.sqlite_file import SqliteFile
from kanalyze.report import Meta, Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kanalyze.schema import Table

#: A tenth of what 64 bits hold: some 29 years.
_LATEST_NS: Final = (1 << 63) // 10

_MAGIC: Final = b"SQLite format 3\0"

#: Any of these tables shows that nsys wrote the database.
_SIGNS: Final = ("META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_SESSION_START_TIME", "StringIds")


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file is an SQLite database (of whom, :func:`open_report` finds out)."""
    del path
    return head.startswith(_MAGIC)


def open_report(path: Path) -> Report:
    """The report in the nsys export at `path`.

    Raises:
        UnknownFormatError: The database is not nsys'.
        DamagedReportError: The file is cut short, or its list of tables cannot be read.
    """
    database = SqliteFile(path)
    if not database.tables.intersection(_SIGNS):
        some = ", ".join(sorted(database.tables)[:5]) or "none"
        raise UnknownFormatError.of(path, f"an SQLite database that nsys did not write (tables: {some})")
    return Report(_meta(database), NsysSqlite(database))


def _meta(database: SqliteFile) -> Meta:
    pair = {"name": pl.String, "value": pl.String}
    export = dict(database.frame("META_DATA_EXPORT", pair).iter_rows())
    environment = dict(database.frame("TARGET_INFO_SYSTEM_ENV", pair).iter_rows())
    started = database.frame("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": pl.Int64}).to_series()
    spans = database.frame("ANALYSIS_DETAILS", {"duration": pl.Int64, "stopTime": pl.Int64})
    version = export.get("EXPORT_PRODUCT_VERSION")
    return Meta(
        path=database.path,
        tool="nsys",
        tool_version=version.removesuffix(".0") if version else None,
        schema_version=export.get("EXPORT_SCHEMA_VERSION"),
        driver_version=environment.get("NvDriverVersion"),
        origin_unix_ns=started.item(0) if len(started) else None,
        duration_ns=spans.item(0, "duration") if spans.height else None,
        end_ns=spans.select(pl.max_horizontal("duration", "stopTime")).item(0, 0) if spans.height else None,
    )


class NsysSqlite:
    """The tables of one nsys export; see :class:`kanalyze.report.Source`."""

    def __init__(self, database: SqliteFile) -> None:
        """Read from `database`, table by table as they are asked for."""
        self._database = database
        self._labels = Labels(database)
        self._machine = Machine(database)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that were recorded.

        nsys leaves a table out when it has no rows, so an absent one means "none" if the trace was on (what
        META_DATA_CAPTURE says, or the presence of a table of the same trace), and "not recorded" otherwise.
        """
        found = {spec.kind for spec in nsys.EVENT_TABLES if spec.table in self._database.tables}
        settings = dict(self._database.frame("META_DATA_CAPTURE", {"name": pl.String, "value": pl.String}).iter_rows())
        for trace, kinds in nsys.TRACES.items():
            if found.intersection(kinds) or settings.get(f"PROCESS_0:{trace}") == "true":
                found.update(kinds)
        return tuple(kind for kind in KINDS if kind in found)

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, as :data:`kanalyze.model.EVENTS`."""
        specs = [spec for spec in nsys.EVENT_TABLES if spec.kind == kind and spec.table in self._database.tables]
        frames = [self._ranges(spec) if kind == "range" else self._events_of(spec) for spec in specs]
        return pl.concat(frames) if frames else EVENTS.empty()

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""
        tables: dict[str, Callable[[], pl.DataFrame]] = {
            "kernel_config": self._kernel_config,
            "copy_detail": self._copy_detail,
            "devices": self._machine.devices,
            "processes": self._machine.processes,
            "notes": lambda: notes(self._database),
        }
        return tables[name]()

    @cached_property
    def _first_ids(self) -> dict[str, int]:
        """The event id of each table's first row: the tables one after the other, in the order of EVENT_TABLES."""
        first, ids = 0, {}
        for spec in nsys.EVENT_TABLES:
            ids[spec.table] = first
            first += self._database.last_row(spec.table)
        return ids

    def _numbered(self, table: Table, source: str, frame: pl.DataFrame) -> pl.DataFrame:
        """`frame`, the rows of `source` in order, with their event ids."""
        first = self._first_ids[source]
        numbered = frame.with_columns(pl.int_range(first, first + frame.height).alias("event_id"))
        return self._as_declared(table, source, numbered)

    def _as_declared(self, table: Table, source: str, frame: pl.DataFrame) -> pl.DataFrame:
        """`frame` as `table`, or the error that `source` lacks what every row must have."""
        for column in table.columns:
            missing = 0 if column.nullable else frame.get_column(column.name).null_count()
            if missing:
                raise self._database.damaged(source, f"{missing:,} rows have no {column.name}")
        if table is EVENTS and frame.height:
            self._check_times(source, frame)
        try:
            return table.select(frame)
        except pl.exceptions.PolarsError as error:
            raise self._database.damaged(source, "a number is out of all bounds") from error

    def _check_times(self, source: str, events: pl.DataFrame) -> None:
        """Refuse times of another age, with which no sum and no difference would be right."""
        for name in ("start_ns", "dur_ns"):
            low, high = events.select(low=pl.col(name).min(), high=pl.col(name).max()).row(0)
            if low is not None and max(-low, high) > _LATEST_NS:
                raise self._database.damaged(source, f"a time ({name}) is out of all bounds")

    def _events_of(self, spec: nsys.EventTable) -> pl.DataFrame:
        have = {*self._database.columns(spec.table)}
        made = {name: made for name, (source, made) in nsys.EVENT_COLUMNS.items() if have.intersection(source)}
        name, to_gpu = self._labels.namer(spec.named), self._machine.to_gpu

        def transform(raw: pl.DataFrame) -> pl.DataFrame:
            if "device" in made:
                raw = to_gpu(raw)
            return raw.select(name(raw).alias("name"), *(made[column].alias(column) for column in made))

        frame = self._database.integers(spec.table, spec.wanted, transform)
        return self._numbered(EVENTS, spec.table, _completed(frame, spec.kind))

    def _ranges(self, spec: nsys.EventTable) -> pl.DataFrame:
        columns = ("start", "end", "eventType", "textId", "globalTid")
        raw = self._database.frame(spec.table, dict.fromkeys(columns, pl.Int64) | {"text": pl.String})
        registered = lookup(self._labels.of("StringIds"))(raw.get_column("textId"))
        frame = raw.select(
            "eventType",
            pl.coalesce("text", registered.cast(pl.String)).cast(pl.Categorical).alias("name"),
            pl.col("start").alias("start_ns"),
            (pl.col("end") - pl.col("start")).alias("dur_ns"),
            nsys.process_of("globalTid").alias("process_id"),
            nsys.thread_of("globalTid").alias("thread_id"),
        )
        first = self._first_ids[spec.table]
        numbered = frame.with_columns(pl.int_range(first, first + frame.height).alias("event_id"))
        kept = numbered.filter(pl.col("eventType").is_in(nsys.RANGE_TYPES))
        return self._as_declared(EVENTS, spec.table, _completed(kept, spec.kind))

    def _kernel_config(self) -> pl.DataFrame:
        names = nsys.KERNEL_CONFIG_COLUMNS
        plain = [pl.col(found).alias(name) for name, found in names.items() if name != "graph_node_id"]
        node = nsys.absent_as_null(names["graph_node_id"]).alias("graph_node_id")

        def transform(raw: pl.DataFrame) -> pl.DataFrame:
            return raw.select(*plain, node)

        return self._side_table(KERNEL_CONFIG, "CUPTI_ACTIVITY_KIND_KERNEL", tuple(names.values()), transform)

    def _copy_detail(self) -> pl.DataFrame:
        names = nsys.COPY_COLUMNS
        plain = [pl.col(found).alias(name) for name, found in names.items()]
        labels = {name: self._labels.namer(named) for name, named in nsys.COPY_LABELS.items()}
        wanted = (*names.values(), *(named.column for named in nsys.COPY_LABELS.values()))

        def transform(raw: pl.DataFrame) -> pl.DataFrame:
            texts = [namer(raw).alias(name) for name, namer in labels.items()]
            return raw.select(*plain, *texts).with_columns(nsys.absent_as_null("graph_node_id"))

        copies = self._side_table(COPY_DETAIL, "CUPTI_ACTIVITY_KIND_MEMCPY", wanted, transform)
        return pl.concat([copies, self._side_table(COPY_DETAIL, "CUPTI_ACTIVITY_KIND_MEMSET", wanted, transform)])

    def _side_table(
        self,
        table: Table,
        source: str,
        wanted: tuple[str, ...],
        transform: Callable[[pl.DataFrame], pl.DataFrame],
    ) -> pl.DataFrame:
        if source not in self._database.tables:
            return table.empty()

        def typed(raw: pl.DataFrame) -> pl.DataFrame:
            made = transform(raw)
            return made.select(pl.col(name).cast(table.schema[name]) for name in made.columns)

        try:
            frame = self._database.integers(source, wanted, typed)
        except pl.exceptions.PolarsError as error:
            raise self._database.damaged(source, "a number is out of all bounds") from error
        return self._numbered(table, source, frame)


def _completed(frame: pl.DataFrame, kind: str) -> pl.DataFrame:
    """`frame` with its kind, and nulls for the columns that this kind does not have.

    Made last, because a constant column of a whole frame takes no memory.
    """
    missing = {column.name: None for column in EVENTS.columns if column.name not in frame.columns}
    values = {**missing, "kind": kind}
    return frame.with_columns(pl.lit(value, dtype=EVENTS.schema[name]).alias(name) for name, value in values.items())
