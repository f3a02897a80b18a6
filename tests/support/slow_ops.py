"""The rules by which torch's profiler sums operators, said a second time: event by event, with a stack, slowly.

Written from torch/autograd/profiler.py and profiler_util.py (what a FunctionEvent is, _populate_cpu_children,
_remove_dup_nodes, device_time_total), for reports of a few dozen events without overhead. Where they leave the order
open: of events that start and end together an annotation comes first, then operators, Python functions and calls, each
by event_id.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.build import Event

RANK = {"range": 0, "op": 1, "python": 2, "api": 3}
LEFT_OUT = ("aten::is_leaf", "aten::output_nr", "aten::_version")


@dataclass(eq=False)
class Node:
    """One host event."""

    event_id: int
    event: Event
    name: str
    number: int  # by which torch looks for what belongs to it; 0 is none
    thread: int
    kernels: list[int] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None

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
