"""Launches that repeat and could be a CUDA graph: on reports that have them and on ones that have not."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.findings.rules.launches import graph_candidate
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._graph_candidates import cut_launches
from kanalyze.analyses.launches.graphs import BY_CANDIDATE, graphs
from kanalyze.window import Window
from support.build import call, kernel, memcpy, memset, report
from support.real_reports import real_report
from support.shares import cases, holds
from support.strategies import EVENTS, FEWER, WINDOWS

REPORTS = Path(__file__).parents[3] / "reports"

#: A launching call takes 3 ns, the kernel starts as it returns and runs 1 ns; so the device idles 2 ns of 3.
STEP = 3


class Program:
    """A thread that launches kernels one after the other."""

    def __init__(self, thread=1):
        self.events, self.now, self.thread, self.launched = [], 0, thread, thread * 100_000

    def launch(self, *names, stream=7, kind=kernel, **keys):
        for name in names:
            self.launched += 1
            named = {"name": name} if kind is kernel else {}
            self.call("cudaLaunchKernel_v7000", correlation=self.launched)
            own = {"stream": stream, "correlation": self.launched, **keys}
            self.events.append(kind(self.now, self.now + 1, **named, **own))
        return self

    def call(self, name, length=STEP, **keys):
        self.events.append(call(name, self.now, self.now + length, thread=self.thread, **keys))
        self.now += length
        return self

    def sync(self):
        return self.call("cudaStreamSynchronize_v3020", 2)


def rows(program, *columns, **where):
    return graphs(report(program.events), by="candidate", **where).select(columns).rows()


def loop(times=30):
    """The same four kernels and a synchronisation, again and again, after each kernel's first launch."""
    program = Program().launch("a", "b", "c").sync()
    for _ in range(times):
        program.launch("a", "b", "a", "c").sync()
    return program


def test_the_whole_row():
    (row,) = graphs(report(loop().events), by="candidate").to_dicts()
    assert row == {
        "process_id": 1,
        "thread_id": 1,
        "device": 0,
        "stream": 7,
        "operations": 4,
        "kernels": 4,
        "repetitions": 30,
        "start_ns": 11,
        "first": "a",
        "api_total_ns": 30 * 4 * 3,
        # the first call of four begins behind the synchronisation, the others 1 ns before their interval
        "launch_ns": 30 * (3 + 2 + 2 + 2),
        "queued_ns": 0,
        "graph_launch_ns": 3,
        "measured": False,
        "saved_ns": 30 * (9 - 3),
    }


def test_the_finding_and_none_of_few_launches():
    (one,) = graph_candidate(report(loop().events))
    assert (one.device, one.at_stake_ns) == (0, 180)
    assert one.text.format(*one.names) == (
        "1 sequence of launches repeats: 120 launches for which GPU 0 waited 270 ns, most for 4 operations launched 30 "
        "times, beginning with a. As CUDA graphs they would save at most 180 ns of that, if launching one takes 3 ns "
        "(the median of these calls, for want of one), and the program's own time between them besides."
    )
    program = loop(times=20)
    assert rows(program, "operations", "repetitions") == [(4, 20)]
    assert graph_candidate(report(program.events)) == []


def test_what_a_graph_launch_takes_is_measured_where_there_is_one():
    program = loop()
    program.call("cudaGraphLaunch_v10000", 7, correlation=9)
    program.events.append(kernel(program.now, program.now + 5, correlation=9))
    assert rows(program, "graph_launch_ns", "measured", "saved_ns") == [(7, True, 30 * 2)]


CUTTING = [
    "cudaStreamSynchronize_v3020",
    "cudaMemcpy_v3020",
    "cudaMalloc_v3020",
    "cudaEventQuery_v3020",
    "cuStreamQuery",
]
OTHERS = ["cudaMallocAsync_v11020", "cudaEventRecord_v3020", "cudaFuncGetAttributes", None]


@pytest.mark.parametrize("name", [*CUTTING, "cudaGraphLaunch_v10000", *OTHERS])
@pytest.mark.one_in(4)
def test_a_call_that_no_capture_allows_cuts_a_sequence_and_others_do_not(name):
    program = Program()
    for _ in range(60):
        program.launch("a", "b").call(name)
    cut = cut_launches(report(program.events)).select("device", "launches").rows()
    assert cut == ([] if name in OTHERS else [(0, 120)])
    assert rows(program, "operations", "repetitions") in ([], [(32, 3)] if name in OTHERS else [])


