"""Calls in which the host waits: reads of results, and waits that nothing needs."""

from dataclasses import replace
from functools import partial
from itertools import chain

import polars as pl
import pytest
from hypothesis import strategies as st

from kanalyze.analyses.device._windows import idle_spans
from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules import waits as rules
from kanalyze.analyses.findings.rules.waits import (
    avoidable,
    blocking_read,
    distribution_checks,
    reads,
    unneeded_sync,
    waits_between_streams,
)
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import LAUNCH, again, call, graph, host, in_line, kernel, launched, memcpy, nvtx, overhead, report
from support.measures import assert_told
from support.shares import cases, holds
from support.slow_syncs import sync_reports
from support.strategies import WINDOWS, few_given

COPY, SYNC = "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020"


def copied(number, start, end, *, memory="Pinned", size=4):
    side = {"source_memory": "Device", "target_memory": memory}
    return memcpy(start, end, direction="Device-to-Host", correlation=100 + number, size_bytes=size, side=side)


def step(number, *, size=4, name="k", memory="Pinned"):
    """A kernel of 60, a copy of 5 behind it, a wait until 5 after that, 20 of the program's code, and a launch."""
    start = 100 * number
    return [
        *launched(start, start + 10, kernel(start + 10, start + 70, correlation=number, name=name), LAUNCH),
        call(COPY, start + 12, start + 20, correlation=100 + number),
        copied(number, start + 70, start + 75, size=size, memory=memory),
        call(SYNC, start + 25, start + 80),
    ]


def steps(count=4, **how):
    return list(chain.from_iterable(step(number, **how) for number in range(count)))


def launched_first(number):
    """The remedy: the next kernel is launched before the copy is waited for, and the GPU goes on."""
    start, after = 100 * number, 200 + number
    first, *others = step(number)
    later = [call(LAUNCH, start + 20, start + 25, correlation=after), kernel(start + 78, start + 98, correlation=after)]
    return [first, *others[:-1], *later, call(SYNC, start + 30, start + 80)]


def torch(name="aten::item", size=4):
    """The steps of a PyTorch program, its read inside of an operator."""
    ops = again(range(0, 400, 100), host("op", name, 11, 90), host("op", "aten::_local_scalar_dense", 12, 90))
    return [*ops, *steps(size=size, name="void at::native::vectorized_elementwise_kernel<4>()")]


def each(make, *ranges):
    """Events (name, start, end) of each of the four steps."""
    return again(range(0, 400, 100), *(make(*one) for one in ranges))


def function(name, start, end):
    return host("python", name, start, end)


def asked(name):
    """The steps of one whose conditions are of what an operator launches."""
    return [*torch("aten::is_nonzero"), *each(partial(host, "op"), (name, 0, 10))]


FUNCTIONS = each(
    function, ("train.py(31): step", 0, 95), ("train.py(9): main", -5, 99), ("torch/_tensor.py(9): __format__", 5, 92)
)
PRINTS = each(function, ("torch/_tensor_str.py(300): _str", 6, 92))


def rounds(every):
    """Twelve rounds, of which each, each second, or each third has the copy for which it waits."""
    inside = [(number, step(number)) for number in range(12)]
    events = [one for number, own in inside for one in (own if number % every == 0 else own[:2])]
    return [*events, *(nvtx("round", 100 * number, 100 * number + 90) for number in range(12)), *step(12)[:2]]


#: Calls of which one begins 10 before it ends, when the GPU has been idle for 5; and copies that wait in their calls.
LATE = [call(SYNC, one.end - 10, one.end) if one.name == SYNC else one for one in steps()]
PAGEABLE = [one for one in steps(memory="Pageable") if one.name != SYNC]
BLOCKING = [replace(one, end=one.start + 68) if one.name == COPY else one for one in PAGEABLE]
TURNS = [nvtx("b", 11, 90), *again((100, 200, 300), nvtx("a", 11, 90))]
NUMBER, VALUE = "A number read by the host (.item(), print)", "A value read by the host (.item(), x[mask], if) stalls"
NONZERO = "aten::nonzero (nonzero or a boolean mask) (3 times), 4 B each"
CONDITION = ("[aten::is_nonzero (a tensor as a condition)]", "A tensor as a condition (if x > 0) stalls")
RESULTS = ("[aten::to (.to(), .cpu() or .tolist())]", "4.000 kB each", "Results read by the host (.cpu() and others)")

