"""A report: tables provided lazily by a reader, narrowed to a scope."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypedDict, Unpack
from weakref import WeakValueDictionary

import polars as pl

from kanalyze import intervals, schema, tools, window as named_ranges
from kanalyze.columns import LARGEST, last_end, too_large
from kanalyze.errors import BadWindowError, DamagedReportError, KanalyzeError, UnknownNameError, refuse_unknown
from kanalyze.model import DEVICE_KINDS, EVENTS, KINDS, NOTES, READER_TABLES
from kanalyze.window import EVERY, Scope, Window, lasting, relative

#: Columns that are summed in analyses, and those only subtracted; checked for overflow.
_SUMMED: Final = {
    EVENTS.name: ("dur_ns",),
    "copy_detail": ("size_bytes",),
    "memory_detail": ("size_bytes",),
    "fault_detail": ("faults",),
    "instructions": ("samples", "stalled_samples", "instructions", "thread_instructions", "sectors", "ideal_sectors"),
}
_SINGLE: Final = {EVENTS.name: ("start_ns",), "memory_detail": ("pool_size_bytes", "pool_used_bytes")}

#: The name of the steady part as a window, and the module that finds windows by iterations.
STEADY: Final = "steady"
_ITERATIONS: Final = "kanalyze.analyses.iterations.phases"

#: Cache key of a kind's events.
_EVENTS_OF: Final = "{} events"

#: A recording that took longer by less than this factor is said to be corrected alone.
_SLOWER: Final = 1.005


@dataclass(frozen=True)
class Meta:
    """Metadata of a report.

    Attributes:
        path: The report, as it was given.
        tool: ``nsys``, ``ncu`` or ``torch.profiler``.
        tool_version: The tool's own version, such as ``2025.3.2``; None where the file does not say.
        schema_version: Version of the file's layout, in the tool's own numbering.
        driver_version: The GPU driver.
        origin_unix_ns: Unix time of the trace's time 0.
        duration_ns: Length of the recording, as the tool gives it.
        end_ns: Upper bound of the time stamps.
        read_from: The export that was read instead of `path`, if any.
        rank: Rank in a distributed run, if recorded.
        world_size: Number of ranks.
        capture: The capture folder that it belongs to.
        partial: Whether a part of the run may be missing: the nsys command of its capture does not say that it recorded
            everything.
        selective: Whether ncu measured only a subset of the launches; None if its command is unknown.
        turn: The place among the runs of an interleaved collection; only where a report is opened as one of its runs.
        wsl: Whether the program ran in the Windows Subsystem for Linux, by the system's own names.
        slower: How many times as long an iteration took while recorded; only of a report without its profiler.
    """

    path: Path
    tool: str
    tool_version: str | None = None
    schema_version: str | None = None
    driver_version: str | None = None
    origin_unix_ns: int | None = None
    duration_ns: int | None = None
    end_ns: int | None = None
    read_from: Path | None = None
    rank: int | None = None
    world_size: int | None = None
    capture: Path | None = None
    partial: bool = False
    selective: bool | None = None
    turn: tools.Turn | None = None
    wsl: bool = False
    slower: float | None = None

    @property
    def recorder(self) -> tools.Tool:
        """What the tool's reports are like."""
        return tools.tool_of(self.tool)

    @property
    def recorded_by(self) -> str:
        """The tool with its version, and whether times are without it: ``nsys 2025.3 (1.53 × slower; corrected)``."""
        tool = " ".join(filter(None, (self.tool, self.tool_version)))
        if self.slower is None:
            return tool
        return f"{tool} ({f'{self.slower:.3g} × slower; ' if self.slower >= _SLOWER else ''}corrected)"

    @property
    def profiled(self) -> str:
        """Whether times are those ``under nsys`` or ``without nsys``, by the name of the tool."""
        return f"{'under' if self.slower is None else 'without'} {self.tool}"

    @property
    def timeless(self) -> bool:
        """Whether kernels have durations but no time stamps: ncu replays each of them alone."""
        return self.recorder.counts


class Where(TypedDict, total=False):
    """The part of a report that an analysis looks at; every analysis takes these as keywords.

    Attributes:
        window: A :class:`Window`, or its text: two times (``"120ms..250ms"``; with a plus sign since the first event of
            the report, ``"+10ms..+20ms"``), a range that occurs once (``"warmup"``, with a domain
            ``"NCCL:ncclAllReduce"``), one instance of a range (``"step#3"``, the third to start, or ``"step#-1"``, the
            last), a step of the framework's profiler by its number (``"step:5"``), from one of these to another
            (``"step#2..step#5"``), or the steady part of what the program repeats (``"steady"``).
        device: One GPU of the `devices` table.
        process: One process id.
        steps: Patterns of labels of an engine's steps, such as ``"decode bs={batch}"`` (docs/serving.md), besides those
            of known engines.
    """

    window: Window | str | None
    device: int | None
    process: int | None
    steps: Sequence[str] | None