@pytest.mark.parametrize(
    ("length", "times", "sequences", "cut"),
    [(2, 5, [], [(0, 10)]), (2, 4, [], []), (3, 5, [(3, 5)], []), (3, 4, [], [])],
)
def test_stretches_are_cut_short_from_two_launches_and_five_times_on(length, times, sequences, cut):
    program = Program()
    for _ in range(times):
        program.launch(*"abc"[:length]).sync()
    assert rows(program, "operations", "repetitions") == sequences
    assert cut_launches(report(program.events)).select("device", "launches").rows() == cut


def test_an_asynchronous_copy_of_pageable_memory_cuts_as_well():
    pageable = {"side": {"source_memory": "Pageable"}}
    program = Program()
    for _ in range(60):
        program.launch("a", "b").launch("x", kind=memcpy, **pageable)
    assert rows(program, "operations") == []
    pinned = Program()
    for _ in range(60):
        pinned.launch("a", "b").launch("x", kind=memcpy).launch("x", kind=memset).sync()
    assert rows(pinned, "operations", "kernels", "repetitions") == [(4, 2, 60)]


def test_without_synchronisation_a_short_period_is_taken_several_times():
    program = Program().launch(*["a", "b"] * 200)
    assert rows(program, "operations", "repetitions") == [(32, 12)]
    for size in range(1, 61):  # another shape is another operation
        program.launch("a", "b", "c", grid=(size, 1, 1)).sync()
    assert rows(program, "operations", "repetitions") == [(32, 12)]


def test_streams_and_threads_are_series_of_their_own():
    one, other = Program(thread=1), Program(thread=2)
    for _ in range(10):
        one.launch("a", "b", "c").launch("d", "e", "f", stream=8).sync()
        other.launch("a", "b", "c").sync()
    both = report([*one.events, *other.events])
    found = graphs(both, by="candidate").select("thread_id", "stream", "operations", "repetitions").rows()
    assert sorted(found) == [(1, 7, 3, 10), (1, 8, 3, 10), (2, 7, 3, 10)]


def late(program, ns, last_ns=0):
    """The report of a program whose kernels start so much later, the last one by more."""
    kernels = [event for event in program.events if event.kind == "kernel"]
    moved = {id(event): ns + last_ns * (event is kernels[-1]) for event in kernels}
    shifted = [(event, moved.get(id(event), 0)) for event in program.events]
    return report([replace(event, start=event.start + by, end=event.end + by) for event, by in shifted])


def test_a_launch_that_came_too_late_counts_though_it_had_returned():
    """Kernels start 20 ns after their calls return: the device waits 2 ns for each b and c, 8 ns for the last one."""
    program = Program()
    for _ in range(6):
        program.launch("a", "b", "c").sync()
    found = graphs(late(program, 20, 6), by="candidate")
    # the last call returned 3 ns after the one before: the rest of its wait has another reason; first launches are out
    assert found.select("operations", "repetitions", "launch_ns", "queued_ns", "saved_ns").rows() == [
        (3, 6, 0, 5 * (2 + 2) + 1, 4 * (4 - 3) + (5 - 3))
    ]


@pytest.mark.parametrize(
    ("others", "ns", "queued_ns"),
    [
        # each kernel starts 2 ns after the one before it, on whatever stream, and so is waited for no longer than that
        ({"stream": 8}, 20, 5 * (2 + 2)),
        # b waits 2 ns; c 8 ns, of which the thread needed 3 ns since it had launched y
        ({"device": 1}, 30, 5 * (2 + 3)),
    ],
)
def test_what_a_thread_launched_elsewhere_in_between_is_no_reason_to_wait(others, ns, queued_ns):
    """As above, but between b and c the thread launches onto another stream or device, which takes it longer."""
    program = Program()
    for _ in range(6):
        program.launch("a", "b").launch("x", "y", **others).launch("c").sync()
    of = late(program, ns)
    found = graphs(of, by="candidate").filter(device=0).select("stream", "operations", "queued_ns")
    assert found.rows() == [(7, 3, queued_ns)]
    assert graphs(of, by="candidate", device=0).select(found.columns).equals(found)


#: The default stream of the context that all operations here are of, and a blocking stream of it.
STREAMS = [
    {"process_id": 1, "context_id": 1, "stream": stream, "type": kind}
    for stream, kind in ((7, "null"), (8, "blocking"), (9, "non-blocking"))
]


