"""Launches that repeat: what could be a CUDA graph, and kernels that are timed."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.findings.rules.launches import graph_candidate, timed_kernels
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches.graphs import CANDIDATES, graphs, repetitive
from kanalyze.window import Window
from support import launches
from support.build import call, kernel, launched, memcpy, memset, nvtx, report
from support.command import REPORTS
from support.launches import Launch, report_of
from support.measures import assert_told
from support.real_reports import real_report
from support.shares import cases, holds
from support.strategies import EVENTS, WINDOWS, few_given

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


def loop(times=30):
    """The same four kernels and a synchronisation, again and again, after each kernel's first launch."""
    program = Program().launch("a", "b", "c").sync()
    for _ in range(times):
        program.launch("a", "b", "a", "c").sync()
    return program


def test_the_whole_row():
    """The first call of four begins behind the synchronisation, the others 1 ns before their interval."""
    (row,) = graphs(report(loop().events), by="candidate").to_dicts()
    where = {"process_id": 1, "thread_id": 1, "device": 0, "stream": 7, "start_ns": 11, "first": "a"}
    counts = {"operations": 4, "kernels": 4, "repetitions": 30, "measured": False}
    times = {"api_total_ns": 30 * 4 * 3, "launch_ns": 30 * 9, "queued_ns": 0, "graph_launch_ns": 3, "saved_ns": 30 * 6}
    assert row == where | counts | times


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


@pytest.mark.slow
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


def repeated(times, *each, last=None):
    """Launches of names, calls, or launches with options, again and again; and a call, or a launch of a graph."""
    program = Program()
    for _ in range(times):
        for one in each:
            if isinstance(one, dict):
                program.launch("x", **one)
            elif callable(one):
                one(program)
            else:
                program.launch(*one)
    if last:
        program.call(last, 7, correlation=9)
        program.events.append(kernel(program.now, program.now + 5, correlation=9))
    return program


def calling(name):
    return lambda program: program.call(name)


def far(program):
    program.now += 300_001


SYNC = Program.sync
PAGEABLE = {"kind": memcpy, "side": {"source_memory": "Pageable"}}
CUTTING = [
    *("cudaStreamSynchronize_v3020", "cudaMemcpy_v3020", "cudaMalloc_v3020", "cudaEventQuery_v3020", "cuStreamQuery"),
    "cudaGraphLaunch_v10000",
]
OTHERS = ["cudaMallocAsync_v11020", "cudaEventRecord_v3020", "cudaFuncGetAttributes", None]
SHAPES = [event for size in range(1, 61) for event in ({"grid": (size, 1, 1)}, {"grid": (size, 1, 1)}, SYNC)]
TWO_STREAMS = repeated(10, "abc", {"stream": 8}, {"stream": 8}, {"stream": 8}, SYNC)


@pytest.mark.parametrize(
    ("program", "sequences", "cut"),
    [
        *((repeated(60, "ab", calling(name)), [], [120]) for name in CUTTING),
        *((repeated(60, "ab", calling(name)), [], []) for name in OTHERS),
        # stretches are cut short from two launches and five times on
        (repeated(5, "ab", SYNC), [], [10]),
        (repeated(4, "ab", SYNC), [], []),
        (repeated(5, "abc", SYNC), [(3, 5)], []),
        (repeated(4, "abc", SYNC), [], []),
        (repeated(60, "ab", PAGEABLE), [], [120]),  # an asynchronous copy of pageable memory cuts as well
        (repeated(60, "ab", {"kind": memcpy}, {"kind": memset}, SYNC), [(4, 60)], []),
        (repeated(200, "ab"), [(32, 12)], []),  # without synchronisation a short period is taken several times
        (repeated(1, *SHAPES), [], []),  # another shape is another operation
        (TWO_STREAMS, [(3, 10), (3, 10)], []),  # streams are series of their own
        (repeated(30, "abcd", SYNC), [(4, 30)], []),
        (repeated(30, "ab", far, "cd", SYNC), [], [120]),  # a graph does not spare what the program computes between
        (Program(), [], []),
    ],
)
def test_sequences_that_repeat_between_calls_that_no_capture_allows(program, sequences, cut):
    of = report(program.events)
    assert graphs(of, by="candidate").select("operations", "repetitions").rows() == sequences
    assert repetitive(of).cuts.get_column("launches").to_list() == cut


