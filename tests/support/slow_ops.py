"""The rules by which torch's profiler sums operators, said a second time: event by event, with a stack, slowly.

Written from torch/autograd/profiler.py and profiler_util.py (what a FunctionEvent is, _populate_cpu_children,
_remove_dup_nodes, device_time_total), for reports of a few dozen events without overhead. Where they leave the order
open: of events that start and end together an annotation comes first, then operators, Python functions and calls, each
by event_id.

Traces for it are made up by hypothesis: operators, calls and kernels of two threads, close together.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import strategies as st

from support.build import call, host, kernel, memcpy, report

RANK = {"range": 0, "op": 1, "python": 2, "api": 3}
LEFT_OUT = ("aten::is_leaf", "aten::output_nr", "aten::_version")


@dataclass(eq=False)
class Node:
    """One host event."""

    event_id: int
    event: object
    name: str
    number: int  # by which torch looks for what belongs to it; 0 is none
    thread: int
    kernels: list[int] = field(default_factory=list)
    children: list = field(default_factory=list)
    parent: object = None

    @property
    def start(self):
        return self.event.start

    @property
    def end(self):
        return self.event.end

    @property
    def self_ns(self):
        return self.end - self.start - sum(child.end - child.start for child in self.children)

    @property
    def device_ns(self):
        return sum(self.kernels) + sum(child.device_ns for child in self.children)


def nested(spans):
    """The parent of each of `spans`, which are sorted as a thread's events are."""
    stack = []
    parents = []
    for place, (start, end) in enumerate(spans):
        while stack and (start >= spans[stack[-1]][1] or end > spans[stack[-1]][1]):
            stack.pop()
        parents.append(stack[-1] if stack else None)
        stack.append(place)
    return parents


def host_nodes(events, external_ids, *, python=False):
    """What torch's list has of the host, its doubles removed; `external_ids` are those of operators by event_id.

    With `python` Python functions nest among the others, which torch's list has since version 2.13.
    """
    home = _home(events)
    nodes = []
    for event_id, event in enumerate(events):
        if event.kind not in RANK or event.name in LEFT_OUT or (event.kind == "python" and not python):
            continue
        name = "ProfilerStep*" if event.name.startswith("ProfilerStep#") else event.name
        unlinked = event.kind == "api" and event.parent is None
        number = (event.correlation or 0) if unlinked else external_ids.get(event_id, 0)
        nodes.append(Node(event_id, event, name, number, home if unlinked else event.thread))
    nodes.sort(key=lambda node: (node.start, RANK[node.event.kind], node.event_id))
    _link(nodes, events, external_ids)
    nodes.sort(key=lambda node: (node.start, -node.end))
    for thread in {node.thread for node in nodes}:
        own = [node for node in nodes if node.thread == thread]
        for node, parent in zip(own, nested([(node.start, node.end) for node in own]), strict=True):
            if parent is not None:
                node.parent = own[parent]
                own[parent].children.append(node)
    return _without_doubles(nodes)


def _home(events):
    """The thread that ended the profiling: of the steps, or the first of the process, or that which began first."""
    framework = [event for event in events if event.kind in ("range", "op", "python")]

    def rank(event):
        stepped = any(other.name.startswith("ProfilerStep#") and other.thread == event.thread for other in framework)
        return (0 if stepped else 1 if event.thread == event.process else 2, event.start, event.thread)

    return min(framework, key=rank).thread


def _link(nodes, events, external_ids):
    """Give each node the device operations of its number, and the calls of its number its thread."""
    calls, kernels = defaultdict(list), defaultdict(list)
    for node in nodes:
        if node.event.kind == "api" and node.event.parent is not None:
            calls[external_ids[node.event.parent]].append(node)
            node.number = 0
    for event in events:
        if event.kind in ("kernel", "memcpy", "memset") and event.parent is not None:
            kernels[external_ids[event.parent]].append(event.end - event.start)
    for node in nodes:
        if node.number:
            node.kernels += kernels[node.number]
            for call in calls[node.number]:
                call.thread = node.thread


def _without_doubles(nodes):
    while True:
        doubles = set()
        for node in nodes:
            parent = node.parent
            if parent is not None and parent.name == node.name and len(parent.children) == 1:
                parent.children, parent.kernels = node.children, node.kernels
                for child in node.children:
                    child.parent = parent
                doubles.add(node)
        if not doubles:
            return nodes
        nodes = [node for node in nodes if node not in doubles]


def key_averages(nodes):
    """By name and whether it is an annotation: calls, self and total host time, self and total device time."""
    found = defaultdict(lambda: [0] * 5)
    for node in nodes:
        sums = found[node.name, node.event.kind == "range"]
        own = (1, node.self_ns, node.end - node.start, sum(node.kernels), node.device_ns)
        for place, value in enumerate(own):
            sums[place] += value
    return {key: tuple(sums) for key, sums in found.items()}


#: Names that several kinds share, some that torch treats in a way of its own.
NAMES = st.sampled_from(["a", "a", "b", "c", "ProfilerStep#1", "ProfilerStep#2", "aten::is_leaf"])
THREADS = st.sampled_from([1, 1, 1, 2])
STARTS = st.integers(0, 30)
DURATIONS = st.one_of(st.integers(0, 4), st.integers(0, 30))


@st.composite
def framework_events(draw):
    kind, start = draw(st.sampled_from(["op", "op", "op", "range", "python"])), draw(STARTS)
    return host(kind, draw(NAMES), start, start + draw(DURATIONS), thread=draw(THREADS))


@st.composite
def traces(draw):
    """Events, and the external ids of the operators and annotations among them by event_id."""
    events = [host("op", "first", 0, draw(DURATIONS)), *draw(st.lists(framework_events(), max_size=8))]
    operators = [
        place for place, event in enumerate(events) if event.kind in ("op", "range") and event.name != "aten::is_leaf"
    ]
    numbers = draw(st.permutations(range(1, len(operators) + 1)))
    maker = st.none() | st.sampled_from(operators)
    events.append(kernel(50, 51, parent=0))  # some operator's number is known: nothing is guessed by time
    correlations = draw(st.lists(st.integers(1, 12), unique=True, max_size=8))
    for correlation in correlations:
        start, made_by = draw(STARTS), draw(maker)
        keys = {"correlation": correlation, "parent": made_by}
        thread = events[made_by].thread if made_by is not None else draw(THREADS)
        events.append(call("cudaLaunchKernel", start, start + draw(st.integers(0, 6)), thread=thread, **keys))
        for _ in range(draw(st.integers(0, 2))):
            begin = start + draw(st.integers(0, 20))
            make = draw(st.sampled_from([kernel, kernel, memcpy]))
            events.append(make(begin, begin + draw(st.integers(0, 9)), device=draw(st.sampled_from([0, 0, 1])), **keys))
    return events, dict(zip(operators, numbers, strict=True))


def trace_report(events, external_ids, **more):
    """The report of a trace; `more` are columns of op_detail by event_id."""
    ids = {event_id for event_id, event in enumerate(events) if event.kind in ("op", "range")}
    rows = [
        {"event_id": event_id, "external_id": external_ids.get(event_id), **more.get(f"of_{event_id}", {})}
        for event_id in sorted(ids)
    ]
    return report(events, op_detail=rows, kinds=("kernel", "memcpy", "memset", "api", "op", "range"))
