"""What any thread of a process launched while a range was open: by hand, then against a loop over all of them."""

from collections import Counter, defaultdict

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.page.time_page import summarize
from kanalyze.analyses.ranges.range_gpu import range_gpu
from kanalyze.analyses.ranges.ranges import ranges
from kanalyze.renderers.page.time import ranges as section
from support.build import call, graph, kernel, memcpy, nvtx, report
from support.command import REPORTS
from support.real_reports import real_report
from support.strategies import STARTS


def launch(at, start, end, *, correlation, make=kernel, **whose):
    """A call from `at` on, 2 ns long, and what it launched."""
    keys = {"correlation": correlation, "process": whose.get("process", 1)}
    return [call("cudaLaunchKernel", at, at + 2, thread=whose.get("thread", 1), **keys), make(start, end, **keys)]


#: A step: forward on the main thread, backward on that of autograd, while the main thread waits for it.
STEP = [
    nvtx("step", 0, 100),
    nvtx("fwd", 0, 20),
    *launch(2, 30, 40, correlation=1),
    nvtx("bwd", 20, 90),
    *launch(21, 40, 41, correlation=2),
    *launch(30, 50, 60, correlation=3, thread=2),
    *launch(40, 55, 75, correlation=4, thread=2),
    *launch(95, 100, 110, correlation=5, thread=2, process=2),
]


def rows(frame):
    return {row["range"]: (row["process_busy_ns"], row["process_operations"]) for row in frame.iter_rows(named=True)}


def test_the_backward_pass_has_what_autograd_s_thread_launched():
    of = report(STEP)
    assert rows(ranges(of)) == {":step": (36, 4), ":bwd": (26, 3), ":fwd": (10, 1)}
    assert rows(range_gpu(of)) == rows(ranges(of))
    own = {row["range"]: (row["busy_ns"], row["operations"]) for row in range_gpu(of).iter_rows(named=True)}
    assert own == {":step": (11, 2), ":bwd": (1, 1), ":fwd": (10, 1)}  # as nsys counts
    assert rows(range_gpu(of, trace=True)) == rows(ranges(of))


def test_a_range_that_launched_nothing_itself_is_in_the_table_of_ranges():
    of = report([nvtx("bwd", 0, 20), *launch(5, 30, 40, correlation=1, thread=2)])
    assert rows(ranges(of)) == {":bwd": (10, 1)}
    assert range_gpu(of).is_empty()


def test_one_that_another_thread_ended_counts_too():
    of = report([nvtx("across", 0, 20, style="StartEnd", end_thread_id=2), *launch(5, 30, 40, correlation=1)])
    assert rows(ranges(of)) == {":across": (10, 1)}


def test_a_range_without_any_has_none_and_one_of_which_nothing_was_recorded_is_not_known():
    idle, launched = nvtx("idle", 0, 20), launch(50, 60, 70, correlation=1)
    assert rows(ranges(report([idle, *launched]))) == {":idle": (0, 0)}
    assert rows(ranges(report([idle], kinds=["range"]))) == {":idle": (None, None)}
    assert rows(ranges(report([idle], kinds=["range", "api"]))) == {":idle": (None, None)}


def test_whole_graphs_count_as_in_the_other_columns():
    of = report([nvtx("a", 0, 20), *launch(3, 30, 40, correlation=1), *launch(6, 50, 70, correlation=2, make=graph)])
    assert rows(ranges(of)) == {":a": (30, 2)}
    assert rows(range_gpu(of)) == {":a": (10, 1)}
    assert rows(range_gpu(of, graphs=True)) == {":a": (30, 2)}


def shown(of):
    return section(summarize(of).tables, 8)


def test_the_page_shows_it_where_it_differs():
    found = shown(report(STEP))
    heads = [head.title for head in found.grid.heads]
    cells = {row[-1]: dict(zip(heads, row, strict=True)) for row in found.grid.rows}
    assert (cells["bwd"]["GPU busy"], cells["bwd"]["any thread"]) == ("1 ns", "26 ns")
    assert (cells["fwd"]["GPU busy"], cells["fwd"]["any thread"]) == ("10 ns", "10 ns")
    assert found.foot.startswith("any thread: ")