#: Of the 35 that the GPU idles after each of three reads: 5 in the call, 20 of own code, 10 of the launch.
THREE = (
    "The host waits for results of GPU 0: cudaStreamSynchronize (3 times), 4 B each in the median. It is blocked for "
    "165 ns, in which the GPU may be at work; of the GPU's idle time from then until the host has launched more, 105 "
    "ns come of the wait."
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "window", "stakes", "words"),
    [
        (steps(), None, [3 * 35], (THREE, "Results that the host waits for stall the GPU", "[cudaStreamSynchronize]")),
        (steps(), Window(0, 300, count=3, each="step"), [3 * 35 - 10], ("Synchronize (1 time a step), 4 B each in",)),
        (steps(), Window(0, 300, count=3, each="step"), [3 * 35 - 10], ("blocked for 55 ns a step",)),
        (LATE, None, [3 * 10], ("cudaStreamSynchronize (3 times)",)),  # no more is lost than the wait took
        (BLOCKING, None, [3 * 35], ("cudaMemcpyAsync (3 times)",)),
        # by the operator, with what users write, the line or the range, but no step of the profiler
        (torch(), None, [3 * 35], ("[aten::item (.item())]", NUMBER)),
        (torch("aten::nonzero"), None, [3 * 35], (NONZERO, "A shape that depends on data (x[mask], nonzero)")),
        (torch("aten::is_nonzero"), None, [3 * 35], CONDITION),
        (asked("aten::all"), None, [3 * 35], CONDITION),
        (torch("aten::one_hot"), None, [3 * 35], ("[aten::one_hot]", "F.one_hot asks the GPU")),
        (torch("aten::unique_dim"), None, [3 * 35], ("[aten::unique_dim]", VALUE)),
        (torch("aten::to", size=4_000), None, [3 * 35], RESULTS),
        (torch("autograd::engine: IndexBackward0"), None, [3 * 35], ("[aten::_local_scalar_dense (.item())]", NUMBER)),
        ([event for event in torch() if event.kind != "op"], None, [3 * 35], (VALUE,)),
        ([*torch(), *FUNCTIONS], None, [3 * 35], ("[aten::item (.item()) in train.py(31): step]",)),
        ([*torch(), *FUNCTIONS, *PRINTS], None, [3 * 35], ("[aten::item (.item()) in print of a tensor in train.py",)),
        ([*steps(), *each(nvtx, ("loss", 11, 90))], None, [3 * 35], ("[loss]",)),
        ([*steps(), *each(nvtx, ("ProfilerStep#1", 0, 90))], None, [3 * 35], ("[cudaStreamSynchronize]",)),
        ([*steps(), *TURNS], None, [3 * 35], ("GPU 0: a (2 times), b (1 time)",)),
        # half of the rounds of a loop, or more
        (rounds(1), None, [12 * 35], ()),
        (rounds(2), None, [6 * 35], ()),
        (rounds(3), None, [], ()),
        (steps(3), None, [], ()),  # two reads, and a last one that nothing follows: no habit
        (steps(), Window(0, 400, count=7, each="step"), [], ()),  # now and then
        ([one for one in steps() if one.kind != "memcpy"], None, [], ()),
        ([replace(one, correlation=999) if one.name == COPY else one for one in steps()], None, [], ()),
        (list(chain.from_iterable(map(launched_first, range(4)))), None, [], ()),
    ],
)
def test_reads_that_the_gpu_waits_for(events, window, stakes, words):
    assert_told(blocking_read(report(events).narrow(window=window)), stakes, *words)


@pytest.mark.parametrize(("name", "stakes"), [("aten::_is_all_true", [380]), ("aten::all", [])])
def test_checks_that_only_conditions_are_made_of(name, stakes):
    assert_told(distribution_checks(report(asked(name))), stakes)


@pytest.mark.slow
@pytest.mark.parametrize(("events", "gone"), [(torch(), 3), (torch(size=4_000), 0), (steps(), 3)])
def test_numbers_that_are_read_one_by_one_are_not_copied_any_more(events, gone):
    of = report(events)
    (one,) = blocking_read(of)
    change = one.change(of)
    assert (len(change.gone), len(change.calls)) == (gone, 3)


@pytest.mark.slow
def test_nothing_is_said_twice():
    of = report(steps())
    pieces = rules.idle_after_reads(of)[0]
    sums = dict(pieces.group_by("bucket").agg((pl.col("end") - pl.col("start")).sum()).iter_rows())
    assert sums == {"sync": 15, "host": 60, "launch": 30}
    by_rule = {one.rule: one for one in ranked(of)}
    held = ledger(of).filter(bucket="sync").get_column("ns").sum()
    assert by_rule["host-blocks"].at_stake_ns == held - 15 == 5  # after the last one
    assert "(cudaStreamSynchronize 5 ns), besides 15 ns of which other findings" in by_rule["host-blocks"].text
    assert "host-computes" not in by_rule


