"""The attribution of definitions.md, section 5, said a second time: instant by instant, slowly.

Written from the text, for reports of a few dozen nanoseconds. Where the text is silent:

- An event that ends where it starts, or before, covers no instant; such an operation ends no idle interval.
  The call that launched one is a launch all the same, and its times count for the window.
- Of operations that start together, the one of the winning bucket ends the idle interval, then the lower
  event_id.
- Of calls with one correlation id, the one that started first is the launch, then the lower event_id.
- A launch that began exactly at the start of the idle interval began "after" it.
- The most recent launch is the last one, on any device, that started at or before the end of the idle
  interval; of those that started together, the one with the higher event_id.
- After the last operation of a device, the process is that of the operation that ended last; of those that
  ended together, the one with the higher event_id.
- The operation that an interval belongs to is found in the whole report, the user's window only cuts.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kanalyze.analyses._calls import bucket_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.build import Event

BUSY = ("kernel", "communication", "memcpy", "memset")
DEVICE_KINDS = ("kernel", "graph", "memcpy", "memset")
CALLS_WITHOUT_CONTEXT = ("cuInit", "cudaGetDevice", "cudaGetDeviceCount", "cudaDriverGetVersion")


@dataclass(frozen=True)
class Item:
    """One event with its id."""

    event_id: int
    event: Event

    @property
    def start(self) -> int:
        return self.event.start

    @property
    def end(self) -> int:
        return max(self.event.start, self.event.end)

    def covers(self, instant: int) -> bool:
        return self.start <= instant < self.end


@dataclass(frozen=True)
class Wait:
    """An idle interval, the call that launched what ended it (if any), and the thread that is walked."""

    start: int
    end: int
    launch: Item | None
    thread: tuple[int, int] | None


class SlowModel:
    """What each instant of each device went to."""

    def __init__(self, events: Sequence[Event], window=(None, None), context_from_ns=10_000_000) -> None:
        self.items = [Item(number, event) for number, event in enumerate(events)]
        self.asked = window
        self.context_from_ns = context_from_ns
        self.operations = [item for item in self.items if item.event.kind in DEVICE_KINDS]
        self.calls = [item for item in self.items if item.event.kind == "api"]
        self.overheads = [item for item in self.items if item.event.kind == "overhead"]
        self.devices = sorted({item.event.device for item in self.operations})
        self.context_calls = self._context_calls()

    def ledger(self) -> dict[tuple[int, str, str | None], int]:
        """Nanoseconds by device, bucket and detail."""
        return dict(Counter((device, *told) for device in self.devices for _, *told in self.instants(device)))

    def instants(self, device: int) -> Iterator[tuple[int, str, str | None]]:
        """Each instant of the device's window, with its bucket and detail."""
        waits = self._waits(device)
        for instant in range(*self.window(device)):
            owner = self.owner(device, instant)
            if owner is not None:
                yield instant, bucket_of_operation(owner.event), detail_of_operation(owner.event)
            else:
                wait = next(wait for wait in waits if wait.start <= instant < wait.end)
                yield instant, *self._idle(wait, instant)

    def exclusive(self) -> dict[int, int]:
        """Exclusive nanoseconds by event_id, of the operations that have any inside the window."""
        found, (low, high) = Counter(), self.asked
        for device in self.devices:
            own = [item for item in self.operations if item.event.device == device]
            for instant in range(min(item.start for item in own), max(item.end for item in own)):
                asked_for = (low is None or low <= instant) and (high is None or instant < high)
                owner = self.owner(device, instant)
                if asked_for and owner is not None:
                    found[owner.event_id] += 1
        return dict(found)

    def owner(self, device: int, instant: int) -> Item | None:
        """The operation that the device is busy with."""
        running = [item for item in self.operations if item.event.device == device and item.covers(instant)]
        return min(running, key=lambda item: (rank(item.event), item.start, item.event_id), default=None)

    def activity(self, device: int) -> tuple[int, int]:
        """First start and last end of all calls and operations of the processes that ran something on it."""
        processes = {item.event.process for item in self.operations if item.event.device == device}
        theirs = [item for item in self.operations + self.calls if item.event.process in processes]
        return min(item.start for item in theirs), max(item.event.end for item in theirs)

    def window(self, device: int) -> tuple[int, int]:
        """What the user gave, else the activity."""
        given, found = self.asked, self.activity(device)
        low, high = (other if asked is None else asked for asked, other in zip(given, found, strict=True))
        return low, max(low, high)

    def launch_of(self, operation: Item) -> Item | None:
        """The call that launched an operation."""
        key = (operation.event.process, operation.event.correlation)
        if None in key:
            return None
        callers = [item for item in self.calls if (item.event.process, item.event.correlation) == key]
        return min(callers, key=lambda item: (item.start, item.event_id), default=None)

    def _waits(self, device: int) -> list[Wait]:
        inside, whole = self.window(device), self.activity(device)
        low, high = min(inside[0], whole[0]), max(inside[1], whole[1])
        waits, start = [], None
        for instant in range(low, high + 1):
            idle = instant < high and self.owner(device, instant) is None
            if idle and start is None:
                start = instant
            if not idle and start is not None:
                waits.append(self._wait(device, start, instant))
                start = None
        return waits

    def _wait(self, device: int, start: int, end: int) -> Wait:
        real = [item for item in self.operations if item.event.device == device and item.end > item.start]
        enders = [item for item in real if item.start == end]
        ender = min(enders, key=lambda item: (rank(item.event), item.event_id), default=None)
        launch = None if ender is None else self.launch_of(ender)
        if launch is not None:
            return Wait(start, end, launch, thread_of(launch))
        ended_by = ender or max(real, key=lambda item: (item.end, item.event_id), default=None)
        process = None if ended_by is None else ended_by.event.process
        return Wait(start, end, None, self._recent_thread(process, end))

    def _recent_thread(self, process: int | None, instant: int) -> tuple[int, int] | None:
        """The thread of the process's most recent launch, or of its next one."""
        found = {self.launch_of(item) for item in self.operations if item.event.process == process} - {None}
        launches = sorted(found, key=lambda item: (item.start, item.event_id))
        before = [item for item in launches if item.start <= instant]
        after = [item for item in launches if item.start > instant]
        return thread_of((before[-1:] + after[:1])[0]) if launches else None

    def _idle(self, wait: Wait, instant: int) -> tuple[str, str | None]:
        if wait.thread is None:
            return "unknown", None
        doing = self._doing(wait.thread, instant)
        launch = wait.launch
        for bucket in ("profiler", "loading", "allocation"):
            if bucket in doing:
                return bucket, doing[bucket]
        if launch is not None and launch.covers(instant):
            return "launch", "call"
        if launch is not None and instant >= launch.end:
            return ("launch", "latency") if launch.start >= wait.start else ("queued", None)
        for bucket in ("sync", "api"):
            if bucket in doing:
                return bucket, doing[bucket]
        return "host", None

    def _doing(self, thread: tuple[int, int], instant: int) -> dict[str, str | None]:
        """The buckets of all that a thread is in, each with the detail of what started first."""
        found = {}
        own = [item for item in self.calls + self.overheads if thread_of(item) == thread]
        here = [item for item in own if item.covers(instant)]
        for item in sorted(here, key=lambda item: (item.start, item.event_id)):
            bucket, detail = self._host_bucket(item)
            found.setdefault(bucket, detail)
        return found

    def _host_bucket(self, item: Item) -> tuple[str, str | None]:
        name = item.event.name
        if item.event.kind == "overhead":
            return "profiler", name
        if item in self.context_calls:
            return "loading", "context"
        return bucket_of(name), name and re.sub(r"_v\d{4}$", "", name)

    def _context_calls(self) -> list[Item]:
        found = []
        for process in {item.event.process for item in self.calls}:
            calls = [item for item in self.calls if item.event.process == process]
            overheads = [item for item in self.overheads if item.event.process == process]
            told = [item for item in overheads if "context created" in (item.event.name or "")]
            found += [self._outermost_around(item) for item in told]
            asking = [item for item in calls if needs_context(item.event)]
            if asking and not told:
                first = min(asking, key=lambda item: (item.start, item.event_id))
                found += [first] if first.end - first.start >= self.context_from_ns else []
        return [item for item in found if item is not None]

    def _outermost_around(self, overhead: Item) -> Item | None:
        same = [item for item in self.calls if thread_of(item) == thread_of(overhead)]
        begun = [item for item in same if item.start <= overhead.start]
        around = [item for item in begun if item.event.end >= overhead.event.end]
        return min(around, key=lambda item: (item.start, -item.end, item.event_id), default=None)


def needs_context(event: Event) -> bool:
    """Whether a call could be the one that makes a context; one without a name could."""
    return event.name not in CALLS_WITHOUT_CONTEXT


def thread_of(item: Item) -> tuple[int, int]:
    """A thread is known by its process and its id."""
    return item.event.process, item.event.thread


def bucket_of_operation(event: Event) -> str:
    """The busy bucket; a whole graph counts as a kernel."""
    if event.kind == "kernel" and (event.name or "").startswith("nccl"):
        return "communication"
    return "kernel" if event.kind == "graph" else event.kind


def detail_of_operation(event: Event) -> str | None:
    """`graph`, or the direction of a copy."""
    return "graph" if event.kind == "graph" else event.direction


def rank(event: Event) -> int:
    """Which operation wins: kernel, communication, memcpy, memset."""
    return BUSY.index(bucket_of_operation(event))