def test_the_page_of_one_thread_does_without():
    found = shown(report([nvtx("step", 0, 20), *launch(2, 30, 40, correlation=1)]))
    assert "any thread" not in [head.title for head in found.grid.heads]
    assert found.foot == ""


# Against a model


SPANS = st.tuples(STARTS, st.integers(0, 25))
PROCESSES = st.sampled_from([1, 1, 1, 2])


@st.composite
def programs(draw):
    events = []
    for _ in range(draw(st.integers(1, 7))):
        start, length = draw(SPANS)
        end = start + length if draw(st.integers(0, 9)) else None
        side = draw(st.sampled_from([{}, {}, {"style": "StartEnd"}, {"style": "StartEnd", "end_thread_id": 9}]))
        where = {"process": draw(PROCESSES), "thread": draw(st.integers(1, 3))}
        events.append(nvtx(draw(st.sampled_from("ab")), start, end, open_until_ns=60, **where, **side))
    for number in range(draw(st.integers(1, 9))):
        process, at, length = draw(PROCESSES), draw(STARTS), draw(st.integers(0, 6))
        keys = {"correlation": number, "process": process}
        events.append(call("cudaLaunchKernel", at, at + length, thread=draw(st.integers(1, 3)), **keys))
        for _ in range(draw(st.integers(1, 2))):
            begin = at + draw(st.integers(0, 30))
            make = draw(st.sampled_from([kernel, memcpy]))
            events.append(make(begin, begin + draw(st.integers(0, 12)), device=draw(st.integers(0, 1)), **keys))
    return events


def model(events):
    """For each name and style the time and number of what was launched inside its instances."""
    latest = max(time for one in events if one.kind == "range" for time in (one.start, one.end or one.start))
    found = defaultdict(lambda: [0, 0])
    for one in events:
        if one.kind != "range":
            continue
        end = latest if one.end is None else one.end
        calls = {
            (launch.process, launch.correlation)
            for launch in events
            if launch.kind == "api" and launch.process == one.process and one.start <= launch.start <= launch.end <= end
        }
        work = [op for op in events if op.device is not None and (op.process, op.correlation) in calls]
        busy = {instant for op in work for instant in range(op.start, op.end)}
        sums = found[f":{one.name}", one.side.get("style", "PushPop")]
        sums[0] += len(busy)
        sums[1] += len(work)
    return {key: tuple(sums) for key, sums in found.items()}


def test_it_equals_a_loop_over_every_range_and_every_operation():
    seen = Counter()

    @given(programs())
    def holds(events):
        of = report(events)
        found = {
            (row["range"], row["style"]): (row["process_busy_ns"], row["process_operations"])
            for row in ranges(of).iter_rows(named=True)
        }
        expected = model(events)
        assert found == expected
        own = range_gpu(of)
        assert own.filter(pl.col("process_busy_ns") < pl.col("busy_ns")).is_empty()
        assert own.filter(pl.col("process_operations") < pl.col("operations")).is_empty()
        others = own.filter(pl.col("process_operations") > pl.col("operations")).height
        seen.update(all=1, launched=any(count for _, count in expected.values()), others=others > 0)

    holds()
    assert seen["launched"] > 0.3 * seen["all"]
    assert seen["others"] > 0.03 * seen["all"]


def test_of_a_real_training_loop_the_backward_pass_is_in_its_steps():
    whole = real_report(REPORTS / "torch_node.sqlite")
    table = {row["range"]: row for row in kanalyze.ranges(whole).iter_rows(named=True)}
    projected = {row["range"]: row for row in kanalyze.range_gpu(whole).iter_rows(named=True)}
    assert table[":backward"]["process_busy_ns"] > 50 * projected[":backward"]["busy_ns"]
    inside = {
        name: table[f":{name}"]["process_operations"] for name in ("forward", "backward", "optimizer", "data", "log")
    }
    assert inside == {"forward": 160, "backward": 360, "optimizer": 196, "data": 40, "log": 20}