def test_threads_are_series_of_their_own():
    other = Program(thread=2)
    for _ in range(10):
        other.launch("a", "b", "c").sync()
    found = graphs(report([*TWO_STREAMS.events, *other.events]), by="candidate")
    assert sorted(found["thread_id"]) == [1, 1, 2]
    assert graphs(report([]), by="candidate").equals(CANDIDATES.empty())


def test_what_a_graph_launch_takes_is_measured_where_there_is_one():
    program = loop()
    program.call("cudaGraphLaunch_v10000", 7, correlation=9)
    program.events.append(kernel(program.now, program.now + 5, correlation=9))
    found = graphs(report(program.events), by="candidate").select("graph_launch_ns", "measured", "saved_ns")
    assert found.rows() == [(7, True, 30 * 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "context", "cuts"),
    [((7, 8), 1, True), ((8, 7), 1, True), ((7, 8), 2, False)]
    + [(streams, 1, False) for streams in ((7, 9), (9, 7), (8, 9), (9, 8))],
)
def test_the_default_stream_and_blocking_ones_of_its_context_cut_each_other(streams, context, cuts):
    """While one of them is captured, nothing may be launched onto the other."""
    one, other = streams
    turns = repeated(200, {"stream": one}, {"stream": one}, {"stream": other, "context": context})
    of = report(turns.events, streams=[*STREAMS, {**STREAMS[1], "context_id": 2}])
    assert sorted(graphs(of, by="candidate")["stream"]) == ([] if cuts else sorted(streams))
    assert repetitive(of).cuts["launches"].to_list() == ([600] if cuts else [])