@st.composite
def waiting_programs(draw, reads=(False, False, False, False, False, True)):
    """A thread that launches a kernel and waits, again and again; of some it copies results to the host, too."""
    events, now, copies = [], 0, draw(st.sampled_from(reads))
    for number in range(1, draw(st.integers(4, 9))):
        launch, busy, until, rest = (draw(st.integers(1, 12)) for _ in range(4))
        begun = now + launch
        waits, done = begun + until, begun + busy
        events += [call(LAUNCH, now, begun, correlation=number), kernel(begun, done, correlation=number)]
        if copies and draw(st.integers(0, 3)):
            name, done = draw(st.sampled_from([COPY, COPY, "cudaMemcpy"])), done + 2
            events += [call(name, begun, waits, correlation=100 + number), copied(number, done - 2, done)]
        now = max(waits, done + draw(st.integers(-3, 9)))
        events.append(call(draw(st.sampled_from([DEVICE_SYNC, DEVICE_SYNC, SYNC])), waits, now))
        now += rest
    return [*events, *draw(st.sampled_from([[], [BEGUN], [BEGUN], [BEGUN]]))], []


DEVICE_SYNC = "cudaDeviceSynchronize_v3020"
#: What shows that a process was not at work before the recording.
BEGUN = overhead("Lazy Function Loading", -9, -8)
READING = waiting_programs(reads=(True,))


@cases(0.3)
@few_given(st.one_of(sync_reports(), READING, READING), st.one_of(WINDOWS, st.just((None, None))))
def test_what_a_read_costs_is_idle_time_and_no_longer_than_the_read(made, window):
    events, records = made
    of = report(events, event_records=records).narrow(window=Window(*window))
    found = reads(of)
    holds(found.height)
    for one in found.iter_rows(named=True):
        assert one["start"] <= one["since"] < one["until"] <= one["since"] + one["end"] - one["start"]
    for one in blocking_read(of):
        idle = idle_spans(of)[one.device]
        assert 0 < one.at_stake_ns <= (idle["end"] - idle["start"]).sum()


def waiting(number, *, sync=DEVICE_SYNC, copy=None, at=100):
    """A launch of 10 and its kernel of 30, a wait until 10 after its end, and 5 of the program's own code.

    What the device then idles is 10 in the wait, 5 in the program, and 10 until the next launch has returned, with
    which the next kernel starts.
    """
    start = at * number
    events = launched(start, start + 10, kernel(start + 10, start + 85, correlation=number), LAUNCH)
    return [*events, call(sync, start + 20, start + 95), *(copy(start + 11, number) if copy else [])]


def waited(**how):
    """Five steps of a process that begins in the recording; nothing follows the last one."""
    return [BEGUN, *chain.from_iterable(waiting(number, **how) for number in range(1, 6))]


FOUR = (
    "4 blocking calls (cudaDeviceSynchronize in loop), 300 ns of host time, after which the host launched more work, "
    "with no copy to the host pending: GPU 0 idled 80 ns until they had returned and the next launch was through. That "
    "is unneeded unless the host or another process reads what kernels wrote without a copy. More may follow: the host"
)


def copies(call_name="cudaMemcpyAsync_v3020", took=2, **memory):
    """For each step, a copy between such kinds of memory (source_memory, target_memory) on a stream of its own."""
    return lambda start, _: launched(
        start, start + took, memcpy(start + 2, start + 9, stream=9, side=memory), call_name
    )


FLUSHES = [overhead("flush", 100 * number + 85, 100 * number + 95) for number in range(1, 5)]
SHORT = [call(DEVICE_SYNC, one.start + 72, one.end) if one.name == DEVICE_SYNC else one for one in waited()]


def nccl(start, end, **keys):
    return [nvtx("ncclGroupEnd", start, end, domain="NCCL", **keys), *waited()]


def inside(operator, sync="cudaStreamSynchronize"):
    return [*waited(sync=sync), *(host("op", operator, 100 * number - 2, 100 * number + 97) for number in range(1, 6))]