class Batches(NamedTuple):
    """The first batches that a program gave to its model, a row for each sample."""

    line: str = ""  # where it did so first, as file and line
    filled: tuple[tuple[int, tuple[int, ...]], ...] = ()  # width of the rows, and positions of each that are no padding


class BareRun(NamedTuple):
    """A run of a Python script without a profiler."""

    number: int  # the number of the run, from 1
    rank: int | None  # the rank that it is of; None for a program that is none
    #: when each occurrence of a recurring part began, in order, by name; on a clock of its own
    starts_ns: dict[str, list[int]]
    batches: Batches = Batches()
    profiler: str = ""  # where the program first starts a profiler of its own, as file and line


class BareRuns(NamedTuple):
    """Runs of a program without a profiler."""

    programs_ns: tuple[int, ...] = ()  # how long each took, from start to end of the process
    marked: tuple[BareRun, ...] = ()  # those of which there are marks, in order
    damage: KanalyzeError | None = None  # why the marks cannot be read, where that is so


class ReachedRates(NamedTuple):
    """What large products and a large copy reached on the machine of a recording."""

    gpu: str = ""  # its name
    per_s: Mapping[str, float] = MappingProxyType({})  # FLOPs by type, and bytes of a "copy"


def _nothing() -> None:
    """A report without another beside it."""


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """The tables of one report; contains no analyses and prints nothing.

    `meta` describes its origin, `scope` the selected part. Tables are read on first use and cached; narrowed views
    share the cache. `answers` caches results that analyses share. `beside` opens the trace of the same run that the
    report's capture has, once; None without one. `sampled` does so for the run in which nsys sampled the program,
    `counted` for what ncu counted of it, `bare` for its runs without a profiler, and `reached` for what its GPU was
    measured to reach; `captured_in` gives the report of its CUDA graphs' captures, where that is another one.

    A context manager: its file is closed at the end of the block, by :meth:`close`, or when nobody holds the report.

    Raises:
        ClosedReportError: From whatever reads a table that was not read before the report was closed.
    """

    meta: Meta
    source: schema.Source
    scope: Scope = field(default_factory=Scope)
    beside: Callable[[], Report | None] = _nothing
    sampled: Callable[[], Report | None] = _nothing
    counted: Callable[[], Report | None] = _nothing
    bare: Callable[[], BareRuns] = BareRuns
    reached: Callable[[], ReachedRates] = ReachedRates
    captured_in: Callable[[], Report | None] = _nothing
    _kept: schema.Kept = field(default_factory=schema.Kept)
    _whole: WeakValueDictionary[tuple[object, ...], Report] = field(default_factory=WeakValueDictionary)
    answers: dict[object, Any] = field(default_factory=dict, init=False)
    _part_of: list[Report] = field(default_factory=list, init=False)

    def __repr__(self) -> str:
        """Path, tool and part of the report in one line: ``<Report 'run.nsys-rep' of nsys 2025.3.2, GPU 0>``."""
        meta, closed = self.meta, "closed" if self._kept.closed else ""
        tool = " ".join(filter(None, (meta.tool, meta.tool_version)))
        rank = "" if meta.rank is None else f"rank {meta.rank}" + (f" of {meta.world_size}" if meta.world_size else "")
        return f"<Report {', '.join(filter(None, (f'{str(meta.path)!r} of {tool}', rank, str(self.scope), closed)))}>"

    def __enter__(self) -> Self:
        """Returns the report itself, closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the report."""
        self.close()

    def close(self) -> None:
        """Close the report's file, for all narrowed views too; tables read before stay. Idempotent."""
        self._kept.closed = True
        self.source.close()

    def with_source(self, source: schema.Source) -> Report:
        """The report with its events from another source; what is beside it stays."""
        return replace(self, source=source, _kept=schema.Kept(), _whole=WeakValueDictionary())

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of events that the report recorded, in the order of :data:`kanalyze.model.KINDS`."""
        present = self._kept.value(schema.KINDS_KEY, lambda: {*self.source.kinds}, self.meta.path)
        return tuple(kind for kind in KINDS if kind in present)

    def kind(self, kind: str) -> pl.DataFrame:
        """All events of one kind in the processes in scope, regardless of window and device.

        Empty where the report does not record the kind; :attr:`kinds` tells that apart from "there was none".
        """
        frame, process = self._events(kind), self.scope.process
        return frame if process is None else frame.filter(pl.col("process_id") == process)

    def _events(self, kind: str) -> pl.DataFrame:
        """All events of one kind, of all processes; a source is asked for the kinds that it recorded."""

        def read() -> pl.DataFrame:
            return self._checked(EVENTS, self.source.events(kind)) if kind in self.kinds else EVENTS.empty()

        return self._kept.value(_EVENTS_OF.format(kind), read, self.meta.path)

    def of_kinds(self, kinds: Sequence[str], *columns: str) -> pl.DataFrame:
        """Columns of all events of several kinds, concatenated, in the processes in scope."""
        return pl.concat(self.kind(kind).select(columns) for kind in kinds)

    def seen(self, kind: str) -> pl.DataFrame:
        """Events of one kind in scope: filtered by process and device, overlapping the window, not clipped."""
        frame = self.kind(kind)
        if self.scope.device is not None and kind in DEVICE_KINDS:
            frame = frame.filter(pl.col("device") == self.scope.device)
        return intervals.overlapping(frame, self.scope.sides, "start_ns", intervals.END)

    def table(self, name: str) -> pl.DataFrame:
        """A table of :data:`kanalyze.model.READER_TABLES`; `events` concatenates all kinds."""
        refuse_unknown("table", name, READER_TABLES)
        if name == EVENTS.name:
            return pl.concat([EVENTS.empty(), *(self.seen(kind) for kind in self.kinds)])
        declared = READER_TABLES[name]
        return self._kept.value(name, lambda: self._checked(declared, self.source.table(name)), self.meta.path)

    def mapped(self, name: str, transform: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
        """Parts of a table, mapped by `transform` and concatenated.

        Of a large table not more than a part is in memory where the reader can do so; rows are then in no set order.
        """
        if isinstance(self.source, schema.PartedSource) and not self._kept.has(name):
            with self._kept.noted(name):
                return self.source.mapped(name, transform)
        return transform(self.table(name))

    @property
    def events(self) -> pl.DataFrame:
        """Every event in scope; see :data:`kanalyze.model.EVENTS`."""
        return self.table("events")

    @property
    def kernel_config(self) -> pl.DataFrame:
        """Launch configuration of each kernel; see :data:`kanalyze.model.KERNEL_CONFIG`."""
        return self.table("kernel_config")

    @property
    def copy_detail(self) -> pl.DataFrame:
        """Details of each copy; see :data:`kanalyze.model.COPY_DETAIL`."""
        return self.table("copy_detail")

    @property
    def devices(self) -> pl.DataFrame:
        """The GPUs; see :data:`kanalyze.model.DEVICES`."""
        return self.table("devices")

    @property
    def processes(self) -> pl.DataFrame:
        """The processes and their visible GPUs; see :data:`kanalyze.model.PROCESSES`."""
        return self.table("processes")

    def narrow(self, **where: Unpack[Where]) -> Report:
        """A view of the report narrowed to a window, device or process, or with labels of steps; see :class:`Where`.

        Raises BadWindowError for a window with a wrong syntax, of several instances of a range, or before or after the
        recording; UnknownNameError if the report knows no such device, process or range.
        """
        window, device, process = where.get("window"), where.get("device"), where.get("process")
        labels = tuple(where.get("steps") or self.scope.labels)
        if window is None and device is None and process is None and labels == self.scope.labels:
            return self
        if device is not None and device not in (devices := self.devices.get_column("device").to_list()):
            used = self.of_kinds(DEVICE_KINDS, "device").to_series().fill_null(0)  # of a damaged report
            if device not in used:
                raise UnknownNameError.of("device", device, sorted({*devices, *used}))
        if process is not None and process not in (processes := self.processes.get_column("process_id").unique()):
            raise UnknownNameError.of("process", process, processes.sort().to_list())
        device = self.scope.device if device is None else device
        process = self.scope.process if process is None else process
        scope = replace(self.scope, device=device, process=process, labels=labels)
        self._whole.setdefault((self.scope.process, *self.scope.labels), self.whole)
        view = replace(self, scope=scope)
        resolved = view.window(window) if isinstance(window, str) else window
        view = view if resolved is None else replace(view, scope=replace(scope, window=resolved))
        _ = view.whole  # keeps the whole from now on, so that all views share it
        return view

    @property
    def whole(self) -> Report:
        """The report without window and device; shared by all views of the same process."""
        if self.scope.window is None and self.scope.device is None:
            return self
        if not self._part_of:  # views refer to the whole, never the reverse, so that an unused view is freed at once
            everything = replace(self, scope=replace(self.scope, window=None, device=None))
            self._part_of.append(self._whole.setdefault((self.scope.process, *self.scope.labels), everything))
        return self._part_of[0]

    @property
    def everywhere(self) -> Report:
        """The whole report with all of its processes; shared by all views for as long as any of them is that."""
        whole = self.whole
        everything = whole if self.scope.process is None else replace(self, scope=replace(whole.scope, process=None))
        return self._whole.setdefault((None, *self.scope.labels), everything)

    def window(self, text: str) -> Window:
        """Resolves `text` to one window: two times, or a range of the processes in scope; see :class:`Where`.

        Raises BadWindowError for a wrong syntax, several instances, or one without duration; UnknownNameError if the
        report has ranges, but none of that name.
        """
        windows = self.instances(text)
        if len(windows) > 1:
            names = [str(window.name) for window in windows]
            raise BadWindowError.several(text, named_ranges.parsed(text)[0], names, self.meta.path)
        return lasting(text, windows)[0]

    def windows(self, text: str) -> list[Window]:
        """The :meth:`instances` of `text`, without those of zero duration.

        Raises what that does, and BadWindowError if nothing that it names has a duration.
        """
        return lasting(text, self.instances(text))

    def instances(self, text: str) -> list[Window]:
        """All windows that `text` names; several if a range has several instances, or for ``name#*``.

        ``steps`` is every step of the framework's profiler, ``step:5`` the one with that number, and a name that
        ``iterations`` has, or a pattern of such, every one of these; a range that is really called so comes first.
        With a device in scope, only ranges of the processes that used it count.

        Raises BadWindowError for a wrong syntax; UnknownNameError if the report has ranges or steps, but none of that
        name, or not so many.
        """
        try:
            times = Window.parse(text, self.first_ns if any(map(relative, text.split(".."))) else 0)
        except BadWindowError:
            ranges = self._of_device(named_ranges.named(self.kind("range"), self.table("range_detail")))
            if (steps := named_ranges.steps_asked(text, ranges, self.steps)) is not None:
                return steps
            if named_ranges.instances(ranges, text).is_empty() and (of_iterations := self._of_iterations(text, ranges)):
                return of_iterations
            if ranges.is_empty() or not text:  # unnamed ranges cannot be selected by name
                raise
            name, which = (text, "") if named_ranges.instances(ranges, text).height else named_ranges.parsed(text)
            matches = named_ranges.instances(ranges, name)
            if matches.is_empty() and ".." in text:
                raise
        else:
            if not self.meta.timeless:
                times.refuse_outside(text, self.meta.path, self._spans(), self.zero_ns)
            return [times]
        if matches.is_empty():
            alike = [one for like in named_ranges.like(ranges, name) for one in self.instances(like)]
            if alike:
                alike.sort(key=lambda window: window.start_ns or 0)
                some = named_ranges.chosen(alike, which, f"instance of ranges {name!r}")
                return [replace(window, group=text) for window in some]
            raise UnknownNameError.of("range", name, named_ranges.names(ranges))
        every, many = which in ("", EVERY), matches.height > 1
        sides = matches.select("start", "end", "process_id").iter_rows()
        windows = [
            Window(start, end, (f"{name}#{number}" if many else name) if every else text, None, process)
            for number, (start, end, process) in enumerate(sides, 1)
        ]
        return named_ranges.chosen(windows, which, f"instance of range {name!r}")

    def _of_iterations(self, text: str, ranges: pl.DataFrame) -> list[Window] | None:
        """The windows that `text` names by iterations, an analysis above, loaded by name; None: ranges say it."""
        named, name = text != STEADY and ".." not in text, named_ranges.parsed(text)[0]
        if self.meta.timeless or not text or (named and named_ranges.instances(ranges, name).height):
            return None
        if named and named_ranges.like(ranges, name):
            return None
        windows: list[Window] | None = import_module(_ITERATIONS).windows_named(self, text)
        return windows

    def _spans(self) -> Iterator[tuple[int, int]]:
        """First and last instant of the recording, from metadata, then of each kind; a clock of its own starts at 0."""
        if self.meta.end_ns is not None:
            yield 0, max(self.meta.end_ns, 0)
        own_clock = not self.meta.recorder.other_clock
        for kind in self.kinds:
            first, last = self._events(kind).select(pl.col("start_ns").min(), end=intervals.END.max()).row(0)
            if first is not None:
                yield min(first, 0) if own_clock else first, max(first, last)

    @property
    def recorded(self) -> tuple[int, int]:
        """Start and end of the recording, as far as its file says; else of its first and last event."""
        if self.meta.end_ns is not None and not self.meta.recorder.other_clock:
            return 0, max(self.meta.end_ns, 0)
        spans = [*self._spans()]
        return min((first for first, _ in spans), default=0), max((last for _, last in spans), default=0)

    def steps(self) -> pl.DataFrame:
        """Profiler steps of the processes in scope; see :func:`kanalyze.window.steps`."""
        # before torch 1.11 all ranges are operators
        of_ranges = named_ranges.steps(self.kind("range"))
        return self._of_device(of_ranges if of_ranges.height else named_ranges.steps(self.kind("op")))

    def _of_device(self, ranges: pl.DataFrame) -> pl.DataFrame:
        """Filters `ranges` (with process_id) to processes that used the device in scope; all if none did."""
        device = self.scope.device
        if device is None or ranges.is_empty():
            return ranges
        used = [self.kind(kind).filter(pl.col("device") == device).get_column("process_id") for kind in DEVICE_KINDS]
        on_device = ranges.filter(pl.col("process_id").is_in(pl.concat(used).unique().implode()))
        return on_device if on_device.height else ranges

    @property
    def first_ns(self) -> int:
        """Start of the report's first event, of any process and kind; 0 if there are none."""
        starts = [self._events(kind).get_column("start_ns").min() for kind in self.kinds]
        return min((start for start in starts if isinstance(start, int)), default=0)

    @property
    def zero_ns(self) -> int:
        """The origin of displayed times: the first event if the clock does not start with the recording, else 0."""
        return self.first_ns if self.meta.recorder.other_clock else 0

    def was_read(self, kind: str) -> bool:
        """Whether the events of one kind are cached."""
        return self._kept.has(_EVENTS_OF.format(kind))

    def notes_of_read(self) -> pl.DataFrame:
        """The table `notes`, as far as known without reading further tables."""
        return self.table(NOTES.name) if self._kept.has(NOTES.name) else NOTES.check(self.source.notes_of_read())

    @property
    def damaged(self) -> dict[str, str]:
        """What could not be read so far since it is damaged, and why; with that of the reports beside that it uses."""
        beside = [(file, *one) for file, kept in self._kept.beside.items() for one in kept.damaged.items()]
        return self._kept.damaged | {f"{what} of {file}": why for file, what, why in beside}

    def go_without(self, file: str, error: KanalyzeError) -> None:
        """Notes that a report beside cannot be read because of `error`."""
        self._kept.damaged[f"report {file}"] = str(error)

    def use(self, other: Report) -> None:
        """Counts what is damaged of a report beside as damage of what is told of this one."""
        self._kept.beside[other.meta.path.name] = other._kept

    def _checked(self, table: schema.Table, read: pl.DataFrame) -> pl.DataFrame:
        """Checks a table as it is read; raises DamagedReportError for numbers whose sums would not fit 64 bits."""
        frame = table.check(read)
        wrong = too_large(frame, _SUMMED.get(table.name, ()), _SINGLE.get(table.name, ()))
        if wrong is None and table is EVENTS and (end := last_end(frame)) > LARGEST:
            wrong = f"an event ends at {end:,} ns"
        if wrong is not None:
            raise DamagedReportError.at(self.meta.path, f"the table {table.name}", f"{wrong}, more than any report has")
        return frame


class Derived:
    """A source of what another report has; those that derive from it give some of that anew."""

    def __init__(self, whole: Report) -> None:
        """Takes that report."""
        self.whole = whole

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of events that were recorded."""
        return self.whole.kinds

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind."""
        return self.whole.kind(kind)

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables."""
        return self.whole.table(name)

    def mapped(self, name: str, transform: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
        """The parts of a table, mapped by `transform`; see :class:`kanalyze.schema.PartedSource`."""
        return self.whole.mapped(name, transform)

    def notes_of_read(self) -> pl.DataFrame:
        """The notes of the report."""
        return self.whole.notes_of_read()

    def close(self) -> object:
        """Close the report's own source."""
        return self.whole.source.close()