def waiting(waits, launches=4, behind=0):
    """Ten iterations that wait so often each, after so many launches, and launch more behind."""
    program = repeated(10, *["abcd" * (launches // 4), SYNC] * waits, "abcd" * (behind // 4))
    return report(program.events).narrow(window=Window(0, program.now, count=10, each="step"))


def ahead(gap):
    """The host is ahead: what lies between kernels that are queued is theirs, until it is a tenth of the time."""
    events = []
    for number in range(320):
        begin, name = 100 * number + 10_000, "abcd"[number % 4]
        launched = call("cudaLaunchKernel_v7000", 10 * number, 10 * number + 3, correlation=number + 1)
        events += [launched, kernel(begin + gap, begin + 100, name=name, correlation=number + 1)]
    return report(events).narrow(window=Window(10_000 + 3_200, 42_000, count=9, each="step"))


REPEATS = (
    "1 sequence of launches repeats: 120 launches for which GPU 0 waited 270 ns, most for 4 operations launched 30 "
    "times, beginning with a. As CUDA graphs they would save at most 180 ns of that, if launching one takes 3 ns (the "
    "median of these calls, for want of one), and the program's own time between them besides."
)
OWN_STREAM = "(on a stream of its own: the default stream cannot be captured)"


@pytest.mark.parametrize(
    ("of", "stakes", "words"),
    [
        (report(loop().events), [180], (REPEATS,)),
        (report(loop(times=20).events), [], ()),
        (report(loop().events, streams=STREAMS), [180], (OWN_STREAM,)),
        (report(loop().events, streams=[{**STREAMS[1], "stream": 7}]), [180], ("a CUDA graph and replay it",)),
        (waiting(16), [954], ()),
        (waiting(17), [], ()),  # too many pieces
        (waiting(17, launches=32), [10_531], ()),  # of many launches each
        (waiting(17, behind=500), [], ()),  # of many launches in all, but a tenth between the waits
        (waiting(17, behind=1400), [28_838], ()),
        (ahead(9), [], ()),
        (ahead(11), [2_843], ()),
        *((real_report(REPORTS / f"{name}.sqlite"), [], ()) for name in ("findings_clean", "graph_node", "thrash")),
    ],
)
def test_launches_that_could_be_a_graph(of, stakes, words):
    assert_told(graph_candidate(of), stakes, *words)


def assert_not_more_than_the_ledger(of):
    """Gives how many claims there were."""
    held = ledger(of).filter(pl.col("bucket").is_in(["launch", "queued"]))
    held = dict(held.group_by("device").agg(pl.col("ns").sum()).iter_rows())
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


@cases(0.2)
@few_given(st.one_of(EVENTS, programs(), programs(), programs()), WINDOWS, st.integers(0, 20), st.integers(60, 100))
def test_savings_are_never_more_than_the_ledger_holds(events, window, after, until):
    """Of all, of any window, and of a part from some percent of the time to others."""
    whole, last = report(events), max((event.end for event in events), default=100)
    claims = assert_not_more_than_the_ledger(whole)
    assert_not_more_than_the_ledger(whole.narrow(window=Window(*window)))
    assert_not_more_than_the_ledger(whole.narrow(window=Window(last * after // 100, last * until // 100 + 1)))
    holds(claims)


@cases(0.2)
@few_given(programs())
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


CLEAR, NS = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int)", 50_000
CLEARS, RECORD = Launch(CLEAR, 1 << 16, NS, 20_000), Launch("cudaEventRecord_v3020")


def timed(number, name="mine", *, blocks=1 << 16, events=(True, True), many=1, beside=()):  # noqa: PLR0913 - of a run
    """A thread that clears a cache so often, and times a kernel of 20 µs, which begins when that is done."""
    runs = [Launch(name, 64, 20_000, NS)] * many
    parts = [CLEARS._replace(blocks=blocks), *[RECORD] * events[0], *runs, *map(Launch, beside), *[RECORD] * events[1]]
    return launches.Program().then(parts * number)


WAITS = ["cudaStreamWaitEvent_v3020", "cudaEventSynchronize_v3020", "cudaGraphLaunch_v10000", "cudaMemcpyAsync_v3020"]


def cleared(*steps):
    """A training that clears gradients and times its steps, or memory that a program of CUDA sets."""
    kernels = {name: Launch(name, 1 << 16 if "ill" in name else 64, NS, NS) for name in steps}
    return report_of(launches.Program().then([kernels[name] if name != "event" else RECORD for name in steps] * 80))


def later(sides):
    """Sixty timed kernels and another one, and a window by the end of the sixty and of all."""
    program = timed(60)
    end = program.events[-2].end
    return report_of(program.then([Launch("later")])).narrow(window=Window(*sides(end, program.events[-1].end)))


COMPILING = [
    nvtx("XlaCompile:#module=jit_step#", 0, 10**9),
    *launched(2 * 10**9, 2 * 10**9 + 10, kernel(2 * 10**9 + 20, 2 * 10**9 + 40, correlation=10**6)),
]
TOLD = ("60 runs of kernels, most of mine, are timed", "(1.200 ms)", "cache_results")


@pytest.mark.parametrize(
    ("of", "stakes", "words"),
    [
        (report_of(timed(60)), [60 * (NS + 20_000)], TOLD),
        (report([*timed(60).events, *COMPILING]), [59 * (NS + 20_000)], ("59 runs of kernels",)),
        (report_of(timed(60, name="triton_mm")), [60 * (NS + 20_000)], ("torch.compile keeps",)),
        *(
            (report_of(timed(**keys)), [], ())
            for keys in (
                # few, small fills, long runs
                *({"number": 49}, {"number": 60, "blocks": 2_000}, {"number": 60, "many": 17}),
                *({"number": 60, "events": events} for events in ((False, True), (True, False), (False, False))),
                *({"number": 60, "beside": [name]} for name in WAITS),
            )
        ),
        (cleared("event", CLEAR, "forward", "backward", "event"), [], ()),
        (cleared("fill_kernel(float *, int)", "event", "histogram(int *)", "event"), [], ()),
        (report([replace(event, process=None) for event in timed(60).events]), [], ()),
        (later(lambda end, free: (end, free)), [], ()),
        (later(lambda end, _: (0, end // 2)), [2_092_500], ()),
    ],
)
def test_a_benchmark_is_told_as_one(of, stakes, words):
    assert_told(timed_kernels(of), stakes, *words)


def test_what_an_autotuner_took_is_a_part_of_the_start():
    program = timed(60)
    began, ended = program.events[0].start, program.now
    program.now += 2_000_000
    step = [*map(Launch, ("forward", "backward", "Device-to-Host", "adam")), Launch("gemm", ns=300_000, pause=8_000)]
    program.then(step * 60)
    rows = kanalyze.phases(report_of(program)).filter(part="timing of kernels")
    assert rows.select("phase", "start_ns").rows() == [("before", began)]
    assert 0 < ended - rows.item(0, "ns") - began < 100_000  # the last run is no longer told from what follows
