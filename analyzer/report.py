"""A report: tables that a reader fills on demand, and the part of them that the user asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import RLock
from typing import TYPE_CHECKING, Final, Protocol, TypedDict, Unpack

import polars as pl

from kanalyze import named_ranges
from kanalyze.errors import BadWindowError, UnknownNameError
from kanalyze.frames import stacked
from kanalyze.model import DEVICE_KINDS, EVENTS, KINDS, READER_TABLES
from kanalyze.units import parse_time_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path


#: Times are 64-bit nanoseconds, and differences of them must be, too: some 146 years.
_LATEST_NS: Final = (1 << 62) - 1

#: Tools whose times do not start with the recording: those of the machine, or of the Unix epoch.
_OTHER_CLOCKS: Final = ("torch.profiler",)

#: The key of a kind's events among the tables that were read.
_EVENTS_OF: Final = "events:{}"


@dataclass(frozen=True)
class Meta:
    """Where a report came from.

    Attributes:
        path: The report, as it was given.
        tool: ``nsys``, ``ncu`` or ``torch.profiler``.
        tool_version: The tool's own version, such as ``2025.3.2``; None where the file does not say.
        schema_version: Version of the file's layout, in the tool's own numbering.
        driver_version: The GPU driver.
        origin_unix_ns: Unix time of the trace's time 0.
        duration_ns: Length of the recording, as the tool gives it.
        end_ns: The latest time that the recording can hold.
        read_from: The export that was read in place of `path`, where that is one.
        rank: Which process of a distributed run it is, where the tool says so.
        world_size: Of how many.
        capture: The folder of `kanalyze collect` that it was read from.
        partial: It may lack a part of the run: it is of a capture whose command of nsys does not say that it recorded
            all of it.
        selective: Whether ncu was told to measure some launches only; None where its command is not known.
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

    @property
    def timeless(self) -> bool:
        """Whether its kernels have durations and no place in time: ncu ran each of them alone, again and again."""
        return self.tool == "ncu"


class Source(Protocol):
    """What a reader gives: tables of :mod:`kanalyze.model`, read when they are asked for, several at once."""

    @property
    def kinds(self) -> Iterable[str]:
        """The kinds of events that the report records at all."""

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, as :data:`kanalyze.model.EVENTS`."""

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables of :data:`kanalyze.model.READER_TABLES`."""


@dataclass(frozen=True)
class Window:
    """A part of the report's time, ``[start_ns, end_ns)``; None leaves a side open.

    `name` is the range that it is an instance of, where it was asked for by name; `group` is what all windows that were
    asked for with it are called together, where their names do not say.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    name: str | None = None
    group: str | None = field(default=None, compare=False)

    @property
    def empty(self) -> bool:
        """Whether it has no duration, as a range may that began and ended within one tick of the clock."""
        return self.start_ns is not None and self.end_ns is not None and self.end_ns <= self.start_ns

    @classmethod
    def parse(cls, text: str, first_ns: int = 0) -> Window:
        """The window that `text` names: ``120ms..250ms``, ``..1.5s``, ``300us..``, ``+10ms..+20ms``.

        A time with a plus sign is counted from `first_ns` on.

        Raises:
            BadWindowError: No ``..``, a time without unit, or an end that is not after the start.
        """
        start, dots, end = text.partition("..")
        if not dots:
            raise BadWindowError.of(text, "there is no '..' between start and end")
        window = cls(_side_ns(text, start, first_ns), _side_ns(text, end, first_ns))
        if window.start_ns is not None and window.end_ns is not None and window.end_ns <= window.start_ns:
            raise BadWindowError.of(text, "the end is not after the start")
        return window


def _side_ns(text: str, side: str, first_ns: int) -> int | None:
    if not side.strip():
        return None
    found = parse_time_ns(side)
    if found is None:
        raise BadWindowError.of(text, f"{side.strip()!r} is not a time with a unit (ns, us, ms or s)")
    found += first_ns if _relative(side) else 0
    if abs(found) > _LATEST_NS:
        raise BadWindowError.of(text, f"{side.strip()!r} is later than any time of a report")
    return found


def _relative(side: str) -> bool:
    """Whether a side of a window is counted from the report's first event on."""
    return side.lstrip().startswith("+")


def _lasting(text: str, windows: list[Window]) -> list[Window]:
    """The `windows` that have a duration, of all those that `text` names."""
    lasting = [window for window in windows if not window.empty]
    if not lasting:
        raise BadWindowError.empty(text, len(windows))
    return lasting


class Where(TypedDict, total=False):
    """The part of a report that an analysis looks at; every analysis takes these as keywords.

    Attributes:
        window: A :class:`Window`, or its text: two times (``"120ms..250ms"``; with a plus sign since the first event of
            the report, ``"+10ms..+20ms"``), a range that occurs once (``"warmup"``, with a domain
            ``"NCCL:ncclAllReduce"``), one instance of a range (``"step#3"``, the third to start), or a step of the
            framework's profiler by its number (``"step:5"``).
        device: One GPU of the `devices` table.
        process: One process id.
    """

    window: Window | str | None
    device: int | None
    process: int | None


