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
- What is left of a call once it has made a context counts as a call that begins there.
"""

import re
from collections import Counter
from dataclasses import dataclass

from kanalyze.analyses.host._call_kinds import bucket_of

BUSY = ("kernel", "communication", "memcpy", "memset")
DEVICE_KINDS = ("kernel", "graph", "memcpy", "memset")
RECORDING_BEGINS = ("unknown", "recording begins")


@dataclass(frozen=True)
class Item:
    """One event with its id."""

    event_id: int
    event: object

    @property
    def start(self):
        return self.event.start

    @property
    def end(self):
        return max(self.event.start, self.event.end)

    def covers(self, instant):
        return self.start <= instant < self.end


@dataclass(frozen=True)
class Wait:
    """An idle interval, what ended it and the call that launched that (if any), and its host thread."""

    start: int
    end: int
    ender: Item | None
    launch: Item | None
    thread: tuple[int, int] | None


class SlowModel:
    """What each instant of each device went to."""

    def __init__(self, events, window=(None, None), context_from_ns=10_000_000, prompt_ns=50_000):
        self.items = [Item(number, event) for number, event in enumerate(events)]
        self.asked = window
        self.context_from_ns, self.prompt_ns = context_from_ns, prompt_ns
        self.operations = [item for item in self.items if item.event.kind in DEVICE_KINDS]
        self.calls = [item for item in self.items if item.event.kind == "api"]
        self.overheads = [item for item in self.items if item.event.kind == "overhead"]
        self.devices = sorted({item.event.device for item in self.operations})
        self.context_calls = self._context_calls()
        self.begun_before = self._begun_before()
        self.unseen = self._unseen()

    def ledger(self):
        return dict(Counter((device, *told) for device in self.devices for _, *told in self.instants(device)))

    def instants(self, device):
        """Each instant of the device's window, with its bucket and detail."""
        waits = self._waits(device)
        for instant in range(*self.window(device)):
            owner = self.owner(device, instant)
            if owner is not None:
                yield instant, bucket_of_operation(owner.event), detail_of_operation(owner.event)
            else:
                wait = next(wait for wait in waits if wait.start <= instant < wait.end)
                yield instant, *self._idle(wait, instant)

    def exclusive(self):
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

    def owner(self, device, instant):
        """The operation that the device is busy with."""
        running = [item for item in self.operations if item.event.device == device and item.covers(instant)]
        return min(running, key=lambda item: (rank(item.event), item.start, item.event_id), default=None)

    def activity(self, device):
        """First start and last end of all calls and operations of the processes that ran something on it."""
        processes = {item.event.process for item in self.operations if item.event.device == device}
        theirs = [item for item in self.operations + self.calls if item.event.process in processes]
        return min(item.start for item in theirs), max(item.event.end for item in theirs)

    def window(self, device):
        """What the user gave, else the activity."""
        given, found = self.asked, self.activity(device)
        low, high = (other if asked is None else asked for asked, other in zip(given, found, strict=True))
        return low, max(low, high)

    def launch_of(self, operation):
        key = (operation.event.process, operation.event.correlation)
        if None in key:
            return None
        callers = [item for item in self.calls if (item.event.process, item.event.correlation) == key]
        return min(callers, key=lambda item: (item.start, item.event_id), default=None)

    def _waits(self, device):
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

    def _wait(self, device, start, end):
        real = [item for item in self.operations if item.event.device == device and item.end > item.start]
        enders = [item for item in real if item.start == end]
        ender = min(enders, key=lambda item: (rank(item.event), item.event_id), default=None)
        launch = None if ender is None else self.launch_of(ender)
        if launch is not None:
            return Wait(start, end, ender, launch, thread_of(launch))
        ended_by = ender or max(real, key=lambda item: (item.end, item.event_id), default=None)
        process = None if ended_by is None else ended_by.event.process
        return Wait(start, end, ender, None, self._recent_thread(process, end))

    def _recent_thread(self, process, instant):
        """The thread of the process's most recent launch, or of its next one."""
        found = {self.launch_of(item) for item in self.operations if item.event.process == process} - {None}
        launches = sorted(found, key=lambda item: (item.start, item.event_id))
        before = [item for item in launches if item.start <= instant]
        after = [item for item in launches if item.start > instant]
        return thread_of((before[-1:] + after[:1])[0]) if launches else None

    def _idle(self, wait, instant):
        if wait.thread is None:
            return "unknown", None
        doing = self._doing(wait.thread, instant)
        for bucket in ("profiler", "loading", "allocation"):
            if bucket in doing:
                return doing[bucket]
        submitted = self._submitted(wait, instant)
        return submitted or doing.get("sync") or doing.get("api") or ("host", None)

    def _submitted(self, wait, instant):
        """What the launch call says of an instant of the interval; None before it."""
        launch, unseen = wait.launch, wait.ender in self.unseen
        if launch is None:
            return RECORDING_BEGINS if unseen else None
        if instant < launch.end:
            return ("launch", "call") if launch.covers(instant) else None
        if launch.start < wait.start:
            return "queued", None
        return RECORDING_BEGINS if unseen else ("launch", "latency")

    def _doing(self, thread, instant):
        """What a thread is in, by the bucket that its name says: as the ledger has what started first."""
        found = {}
        own = [item for item in self.calls + self.overheads if thread_of(item) == thread]
        here = [item for item in own if item.covers(instant)]
        for item in sorted(here, key=lambda item: self._order(item, instant)):
            bucket, told = self._host_bucket(item, instant)
            found.setdefault(bucket, told)
        return found

    def _order(self, item, instant):
        made = self.context_calls.get(item)
        rest = made is not None and made <= instant
        return (made if rest else item.start), rest, item.event_id

    def _host_bucket(self, item, instant):
        name = item.event.name
        if item.event.kind == "overhead":
            return "profiler", ("profiler", name)
        if item in self.context_calls and instant < self.context_calls[item]:
            return "loading", ("loading", "context")
        bucket = bucket_of(name)
        if bucket == "sync" and self._waits_unseen(item):
            return "sync", RECORDING_BEGINS
        return bucket, (bucket, name and re.sub(r"_v\d{4}$", "", name))

    def _waits_unseen(self, item):
        first = self.begun_before.get(item.event.process)
        return first is not None and item.start < first and item.event.end - item.start > self.prompt_ns

    def _begun_before(self):
        """When anything first ran in each process that was at work before."""
        found = {}
        for process in {item.event.process for item in self.operations} & {item.event.process for item in self.calls}:
            first = min(item.start for item in self.operations if item.event.process == process)
            cold = [item.start for item in self.context_calls if item.event.process == process]
            cold += [self._not_in_a_call_since(item) for item in self.overheads if item.event.process == process]
            loads = [item for item in self.calls if item.event.name == "cuModuleLoadData"]
            loads += [item for item in self.overheads if item.event.name == "Lazy Function Loading"]
            cold += [item.start for item in loads if item.event.process == process]
            begin = min((item for item in self.calls if item.event.process == process), key=lambda item: item.start)
            cold += [begin.start] if begin.event.name == "cuInit" else []
            if not any(start is not None and start <= first for start in cold):
                found[process] = first
        return found

    def _not_in_a_call_since(self, overhead):
        """When the last call before a context ended that was made outside of all calls; None for other overheads."""
        if "context created" not in (overhead.event.name or "") or self._outermost_around(overhead) is not None:
            return None
        own = [item.event.end for item in self.calls if thread_of(item) == thread_of(overhead)]
        return max((end for end in own if end <= overhead.start), default=overhead.start)

    def _unseen(self):
        """The operations that waited for what was launched before the recording began."""
        found, launches = set(), {}
        for item in self.operations:
            launches.setdefault(item.event.process, set()).add(self.launch_of(item))
        own = [item for item in self.operations if item.event.process in self.begun_before]
        for item in own:
            launch = self.launch_of(item)
            stream = [other for other in own if stream_of(other) == stream_of(item)]
            first = min(stream, key=lambda item: (item.start, item.event_id))
            if launch is not None and item is first and item.start - launch.event.end > self.prompt_ns:
                found.add(item)
            earliest = min((call.start for call in launches[item.event.process] if call is not None), default=None)
            if launch is None and not by_driver(item) and earliest is not None and item.start < earliest:
                found.add(item)
        return found

    def _context_calls(self):
        """The calls that made contexts, each with the time by which it had."""
        found = {}
        for process in {item.event.process for item in self.calls}:
            calls = [item for item in self.calls if item.event.process == process]
            overheads = [item for item in self.overheads if item.event.process == process]
            told = [item for item in overheads if "context created" in (item.event.name or "")]
            for item in told:
                around = self._outermost_around(item)
                found[around] = max(item.start, found.get(around, item.start))
            asking = [item for item in calls if needs_context(item.event)]
            if asking and not told:
                first = min(asking, key=lambda item: (item.start, item.event_id))
                ran = [item.start for item in self.operations if item.event.process == process]
                made = min([first.end, *ran])
                if made - first.start >= self.context_from_ns and self._tells(first, calls):
                    found[first] = made
        found.pop(None, None)
        return found

    def _tells(self, call, calls):
        """Whether a long first call can only have made a context."""
        process, name = call.event.process, call.event.name
        began = any(item.event.name == "cuInit" and item.start < call.start for item in calls)
        if name not in ("cudaMalloc_v3020", "cudaStreamCreate_v3020") and not (name == "cudaFree_v3020" and began):
            return False
        work = [item for item in self.operations if item.event.process == process and not by_driver(item)]
        first = min(work, key=lambda item: (item.start, item.event_id), default=None)
        launch = None if first is None else self.launch_of(first)
        return first is None or (launch is not None and first.start - launch.event.end < self.context_from_ns)

    def _outermost_around(self, overhead):
        same = [item for item in self.calls if thread_of(item) == thread_of(overhead)]
        begun = [item for item in same if item.start <= overhead.start]
        around = [item for item in begun if item.event.end >= overhead.event.end]
        return min(around, key=lambda item: (item.start, -item.end, item.event_id), default=None)


