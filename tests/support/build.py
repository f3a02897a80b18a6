"""Reports made by hand: a test lists events, everything that it does not care about is filled in.

An event's id is its place in the list, so that "the lower event_id" is "the one that is listed first".
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import polars as pl

from kanalyze.model import (
    COPY_DETAIL,
    DEVICE_KINDS,
    DEVICES,
    EVENTS,
    KERNEL_CONFIG,
    KINDS,
    PROCESSES,
    READER_TABLES,
)
from kanalyze.report import Meta, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Unpack

#: What a CUDA trace records, whether or not there was any.
CUDA_KINDS = ("kernel", "graph", "memcpy", "memset", "api", "sync", "overhead")


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

    def __repr__(self) -> str:
        """What is not by default, for messages of tests that fail."""
        shown = [f"{of.name}={value!r}" for of in fields(self) if (value := getattr(self, of.name)) != of.default]
        return f"Event({', '.join(shown)})"

    def _repr_pretty_(self, printer, _cycle) -> None:
        """The same where hypothesis shows an example."""
        printer.text(repr(self))


class Keys(TypedDict, total=False):
    """The fields of an :class:`Event` that have a default."""

    process: int | None
    thread: int | None
    device: int | None
    context: int | None
    stream: int | None
    correlation: int | None
    parent: int | None
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    direction: str | None
    size_bytes: int


def kernel(start: int, end: int, *, name: str | None = "k", **keys: Unpack[Keys]) -> Event:
    """A kernel, on device 0 and stream 7 unless told otherwise."""
    return _device_event("kernel", name, start, end, keys)


def graph(start: int, end: int, *, name: str | None = "[CUDA graph 1]", **keys: Unpack[Keys]) -> Event:
    """A whole-graph row: a graph launch whose nodes were not traced."""
    return _device_event("graph", name, start, end, keys)


def memcpy(start: int, end: int, *, direction: str = "Host-to-Device", **keys: Unpack[Keys]) -> Event:
    """A copy, named as nsys names that direction."""
    return _device_event("memcpy", f"[CUDA memcpy {direction}]", start, end, {**keys, "direction": direction})


def memset(start: int, end: int, **keys: Unpack[Keys]) -> Event:
    """A memset."""
    return _device_event("memset", "[CUDA memset]", start, end, keys)


def call(name: str | None, start: int, end: int, **keys: Unpack[Keys]) -> Event:
    """A CUDA call, on thread 1 unless told otherwise."""
    return Event("api", name, start, end, **{"thread": 1, **keys})


def overhead(name: str | None, start: int, end: int, **keys: Unpack[Keys]) -> Event:
    """The profiler's own work, on thread 1 unless told otherwise."""
    return Event("overhead", name, start, end, **{"thread": 1, **keys})


def _device_event(kind: str, name: str | None, start: int, end: int, keys: Keys) -> Event:
    return Event(kind, name, start, end, **{"device": 0, "stream": 7, "context": 1, **keys})


def report(events: Sequence[Event], *, kinds: Iterable[str] = CUDA_KINDS) -> Report:
    """The report of `events`; it records `kinds`, and whatever else occurs among them."""
    return Report(Meta(Path("made by hand"), "test"), Listed(events, kinds))


class Listed:
    """A list of events as a :class:`kanalyze.report.Source`."""

    def __init__(self, events: Sequence[Event], kinds: Iterable[str]) -> None:
        """Number the events by their place."""
        self._events = list(enumerate(events))
        found = {*kinds, *(event.kind for event in events)}
        self.kinds = tuple(kind for kind in KINDS if kind in found)

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, in the order of the list."""
        return _frame(EVENTS, starmap(_event_row, self._of(kind)))

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables; what is not made here is empty."""
        rows = {"kernel_config": self._configs, "copy_detail": self._copies}
        rows |= {"devices": self._devices, "processes": self._processes}
        return _frame(READER_TABLES[name], rows[name]()) if name in rows else READER_TABLES[name].empty()

    def _of(self, *kinds: str) -> list[tuple[int, Event]]:
        return [(number, event) for number, event in self._events if event.kind in kinds]

    def _configs(self) -> list[tuple[object, ...]]:
        return [_padded(KERNEL_CONFIG, (n, *kernel.grid, *kernel.block)) for n, kernel in self._of("kernel")]

    def _copies(self) -> list[tuple[object, ...]]:
        moved = self._of("memcpy", "memset")
        return [_padded(COPY_DETAIL, (n, event.direction, event.size_bytes)) for n, event in moved]

    def _devices(self) -> list[tuple[object, ...]]:
        found = {event.device for _, event in self._of(*DEVICE_KINDS)} - {None}
        return [_padded(DEVICES, (device, f"GPU {device}")) for device in sorted(found)]

    def _processes(self) -> list[tuple[object, ...]]:
        known = {event.process for _, event in self._events} - {None}
        used = {(event.process, event.device) for _, event in self._of(*DEVICE_KINDS)}
        seen = {(process, device) for process, device in used if process is not None and device is not None}
        deviceless = known - {process for process, _ in seen}
        with_device = [(process, "app", device, device) for process, device in sorted(seen)]
        return with_device + [_padded(PROCESSES, (process, "app")) for process in sorted(deviceless)]


def _event_row(number: int, event: Event) -> tuple[object, ...]:
    duration = None if event.end is None else event.end - event.start
    keys = ("process", "thread", "device", "context", "stream", "correlation", "parent")
    return (number, event.kind, event.name, event.start, duration, *(getattr(event, key) for key in keys))


def _padded(table, values: tuple[object, ...]) -> tuple[object, ...]:
    return (*values, *[None] * (len(table.columns) - len(values)))


def _frame(table, rows: Iterable[tuple[object, ...]]) -> pl.DataFrame:
    return table.check(pl.DataFrame(list(rows), schema=table.schema, orient="row"))
