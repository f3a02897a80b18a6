"""Reports made by hand: a test lists events, everything that it does not care about is filled in.

An event's id is its place in the list, so that "the lower event_id" is "the one that is listed first".
"""

import re
from dataclasses import MISSING, dataclass, field, fields, replace
from itertools import starmap
from pathlib import Path

import polars as pl

from kanalyze.model import DEVICE_KINDS, DEVICES, EVENTS, KINDS, READER_TABLES
from kanalyze.report import Meta, Report

#: What a CUDA trace records, whether or not there was any.
CUDA_KINDS = ("kernel", "graph", "memcpy", "memset", "api", "sync", "overhead")
LAUNCH = "cudaLaunchKernel_v7000"
US, MS, MB = 1_000, 1_000_000, 1 << 20
BLOCK = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}
HOPPER = {"compute_capability": "9.0", "name": "NVIDIA H200"}
#: A small GPU: four blocks of one warp fill it.
SMALL = {"sm_count": 2, "max_warps_per_sm": 2, "threads_per_warp": 32}
#: One of which each SM holds eight blocks of 256 threads with BLOCK's registers.
FOUR_SMS = {"compute_capability": "9.0", "sm_count": 4}


@dataclass(frozen=True, repr=False)
class Event:
    """One event, and what its side table says about it; None is null."""

    kind: str
    name: str | None
    start: int
    end: int | None
    process: int | None = 1
    thread: int | None = None
    device: int | None = None
    context: int | None = None
    stream: int | None = None
    correlation: int | None = None
    parent: int | None = None
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    direction: str | None = None
    size_bytes: int = 1
    side: dict = field(default_factory=dict, hash=False)  # more of its side table

    def __repr__(self):
        """What is not by default, for messages of tests that fail."""
        shown = [f"{of.name}={value!r}" for of in fields(self) if (value := getattr(self, of.name)) != _default(of)]
        return f"Event({', '.join(shown)})"

    def _repr_pretty_(self, printer, _cycle):
        """The same where hypothesis shows an example."""
        printer.text(repr(self))


def _default(of):
    return of.default if of.default_factory is MISSING else of.default_factory()


#: The side table of each kind that has one.
SIDES = {
    "kernel": "kernel_config", "memcpy": "copy_detail", "memset": "copy_detail", "range": "range_detail",
    "sync": "sync_detail", "fault": "fault_detail", "memory": "memory_detail", "graph": "graph_detail",
    "op": "op_detail",
}  # fmt: skip

#: What every row of a side table has, where a test does not care.
_FILLED = {
    "range": {"style": "PushPop"},
    "fault": {"side": "CPU", "address": 0, "faults": 1},
    "memory": {"address": 0, "size_bytes": 1, "memory": "Device"},
}


def kernel(start, end, *, name="k", **keys):
    """A kernel, on device 0 and stream 7 unless told otherwise."""
    return _device_event("kernel", name, start, end, keys)


def graph(start, end, *, name="[CUDA graph 1]", **keys):
    """A whole-graph row: a graph launch whose nodes were not traced."""
    return _device_event("graph", name, start, end, keys)


def memcpy(start, end, *, direction="Host-to-Device", **keys):
    """A copy, named as nsys names that direction."""
    return _device_event("memcpy", f"[CUDA memcpy {direction}]", start, end, {**keys, "direction": direction})


def memset(start, end, **keys):
    return _device_event("memset", "[CUDA memset]", start, end, keys)


def call(name, start, end, **keys):
    """A CUDA call, on thread 1 unless told otherwise."""
    return Event("api", name, start, end, **{"thread": 1, **keys})


def overhead(name, start, end, **keys):
    """The profiler's own work, on thread 1 unless told otherwise."""
    return Event("overhead", name, start, end, **{"thread": 1, **keys})


def nvtx(name, start, end, *, thread=1, process=1, **side):
    """An NVTX range on thread 1, one that nests unless `style` says otherwise; an end of None leaves it open."""
    return Event("range", name, start, end, process=process, thread=thread, side=side)


def host(kind, name, start, end, **keys):
    """An osrt, library, sync, fault or memory event, on thread 1 unless told otherwise; `side` fills its side table."""
    return Event(kind, name, start, end, **{"thread": 1, **keys})


def in_line(start, end, number, text="", **more):
    """A stretch of time that thread 1 is in a line of a.py; `more` are other columns."""
    where = {"process_id": 1, "thread_id": 1, "file": "a.py", "function": "f", "line": number, "text": text}
    return {**where, "start_ns": start, "dur_ns": end - start, **more}


def _device_event(kind, name, start, end, keys):
    return Event(kind, name, start, end, **{"device": 0, "stream": 7, "context": 1, **keys})


def report(events, *, kinds=CUDA_KINDS, limits=None, meta=None, **tables):
    """The report of `events`; it records `kinds`, and whatever else occurs among them.

    `limits` are columns of every row of the devices; `meta` is what it says of itself; `tables` are the rows of
    reader's tables that no event fills, such as event_records or graph_nodes.
    """
    return Report(
        Meta(**{"path": Path("made by hand"), "tool": "test", **(meta or {})}),
        Listed(events, kinds, limits or {}, tables),
    )