def test_the_default_stream_cannot_be_captured():
    (own,) = graph_candidate(report(loop().events, streams=STREAMS))
    (other,) = graph_candidate(report(loop().events, streams=[{**STREAMS[1], "stream": 7}]))
    assert "(on a stream of its own: the default stream cannot be captured)" in own.remedy
    assert "default" not in other.remedy
    assert own.at_stake_ns == other.at_stake_ns


@pytest.mark.parametrize(
    ("streams", "context", "cuts"),
    [((7, 8), 1, True), ((8, 7), 1, True), ((7, 8), 2, False)]
    + [(streams, 1, False) for streams in ((7, 9), (9, 7), (8, 9), (9, 8))],
)
def test_the_default_stream_and_blocking_ones_of_its_context_cut_each_other(streams, context, cuts):
    """While one of them is captured, nothing may be launched onto the other."""
    of = report(in_turns(*streams, context=context), streams=[*STREAMS, {**STREAMS[1], "context_id": 2}])
    assert sorted(graphs(of, by="candidate")["stream"]) == ([] if cuts else sorted(streams))
    assert cut_launches(of)["launches"].to_list() == ([600] if cuts else [])


def in_turns(one, other, **keys):
    """Two launches onto a stream and one onto another, two hundred times."""
    program = Program()
    for _ in range(200):
        program.launch("a", "b", stream=one).launch("x", stream=other, **keys)
    return program.events


def test_no_launches_is_an_empty_table():
    assert graphs(report([]), by="candidate").equals(BY_CANDIDATE.empty())
    assert graphs(report([kernel(0, 1)]), by="candidate").is_empty()
    assert graph_candidate(report([])) == []


# What is claimed is there


def most_at_stake(of):
    held = ledger(of).filter(pl.col("bucket").is_in(["launch", "queued"]))
    return dict(held.group_by("device").agg(pl.col("ns").sum()).iter_rows())


def assert_not_more_than_the_ledger(of):
    """Gives how many claims there were."""
    held = most_at_stake(of)
    claims = graphs(of, by="candidate").group_by("device").agg(pl.col("launch_ns", "queued_ns", "saved_ns").sum())
    for device, launch_ns, queued_ns, saved_ns in claims.iter_rows():
        assert saved_ns <= launch_ns + queued_ns
        assert launch_ns <= held.get(device, 0)
    for one in graph_candidate(of):
        assert 0 < one.at_stake_ns <= held[one.device]
    return claims.height


#: Words, how often, on which stream (none: on two in turns), what else is called, for how long, and if in each round.
LOOPS = st.tuples(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=6),
    st.sampled_from([1, 4, 5, 6, 9, 30]),
    st.sampled_from([7, 7, 8, None]),
    st.sampled_from(["cudaStreamSynchronize", "cudaStreamSynchronize", "cudaEventRecord", "cudaMalloc", None]),
    st.integers(0, 5),
    st.booleans(),
)
WORTH_A_GRAPH = st.tuples(
    st.lists(st.sampled_from("abc"), min_size=3, max_size=6),
    st.sampled_from([6, 9, 30]),
    st.sampled_from([7, 8]),
    st.sampled_from(["cudaStreamSynchronize", "cudaMalloc"]),
    st.integers(0, 5),
    st.just(value=True),
)


@st.composite
def programs(draw):
    """Loops over words that a program launches, on one of two threads: with other calls in each round, or behind it.

    In most programs one of the loops is worth a graph.
    """
    program = Program(draw(st.sampled_from([1, 2])))
    loops = draw(st.lists(LOOPS, max_size=3))
    if draw(st.integers(0, 9)) < 8:
        loops.insert(draw(st.integers(0, len(loops))), draw(WORTH_A_GRAPH))
    for word, times, stream, other, length, often in loops:
        for number in range(times):
            program.launch(*word, stream=stream or (7, 8)[number % 2])
            if often or number == times - 1:
                program.call(other, length)
    return program.events


