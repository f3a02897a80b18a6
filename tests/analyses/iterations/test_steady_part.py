"""The steady part of iterations, their windows and parts, and the phases of a recording."""

from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median

import polars as pl
import pytest
from hypothesis import example, strategies as st

import kanalyze
from kanalyze.analyses.iterations import phases as of_phases
from kanalyze.analyses.iterations.phases import NO_RANGE, parts_of_step, spread_of, steady_part
from kanalyze.analyses.page.overview_page import overview
from kanalyze.errors import BadWindowError, UnknownNameError
from kanalyze.renderers.page.overview import overview_page
from kanalyze.window import Window
from support.build import call, kernel, launched, memcpy, nvtx, report
from support.command import MLP, SAMPLES, TRACE, run
from support.real_reports import real_report
from support.steps import in_phases, in_turn, loop, ran, step
from support.strategies import few_given, slow_given


@pytest.mark.parametrize("path", [MLP, TRACE], ids=lambda path: path.name)
def test_of_real_programs_the_steady_part_its_parts_and_the_phases_add_up(path):
    real = real_report(path)
    steady, ledger = steady_part(real), kanalyze.ledger(real, window="steady")
    rows, parts = kanalyze.iterations(real, window="steady"), parts_of_step(real, steady)
    assert (rows.height, rows.get_column("dur_ns").sum()) == (steady.number, steady.ns)
    assert parts.get_column("ns").sum() == ledger.get_column("ns").sum() == steady.ns
    assert parts.item(-1, "range") == NO_RANGE
    spread = {bucket: (least, most) for bucket, least, most in spread_of(real, steady).iter_rows()}
    for bucket, ns in ledger.group_by("bucket").agg(pl.col("ns").sum()).filter(pl.col("ns") > 0).iter_rows():
        assert parts.get_column(f"{bucket}_ns").sum() == ns
        assert spread[bucket][0] <= ns / steady.number <= spread[bucket][1]
    phases, (start, end) = kanalyze.phases(real), real.recorded
    assert phases.get_column("ns").sum() == end - start
    assert phases.filter(phase="steady").item(0, "ns") == steady.ns


SPANS = st.lists(st.tuples(st.integers(10, 3_000), st.integers(1, 900)), max_size=10)


def walked(steps, ranges, loads, first, sides):
    """The phases of a recording from one side to the other, instant by instant; three of five steps are steady."""
    ranges = sorted(ranges, key=lambda one: (one[1], -one[2]))
    rows = [("steady", "step", 320, 3, 1_000)]
    for phase, low, high in (("before", sides[0], 1_000), ("between", 1_000, 2_710), ("after", 2_710, sides[1])):
        left = {*range(low, high)} - {*range(1_000, 1_320)}
        outer = defaultdict(list)
        until = 0
        for name, start, end in ranges:
            if left.intersection(range(start, end)):
                if start >= until:
                    outer[f"in {name}"].append((start, end))
                until = max(until, end)
        in_left = {name: sum(len(left.intersection(range(*one))) for one in own) for name, own in outer.items()}
        own = sorted(outer.items(), key=lambda item: (-in_left[item[0]], item[0]))[:4]
        causes = [("modules", loads), ("other step", steps[3:]), *own, ("before the first CUDA call", [(0, first)])]
        for part, spans in causes:
            touched = [taken for span in spans if (taken := left.intersection(range(*span)))]
            if touched:
                taken = set().union(*touched)
                rows.append((phase, part, len(taken), len(touched), min(taken)))
                left -= taken
        if left:
            rows.append((phase, "program", len(left), sum(at - 1 not in left for at in left), min(left)))
    return rows