@pytest.mark.parametrize(
    ("events", "window", "stakes", "words"),
    [
        ([nvtx("loop", 0, 1_000), *waited()], None, [4 * (10 + 10)], (FOUR,)),
        # waits that NCCL makes itself are not the program's
        (nccl(0, 1_000), None, [], ()),
        (nccl(0, 1_000, thread=2), None, [80], ()),
        (nccl(110, 200), None, [60], ("3 blocking calls",)),
        # nor are those of operators, which sorts need for a count; but for copies of pageable memory
        (inside("aten::_coalesce"), None, [], ()),
        (inside("aten::to"), None, [80], ()),
        (inside("aten::_coalesce", DEVICE_SYNC), None, [80], ()),
        # in mid-run the first wait may be for a copy from before, and a few waits are no habit
        (waited()[1:], None, [60], ("3 blocking calls",)),
        (waited()[: 1 + 3 * 3], None, [], ()),
        ([*again((0, 20, 40), *launched(0, 10, kernel(10, 20), LAUNCH)), call(DEVICE_SYNC, 50, 80)], None, [], ()),
        # the host has to know that a copy is done, or a graph, which may hold copies
        (waited(copy=copies(source_memory="Device", target_memory="Pinned")), None, [], ()),
        (waited(copy=copies(source_memory="Device", target_memory="Pageable")), None, [], ()),
        (waited(copy=copies(source_memory="Pinned", target_memory="Device")), None, [], ()),
        (waited(copy=lambda at, _: launched(at, at + 2, graph(at + 2, at + 9), "cudaGraphLaunch")), None, [], ()),
        # a copy leaves nothing to wait for, or is done when the wait begins
        (waited(copy=copies(source_memory="Pageable", target_memory="Device")), None, [80], ()),
        (waited(copy=copies(source_memory="Device", target_memory="Device")), None, [80], ()),
        (waited(copy=copies("cudaMemcpy_v3020", 9, source_memory="Device", target_memory="Pageable")), None, [80], ()),
        # memory that the host reads without copies
        ([call("cudaMallocManaged_v6000", 0, 50), *waited()], None, [], ()),
        ([call("cudaMalloc_v3020", 0, 5), *waited()], None, [80], ()),
        ([memcpy(0, 5, direction="Unified Device-to-Host"), *waited()], None, [], ()),
        # no more than the calls took, than the ledger's buckets hold, and than a window
        (SHORT, None, [4 * 3], ()),
        ([*waited(), *FLUSHES], None, [60], ()),
        (waited(), "0ns..290ns", [], ()),
        (waited(), "190ns..450ns", [5 + 10 + 10 + 10 + 10 + 10], ()),
    ],
)
def test_waits_that_nothing_is_seen_to_need(events, window, stakes, words):
    assert_told(unneeded_sync(report(events).narrow(window=window)), stakes, *words)


def strips(*, computes=7, fills=0, back=None, kernel_until=500):
    """Six strips: up to the GPU for 300, in stream 8, a wait for a stream, and a kernel of 180.

    The host fills memory for a time behind each, and copies a result `back` in a stream, if any, before the wait.
    """
    events, side = [BEGUN], {"source_memory": "Pinned", "target_memory": "Device"}
    results = {"source_memory": "Device", "target_memory": "Pinned"}
    for n in range(6):
        at = 1_000 * n + 100
        up = memcpy(at + 10, at + 310, stream=8, context=1, side=side, size_bytes=6_000)
        events += launched(at, at + 10, up, COPY)
        if back is not None:
            down = memcpy(at + 12, at + 14, direction="Device-to-Host", stream=back, context=1, side=results)
            events += launched(at + 10, at + 12, down, COPY)
        events.append(call(SYNC, at + 20, at + 315, correlation=900 + n))
        events.append(host("sync", "s", at + 20, at + 315, correlation=900 + n, context=1, stream=8))
        computed = kernel(at + 320, at + kernel_until, stream=computes, context=1)
        events += [*launched(at + 316, at + 320, computed, LAUNCH), call("cudaEventQuery", at + 320, at + 990 - fills)]
    return report(events)


@pytest.mark.parametrize(
    ("how", "stake"),
    [
        ({}, 5 * 309),
        ({"fills": 500}, 0),  # the host fills the buffer that was copied, before the next copy
        ({"computes": 8}, 0),  # in one stream
        ({"back": 8}, 0),  # a result, which the host may read
        ({"back": 9}, 5 * 309),  # one in another stream, for which it does not wait there
        ({"kernel_until": 1_310}, 0),  # the GPU computes meanwhile
    ],
)
def test_waits_that_keep_streams_in_order(how, stake):
    told = list(waits_between_streams(strips(**how)))
    assert_told(told, [stake] * bool(stake), *["The host waits for a stream, 5 calls"] * bool(stake))


