"""What the tables of NVTX ranges mean, said a second time: every range with every operation, instant by instant.

Written from the definitions, for reports of a few dozen nanoseconds.
"""

from dataclasses import dataclass
from statistics import mean, median, stdev

from hypothesis import strategies as st

from support.build import call, graph, kernel, memcpy, memset, nvtx
from support.strategies import DEVICES, DURATIONS, STARTS

#: Later than every range of the strategies below: where a range that was never closed ends.
OPEN_UNTIL = 70

#: Mostly one thread, so that calls lie in ranges.
PROCESSES = st.sampled_from([1] * 7 + [2])
THREADS = st.sampled_from([1] * 5 + [2])
CORRELATIONS = st.sampled_from([1, 2, 3, 4, 5, 6, None])


@dataclass(frozen=True)
class Range:
    """One range; its end is where the projection lets it end."""

    event_id: int
    name: str
    event: object
    end: int

    @property
    def start(self):
        return self.event.start

    @property
    def thread(self):
        return self.event.process, self.event.thread

    @property
    def order(self):
        return self.start, -self.end, self.event_id

    def contains(self, other):
        return (
            self.thread == other.thread
            and self.start <= other.start
            and self.end >= other.end
            and self.order < other.order
        )


def name_of(event):
    return f"{event.side.get('domain') or ''}:{event.name or ''}"


class SlowRanges:
    """The ranges of a report and the operations that belong to them."""

    def __init__(self, events):
        self.events = list(enumerate(events))
        made = [(number, event) for number, event in self.events if event.kind == "range"]
        latest = max((time for _, event in made for time in (event.start, event.end) if time is not None), default=0)
        ends = {number: max(latest, event.start) if event.end is None else event.end for number, event in made}
        self.ranges = [Range(number, name_of(event), event, ends[number]) for number, event in made]
        self.own = [one for one in self.ranges if one.event.side.get("end_thread_id") is None]

    def launch(self, operation):
        """The call with the operation's process and correlation id that started first."""
        calls = [
            (event.start, number, event)
            for number, event in self.events
            if event.kind == "api"
            and operation.correlation is not None
            and (event.process, event.correlation) == (operation.process, operation.correlation)
        ]
        return min(calls)[2] if calls else None

    def around(self, launch):
        return [
            one
            for one in self.own
            if launch is not None
            and one.thread == (launch.process, launch.thread)
            and one.start <= launch.start
            and one.end >= launch.end
        ]

    def parent(self, inner):
        outer = [one for one in self.own if one.contains(inner)]
        return min(outer, key=lambda one: (one.end - one.start, -one.start, -one.event_id), default=None)

    def stack(self, inner):
        """The ids of the ranges around one, the outermost first, and its own."""
        outer = self.parent(inner)
        return [*(self.stack(outer) if outer else ()), inner.event_id]

    def trace(self, kinds, device=None):
        """What range_gpu --trace says without a window."""
        work = self.work(kinds, device)
        inside = {one: [(event, launch) for event, launch in work if one in self.around(launch)] for one in self.own}
        inside = {one: found for one, found in inside.items() if found}
        self.graphs = [
            self.launch(event) for _, event in self.events if event.kind == "graph" and device in (None, event.device)
        ]
        rows = [self._row(one, found, inside) | self.of_process(one, work) for one, found in inside.items()]
        return sorted(rows, key=lambda row: (row["projected_start_ns"], -row["projected_ns"], row["event_id"]))

    def work(self, kinds, device=None):
        asked = (event for _, event in self.events if event.kind in kinds and device in (None, event.device))
        return [(event, self.launch(event)) for event in asked]

    def _row(self, one, work, inside):
        start, end = min(event.start for event, _ in work), max(event.end for event, _ in work)
        parent = self.parent(one)
        return {
            "range": one.name,
            "style": one.event.side.get("style", "PushPop"),
            "projected_start_ns": start,
            "projected_ns": end - start,
            "start_ns": one.start,
            "dur_ns": one.end - one.start,
            "process_id": one.event.process,
            "thread_id": one.event.thread,
            "gpu_ops": len({id(launch) for _, launch in work}),
            "level": len(self.stack(one)) - 1,
            "children": sum(self.parent(other) == one for other in inside),
            "event_id": one.event_id,
            "parent_id": parent.event_id if parent else None,
            "stack": "".join(f":{number}" for number in self.stack(one)),
            "busy_ns": len({instant for event, _ in work for instant in range(event.start, event.end)}),
            "operations": len(work),
            "whole_graphs": sum(one in self.around(launch) for launch in self.graphs),
        }

    def of_process(self, one, work):
        """What any thread of its process launched while a range was open."""
        ran = [
            event
            for event, launch in work
            if launch is not None
            and launch.process == one.event.process
            and one.start <= launch.start
            and one.end >= launch.end
        ]
        return {
            "process_busy_ns": len({instant for event in ran for instant in range(event.start, event.end)}),
            "process_operations": len(ran),
        }

    def kernels(self):
        """What range_kernels says: by range, style, process, thread and kernel."""
        found = {}
        for number, event in self.events:
            if event.kind == "kernel":
                launch = self.launch(event)
                thread = (launch.process, launch.thread) if launch else (None, None)
                for one in self.around(launch) or [None]:
                    label = (one.name, one.event.side.get("style", "PushPop")) if one else (None, None)
                    found.setdefault((*label, *thread, event.name), []).append((one, number, event.end - event.start))
        return {key: _kernel_row(ran) for key, ran in found.items()}

    def line(self, process, thread, instant):
        """The event_id of the range with a name that a thread is in."""
        here = [
            (number, event)
            for number, event in self.events
            if event.kind == "range"
            and name_of(event) != ":"
            and (event.process, event.thread) == (process, thread)
            and event.start <= instant < _end(event)
        ]
        stacked = [(event.start, -_end(event), number) for number, event in here if event.side["style"] == "PushPop"]
        paired = [(event.start, number) for number, event in here if event.side["style"] == "StartEnd"]
        return max(stacked)[-1] if stacked else min(paired)[-1] if paired else None