class Listed:
    """A list of events as a :class:`kanalyze.schema.Source`."""

    def __init__(self, events, kinds, limits, tables):
        """Number the events by their place."""
        self._events = list(enumerate(events))
        self._limits, self._tables = limits, tables
        found = {*kinds, *(event.kind for event in events)}
        self.kinds = tuple(kind for kind in KINDS if kind in found)

    def events(self, kind):
        return _frame(EVENTS, starmap(_event_row, self._of(kind)))

    def table(self, name):
        """One of the other tables; what is not made here is empty."""
        declared = READER_TABLES[name]
        if name in self._tables:
            rows = [{**dict.fromkeys(declared.schema), **row} for row in self._tables[name]]
            return declared.check(pl.DataFrame(rows, schema=declared.schema))
        if name in SIDES.values():
            return self._side(declared)
        rows = {"devices": self._devices, "processes": self._processes}
        return _frame(declared, rows[name]()) if name in rows else declared.empty()

    def close(self):
        """Do nothing: there is no file."""

    def notes_of_read(self):
        return self.table("notes")

    def _of(self, *kinds):
        return [(number, event) for number, event in self._events if event.kind in kinds]

    def _side(self, declared):
        """The side table of all kinds that have this one; a column that an event does not give is null."""
        kinds = [kind for kind, name in SIDES.items() if name == declared.name]
        rows = []
        for number, event in self._of(*kinds):
            if event.kind == "op" and not event.side:
                continue
            shape = dict(zip(_SHAPE, (*event.grid, *event.block), strict=True))
            known = {**shape, "direction": event.direction, "size_bytes": event.size_bytes}
            if event.kind not in DEVICE_KINDS:
                known = _FILLED.get(event.kind, {})
            known = {**known, **event.side, "event_id": number}
            rows.append(tuple(known.get(column) for column in declared.schema))
        return _frame(declared, rows)

    def _devices(self):
        found = {event.device for _, event in self._of(*DEVICE_KINDS)} - {None}
        named = [{"device": device, "name": f"GPU {device}", **self._limits} for device in sorted(found)]
        return [tuple(row.get(column) for column in DEVICES.schema) for row in named]

    def _processes(self):
        known = {event.process for _, event in self._events} - {None}
        used = {(event.process, event.device) for _, event in self._of(*DEVICE_KINDS)}
        seen = {(process, device) for process, device in used if process is not None and device is not None}
        deviceless = known - {process for process, _ in seen}
        with_device = [(process, "app", device, device) for process, device in sorted(seen)]
        return with_device + [(process, "app", None, None) for process in sorted(deviceless)]


_SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def _event_row(number, event):
    duration = None if event.end is None else event.end - event.start
    keys = ("process", "thread", "device", "context", "stream", "correlation", "parent")
    return (number, event.kind, event.name, event.start, duration, *(getattr(event, key) for key in keys))


def _frame(table, rows):
    return table.check(pl.DataFrame(list(rows), schema=table.schema, orient="row"))


def launched(start, end, operation, name="cudaLaunchKernel", **keys):
    """A call and what it launched; where that has no correlation id, it is told by the start of the call."""
    number = 10**9 + start if operation.correlation is None else operation.correlation
    return [call(name, start, end, correlation=number, **keys), replace(operation, correlation=number)]


def again(times, *events):
    """The events at each of these times, from which theirs count; correlation ids grow by the time."""
    moved = []
    for at in times:
        for one in events:
            number = None if one.correlation is None else one.correlation + at
            moved.append(replace(one, start=one.start + at, end=one.end + at, correlation=number))
    return moved


def rows_of(names, *rows):
    """Rows as `to_dicts` gives them, whose columns have these names."""
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


#: The columns of event_records, for :func:`rows_of`.
RECORD = "process_id context_id stream correlation_id record_id"

_WRITTEN = re.compile(r"(-?\d+)-(-?\d+) (.+?)((?: [#ptds^](?:\d+|None))*)")
_KEYS = {"#": "correlation", "p": "process", "t": "thread", "d": "device", "s": "stream", "^": "parent"}


def timeline(text):
    """Events as written, such as ``0-5 cudaLaunchKernel #1; 7-9 kernel:gemm #1 s8``: start, end, name and keys.

    Keys are # (correlation), p (process), t (thread), d (device), s (stream) and ^ (parent). A call goes by its name,
    the profiler's work by ! and its name, a range by its name in brackets, a copy by memcpy and its direction, an
    operator by op: and a Python function by python: before its name.
    """
    made = []
    for event in re.split(r"; |;?\s*\n\s*", text.strip()):
        start, end, name, further = _WRITTEN.fullmatch(event).groups()
        keys = {_KEYS[key[0]]: None if key[1:] == "None" else int(key[1:]) for key in further.split()}
        kind, _, detail = name.partition(":" if name.startswith("kernel:") else " ")
        if name.startswith("["):
            made.append(nvtx(name[1:-1], int(start), int(end), **keys))
        elif name.startswith("!"):
            made.append(overhead(name[1:], int(start), int(end), **keys))
        elif name.startswith(("op:", "python:")):
            kind, _, name = name.partition(":")
            made.append(host(kind, name, int(start), int(end), **keys))
        elif kind in _ON_DEVICE:
            further = {} if not detail else {"direction": detail} if kind == "memcpy" else {"name": detail}
            made.append(_ON_DEVICE[kind](int(start), int(end), **further, **keys))
        else:
            made.append(call(name, int(start), int(end), **keys))
    return made


_ON_DEVICE = {"kernel": kernel, "graph": graph, "memcpy": memcpy, "memset": memset}