@pytest.mark.parametrize(
    ("text", "spared"), [("torch.cuda.synchronize()  # times", [(120, 195)]), ("y = f(); torch.cuda.synchronize()", [])]
)
def test_a_line_that_only_waits_goes_with_its_wait(text, spared):
    needed = in_line(250, 252, 7, text)  # the line again, without such a wait
    of = report(waited(), source_lines=[in_line(120, 195, 7, text), needed])
    (one,) = unneeded_sync(of)
    assert one.change(of).host.select("start", "end").rows() == spared


NEEDED = [*launched(600, 610, kernel(610, 640), LAUNCH), call(SYNC, 612, 660)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "stake", "words"),
    [
        (waited(), 10, "(cudaDeviceSynchronize 10 ns), besides 40 ns of which other findings tell. "),  # the last one
        (waited()[: 1 + 3 * 3], 30, "(cudaDeviceSynchronize 30 ns)"),
        ([*waited(), *NEEDED], 20, "(cudaStreamSynchronize 20 ns), besides"),
    ],
)
def test_what_looks_unneeded_is_not_said_again(events, stake, words):
    assert_told([one for one in ranked(report(events)) if one.rule == "host-blocks"], [stake], words)


def test_a_wait_for_one_stream_says_nothing_of_another():
    events = list(waited(sync="cudaStreamSynchronize"))
    waits = [event for event in events if event.name == "cudaStreamSynchronize"]
    others = [event for event in events if event not in waits]
    copy = [
        call("cudaMemcpyAsync", 111, 113, correlation=77),
        memcpy(113, 120, correlation=77, stream=9, side={"source_memory": "Device", "target_memory": "Pinned"}),
    ]

    def on(streams):
        calls, syncs = [], []
        for number, (wait, stream) in enumerate(zip(waits, streams, strict=True), 900):
            calls.append(call(wait.name, wait.start, wait.end, correlation=number))
            syncs.append(host("sync", "s", wait.start, wait.end, correlation=number, context=1, stream=stream))
        return report([*others, *copy, *calls, *syncs])

    assert avoidable(on([7, 7, 7, 7, 7])).height == 3  # all but the first and the last
    assert avoidable(on([7, 8, 9, 7, 7])).height == 1  # the copy may be what the first wait on each stream is for


def test_of_streams_that_are_not_known_each_may_be_another():
    """Two copies to the host, then a wait for each, on streams that the report does not name."""
    events, side = [], {"source_memory": "Device", "target_memory": "Pinned"}
    for start in range(1_000, 6_000, 1_000):
        for at, stream, end in ((start, 13, 90), (start + 10, 14, 290)):
            events += launched(at, at + 5, memcpy(at + 6, start + end, stream=stream, side=side), "cudaMemcpyAsync")
        for at, after in ((start + 20, start + 300), (start + 400, start + 600)):
            events.append(call("cudaStreamSynchronize", at, after))
            events += launched(after + 5, after + 10, kernel(after + 10, after + 20), LAUNCH)
    assert avoidable(report(events)).is_empty()


@cases(0.15)
@few_given(st.one_of(sync_reports(), waiting_programs(), waiting_programs()), st.one_of(WINDOWS, st.just((None, None))))
def test_never_more_than_the_buckets_hold(made, window):
    events, records = made
    of = report(events, event_records=records).narrow(window=Window(*window))
    for one in avoidable(of).iter_rows(named=True):
        assert 0 < one["gain_ns"] <= one["end"] - one["start"]
    rows = ledger(of).filter(pl.col("bucket").is_in(["sync", "launch"]))
    found = unneeded_sync(of)
    holds(found)
    for one in found:
        assert 0 < one.at_stake_ns <= rows.filter(pl.col("device") == one.device).get_column("ns").sum()


def blocked(*, of_100=100, ns=40_000, since=15_000):
    """100 launches, of which some return 5 µs after their kernels have ended and the others before these begin."""
    rows = []
    for number in range(100):
        start, blocks = 100_000 * number, number < of_100
        rows.append(call(LAUNCH, start, start + (ns + 20_000 if blocks else 5_000), correlation=number))
        rows.append(kernel(start + since, start + since + ns, correlation=number))
    return report(rows)


@pytest.mark.parametrize("how", [{}, {"of_100": 0}, {"of_100": 98}, {"ns": 2_000}, {"since": -60_000}])
def test_launches_that_end_after_their_kernels_are_told_but_not_some(how):
    found = list(rules.blocking_launches(blocked(**how)))
    assert_told(found, [] if how else [100 * 45_000], *([] if how else ["100 kernels, 4.000 ms"]))
