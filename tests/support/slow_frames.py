"""What the host was in, said a second time: instant by instant, with operators and Python functions.

Written from the description of :mod:`kanalyze.analyses.host._range_lines`; which functions are whose is read off a
list.
"""

from dataclasses import replace

from hypothesis import strategies as st

from support.build import host, nvtx
from support.slow_gaps import SlowGaps, gap_reports
from support.slow_model import thread_of

#: Whose each Python function of the strategy below is.
WHOSE = {
    "train.py(1): step": "program", "mine/data.py(9): load": "program", "torch/a.py(3): f": "library",
    "json/decoder.py(7): decode": "library", "<built-in function sleep>": "library",
    "torch/nn/modules/module.py(5): _call_impl": "passing", "<built-in function len>": "passing",
    "nn.Module: Net_0": "module",
}  # fmt: skip

#: From the outermost to the innermost of things that start and end together.
_ORDER = ("range", "python", "op", "api")


class SlowFrames(SlowGaps):
    """The culprits of a report in which a framework recorded operators or Python functions."""

    def __init__(self, events, window=(None, None), records=()):
        super().__init__(events, window, records)
        self.python = [item for item in self.items if item.event.kind == "python"]
        self.functions = [item for item in self.python if WHOSE[item.event.name] == "program"]
        named = [item for item in self.items if item.event.kind in ("range", "op")]
        inner = [item for item in self.python if WHOSE[item.event.name] == "module" or self._called(item)]
        self.things = [*(item for item in named if not _nameless(item)), *inner]

    def _called(self, item):
        """Whether the program called a library's function, directly or through what passes calls on."""
        if WHOSE[item.event.name] != "library":
            return False
        caller = item.event.parent
        while caller is not None and WHOSE[self.items[caller].event.name] == "passing":
            caller = self.items[caller].event.parent
        return caller is not None and WHOSE[self.items[caller].event.name] == "program"

    def innermost(self, thread, instant):
        """The name of the range that a thread was in, in which all steps are one."""
        name = super().innermost(thread, instant)
        return "ProfilerStep*" if name and name.startswith("ProfilerStep#") else name

    def _depth(self, item):
        return item.start, -item.event.end, _ORDER.index(item.event.kind), item.event_id

    def _in(self, thread, at):
        """What a thread was in, as it is told; None for nothing."""
        thing = self._innermost(self.things, thread, at)
        function = self._innermost(self.functions, thread, at)
        if function is not None:
            inside = thing is not None and _within(thing, function)
            return f"{thing.event.name} in {function.event.name}" if inside else function.event.name
        other = self._innermost(self.python, thread, at)
        if other is not None and (thing is None or _within(other, thing)):
            thing = other
        return thing and thing.event.name

    def _innermost(self, items, thread, at):
        here = [item for item in items if thread_of(item) == thread and item.covers(at)]
        return max(here, key=self._depth, default=None)


def _nameless(item):
    return item.event.name is None or item.event.name.startswith("ProfilerStep#")


def _within(inner, outer):
    return inner.start > outer.start or (inner.start == outer.start and inner.end < outer.end)


_OPERATORS = st.sampled_from(["aten::mm", "aten::to", "Backward0", None])
_STEPS = st.sampled_from(["ProfilerStep#1", "ProfilerStep#2"])


@st.composite
def _frames(draw, kinds=("op", "python", "python", "step")):
    kind = draw(st.sampled_from(kinds))
    start, keys = draw(st.integers(0, 40)), {"thread": draw(st.sampled_from([1, 1, 2]))}
    end = start + draw(st.integers(0, 40))
    if kind == "step":
        return nvtx(draw(_STEPS), start, end, **keys)
    return host(kind, draw(_OPERATORS if kind == "op" else st.sampled_from(sorted(WHOSE))), start, end, **keys)


@st.composite
def frame_reports(draw):
    """Reports with waits, ranges, operators, Python functions that called each other, and steps; and the records."""
    events, records = draw(gap_reports())
    every = draw(st.permutations([*events, draw(_frames(("op",))), *draw(st.lists(_frames(), max_size=8))]))
    python = [number for number, event in enumerate(every) if event.kind == "python"]
    callers = {number: draw(st.sampled_from([None, *python[:place]])) for place, number in enumerate(python)}
    return [replace(event, parent=callers.get(number)) for number, event in enumerate(every)], records