@dataclass(frozen=True)
class Scope:
    """What the user asked for: a window, a device, a process; None is everything."""

    window: Window | None = None
    device: int | None = None
    process: int | None = None


@dataclass(frozen=True, eq=False)
class Report:
    """The tables of one report. Holds no analysis and prints nothing.

    `meta` says where it came from, `scope` which part of it is looked at. Tables are read when first asked for and
    kept; a narrowed report shares them.
    """

    meta: Meta
    source: Source = field(repr=False)
    scope: Scope = field(default_factory=Scope)
    _tables: dict[str, pl.DataFrame] = field(default_factory=dict, repr=False)
    _whole: dict[int | None, Report] = field(default_factory=dict, repr=False)
    _reading: dict[str, RLock] = field(default_factory=dict, repr=False)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of events that the report records, in the order of :data:`kanalyze.model.KINDS`."""
        present = set(self.source.kinds)
        return tuple(kind for kind in KINDS if kind in present)

    def kind(self, kind: str) -> pl.DataFrame:
        """All events of one kind of the processes in scope, at any time and on any device.

        Empty where the report does not record the kind; :attr:`kinds` tells that apart from "there was none".
        """
        frame = self._events(kind)
        if self.scope.process is not None:
            frame = frame.filter(pl.col("process_id") == self.scope.process)
        return frame

    def _events(self, kind: str) -> pl.DataFrame:
        """All events of one kind, of every process."""
        return self._cached(_EVENTS_OF.format(kind), lambda: EVENTS.check(self.source.events(kind)))

    def of_kinds(self, kinds: Sequence[str], *columns: str) -> pl.DataFrame:
        """Columns of all events of some kinds of the processes in scope, at least one kind, one after the other.

        The tables of the kinds become parts of it, so that it is in memory once.
        """
        parts = {kind: self.kind(kind) for kind in kinds}
        together = stacked([part.select(columns) for part in parts.values()])
        if self.scope.process is None:
            at = 0
            for kind, part in parts.items():
                self._tables[_EVENTS_OF.format(kind)] = part.with_columns(together.slice(at, part.height))
                at += part.height
        return together

    def seen(self, kind: str) -> pl.DataFrame:
        """The events of one kind in scope: of its processes and device, overlapping the window; whole, not clipped."""
        frame, window = self.kind(kind), self.scope.window
        if self.scope.device is not None and kind in DEVICE_KINDS:
            frame = frame.filter(pl.col("device") == self.scope.device)
        if window is None:
            return frame
        end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
        if window.start_ns is not None:
            frame = frame.filter((end > window.start_ns) | (pl.col("start_ns") == window.start_ns))
        if window.end_ns is not None:
            frame = frame.filter(pl.col("start_ns") < window.end_ns)
        return frame

    def table(self, name: str) -> pl.DataFrame:
        """A table of :data:`kanalyze.model.READER_TABLES`; `events` is all kinds one after the other."""
        if name not in READER_TABLES:
            raise UnknownNameError.of("table", name, READER_TABLES)
        if name == EVENTS.name:
            return pl.concat([EVENTS.empty(), *(self.seen(kind) for kind in self.kinds)])
        return self._cached(name, lambda: READER_TABLES[name].check(self.source.table(name)))

    @property
    def events(self) -> pl.DataFrame:
        """Every event in scope; see :data:`kanalyze.model.EVENTS`."""
        return self.table("events")

    @property
    def kernel_config(self) -> pl.DataFrame:
        """How each kernel was launched; see :data:`kanalyze.model.KERNEL_CONFIG`."""
        return self.table("kernel_config")

    @property
    def copy_detail(self) -> pl.DataFrame:
        """What each copy moved; see :data:`kanalyze.model.COPY_DETAIL`."""
        return self.table("copy_detail")

    @property
    def devices(self) -> pl.DataFrame:
        """The GPUs; see :data:`kanalyze.model.DEVICES`."""
        return self.table("devices")

    @property
    def processes(self) -> pl.DataFrame:
        """The processes and the GPUs that they see; see :data:`kanalyze.model.PROCESSES`."""
        return self.table("processes")

    def narrow(self, **where: Unpack[Where]) -> Report:
        """The same report, looked at through a window, on one device, or for one process; see :class:`Where`.

        Raises:
            BadWindowError: The window's text cannot be understood, or names several instances of a range.
            UnknownNameError: The report knows no such device, process or range.
        """
        window, device, process = where.get("window"), where.get("device"), where.get("process")
        if window is None and device is None and process is None:
            return self
        if device is not None and device not in (known := self.devices.get_column("device").to_list()):
            raise UnknownNameError.of("device", device, known)
        if process is not None and process not in (known := self._process_ids()):
            raise UnknownNameError.of("process", process, known)
        scope = Scope(
            window=self.scope.window,
            device=self.scope.device if device is None else device,
            process=self.scope.process if process is None else process,
        )
        self._whole.setdefault(self.scope.process, self.whole)
        found = replace(self, scope=scope)
        wanted = found.window(window) if isinstance(window, str) else window
        return found if wanted is None else replace(found, scope=replace(scope, window=wanted))

    @property
    def whole(self) -> Report:
        """The same report at all times and on all devices; the same one for every part of it, process by process."""
        if self.scope.window is None and self.scope.device is None:
            return self
        everything = replace(self, scope=Scope(process=self.scope.process))
        return self._whole.setdefault(self.scope.process, everything)

    def window(self, text: str) -> Window:
        """The window that `text` names: two times, or a range of the processes in scope; see :class:`Where`.

        Raises:
            BadWindowError: The text cannot be understood, or names several instances, or one without duration.
            UnknownNameError: The report has ranges, but none of that name.
        """
        found = self.instances(text)
        if len(found) > 1:
            raise BadWindowError.several(text, named_ranges.parsed(text)[0], [str(one.name) for one in found])
        return _lasting(text, found)[0]

    def windows(self, text: str) -> list[Window]:
        """The :meth:`instances` that `text` names, without those that have no duration: nothing happens in them.

        Raises:
            BadWindowError: The text cannot be understood, or nothing that it names has a duration.
            UnknownNameError: The report has ranges, but none of that name, or not so many.
        """
        return _lasting(text, self.instances(text))

    def instances(self, text: str) -> list[Window]:
        """Every window that `text` names; several where it is a range that occurs more than once, or ``name#*``.

        ``steps`` is every step of the framework's profiler, ``step:5`` the one with that number; a range that is
        really called so comes first.

        Raises:
            BadWindowError: The text cannot be understood.
            UnknownNameError: The report has ranges or steps, but none of that name, or not so many.
        """
        try:
            return [self._times(text)]
        except BadWindowError:
            ranges = named_ranges.named(self.kind("range"), self.table("range_detail"))
            if (steps := named_ranges.steps_asked(text, ranges, self.steps)) is not None:
                group = named_ranges.STEPS if named_ranges.parsed(text)[0] == named_ranges.STEPS else None
                return [Window(*step, group) for step in steps]
            if ranges.is_empty() or not text:  # a range need not have a name, but then it cannot be asked for by one
                raise
            name, which = (text, "") if named_ranges.instances(ranges, text).height else named_ranges.parsed(text)
            found = named_ranges.instances(ranges, name)
            if found.is_empty() and ".." in text:
                raise
        if found.is_empty():
            raise UnknownNameError.of("range", name, named_ranges.names(ranges))
        instances = [Window(start, end, name) for start, end in found.select("start", "end").iter_rows()]
        if which in ("", named_ranges.EVERY):
            many = len(instances) > 1
            return [replace(one, name=f"{name}#{number}" if many else name) for number, one in enumerate(instances, 1)]
        if not 1 <= int(which) <= len(instances):
            raise UnknownNameError.number(f"instance of range {name!r}", which, len(instances))
        return [replace(instances[int(which) - 1], name=text)]

    def _times(self, text: str) -> Window:
        """The window between two times."""
        relative = any(map(_relative, text.split("..")))
        return Window.parse(text, self.first_ns if relative else 0)

    def steps(self) -> pl.DataFrame:
        """The steps of the framework's profiler, of the processes in scope; see :func:`kanalyze.named_ranges.steps`."""
        # before torch 1.11 every range is an operator
        of_ranges = named_ranges.steps(self.kind("range"))
        return of_ranges if of_ranges.height else named_ranges.steps(self.kind("op"))

    @property
    def first_ns(self) -> int:
        """When the first event of the report starts, of whatever process and kind; 0 where there is none."""
        starts = [self._events(kind).get_column("start_ns").min() for kind in self.kinds]
        return min((start for start in starts if isinstance(start, int)), default=0)

    @property
    def zero_ns(self) -> int:
        """What people count the report's times from: its first event where its clock does not start with it, else 0."""
        return self.first_ns if self.meta.tool in _OTHER_CLOCKS else 0

    def release(self, name: str) -> None:
        """Let go of a table that was read; it is read again when it is asked for."""
        self._tables.pop(name, None)

    def _process_ids(self) -> list[int]:
        return self.processes.get_column("process_id").unique().sort().to_list()

    def _cached(self, key: str, read: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        with self._reading.setdefault(key, RLock()):
            if key not in self._tables:
                self._tables[key] = read()
            return self._tables[key]