def _end(event):
    return OPEN_UNTIL if event.end is None else event.end


def _kernel_row(ran):
    durations = [duration for _, _, duration in ran]
    return {
        "range_count": len({one for one, _, _ in ran if one}),
        "count": len({number for _, number, _ in ran}),
        "total_ns": sum(durations),
        **spread(durations),
        "kernel_ns": sum({number: duration for _, number, duration in ran}.values()),
    }


def spread(values):
    return {
        "avg_ns": mean(values),
        "median_ns": median(values),
        "min_ns": min(values),
        "max_ns": max(values),
        "stddev_ns": stdev(values) if len(values) > 1 else 0.0,
    }


@st.composite
def ranges(draw):
    """A range of any form, often with the very times of another."""
    start = draw(STARTS)
    length = draw(st.none() | st.sampled_from([0, 5, 10, 20]) | st.integers(-1, 45))
    side = {"style": draw(st.sampled_from(["PushPop", "PushPop", "StartEnd"])), "open_until_ns": OPEN_UNTIL}
    side["domain"] = draw(st.sampled_from([None, None, "lib"]))
    side["end_thread_id"] = draw(st.sampled_from([None] * 7 + [9]))
    end = None if length is None else start + length
    name = draw(st.sampled_from(["a", "b", None]))
    return nvtx(name, start, end, thread=draw(THREADS), process=draw(PROCESSES), **side)


@st.composite
def launches(draw):
    """A call and what it launched, perhaps nothing, perhaps without the call."""
    process, correlation, start = draw(PROCESSES), draw(CORRELATIONS), draw(STARTS)
    end = start + draw(st.integers(-1, 3))
    made = call("cudaLaunchKernel", start, end, process=process, thread=draw(THREADS), correlation=correlation)
    made = [made] if draw(st.integers(0, 9)) else []
    for _ in range(draw(st.integers(1, 3))):
        begin, keys = draw(STARTS), {"process": process, "device": draw(DEVICES), "correlation": correlation}
        form = draw(st.sampled_from([kernel, kernel, memcpy, memset, graph]))
        if form is kernel:
            keys["name"] = draw(st.sampled_from(["gemm", "softmax", None]))
        made.append(form(begin, begin + draw(DURATIONS), **keys))
    return made


@st.composite
def reports(draw):
    """Events of a few ranges and launches, in any order."""
    found = draw(st.lists(ranges(), min_size=2, max_size=10))
    for group in draw(st.lists(launches(), min_size=1, max_size=6)):
        found += group
    return draw(st.permutations(found))
