"""Who is to blame for each idle instant, said a second time: instant by instant, on top of the slow ledger.

Written from definitions.md, section 5, "Gaps and culprits". `records` are the rows of event_records.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from support.build import RECORD, call, host, kernel, nvtx, rows_of
from support.slow_model import DEVICE_KINDS, Item, SlowModel, thread_of
from support.strategies import EVENTS, THREADS

IDLE = ("profiler", "loading", "allocation", "launch", "queued", "sync", "api", "host", "unknown")


@dataclass(frozen=True)
class Gap:
    """One gap inside the window: its instants with bucket, culprit and range, and what ended it."""

    device: int
    instants: tuple[tuple[int, str, str | None, str | None], ...]
    ender: Item | None

    def row(self, model):
        """The gap as a row of the table, up to the range that ended it."""
        buckets = Counter(bucket for _, bucket, _, _ in self.instants)
        reason = max(IDLE, key=lambda bucket: (buckets[bucket], -IDLE.index(bucket)))
        names = Counter(culprit for _, bucket, culprit, _ in self.instants if bucket == reason)
        # of equal ones none comes first, then the order of the alphabet
        culprit = min(names, key=lambda name: (-names[name], name is not None, name or ""))
        launch = model.launch_of(self.ender) if self.ender else None
        ended = self.ender.event if self.ender else None
        return (
            self.device,
            self.instants[0][0],
            len(self.instants),
            *(buckets[bucket] for bucket in IDLE),
            reason,
            culprit,
            ended and ended.name,
            ended and ended.kind,
            ended and ended.stream,
            launch and model.shown(launch),
            launch and model.innermost(thread_of(launch), launch.start),
        )


class SlowGaps(SlowModel):
    """The gaps of each device, and their culprits."""

    def __init__(self, events, window=(None, None), records=()):
        super().__init__(events, window)
        self.records = records
        self.ranges = [item for item in self.items if item.event.kind == "range"]
        self.syncs = [item for item in self.items if item.event.kind == "sync"]
        self.things = []  # what a stretch may lie between, besides calls

    def gaps(self):
        return [gap for device in self.devices for gap in self._gaps_of(device)]

    def culprits(self):
        """By device, bucket, culprit and range: nanoseconds, gaps, and the most in one gap."""
        found = {}
        for gap in self.gaps():
            for key, ns in Counter(instant[1:] for instant in gap.instants).items():
                found.setdefault((gap.device, *key), []).append(ns)
        return {key: (sum(times), len(times), max(times)) for key, times in found.items()}

    def _gaps_of(self, device):
        low, high = self.window(device)
        found = []
        for wait in self._waits(device):
            told = [(at, *self._idle(wait, at)) for at in range(max(wait.start, low), min(wait.end, high))]
            instants = [self._blamed(wait, told, place) for place in range(len(told))]
            found += [Gap(device, tuple(instants), wait.ender)] if instants else []
        return found

    def _blamed(self, wait, told, place):
        """An instant with its bucket, culprit and range; `told` are all of its gap with bucket and detail."""
        at, bucket, detail = told[place]
        if bucket == "unknown" and detail is None:
            return at, bucket, None, None
        launched = wait.launch is not None and at >= wait.launch.start
        around = self.innermost(wait.thread, wait.launch.start if launched else at)
        culprit = detail
        if bucket == "launch":
            culprit = wait.ender.event.name
        elif bucket == "queued":
            culprit = self.waited_for(wait.ender)
        elif bucket == "host":
            culprit = self._in(wait.thread, at) or self._beside(wait, told, place)
        return at, bucket, culprit, around

    def _in(self, thread, at):
        """What a thread was in, as it is told; None for nothing."""
        return self.innermost(thread, at)

    def _depth(self, item):
        """By which of the things that a thread is in or between come first."""
        return item.start, item.event_id

    def _beside(self, wait, told, place):
        """What a stretch in nothing lies between; it ends where the innermost range changes."""

        def alike(number):
            at, bucket, _ = told[number]
            here = bucket == "host" and self._in(wait.thread, at) is None
            return here and self.range_around(wait.thread, at) is self.range_around(wait.thread, told[place][0])

        first, last = place, place
        while first > 0 and alike(first - 1):
            first -= 1
        while last + 1 < len(told) and alike(last + 1):
            last += 1
        start, end = told[first][0], told[last][0] + 1
        every = [item for item in (*self.things, *self.calls) if thread_of(item) == wait.thread]
        before = [item for item in every if item.start <= start]
        after = [item for item in every if item.start >= end]
        left = max(before, key=lambda item: (item.event.end, *(-part for part in self._depth(item))), default=None)
        right = min(after, key=self._depth, default=None)
        if left is None:
            return right and f"before {self._named(right)}"
        ended = f"after {self._named(left)}"
        return ended if right is None else f"between {self._named(left)} and {self._named(right)}"

    def shown(self, item):
        """A call as nsys shows it."""
        return item.event.name and re.sub(r"_v\d{4}$", "", item.event.name)

    def _named(self, item):
        return self.shown(item) or "a call without a name"

    def innermost(self, thread, instant):
        """The name of the range that a thread was in."""
        found = self.range_around(thread, instant)
        return found and found.event.name

    def range_around(self, thread, instant):
        here = [item for item in self.ranges if thread_of(item) == thread and item.covers(instant)]
        nesting = [item for item in here if item.event.side.get("style", "PushPop") == "PushPop"]
        pairs = [item for item in here if item not in nesting]
        inner = max(nesting, key=lambda item: (item.start, -item.end, item.event_id), default=None)
        return inner or min(pairs, key=lambda item: (item.start, item.event_id), default=None)

    def waited_for(self, operation):
        """What an operation that was already submitted waited for."""
        before = [item for item in self.operations if item.event.device == operation.event.device]
        ended = [item for item in before if item.start < item.end <= operation.start]
        last = max(ended, key=lambda item: (item.end, item.event_id))  # a launch before the gap is after something
        behind = self._behind_event(operation)
        if behind and last.end <= behind.event.end <= operation.start:
            there, here = behind.event.device, operation.event.device
            on = "" if there == here else f"GPU {there} "
            return f"event on {on}stream {behind.event.stream} after {named(behind)}"
        if last.event.process != operation.event.process:
            return f"after {named(last)} of process {last.event.process}"
        own = (operation.event.context, operation.event.stream)
        if own == (last.event.context, last.event.stream) and own[1] is not None:
            return f"after {named(last)} on the same stream"
        return f"after {named(last)} on stream {'?' if last.event.stream is None else last.event.stream}"

    def _behind_event(self, operation):
        """The work in front of the events that an operation was submitted behind; what ended last of it."""
        found = []
        for sync in self.syncs:
            stream = (sync.event.process, sync.event.context, sync.event.stream)
            waiting = self._call(sync.event.process, sync.event.correlation)
            record = next((row for row in self.records if row["record_id"] == sync.event.side["record_id"]), None)
            if record is None or waiting is None or self._next(stream, waiting.start) is not operation:
                continue
            recorded = self._call(record["process_id"], record["correlation_id"])
            source = (record["process_id"], record["context_id"], record["stream"])
            found.append(self._last(source, recorded.start))
        known = [item for item in found if item is not None]
        return max(known, key=lambda item: (item.event.end, item.event_id), default=None)

    def _call(self, process, correlation):
        mine = (item for item in self.calls if (item.event.process, item.event.correlation) == (process, correlation))
        return next(mine, None)

    def _given(self, stream):
        own = [item for item in self.operations if stream_of(item) == stream]
        return [(launch.start, item) for item in own if (launch := self.launch_of(item)) is not None]

    def _next(self, stream, instant):
        later = [(at, item) for at, item in self._given(stream) if at >= instant]
        found = min(later, key=lambda pair: (pair[0], pair[1].start, pair[1].event_id), default=None)
        return found and found[1]

    def _last(self, stream, instant):
        earlier = [(at, item) for at, item in self._given(stream) if at < instant]
        found = max(earlier, key=lambda pair: (pair[0], pair[1].event.end, pair[1].event_id), default=None)
        return found and found[1]


def stream_of(item):
    """A stream is known by its process, its context and its number."""
    return item.event.process, item.event.context, item.event.stream


def named(item):
    return item.event.name or "an operation without a name"


STREAMS = st.sampled_from([7, 7, 8, 9])
PROCESSES = st.sampled_from([1, 1, 2])
RANGE_NAMES = st.sampled_from(["step", "data", "forward"])


@st.composite
def _ranges(draw):
    start = draw(st.integers(0, 20) | st.integers(0, 40))
    keys = {"process": draw(PROCESSES), "thread": draw(THREADS)}
    style = draw(st.sampled_from(["PushPop", "PushPop", "PushPop", "StartEnd"]))
    return nvtx(draw(RANGE_NAMES), start, start + draw(st.integers(0, 40)), style=style, **keys)


@st.composite
def _event_wait(draw, number):
    """Work on one stream, a recording of a CUDA event after it, and work on another stream that waits for it.

    As a rule: any of the times may be off, so that the event is recorded before the work, or did not matter.
    """
    process, context, jitter = draw(PROCESSES), st.sampled_from([1, 1, 2]), st.sampled_from([0] * 6 + [-4, 9])
    source, target = (draw(context), draw(STREAMS)), (draw(context), draw(STREAMS))
    begin, length = draw(st.integers(0, 20)), draw(st.integers(1, 12))
    times = [begin + place + draw(jitter) for place in range(4)]
    (row,) = rows_of(RECORD, (process, *source, 100 + number, number))
    names = ("cudaLaunchKernel", "cudaEventRecord", "cudaStreamWaitEvent", "cudaLaunchKernel")
    calls = [
        call(name, at, at + 1, process=process, correlation=100 * place + number)
        for name, at, place in zip(names, times, (3, 1, 2, 4), strict=True)
    ]
    ready = begin + 4 + length + draw(jitter)
    work = [
        kernel(
            start, end, process=process, context=on[0], device=on[0] - 1, stream=on[1], correlation=100 * place + number
        )
        for start, end, on, place in (
            (begin + 4, begin + 4 + length, source, 3),
            (ready + draw(st.integers(0, 3)), ready + 8, target, 4),
        )
    ]
    keys = {"process": process, "context": target[0], "stream": target[1], "correlation": 200 + number}
    waited = host("sync", "Stream wait sync", times[2], times[2] + 1, **keys, side={"record_id": number})
    return [*calls, *work, waited], row


@st.composite
def gap_reports(draw):
    """Events of the ledger's own strategy on several streams, with ranges and waits for events; and the records."""
    waits = [draw(_event_wait(number)) for number in range(draw(st.integers(0, 3)))]
    events = [_on_stream(draw, event) for event in draw(EVENTS | st.just([]))]
    events += draw(st.lists(_ranges(), max_size=4))
    events += [event for own, _ in waits for event in own]
    return draw(st.permutations(events)), [row for _, row in waits]


def _on_stream(draw, event):
    if event.kind not in DEVICE_KINDS:
        return event
    return replace(event, stream=draw(st.none() | STREAMS), context=1 + event.device)
