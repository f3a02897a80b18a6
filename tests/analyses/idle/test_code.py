"""The time of each line of the program: its meaning, and against a model that goes instant by instant."""

from collections import Counter
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import example, strategies as st

from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.idle.code import PARTS, code, has_lines
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import call, host, in_line as line, kernel, launched, report
from support.slow_model import SlowModel
from support.strategies import EVENTS, WINDOWS, few_given

WORK = ("kernel", "communication", "memcpy", "memset")
PART_OF = {**dict.fromkeys(WORK, "work"), "launch": "launch", "sync": "wait", "queued": "wait"}


LOOP = [
    *launched(100, 200, kernel(250, 400, correlation=1)),
    call("cudaStreamSynchronize", 300, 500),
    *launched(900, 1_000, kernel(1_050, 1_200, correlation=2)),
]


def times(of):
    """Host, launch, wait and work of each place, None for no line."""
    rows = code(of).select("place", "host_ns", "launch_ns", "wait_ns", "work_ns").rows()
    return {place: tuple(ns) for place, *ns in rows}


def test_what_lies_in_no_line_has_none():
    found = code(report(LOOP, source_lines=[line(0, 300, 10, "x = x + 1")]))
    assert found.select("place", "line", "text").rows() == [(None, None, None), ("a.py:10", 10, "x = x + 1")]
    assert found.get_column("share").sum() == pytest.approx(1)


def test_files_of_one_name_are_told_apart():
    lines = [line(0, 300, 1, file="a/model.py"), line(300, 2_000, 1, file="b/model.py")]
    assert {*times(report(LOOP, source_lines=lines))} == {"a/model.py:1", "b/model.py:1"}


def compiled(name, lines, key="1"):
    return {"name": name, "source": "inductor", "hash": key, "operators": "aten::relu", "lines": lines}


@pytest.mark.parametrize(
    ("kernels", "work"),
    [
        ([compiled("k", "a.py:11")], {"a.py:11": 300}),
        ([compiled("k", "net.py:7")], {"net.py:7": 300}),  # which no thread was in
        ([compiled("k", "a.py:11, net.py:7")], {"a.py:10": 300}),
        ([compiled("k", "net.py:7"), compiled("k", "net.py:8", "2")], {"a.py:10": 300}),
        ([compiled("k", None)], {"a.py:10": 300}),
    ],
)
def test_kernels_that_were_compiled_of_one_line_are_of_that(kernels, work):
    lines = [line(0, 300, 10), line(300, 400, 11), line(400, 2_000, 10)]
    found = times(report(LOOP, source_lines=lines, compiled_kernels=kernels))
    assert {place: ns[-1] for place, ns in found.items() if ns[-1]} == work


def test_without_lines_it_is_functions_of_the_program():
    events = [*LOOP, host("python", "train.py(31): step", 0, 700), host("python", "train.py(8): load", 700, 2_000)]
    of = report(events)
    assert has_lines(of)
    assert times(of) == {"train.py:31": (200, 150, 100, 150), "train.py:8": (200, 150, 0, 150)}
    assert code(of).get_column("function").to_list() == ["step", "load"]


def test_a_report_that_records_neither_has_no_lines():
    assert not has_lines(report(LOOP))
    with pytest.raises(CannotTellError, match="neither lines of the program nor Python functions were recorded"):
        code(report(LOOP))


@st.composite
def stretches(draw):
    """Lines of two threads of two processes, of which the first thread has more."""
    found = []
    for process in (1, 2):
        for thread, most in ((1, 6), (2, 2)):
            edges = sorted(draw(st.sets(st.integers(0, 70), min_size=most + 1, max_size=most + 1)))
            inside = [draw(st.booleans()) or thread == 1 for _ in range(most)]
            numbers = [draw(st.integers(1, 3)) for _ in range(most)]
            spans = zip(pairwise(edges), numbers, inside, strict=True)
            found += [line(*span, number, process_id=process, thread_id=thread) for span, number, kept in spans if kept]
    return found


class Places(SlowModel):
    """The line of each instant."""

    def __init__(self, events, window, lines):
        super().__init__(events, window)
        self.lines = lines

    def at(self, thread, instant):
        """The line that a thread was in; of one without lines that of its process's first."""
        process = None if thread is None else thread[0]
        own = [row for row in self.lines if (row["process_id"], row["thread_id"]) == thread]
        for row in own or [row for row in self.lines if (row["process_id"], row["thread_id"]) == (process, 1)]:
            if row["start_ns"] <= instant < row["start_ns"] + row["dur_ns"]:
                return row["line"]
        return None

    def placed(self, device):
        """Nanoseconds by line and part."""
        waits, found = self._waits(device), Counter()
        for instant in range(*self.window(device)):
            owner = self.owner(device, instant)
            wait = next((wait for wait in waits if wait.start <= instant < wait.end), None)
            bucket = "kernel" if owner is not None else self._idle(wait, instant)[0]
            launch = self.launch_of(owner) if owner is not None else wait.launch
            if owner is not None or bucket in {"launch", "queued"}:
                place = None if launch is None else self.at((launch.event.process, launch.event.thread), launch.start)
            else:
                place = self.at(wait.thread, instant)
            found[place, PART_OF.get(bucket, "host")] += 1
        return found


@few_given(EVENTS, WINDOWS, stretches())
@example(LOOP, (None, None), [line(0, 300, 10)])
def test_it_equals_the_model(events, window, lines):
    of, model = report(events, source_lines=lines).narrow(window=Window(*window)), Places(events, window, lines)
    found = code(of)
    for device, start, end in windows(of).iter_rows():
        rows = found.filter(pl.col("device") == device)
        told = {(row["line"], part): row[f"{part}_ns"] for row in rows.iter_rows(named=True) for part in PARTS}
        assert {key: ns for key, ns in told.items() if ns} == dict(model.placed(device))
        assert sum(told.values()) == max(end - start, 0)