@pytest.mark.slow
@cases(0.2)
@FEWER
@given(st.one_of(EVENTS, programs(), programs(), programs()), WINDOWS, st.integers(0, 20), st.integers(60, 100))
def test_savings_are_never_more_than_the_ledger_holds(events, window, after, until):
    """Of all, of any window, and of a part from some percent of the time to others."""
    whole, last = report(events), max((event.end for event in events), default=100)
    claims = assert_not_more_than_the_ledger(whole)
    assert_not_more_than_the_ledger(whole.narrow(window=Window(*window)))
    assert_not_more_than_the_ledger(whole.narrow(window=Window(last * after // 100, last * until // 100 + 1)))
    holds(claims)


@cases(0.2)
@FEWER
@given(programs())
def test_every_repetition_is_that_of_the_text(events):
    """Against the text: whole stretches between cuts that come five times, of three operations or more."""
    of, thread = report(events), {event.thread for event in events if event.kind == "api"}
    assert len(thread) <= 1
    whole = [row for row in graphs(of, by="candidate").iter_rows(named=True) if row["operations"] < 32]
    launches = [event for event in events if event.kind == "kernel"]
    cuts = [event.start for event in events if event.name in ("cudaStreamSynchronize", "cudaMalloc")]
    starts = {event.correlation: event.start for event in events if event.kind == "api"}
    stretches = {}
    for event in launches:
        key = (event.stream, sum(cut < starts[event.correlation] for cut in cuts))
        stretches.setdefault(key, []).append(event.name)
    words = [(stream, tuple(word)) for (stream, _), word in stretches.items()]
    again = {one: words.count(one) for one in words if words.count(one) >= 5 and len(one[1]) >= 3}
    expected = sorted((stream, len(word), count) for (stream, word), count in again.items() if len(word) < 32)
    holds(expected)
    assert sorted((row["stream"], row["operations"], row["repetitions"]) for row in whole) == expected


# Real reports


def test_launches_one_by_one_and_as_a_graph_in_one_report():
    of = real_report(REPORTS / "findings.sqlite")
    row = graphs(of, by="candidate").row(0, named=True)
    assert (row["operations"], row["repetitions"], row["measured"]) == (20, 60, True)
    spans = dict(of.kind("range").select(pl.col("name").cast(pl.String), "dur_ns").iter_rows())
    really = spans["f launched one by one"] - spans["f as a graph"]
    assert really <= row["saved_ns"] <= 1.5 * really
    (finding,) = graph_candidate(of)
    assert finding.at_stake_ns == row["saved_ns"]
    assert finding.table == "graphs --by candidate"


@pytest.mark.parametrize(
    "name", ["findings_clean", "graph_node", "graph_graph", "memory", "thrash", "empty", "prefetch"]
)
def test_nothing_to_find(name):
    assert graph_candidate(real_report(REPORTS / f"{name}.sqlite")) == []


@pytest.mark.parametrize("path", sorted(REPORTS.glob("*.sqlite")), ids=lambda path: path.stem)
@pytest.mark.one_in(4)
def test_claims_on_real_reports(path):
    assert_not_more_than_the_ledger(real_report(path))


@pytest.mark.parametrize(("waits", "many"), [(16, 1), (17, 0)])
def test_iterations_that_wait_all_over_are_not_to_be_captured_piece_by_piece(waits, many):
    program = Program()
    for _ in range(10 * waits):
        program.launch(*"abcd").sync()
    window = Window(0, program.now, count=10, each="step")
    assert len(graph_candidate(report(program.events).narrow(window=window))) == many


def test_launches_far_apart_are_not_one_sequence():
    """A graph does not spare what the program computes between them."""
    near, far = Program(), Program()
    for _ in range(30):
        near.launch(*"abcd").sync()
        far.launch(*"ab")
        far.now += 300_001
        far.launch(*"cd").sync()
    assert rows(near, "operations", "repetitions") == [(4, 30)]
    assert rows(far, "operations", "repetitions") == []


@pytest.mark.parametrize(("gap", "many"), [(9, 0), (11, 1)])
def test_where_the_host_is_ahead_there_is_nothing_to_gain(gap, many):
    """What lies between kernels that are queued is theirs, until it is a tenth of the time."""
    events = []
    for number in range(320):
        begin, name = 100 * number + 10_000, "abcd"[number % 4]
        launched = call("cudaLaunchKernel_v7000", 10 * number, 10 * number + 3, correlation=number + 1)
        events += [launched, kernel(begin + gap, begin + 100, name=name, correlation=number + 1)]
    window = Window(10_000 + 3_200, 42_000, count=9, each="step")
    assert len(graph_candidate(report(events).narrow(window=window))) == many
