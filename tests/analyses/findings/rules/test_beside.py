"""What runs one after the other: copies and streams, processes that share a GPU, communication that nothing hides."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze.analyses.device._windows import shared_devices
from kanalyze.analyses.findings.rules.launches import default_stream, exposed_communication, serial_copy, shared_gpu
from kanalyze.window import Window
from support.build import SMALL, US, again, call, graph, host, kernel, memcpy, report
from support.measures import assert_told
from support.shares import cases, holds

PINNED, PAGEABLE = {"source_memory": "Pinned"}, {"source_memory": "Pageable"}
TO_HOST = {"target_memory": "Pinned", "source_memory": "Device"}


def launched(number, made, *, at, name="cudaMemcpyAsync"):
    return [call(name, at, at + US, correlation=number), made]


def to_device(*, at=5 * US, name="cudaMemcpyAsync", **keys):
    """A kernel of 80 µs, then a copy of 30 µs to the device that was submitted at `at`."""
    copy = memcpy(101 * US, 131 * US, correlation=2, size_bytes=1 << 20, **{"side": PINNED, **keys})
    first = launched(1, kernel(20 * US, 100 * US, correlation=1), at=0, name="cudaLaunchKernel")
    return [*first, *launched(2, copy, at=at, name=name)]


def to_host(*, at, made=kernel):
    """A copy of 30 µs to the host, and a kernel of 80 µs behind it that was submitted at `at`."""
    copy = memcpy(100 * US, 130 * US, direction="Device-to-Host", correlation=1, side=TO_HOST)
    behind = launched(2, made(131 * US, 211 * US, correlation=2), at=at, name="cudaLaunchKernel")
    return [*launched(1, copy, at=0), *behind]


def kept(*, at=5 * US, waits=4 * US, began=131 * US):
    """A kernel, a copy to the host on a stream of its own, and a kernel that waits by an event until it is done."""
    copy = memcpy(100 * US, 130 * US, direction="Device-to-Host", correlation=2, side=TO_HOST, stream=13)
    return [
        *launched(1, kernel(20 * US, 99 * US, correlation=1), at=0, name="cudaLaunchKernel"),
        *launched(2, copy, at=2 * US),
        *launched(3, kernel(began, began + 80 * US, correlation=3), at=at, name="cudaLaunchKernel"),
        *held(waits, stream=7),
    ]


COPY_BESIDE = memcpy(101 * US, 150 * US, correlation=9, stream=14)


def streams(**types):
    """The rows of `streams` for streams s7, s13…"""
    rows = [(int(name[1:]), kind) for name, kind in types.items()]
    return [{"process_id": 1, "context_id": 1, "stream": number, "type": kind} for number, kind in rows]


def in_turn(*turns):
    """Calls at once, then kernels one after the other: (stream, duration in µs) each."""
    events, at = [], 100 * US
    for number, (stream, dur_us) in enumerate(turns):
        events.append(call("cudaLaunchKernel", number * US, number * US + 500, correlation=number))
        events.append(kernel(at, at + dur_us * US, stream=stream, correlation=number, name="busy"))
        at += dur_us * US + US
    return events


TURNS = in_turn((13, 40), (7, 30), (13, 40), (7, 30))


def held(at=4 * US, *, stream=13, name="cudaStreamWaitEvent", recorded=True):
    """A call at `at` by which a stream waits for an event."""
    waits = [host("sync", "Stream wait event", at, at + 500, correlation=60, context=1, stream=stream)] * recorded
    return [call(name, at, at + 500, correlation=60), *waits]


def asked(own, other):
    """A call that orders the stream of the copy, by what was recorded of it, and one that may order any."""
    return [
        call("cudaStreamWaitEvent", own, own + US, correlation=50),
        host("sync", "Stream wait event", own, own + US, correlation=50, context=1, stream=7),
        *([call("cudaStreamWaitEvent", other, other + US, correlation=51)] if other else []),
    ]


SHORT = launched(1, kernel(20 * US, 30 * US, correlation=1), at=0, name="cudaLaunchKernel")
LONG_COPY = launched(2, memcpy(31 * US, 131 * US, correlation=2, side=PINNED), at=3 * US)
BACK = memcpy(50 * US, 90 * US, direction="Device-to-Host", correlation=4, side=TO_HOST, size_bytes=1 << 20, stream=14)
RETURNED = launched(4, BACK, at=2 * US)
SECOND = [
    *to_device(),
    *launched(3, kernel(140 * US, 200 * US, correlation=3), at=7 * US, name="cudaLaunchKernel"),
    *launched(4, memcpy(201 * US, 231 * US, correlation=4, size_bytes=1 << 20, side=PINNED), at=9 * US),
]
ALONE = (
    "1 copy of pinned memory, 1.049 MB, ran alone for 30.00 µs between kernels of stream 7; the host had "
    "submitted both by then, and only the order of a stream, or an event, kept them apart."
)


@pytest.mark.parametrize(
    ("events", "window", "stakes", "words"),
    [
        (to_device(), None, [30 * US], (ALONE,)),
        ([*SHORT, *LONG_COPY], None, [10 * US], ()),  # no more than the kernels ran
        (to_host(at=5 * US), None, [30 * US], ()),
        (to_host(at=125 * US), None, [], ()),  # what was submitted after the copy may depend on it
        (to_host(at=5 * US, made=memcpy), None, [], ()),
        (to_device(side=PAGEABLE), None, [], ()),
        (to_device(name="cudaMemcpy"), None, [], ()),
        (to_device(at=95 * US), None, [], ()),
        (to_device(stream=13), None, [], ()),
        # of one buffer, on a stream of its own that waits for the kernels before
        ([*to_device(stream=13), *held()], None, [30 * US], ("between kernels of stream 7",)),
        ([*to_device(at=95 * US, stream=13), *held(94 * US)], None, [], ()),  # submitted when the kernel ended
        ([*to_device(stream=13), *held(stream=7)], None, [], ()),
        ([*to_device(stream=13), *held(-5 * US)], None, [], ()),  # for what was before the kernel
        ([*to_device(stream=13), *held(name="cudaLaunchHostFunc")], None, [], ()),
        ([*to_device(stream=13), *held(recorded=False)], None, [], ()),
        ([*to_device(stream=13)[1:], *held()], None, [], ()),  # a kernel without its call
        ([*to_device(stream=13, context=2), *held()], None, [], ()),  # of another context
        ([*to_device(stream=13), *held(), *RETURNED], None, [], ()),  # data that may have come from the device
        ([*to_device(stream=13), *held(), memcpy(60 * US, 100 * US, stream=13)], None, [], ()),  # behind another copy
        (to_device(direction="Device-to-Host"), None, [], ()),
        (kept(), None, [30 * US], ("between kernels of stream 7",)),
        (kept(at=135 * US), None, [], ()),  # submitted when the copy was done, whose data it may read
        (kept(waits=-5 * US), None, [], ()),
        (kept(began=171 * US), None, [], ()),  # something else kept it
        # a copy of new data to the device on a third stream beside it, which took longer
        ([*kept(began=151 * US), *launched(9, COPY_BESIDE, at=3 * US)], None, [30 * US], ()),
        ([*kept(), memcpy(115 * US, 130 * US, stream=7, correlation=9)], None, [], ()),  # its stream was busy
        ([*to_device(), kernel(90 * US, 140 * US, stream=13)], None, [], ()),  # hidden
        ([*to_device(), call("cudaStreamWaitEvent", 4 * US, 5 * US)], None, [], ()),
        ([*to_device(), call("cudaStreamWaitEvent", 0, US, thread=2)], None, [], ()),
        # the last call that orders the stream counts, whichever stream it names
        ([*to_device(), *asked(-5 * US, 4 * US)], None, [], ()),
        ([*to_device(), *asked(4 * US, -5 * US)], None, [], ()),
        ([*to_device(), *asked(-5 * US, None)], None, [30 * US], ()),
        (SECOND, None, [60 * US], ("2 copies of pinned memory, 2.097 MB, ran alone for 60.00 µs",)),
        ([*SECOND, kernel(200 * US, 240 * US, stream=13)], None, [30 * US], ("1 copy of pinned memory, 1.049 MB,",)),
        (to_device(), "50us..110us", [9 * US], ()),
        (to_device(), "..101us", [], ()),
    ],
)
def test_copies_that_only_the_order_of_their_stream_keeps_apart(events, window, stakes, words):
    assert_told(serial_copy(report(events).narrow(window=window)), stakes, *words)


BOTH = streams(s7="null", s13="blocking")
ROUNDS = in_turn(*[(stream, took) for _ in range(2) for stream in (13, 14) for took, stream in ((40, stream), (1, 7))])
PASSES = in_turn(
    *[(stream, took) for _ in range(2) for own in (13, 14) for stream, took in ((own, 40), (own, 2), (7, 1))]
)
EVENTS = [call("cudaStreamWaitEvent", at * US + 800, at * US + 900) for at in range(4)]
IN_TURN = (
    "The default stream (7) and blocking streams (13) never run side by side: 3 operations of one were ready for 110.0 "
    "µs while the other ran, and nothing but the default stream's rule is known to have held them."
)


@pytest.mark.parametrize(
    ("events", "types", "window", "stakes", "words"),
    [
        # in order on either stream, 80 µs remain of 140 µs: the 60 µs of the default stream can be hidden
        (TURNS, BOTH, None, [60 * US], (IN_TURN,)),
        # of 164 µs in all each blocking stream has 80: nearly all of the other one can be hidden, not 1 µs a kernel
        (ROUNDS, streams(s7="null", s13="blocking", s14="blocking"), None, [84 * US], ()),
        # of 172 µs either has 84, though the default stream waits for the short kernels alone
        (PASSES, streams(s7="null", s13="blocking", s14="blocking"), None, [88 * US], ()),
        (TURNS, streams(s7="null", s13="non-blocking"), None, [], ()),
        (TURNS, streams(s7="blocking", s13="blocking"), None, [], ()),
        (TURNS, streams(s7=None, s13="blocking"), None, [], ()),
        (TURNS, [], None, [], ()),
        (in_turn((7, 40), (7, 30), (7, 20)), streams(s7="null"), None, [], ()),
        ([*TURNS, *EVENTS], BOTH, None, [], ()),  # asked for
        (TURNS, BOTH, "100us..150us", [9 * US], ()),  # what the default stream ran in it
        (TURNS, BOTH, "100us..140us", [], ()),
    ],
)
def test_a_blocking_stream_and_the_default_stream_in_turn(events, types, window, stakes, words):
    assert_told(default_stream(report(events, streams=types, limits=SMALL).narrow(window=window)), stakes, *words)


def test_kernels_that_fill_the_gpu_are_not_held():
    limits = {"sm_count": 1, "max_warps_per_sm": 1}
    assert default_stream(report(TURNS, streams=BOTH, limits=SMALL | limits)) == []


BEFORE = kernel(0, 10, process=1, name="gemm")
LONG = kernel(20, 60, process=1, name="gemm")
OTHERS = [kernel(30, 35, process=2, name="relu"), kernel(40, 45, process=2, name="relu")]


def launched_by(number, call_end, start, end, process):
    return [
        call("cudaLaunchKernel", call_end - 1, call_end, correlation=number, process=process),
        kernel(start, end, correlation=number, process=process),
    ]


def often(length, apart):
    starts = range(0, 200 * apart, apart)
    events = [kernel(at, at + length, process=1 + n % 2, stream=n % 3) for n, at in enumerate(starts)]
    return [*events, *launched_by(999, 0, 10, 11, 2)]


FIRST = launched_by(1, 10, 10, 45, 1)
SHARED = (
    "Processes 1 and 2 share GPU 0: for 10 ns kernels of more than one had begun and not ended, and the next was "
    "another's 1 time. gemm of process 1 takes up to 40 ns then, 10 ns else (median). Without MPS or MIG they run in "
    "turn, in time slices, and a kernel's duration holds the other's slices."
)
HELD = (
    "Processes 1 and 2 share GPU 0: for 65 ns what one had submitted waited while kernels of another ran, and the next "
    "was another's 2 times. Without MPS"
)
IN_TURNS = (HELD, "2 processes take turns on GPU 0", "nvidia-cuda-mps-control -d")


@pytest.mark.parametrize(
    ("events", "where", "stakes", "words"),
    [
        ([BEFORE, LONG, *OTHERS], {}, [5], (SHARED,)),
        ([graph(0, 50, process=1), graph(20, 70, process=2)], {}, [15], ()),  # whole graphs count as kernels
        ([BEFORE, LONG, *OTHERS], {"window": Window(0, 34)}, [2], ()),
        ([BEFORE, LONG, *OTHERS], {"window": Window(50, 60)}, [], ()),
        ([BEFORE, LONG, *OTHERS], {"process": 1}, [], ()),
        ([BEFORE, LONG], {}, [], ()),
        ([LONG, kernel(30, 35, process=2, device=1)], {}, [], ()),
        ([LONG, kernel(30, 35, process=1, stream=8)], {}, [], ()),
        ([LONG, kernel(60, 70, process=2)], {}, [], ()),
        ([LONG, memcpy(30, 40, process=2)], {}, [], ()),
        ([LONG, kernel(30, 35, process=None)], {}, [], ()),
        ([memcpy(0, 10, process=1), memcpy(20, 30, process=2), graph(5, 5, process=2)], {}, [], ()),
        # process 2 could run from 15 on, and does from 50 on; then process 1 waits from 55 on
        ([*FIRST, *launched_by(2, 15, 50, 90, 2), *launched_by(3, 55, 95, 99, 1)], {}, [(30 + 35) // 2], IN_TURNS),
        # what waits for its own process does not count, which runs on another stream until 50 itself
        ([*FIRST, *launched_by(2, 15, 50, 90, 2), *launched_by(3, 5, 15, 50, 2)], {}, [(5 + 30) // 2], ()),
        ([*FIRST, *launched_by(2, 45, 50, 90, 2)], {}, [], ()),
        (often(90, 50), {}, [], ()),  # short kernels that meet again and again run side by side
        (often(90, 90), {}, [5], ()),
        (often(2_000_000, 900_000), {}, [89_650_005], ()),
    ],
)
def test_processes_that_share_a_gpu(events, where, stakes, words):
    of = report(events).narrow(**where)
    assert_told(shared_gpu(of), stakes, *words)
    assert shared_gpu(replace(of, meta=replace(of.meta, tool="torch.profiler"))) == []  # numbers GPUs of each process


def health(events):
    table = kanalyze.health(report(events)).filter(check="shared use of a GPU")
    return table.select("count", "ns", "doubt").rows()


def test_health_counts_those_that_only_took_turns_too():
    turns = [kernel(10 * number, 10 * number + 5, process=1 + number % 2) for number in range(6)]
    assert shared_gpu(report(turns)) == []
    assert health(turns) == [(1, 0, True)]
    assert health([LONG, *OTHERS]) == [(1, 10, True)]
    assert health([BEFORE, kernel(10, 20, process=2)]) == [(0, 0, False)]
    assert health([BEFORE, LONG]) == []


KERNELS = st.tuples(st.integers(1, 3), st.sampled_from([0, 0, 1]), st.integers(0, 30), st.integers(0, 20))


@cases(0.1)
@given(st.lists(KERNELS, min_size=4, max_size=10))
def test_the_time_is_that_of_a_loop_over_every_instant(rows):
    events = [kernel(at, at + took, process=process, device=device) for process, device, at, took in rows]
    shared_of = {shared.device: shared for shared in shared_devices(report(events)) if shared.together_ns}
    for device in (0, 1):
        running = [
            {process for process, where, at, took in rows if where == device and at <= instant < at + took}
            for instant in range(60)
        ]
        together = [processes for processes in running if len(processes) > 1]
        if holds(together):
            assert shared_of[device].together_ns == len(together)
            assert shared_of[device].processes == sorted(set().union(*together))
        else:
            assert device not in shared_of


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def step(at, *, hidden=20, **keys):
    """A kernel of 50, of which the last `hidden` are beside an all-reduce of 40; then an all-gather of 10."""
    start = at + 50 - hidden
    others = [kernel(start, start + 40, name=REDUCE, stream=8), kernel(at + 90, at + 100, name=GATHER, stream=8)]
    return [kernel(at, at + 50, **keys), *others]


def ranks(*exposed):
    """Two steps of a GPU for each number: work, and a collective that is alone for so long."""
    step = []
    for device, alone in enumerate(exposed):
        step.append(kernel(0, 900 - alone, device=device))
        step.append(kernel(800 - alone, 900, name=REDUCE, stream=8, device=device))
    return report(again((0, 1_000), *step))


def met(*starts, end, size=2):
    """Two steps of an all_reduce that ranks of one report come to at `starts` and leave at `end`, after work."""
    step = []
    for device, start in enumerate(starts):
        keys = {"device": device, "process": 1 + device}
        step += [kernel(0, start, **keys), kernel(start, end, name=REDUCE, stream=8, **keys)]
    events = again((0, 1_000_000), *step)
    said = {"collective": "allreduce", "group_size": size, "group": "0"}
    talks = [at for at, event in enumerate(events) if event.name == REDUCE]
    return report(events, collective_detail=[{"event_id": at, **said} for at in talks])


OF_OTHERS = [
    *again((0, 1_000), kernel(0, 50), kernel(0, 50, device=1), kernel(50, 450, name=REDUCE, stream=8)),
    kernel(50, 60, name=GATHER, stream=8, device=1),
]
NAMED = report(
    step(0, name="void at::native::add()"), collective_detail=[{"event_id": 1, "collective": "reduce{scatter}"}]
)
TWO_STEPS = report([*step(0), *step(100)]).narrow(window=Window(0, 200, count=2, each="step"))
EACH = (
    "GPU 0 does nothing but communicate for 30 ns a step, 60.0 % of the time of its collectives: allreduce 20 ns a",
    "step (1 kernel a step), allgather 10 ns a step (1 kernel a step). Any waiting for the slowest rank is in it.",
    "The GPU does nothing beside allreduce",
)
OF_TRACE = ("collectives: reduce{scatter} 20 ns (1 kernel), allgather 10 ns", "beside reduce{{scatter}}", "DDP buckets")
LEAST = ("for 800 ns", "is in it: GPU 1, which runs as many, has 300 ns, and what is more here may be a wait.")
MET = met(400_000, 800_000, end=900_000)
WAITS = (
    *("GPU 0 waits 800.0 µs in collectives with nothing else to do, mostly for GPU 1", "[allreduce]"),
    *("The GPU waits for GPU 1, which is late to collectives", "Balance the work of ranks: GPU 1 comes last"),
)


@pytest.mark.parametrize(
    ("of", "stakes", "place", "words"),
    [
        (TWO_STEPS, [60], 0, EACH),
        (NAMED, [30], 0, OF_TRACE),  # by the trace where it is recorded
        (report([kernel(0, 100)]), [], 0, ()),
        (report([kernel(0, 100), kernel(10, 90, name=REDUCE, stream=8)]), [], 0, ()),  # all of it hidden
        (report([kernel(0, 1_000), kernel(980, 1_010, name=REDUCE, stream=8)]), [], 0, ()),  # less than a hundredth
        # of several ranks the least is what overlap can gain, or else it is balance that lacks
        (ranks(400, 150), [300, 300], 0, LEAST),
        (ranks(400, 150), [300, 300], 1, ("Any waiting for the slowest rank is in it.",)),
        (ranks(400, 1), [800], 0, ("Balance the work of ranks: GPU 1 hardly communicates alone",)),
        (report(OF_OTHERS), [800], 0, ()),  # a GPU with other collectives tells nothing of this one
        # waiting for a partner of the same report is no cost of communication, and the last one only transfers
        (MET, [200_000, 800_000, 200_000], 0, ("800.0 µs of that is waiting, mostly for GPU 1.", "Overlap it with")),
        (MET, [200_000, 800_000, 200_000], 1, WAITS),
        (MET, [200_000, 800_000, 200_000], 2, ("GPU 1 does nothing but communicate for 200.0 µs",)),
        # where ranks are missing it is not told apart
        (met(400_000, 800_000, end=900_000, size=4), [200_000] * 2, 0, ("Any waiting for the slowest rank is in it",)),
    ],
)
def test_communication_that_nothing_hides(of, stakes, place, words):
    found = exposed_communication(of)
    assert_told([*found[place:], *found[:place]], [*stakes[place:], *stakes[:place]], *words)