def needs_context(event):
    """Whether a call could be the one that makes a context; one without a name could."""
    return event.name not in ("cuInit", "cudaGetDevice", "cudaGetDeviceCount", "cudaDriverGetVersion")


def by_driver(item):
    """Whether it is a copy of unified memory, which needs no call."""
    return (item.event.direction or "").startswith("Unified")


def stream_of(item):
    """What tells streams apart."""
    return item.event.process, item.event.device, item.event.stream


def thread_of(item):
    """A thread is known by its process and its id."""
    return item.event.process, item.event.thread


def bucket_of_operation(event):
    """The busy bucket; a whole graph counts as a kernel."""
    if event.kind == "kernel" and (event.name or "").startswith("nccl"):
        return "communication"
    return "kernel" if event.kind == "graph" else event.kind


def detail_of_operation(event):
    """`graph`, or the direction of a copy."""
    return "graph" if event.kind == "graph" else event.direction


def rank(event):
    """Which operation wins: kernel, communication, memcpy, memset."""
    return BUSY.index(bucket_of_operation(event))


def runs(instants):
    """The intervals that a set of instants is made of: sorted, apart, and as long as can be."""
    starts = sorted(instant for instant in instants if instant - 1 not in instants)
    ends = sorted(instant + 1 for instant in instants if instant + 1 not in instants)
    return list(zip(starts, ends, strict=True))