@slow_given(SPANS, st.lists(st.tuples(st.integers(10, 900), st.integers(1, 80)), max_size=2))
def test_phases_are_those_of_a_walk(spans, loads):
    """Each name is that of two ranges, which may overlap each other in any way."""
    steps = [(start, start + 100) for start in (1_000, 1_110, 1_220, 2_500, 2_610)]
    ranges = [("abcdef"[at // 2], start, start + length) for at, (start, length) in enumerate(spans)]
    loads = [(start, start + length) for start, length in loads]
    events = in_phases((start, [("step", 0, 100)]) for start, _ in steps)
    events += [*(nvtx(*one) for one in ranges), *(call("cuModuleLoadData", *one) for one in loads)]
    found = report(events)
    rows = kanalyze.phases(found)
    first = min(event.start for event in events if event.kind == "api")
    steps[3] = (2_500, 2_610)
    expected = walked(steps, ranges, loads, first, (found.recorded[0], max(found.recorded[1], 2_710)))
    assert sorted(rows.select("phase", "part", "ns", "count", "start_ns").rows()) == sorted(expected)
    order = {"before": 0, "steady": 1, "between": 2, "after": 3}
    keys = [(order[phase], -ns) for phase, ns in rows.select("phase", "ns").rows()]
    assert keys == sorted(keys)
    assert rows.get_column("share").sum() == pytest.approx(1)


@pytest.mark.parametrize(("session", "shown"), [(60_000, 8_000), (10_000, 11_000)])
def test_of_a_session_far_longer_than_a_processs_events_these_are_what_the_report_shows(session, shown):
    end = 1_000 + session
    others = launched(end - 20, end - 10, kernel(end - 9, end, process=2), process=2)
    rows = kanalyze.phases(report([*loop([100] * 10), nvtx("export", 3_000, 9_000), *others]), process=1)
    assert rows.get_column("ns").sum() == shown


@slow_given(st.integers(1_000, 1_900), st.integers(1, 700))
@example(1_100, 200)
@example(1_150, 100)
def test_iterations_of_a_window_are_those_that_overlap_it(start, length):
    rows = kanalyze.iterations(report(loop([100] * 8, gap=0)), window=Window(start, start + length))
    starts = [at for at in range(1_000, 1_800, 100) if at < start + length and start < at + 100]
    assert rows.get_column("start_ns").to_list() == starts


def test_windows_from_one_iteration_to_another():
    found = real_report(MLP)
    first, last = found.window("step#2"), found.window("step#5")
    window = found.window("step#2..step#5")
    assert (window.start_ns, window.count, window.each) == (first.start_ns, 4, "step")
    assert window.end_ns >= last.end_ns
    assert found.window("step#-1").start_ns == found.window("step#42").start_ns
    assert found.window("forward#2..optimizer#2").count is None
    assert real_report(TRACE).window("step:3..step:5").count == 3


def test_windows_that_are_none():
    with pytest.raises(BadWindowError, match="the end is not after the start"):
        real_report(MLP).window("step#5..step#2")
    with pytest.raises(UnknownNameError):
        real_report(MLP).window("step#-43")
    ran = run("show", "ledger", "--window", "steady", SAMPLES / "add" / "nsys.sqlite")
    assert ran.status == 2
    assert "nothing in this report repeats" in ran.error


PHASES = [("forward", 0, 100), ("backward", 110, 300), ("optimizer", 310, 400)]
MORE = [*PHASES, ("nccl:all_reduce", 402, 409)]


@pytest.mark.parametrize(
    ("steps", "lasts"),
    [
        ([PHASES] * 8, 400),
        # a range between the phases of some iterations is a part of them
        ([[("extra", 101, 109), *MORE] if number in (2, 3, 5) else MORE for number in range(8)], 400),
        ([[*PHASES[:2], ("optimizer", 310, 480)]] * 3, 480),
    ],
)
def test_phases_side_by_side_are_one_iteration_which_has_all_of_them(steps, lasts):
    rows = kanalyze.iterations(report(in_phases((1_000 + 500 * at, phases) for at, phases in enumerate(steps))))
    assert rows.get_column("name").unique().to_list() == ["iteration"]
    assert rows.get_column("start_ns").to_list() == [1_000 + 500 * number for number in range(len(steps))]
    assert rows.get_column("dur_ns").to_list() == [500] * (len(steps) - 1) + [lasts]
    assert rows.get_column("found_by").str.starts_with("ranges forward to ").all()


def test_of_three_the_first_one_warms_up_that_takes_twice_as_long_as_the_others():
    rows = kanalyze.iterations(report([call("cuCtxCreate_v2", 10, 500), *loop([900, 100, 110])]))
    assert rows.get_column("kind").to_list() == ["warm-up", "steady", "steady"]
    assert "× the median, most in kernel" in rows.item(0, "reason")


def test_ranges_that_hold_iterations_are_no_parts_of_one():
    def batches(at, *_):
        return in_turn([1_000] * 9, lambda at, *_: [nvtx("load", at + 1, at + 300), *ran(at + 300, 4, 699)],
                       name="batch", start=at + 5)  # fmt: skip

    found = report(in_turn([9_905] * 3, batches, name="epoch", start=995, gap=95))
    steady = steady_part(found)
    assert steady.each == "batch"
    assert parts_of_step(found, steady).select("range", "count").rows() == [("load", 9), (NO_RANGE, 1)]


def test_a_range_without_a_name_tells_nothing():
    def inside(at, *_):
        return [nvtx("", at + 1, at + 700), nvtx(None, at + 710, at + 720), *ran(at + 400, 4, 99)]

    found = report(in_turn([1_000] * 8, inside))
    assert kanalyze.culprits(found).get_column("range").drop_nulls().unique().to_list() == ["step"]
    assert parts_of_step(found, steady_part(found)).is_empty()
    assert not [name for name in kanalyze.phases(found).get_column("part") if name == "in :"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inside", "told"),
    [
        ([("inner", 90, 910)], "in inner"),
        ([("middle", 80, 920), ("inner", 90, 910)], "in inner"),
        ([("middle", 90, 910), ("inner", 200, 500)], "in middle"),
        ([("same", 90, 910), ("same", 100, 905)], "in same"),
        ([("inner", 90, 110)], "in outer"),
        ([(f"layer {name}", 100 + 200 * at, 300 + 200 * at) for at, name in enumerate("abcd")], "in outer"),
    ],
    ids=["one", "nested", "little-deeper", "in-itself", "none", "many"],
)
def test_host_time_is_told_by_the_innermost_range_that_holds_most_of_it(inside, told):
    """Steps of a range outer with some ranges (name, begin, end) in it, idle from 100 to 900; then a kernel."""

    def within(at, *_):
        named = [nvtx(name, at + begin, at + end) for name, begin, end in [("outer", 10, 990), *inside]]
        return [*named, *launched(at + 900, at + 905, kernel(at + 905, at + 1_100))]

    found = report(in_turn([1_000] * 8, within))
    steady = steady_part(found)
    parts, inner = parts_of_step(found, steady), of_phases.inner_parts(found, steady)
    assert "outer" in parts.get_column("range")
    page = overview_page(overview(found), 6)
    (host,) = (share for ledger in page.ledgers for share in ledger.shares if share.bucket == "host")
    assert host.detail.startswith(f"{told} ")
    (row,) = inner.filter(range="outer", bucket="host").iter_rows(named=True)
    whole = parts.filter(range="outer").item(0, "host_ns")
    assert f"in {row['inner']}" == told
    assert whole >= row["ns"] > whole / 2
    assert ("elsewhere in outer" in host.detail) == (whole - row["ns"] >= 0.02 * whole)


def of_launches(number):
    return in_turn([10 * number] * 4, lambda at, *_: [
        event for begin in range(at, at + 10 * number, 10) for event in ran(begin, 4, 8)
    ])  # fmt: skip


def test_parts_are_of_the_thread_that_has_most_of_them():
    def inside(at, *_):
        return [*ran(at, 4, 99), nvtx("forward", at + 10, at + 60), nvtx("load", at + 5, at + 50, thread=2)]

    found = report(in_turn([100] * 8, inside))
    parts = parts_of_step(found, steady_part(found)).select("range", "count", "ns")
    assert parts.rows() == [("forward", 8, 400), (NO_RANGE, 1, 400)]


WHOLE = loop([1_000], name="whole")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("plain", "sampled", "told"),
    [
        (loop([100] * 5, gap=0), loop([150] * 6, gap=0), "a step took 1.50 × as long (150 ns against 100 ns"),
        (WHOLE, loop([3_000], name="whole"), "the last was 3.01 × as long (2.995 µs against 995 ns, of 1 operation"),
        (WHOLE, loop([1_000] * 2, name="whole"), "cannot be told"),
        (of_launches(100), of_launches(99), "a step took"),
        (of_launches(99), of_launches(100), "a step took"),
        (of_launches(100), of_launches(98), "cannot be told"),
    ],
)
def test_what_sampling_cost_is_told_by_iterations_or_by_all_of_the_work(plain, sampled, told):
    assert told in of_phases.sampling_cost(report(plain), report(sampled))


def longest(rows, name, *, adjoining):
    """The last of the longest runs of steady rows of one name."""
    runs, before = [[]], None
    for row in rows:
        if (row["name"], row["kind"]) != (name, "steady"):
            before = None
            continue
        goes_on = before is not None and (not adjoining or before["start_ns"] + before["dur_ns"] == row["start_ns"])
        runs = [*runs[:-1], [*runs[-1], row]] if goes_on else [*runs, [row]]
        before = row
    return max(reversed(runs), key=len)


def rows_apart(rows, name):
    """The iterations from the first to the last of three rows or more between which half of the time passes."""
    lines, before = [], None
    for row in rows:
        row["pause"] = row["start_ns"] - before["start_ns"] - before["dur_ns"] if before else 0
        if row["name"] == name:
            goes_on = before is not None and before["name"] == name and not row["pause"]
            lines = [*lines[:-1], [*lines[-1], row]] if goes_on else [*lines, [row]]
        before = row
    usual = [[row for row in line if row["kind"] == "steady"] for line in lines]
    long = [line for line in usual if len(line) >= 3]
    if len(long) < 3:
        return None
    first, last = long[0][0]["start_ns"], long[-1][0]["start_ns"]
    run = [row for row in rows if row["name"] == name and first <= row["start_ns"] <= last]
    pauses = sorted(row["pause"] for row in run[1:] if row["pause"] > 0)
    between = len(pauses) * pauses[(len(pauses) - 1) // 2] if pauses else 0
    return run if 2 * between >= last - first and 2 * len(run) > sum(map(len, usual)) else None


LENGTHS = st.lists(
    st.tuples(st.sampled_from([100, 100, 105, 400]), st.sampled_from([0, 10, 10, 900])), min_size=3, max_size=14
)


@slow_given(st.tuples(LENGTHS, LENGTHS | st.just([])), st.booleans())
@example(loops=([(100, at % 2 * 900) for at in range(6)], []), trains=True)
@example(loops=([(100, at % 3 // 2 * 900) for at in range(9)], []), trains=True)
@example(loops=([(100, at % 3 // 2 * 900) for at in range(9)], []), trains=False)
@example(loops=([(100, at % 3 // 2 * 900) for at in range(9)], [(100, 10)] * 12), trains=True)
@example(loops=([(100, at % 4 // 3 * 900) for at in range(14)], []), trains=True)
@example(loops=([(100, (at in {3, 6}) * 9_000) for at in range(40)], []), trains=True)
def test_the_steady_part_is_the_longest_run_of_a_walk(loops, trains):
    events, at = [], 1_000
    for name, steps in zip(("step", "other"), loops, strict=True):
        for length, gap in steps:
            events += loop([length], name=name, start=at)
            at += length + gap
        at += 5_000
    events += launched(1, 2, kernel(3, 4, name="FusedAdam" * trains))
    found = report(events)
    rows, steady = kanalyze.iterations(found).to_dicts(), steady_part(found)
    work = Counter()
    for row in rows:
        work[row["name"]] += row["kernels_ns"] * (row["kind"] == "steady")
    run = longest(rows, steady.each, adjoining=True)
    rows_of = rows_apart(rows, steady.each) if trains else None
    run = (rows_of or run) if len(run) >= 3 else longest(rows, steady.each, adjoining=False)
    assert work[steady.each] == max(work.values())
    last, ns = run[-1], sum(row["dur_ns"] for row in run)
    end = last["start_ns"] + last["dur_ns"]
    assert steady.adjoining == (run[0]["start_ns"] + ns == end)
    if not steady.adjoining:  # as many as pauses, so that one of both is what passes from a step to the next
        run, end = run[:-1], last["start_ns"]
    assert (steady.window.start_ns, steady.window.end_ns, steady.number) == (run[0]["start_ns"], end, len(run))
    assert [*steady.run.get_column("window")] == [row["window"] for row in run]
    assert steady.lengths.to_list() == [row["dur_ns"] for row in run]
    assert steady.host == steady.window


def test_a_step_that_only_submits_its_work_is_not_odd():
    """The host's time is short until its queue is full, and the device's work of each step is the same."""
    events, at, busy = [], 1_000, 1_010
    for number in range(8):
        length = max(busy - 300 - at, 20) if number else 20
        events += step("step", (at, at + length), (busy, busy + 300))
        at, busy = at + length, busy + 300
    found = report(events)
    assert kanalyze.iterations(found).get_column("dur_ns").to_list()[0] == 20
    assert kanalyze.iterations(found).get_column("kind").to_list() == ["steady"] * 8
    steady = steady_part(found)
    assert steady.number == 8
    assert steady.lengths.to_list() == [310] + [300] * 7  # of the first one from its start on


def test_a_last_step_that_ends_late_is_no_host_that_runs_ahead():
    found = report([*loop([100] * 8), *launched(1_771 + 1, 1_773, kernel(8_990, 9_000))])
    assert kanalyze.iterations(found).get_column("kind").to_list() == ["steady"] * 7 + ["odd"]
    assert kanalyze.iterations(found).item(-1, "dur_ns") == 9_000 - 1_770
    assert steady_part(found).lengths.to_list() == [110] * 7


def test_a_mark_that_is_a_part_of_a_step_is_no_step_where_the_next_one_begins_late():
    """Each has 8 kernels, the first of which lies in the mark, and a pause after the mark's end."""
    events, at, late = [], 1_000, (3, 4, 9, 13)  # after the last one none begins
    for number in range(14):
        starts = [at, *(at + 20 + 2 * part for part in range(1, 8))]
        events += [event for start in starts for event in launched(start, start + 1, kernel(start + 2, start + 3))]
        events.append(nvtx("Optimizer.step#SGD.step", at, at + 20))
        at += 160 if number in late else 100
    found = report(events)
    odd = kanalyze.iterations(found).filter(pl.col("kind") == "odd")
    assert odd.get_column("index").to_list() == [number + 1 for number in late]
    assert set(odd.get_column("dur_ns")) == {20}
    assert "ends with its mark" in odd.item(0, "reason")
    steady = steady_part(found)
    assert steady.lengths.to_list() == [100] * 4
    assert of_phases.lengths_ns(steady.usual).to_list() == [100] * 10


@pytest.mark.parametrize("rare", [1, 6])
def test_requests_of_any_size_with_time_between_are_no_marks_alone(rare):
    """Each range is a whole request; the next one comes when it comes, most of them at a usual distance."""
    events, at = [], 1_000
    for place, length in enumerate([100, 50, 100, 60, 100, 100, 55, 100] * 3):
        for start in range(at + 1, at + length - 4, 5):
            events += launched(start, start + 1, kernel(start + 2, start + 3))
        events.append(nvtx("request", at, at + length))
        at += length + (500 * rare if place % 5 == 1 else 500)
    assert "ends with its mark" not in "".join(kanalyze.iterations(report(events)).get_column("reason").drop_nulls())


def logged_now_and_then(every, number=40):
    """Steps of a host that runs ahead: 100 ns of launches for 1,000 ns of work, and a wait after every so many."""
    events, at, busy = [], 1_000, 0
    for place in range(number):
        busy = max(busy, at + 6) + 1_000
        events += step("step", (at, at + 100), (busy - 1_000, busy))
        at += 120
        if place % every == every - 1:
            events.append(call("cudaStreamSynchronize", at, busy + 5))
            at = busy + 10
    return report(events)


@pytest.mark.parametrize("every", [4, 10])
def test_a_wait_outside_of_marks_after_some_steps_ends_no_run(every):
    steady = steady_part(logged_now_and_then(every))
    assert steady.number >= 30
    assert steady.adjoining
    assert steady.ns / steady.number == pytest.approx(1_000, rel=0.06)


def test_an_iteration_whose_work_had_ended_with_that_of_the_one_before_takes_nothing():
    """The host runs ahead; of each second step a short kernel on another stream is all that it launches."""

    def inside(at, place, _):
        busy = 1_010 + 200 * (place // 2)
        return launched(at + 1, at + 3, kernel(at + 5, at + 6, stream=8) if place % 2 else kernel(busy, busy + 200))

    found = report(in_turn([20] * 24, inside))
    steady = steady_part(found)
    ledger = kanalyze.ledger(found, window=steady.window).group_by("bucket").agg(pl.col("ns").sum())
    spread = {bucket: (least, most) for bucket, least, most in spread_of(found, steady).iter_rows()}
    for bucket, ns in ledger.filter(pl.col("ns") > 0).iter_rows():
        assert spread[bucket][0] <= ns / steady.number <= spread[bucket][1]


def ends_by_hand(marks, ended):
    """End of each iteration, from marks (start, end) and when the device has done what each launched."""
    following = [start for start, _ in marks[1:]]
    apart = [max(after - end, 0) for (_, end), after in zip(marks, following, strict=False)]
    periods = [after - start for (start, _), after in zip(marks, following, strict=False)]
    ends = []
    for (_, end), after, away, done in zip(marks, [*following, None], [*apart, None], ended, strict=True):
        work_ends = max(end, done)
        pauses = after is None or (away > median(apart) + 0.5 * median(periods) and work_ends < after)
        ends.append(work_ends if pauses else after)
    return ends


STEP = st.tuples(st.integers(10, 200), st.integers(1, 400), st.sampled_from([0, 7, 7, 7, 40, 3_000]))


@few_given(steps=st.lists(STEP, min_size=3, max_size=12))
def test_an_iteration_ends_where_the_next_begins_or_with_its_work_before_a_pause(steps):
    """Each step launches one kernel, which runs as soon as those before have, and is followed by a pause."""
    events, marks, ended, at, busy = [], [], [], 1_000, 0
    for length, work, pause in steps:
        busy = max(busy, at + 3)
        events += step("step", (at, at + length), (busy, busy + work))
        busy += work
        marks.append((at, at + length))
        ended.append(busy)
        at += length + pause
    rows = kanalyze.iterations(report(events))
    assert rows.get_column("start_ns").to_list() == [start for start, _ in marks]
    assert rows.select(pl.col("start_ns") + pl.col("dur_ns")).to_series().to_list() == ends_by_hand(marks, ended)
    assert rows.get_column("operations").to_list() == [1] * len(steps)


@few_given(lengths=st.lists(st.integers(20, 200), min_size=4, max_size=12), lag=st.integers(1, 2_000))
def test_where_the_host_runs_ahead_the_steady_part_has_the_devices_work(lengths, lag):
    """The device works for 300 ns on each step, whose range on the host ends long before."""
    events, at, busy = [], 1_000, 1_000 + lag
    for length in lengths:
        busy = max(busy, at + 3)
        events += step("step", (at, at + length), (busy, busy + 300))
        at, busy = at + length + 10, busy + 300
    found = report(events)
    steady = steady_part(found)
    ledger = kanalyze.ledger(found, window=steady.window)
    assert ledger.get_column("ns").sum() == steady.ns
    kernels = ledger.filter(pl.col("bucket") == "kernel").get_column("ns").sum()
    assert abs(kernels - 300 * steady.number) <= 300 + lag
    rows = kanalyze.phases(found)
    low, high = found.recorded
    assert rows.get_column("ns").sum() == max(high, steady.window.end_ns) - low
    for bucket, least, most in spread_of(found, steady).iter_rows():
        ns = ledger.filter(pl.col("bucket") == bucket).get_column("ns").sum()
        assert least <= ns / steady.number <= most


@pytest.mark.parametrize("many", [100, 150, 190])
def test_all_steps_that_pay_once_warm_up_however_many(many):
    """Each of the first ones allocates for a third of the usual time more."""

    def inside(at, place, length):
        pays = [call("cudaMalloc_v3020", at + 5, at + 305)] * (place < many)
        return [*pays, *ran(at + length - 990, 20, 990)]

    rows = kanalyze.iterations(report(in_turn([1_300] * many + [1_000] * (400 - many), inside)))
    assert rows.get_column("kind").to_list() == ["warm-up"] * many + ["steady"] * (400 - many)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "told"), [(1, "START-UP"), (30, "BEFORE")])
def test_another_loop_before_the_steady_part_is_no_start_up(number, told):
    page = overview(report([*loop([100] * number, name="encode"), *loop([400] * 30, name="decode", start=20_000)]))
    assert page.steady.each == "decode"
    assert told in [block.title for block in overview_page(page, 6).blocks]
    assert page.starts is (number == 1)


def test_what_is_launched_after_the_last_step_is_no_part_of_it():
    """The host has launched an evaluation before the device does its work of the steps."""
    events = [nvtx("step", at, at + 10) for at in range(1_000, 1_120, 10)]
    for number in range(72):
        at, busy = 1_000 + 10 * number, 1_004 + 100 * number
        events += launched(at + 1, at + 3, kernel(busy, busy + 100))
    found = report(events)
    assert kanalyze.iterations(found).get_column("kind").to_list() == ["steady"] * 12
    steady = steady_part(found)
    assert steady.lengths.to_list() == [104, *[100] * 11]
    assert steady.ns == steady.lengths.sum()


def test_what_an_odd_step_differs_in_is_told_of_the_time_that_it_took_the_device():
    """A step copies for long, of which nothing is seen while the host is in it."""
    events, at, busy = [], 1_000, 1_000
    for number in range(20):
        events.append(nvtx("step", at, at + 10))
        for made, ns in [(kernel, 100), (memcpy, 900)][: 1 + (number == 10)]:
            busy = max(busy, at + 4)
            events += launched(at + 1, at + 3, made(busy, busy + ns))
            at, busy = at + 4, busy + ns
        at += 6
    odd = kanalyze.iterations(report(events)).filter(pl.col("kind") == "odd")
    assert odd.get_column("index").to_list() == [11]
    assert odd.item(0, "reason") == "10.0 × the median, most in memcpy"


@pytest.mark.parametrize(("every", "lasts"), [(8, 780), (3, 290)])
def test_steps_beside_a_long_copy_take_as_long_as_on_the_host(every, lasts):
    """A copy on another stream lasts for some steps, so that nothing is done earlier: no step takes no time."""
    events = loop([100] * 40, gap=0)
    for at in range(1_010, 5_010, 100 * every):
        events += launched(at, at + 2, memcpy(at + 3, at + lasts, stream=8))
    found = report(events)
    assert kanalyze.iterations(found).get_column("dur_ns").to_list()[:39] == [100] * 39
    assert steady_part(found).lengths.to_list()[:39] == [100] * 39


def test_the_steady_part_of_a_gpu_is_of_a_process_that_used_it():
    other = loop([90] * 6)
    moved = [replace(event, process=2, device=1 if event.kind == "kernel" else None) for event in other]
    found = report([*loop([100] * 8), *loop([50] * 5, start=8_000), *moved])
    assert [steady_part(found.narrow(device=gpu)).process_id for gpu in (None, 0, 1)] == [1, 1, 2]


@pytest.mark.slow
def test_a_page_is_told_of_operations_without_a_device():
    page = overview(report([replace(event, device=None) for event in loop([100] * 8)]))
    assert page.steady.lengths.to_list() == [110] * 7 + [100]
    assert page.tables["ledger"].get_column("device").unique().to_list() == [0]


def test_an_engine_s_steady_part_ends_where_it_waits_to_be_asked():
    events, at = [], 0
    for burst in (5, 9, 4):
        for number in range(burst):
            label = "step[DECODE bs=2]" if number % 3 else "step[EXTEND bs=1 toks=64]"
            ran_at = kernel(at + 10_000, at + 50_000, correlation=at)
            events += [*launched(at + 1_000, at + 5_000, ran_at), nvtx(label, at, at + 60_000)]
            at += 70_000
        at += 900_000
    steady = steady_part(report(events))
    assert (steady.each, steady.run.height) == ("step", 9)
    assert steady.window.end_ns - steady.window.start_ns == 9 * 70_000 - 10_000
