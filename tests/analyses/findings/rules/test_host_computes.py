"""Idle time while the program runs its own code: loaders, data, loops, lines, and what is left."""

from dataclasses import replace
from functools import partial
from itertools import chain

import polars as pl
import pytest

from kanalyze import intervals
from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules import host_computes as rules
from kanalyze.analyses.findings.rules.host_computes import data_loading, host_computes, own_code
from kanalyze.analyses.findings.rules.loops import python_loops
from kanalyze.analyses.idle.ledger import bucket_sums, ledger
from kanalyze.analyses.page.overview_page import overview
from kanalyze.window import Window
from support.build import LAUNCH, MS, US, again, call, host, in_line as line, kernel, launched, memcpy, nvtx, report
from support.command import SAMPLES
from support.measures import assert_told
from support.real_reports import real_report
from support.steps import alike, launching

ALONE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def step(number, *, name=ALONE, get=3, mark=nvtx, thread=1):
    """From its start on, `get` ms in the loader; 1 ms of other code, a launch of 1 ms, and a kernel of 4 ms."""
    start = 10 * MS * number
    launched = start + int((get + 1) * MS)
    return [
        mark(name, start, launched - MS, thread=thread),
        call(LAUNCH, launched, launched + MS, correlation=number),
        kernel(launched + MS, launched + 5 * MS, correlation=number),
    ]


def steps(**how):
    return list(chain.from_iterable(step(number, **how) for number in range(4)))


op, python = partial(host, "op"), partial(host, "python")


def per_step(events, trace=None, **lines):
    """The report of two whole steps, perhaps with a trace beside it."""
    made = replace(report(events, **lines), beside=lambda: trace)
    return made.narrow(window=Window(10 * MS, 30 * MS, count=2, each="step"))


def test_a_loader_without_workers():
    (one,) = data_loading(per_step(steps()))
    assert (one[:3], one.table, one.at_most) == (("data-loading", 0, 6 * MS), "culprits", False)
    assert one.text == (
        "GPU 0 idles for 3.000 ms a step while the loop that launches its work reads batches itself: its DataLoader "
        "has no workers (1 batch a step, 3.000 ms in the median, the longest 3.000 ms)."
    )
    assert one.action == "DataLoader(…, num_workers=N, persistent_workers=True, pin_memory=True)"


def test_the_rest_of_the_host_time_is_said_apart():
    of = per_step(steps())
    (one,) = data_loading(of)
    (rest,) = (other for other in ranked(of) if other.rule == "host-computes")
    assert one.at_stake_ns + rest.at_stake_ns == ledger(of).filter(bucket="host").get_column("ns").item()
    assert rest.text.startswith(
        "GPU 0 idle while the program runs its own code, in no CUDA call: 2.000 ms a step, 20.0 % of it, besides "
        "3.000 ms of which other findings tell. Most between"
    )
    assert "DataLoader" not in rest.text.partition("Most")[2].partition(":")[0]


def captured(trace):
    """The report of nsys of two steps, which has no ranges, with a trace of the same program beside it."""
    return per_step([one for one in steps() if one.kind != "range"], report(trace, kinds=("op", "range")))


def test_a_trace_of_two_steps_tells_of_a_loader_in_all_of_them():
    def many(numbers, *, own=True):
        made = []
        for number in numbers:
            ids = range(10 * number, 10 * number + 10)
            for at, name in zip(ids, "abcdefghij", strict=True):
                start = at * MS
                made += [call(LAUNCH, start, start + MS // 10, correlation=at)]
                made += [kernel(start + MS // 10, start + MS // 5, correlation=at, name=name)]
            if not own:
                made += [nvtx(ALONE, 10 * number * MS + MS // 5, 10 * number * MS + MS * 9 // 10)]
        return made

    trace = report(many(range(2), own=False), kinds=("op", "range"))
    made = replace(report(many(range(40))), beside=lambda: trace)
    (one,) = data_loading(made.narrow(window=Window(50 * MS, 350 * MS, count=30, each="step")))
    assert one.at_stake_ns == 30 * 7 * MS // 10
    assert "(1 batch a step, 700.0 µs in the median" in one.text


def samples(*made, pieces=1, batches=range(4)):
    """Steps that launch so many pieces, in turns of what is `made`, as they get a batch."""
    piece = [each for at, one in enumerate(made) for each in launched(80 * US * at, 80 * US * at + 30 * US, one)]
    return again([10 * MS * number for number in batches], *again(range(0, 80 * US * pieces, 80 * US), *piece))


JOINS = partial(kernel, 20 * US, 22 * US, name="at::native::CatArrayBatchedCopy")
COPY = memcpy(20 * US, 22 * US, direction="Host-to-Device", size_bytes=4096)


def operators(*names):
    """Operators in each batch, 10 µs apart."""
    own = [op(f"aten::{name}", at, at + 5 * US) for at, name in zip(range(0, 10 * MS, 10 * US), names, strict=False)]
    return again([10 * MS * number for number in range(4)], *own)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (operators(*["select"] * 40, "stack"), "takes rows of tensors one by one"),
        (operators(*["select", "div"] * 40, "stack"), "no workers"),  # which are computed with
        (operators(*["select"] * 20, "stack"), "no workers"),
        (samples(COPY, pieces=33), "copies to it or computes on it"),
        (samples(JOINS(grid=(9, 512, 1))), "takes one by one and joins"),
        (samples(JOINS(grid=(9, 2, 1))), "copies to it or computes on it"),
        (samples(JOINS(grid=(9, 512, 1)), kernel(20 * US, 22 * US)), "takes one by one and joins"),
        (samples(JOINS(grid=(9, 512, 1)), COPY), "copies to it or computes on it"),
        (samples(JOINS(grid=(9, 512, 1)), batches=[1]), "no workers"),
    ],
)
def test_a_loader_that_uses_the_gpu(made, words):
    (one,) = data_loading(report([*steps(), *made]))
    assert words in one.text


def in_lines(get):
    """Stretches of the main thread: `get` ms in the line of the loop, and then in the next one."""
    return [
        line(10 * MS * number + start * MS, 10 * MS * number + end * MS, at)
        for number in range(4)
        for at, start, end in ((7, 0, get), (8, get, 10))
    ]


def with_lines(name, thread=1):
    """The trace gets batches in a line of 1 ms, in which the report is for 4 ms."""
    got = steps(name=name, get=1) if thread else [nvtx(name, 0, MS, thread=None)]
    trace = report([*got, op("aten::add", 0, 1)], source_lines=in_lines(1))
    return per_step([one for one in steps(get=4) if one.kind != "range"], trace, source_lines=in_lines(4))


#: In the trace the same steps come later.
LATER = [replace(event, start=event.start + 7 * MS, end=event.end + 7 * MS) for event in steps()]
STACKS = [op("aten::stack", at * 10 * MS + MS, at * 10 * MS + 3 * MS) for at in range(4)]
FUNCTION, TRY = "torch/utils/data/dataloader.py(720): __next__", "torch/utils/data/dataloader.py(1278): _try_get_data"
BUSY = [call(LAUNCH, 0, 1, correlation=99), kernel(0, 40 * MS, stream=9, correlation=99)]
OWN, OF_WORKERS = "reads its batches itself", "The loop waits for DataLoader's workers"
BOTH = [*steps(), *chain.from_iterable(step(number, name=WORKERS) for number in range(4, 8))]

#: In each step of WAITED the thread polls, and a worker of another process computes until it writes.
WRITES = host("osrt", "write", 2_950_000, 2_960_000, process=2, thread=9)
WAITED = again(range(0, 40 * MS, 10 * MS), host("osrt", "poll", 0, 3 * MS), WRITES)


@pytest.mark.parametrize(
    ("of", "stakes", "words"),
    [
        (per_step([*steps(), *STACKS]), [6 * MS], ("the longest 3.000 ms); in it most takes aten::stack 2.000 ms.",)),
        (per_step(steps(name=WORKERS)), [6 * MS], (OF_WORKERS, "for a batch of the loader's workers (1 batch a step,")),
        # by ranges, operators or functions of Python
        (report(steps(name="enumerate(DataLoader)#_StatefulSingleProcessDataLoaderIter.__next__")), [9 * MS], (OWN,)),
        (report(steps(name=f"{WORKERS}, op_id = 17")), [9 * MS], (OF_WORKERS,)),
        (report(steps(name=WORKERS, mark=op)), [9 * MS], (OF_WORKERS,)),
        (report(steps(name=FUNCTION, mark=python)), [9 * MS], (OWN,)),
        (report(steps(name=f"/opt/lib/{FUNCTION}", mark=python)), [9 * MS], (OWN,)),
        (report([*steps(name=FUNCTION, mark=python), python(TRY, 0, MS)]), [9 * MS], (OF_WORKERS,)),
        (report(BOTH), [9 * MS, 12 * MS], (OWN,)),  # the first wait is before all CUDA calls
        # workers that keep up, short times, other names, and a thread that the GPU does not wait for
        (report(steps(name=WORKERS, get=0.9)), [], ()),
        (report(steps(get=0.2)), [], ()),
        (report(steps(name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter")), [], ()),
        (report(steps(name="my/dataloader.py(3): __next__", mark=python)), [], ()),
        (report(steps(thread=2)), [], ()),
        (report([*steps(), *BUSY]), [], ()),
        # the trace beside it tells of 3 ms from the launch before to the next one, as of lines in it
        (captured(LATER), [6 * MS], ("the longest 3.000 ms, by the trace of the same program).",)),
        (captured([event for event in LATER if event.kind != "range"]), [], ()),
        (report([*steps(name=WORKERS), *WAITED]), [9 * MS], ("; in it most takes the wait for process 2 ",)),
        (with_lines(ALONE), [8 * MS], ("num_workers=N",)),
        (with_lines(WORKERS), [8 * MS], ("num_workers=more",)),
        (with_lines(ALONE, thread=None), [], ()),  # a thread without a number is in no line
    ],
)
def test_what_gets_batches(of, stakes, words):
    assert_told(data_loading(of), stakes, *words)


def drawn(*, at):
    """Numbers that a sampler draws in each epoch."""
    return [op("aten::randperm", begin + at * MS, begin + at * MS + US) for begin in range(0, 400 * MS, 100 * MS)]


def epochs(number=4, *, starts=40, name=WORKERS, seeds=("aten::random_",) * 2, evaluated=False):
    """Of 100 ms each: a seed, workers that take so many ms to start, the sampler's seed, and two batches."""
    events = []
    for at in range(0, 100 * MS * number, 100 * MS):
        first = at + starts * MS
        events += [op(seeds[0], at, at + US), op(seeds[1], first - 2 * US, first - US)]
        for begin in (first, first + 10 * MS):
            events += [nvtx(name, begin, begin + MS // 2), call(LAUNCH, begin + MS, begin + 2 * MS, correlation=begin)]
            events.append(kernel(begin + 2 * MS, begin + 8 * MS, correlation=begin))
        if evaluated:
            events += launched(at + 20 * MS, at + 20 * MS + US, kernel(at + 21 * MS, at + 22 * MS, correlation=at + 1))
    return events


LINES = [line(100 * MS * number, (100 * number + 90) * MS, number) for number in range(4)]


STARTING = 40 * MS - 2 * US


@pytest.mark.parametrize(
    ("of", "stake"),
    [
        (report(epochs()), 3 * STARTING),
        (report(epochs(), source_lines=[{**row, "line": 7} for row in LINES]), 3 * STARTING),
        (report(epochs(), source_lines=LINES), 0),  # loaders of their own
        (report(epochs(3)), 2 * STARTING),
        (report(epochs(2)), 0),
        (report(epochs(starts=9)), 0),
        (report(epochs(name=ALONE)), 0),
        (report(epochs(seeds=("aten::randperm", "aten::random_"))), 0),  # workers that live: the sampler's seed alone
        (report([*epochs(seeds=("aten::empty", "aten::random_")), *drawn(at=38)]), 0),
        (report([*epochs(seeds=("aten::empty", "aten::random_")), *drawn(at=1)]), 0),  # numbers that it needs long for
        (report([*epochs(seeds=("aten::random_", "aten::empty")), *drawn(at=30)]), 3 * 30 * MS),  # of a sampler without
        (report(epochs(evaluated=True)), 0),
    ],
)
def test_workers_that_start_for_each_epoch(of, stake):
    anew = [one for one in data_loading(of) if "anew" in one.headline]
    assert_told(anew, [stake] * (stake > 0))


COPY = "cudaMemcpyAsync_v3020"
DATA_BYTES = 1 << 16
THREE_STEPS = Window(count=3, each="step")


def data_steps(*, size=DATA_BYTES, direction="Host-to-Device", before=4, after=0, name="k"):
    """Three steps: host time of `before` ms, a copy, host time of `after` ms and a kernel of a ms."""
    copied, start = before * MS, (before + after) * MS + 20
    end = start + 10 + MS
    copy = memcpy(copied + 10, copied + 20, direction=direction, size_bytes=size)
    work = launched(start, start + 10, kernel(start + 10, end, name=name), LAUNCH)
    return again(range(0, 3 * end, end), nvtx("step", 0, end), *launched(copied, copied + 10, copy, COPY), *work)


PREFETCH = ("The GPU waits until the host copies the next data to it", "prepare the next data in another thread")
OTHER = ("The GPU waits for the program", "see what it does there: nsys profile")


def own_time(of):
    """The findings on the host's own time, without what others tell of."""
    return [one for one in ranked(of) if one.rule == "host-computes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "window", "told", "vague"),
    [
        (data_steps(), THREE_STEPS, PREFETCH, False),
        (data_steps(name="void at::native::add(int)"), THREE_STEPS, (PREFETCH[0], "DataLoader("), False),
        *(
            (events, window, OTHER, True)
            for events, window in (
                (data_steps(), None),
                (data_steps(size=DATA_BYTES - 1), THREE_STEPS),
                (data_steps(direction="Device-to-Host"), THREE_STEPS),
                (data_steps(before=3, after=3), THREE_STEPS),
            )
        ),
    ],
)
def test_who_waits_for_data_is_told_to_prepare_them_ahead(events, window, told, vague):
    (one,) = own_time(report(events).narrow(window=window))
    assert (one.headline.startswith(told[0]), one.action.startswith(told[1]), one.vague) == (True, True, vague)


def test_it_is_the_hosts_own_time_between_the_call_of_a_copy_and_the_launch_before():
    """Of a step after the first one the GPU idles in `before`, of another thread's copies in nothing."""
    of = report([*data_steps(), call(COPY, 5 * MS, 6 * MS, thread=2, correlation=99)])
    assert intervals.length(rules.idle_before_data(of, 0)) == 2 * 4 * MS
    assert intervals.length(rules.idle_before_data(of.narrow(window=Window(8 * MS, 10 * MS)), 0)) == MS + 30


@pytest.mark.parametrize(("marked", "told"), [(True, [OTHER]), (False, [PREFETCH, OTHER])])
def test_time_of_which_another_finding_tells_is_no_reason(marked, told):
    """A loader's time is followed by a copy, and what is left is not; each is told once."""
    events = []
    for one in data_steps(before=6, after=3):
        begins = one.kind == "range" and marked
        events += [one, nvtx(ALONE, one.start + 1_000, one.start + 6 * MS - 1_000)] if begins else [one]
    of = report(events).narrow(window=THREE_STEPS)
    found = own_time(of)
    assert all(one.headline.startswith(headline) for one, (headline, _) in zip(found, told, strict=True))
    loading = [one for one in ranked(of) if one.rule == "data-loading"]
    host = bucket_sums(of).filter(bucket="host").get_column("ns").sum()
    assert sum(one.at_stake_ns for one in [*found, *loading]) == host


@pytest.mark.slow
@pytest.mark.parametrize(("size", "first"), [(DATA_BYTES, "host-computes"), (1, "small-grid")])
def test_host_time_without_a_cause_counts_less_in_the_order(size, first):
    limits = {"compute_capability": "9.0", "sm_count": 4}
    shape = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}
    events = [replace(one, side=shape) if one.kind == "kernel" else one for one in data_steps(size=size, before=1)]
    found = overview(report(events, limits=limits)).findings
    assert {one.rule for one in found} >= {"host-computes", "small-grid"}
    assert found[0].rule == first


PASS = ("aten::select", "aten::copy_")


def loop(passes=12, names=PASS, *, at=0, last=()):
    """Passes of 10 each: operators of 2 in a row, with one inside of the first; a kernel after them."""
    events = []
    for start in range(at, at + 10 * passes, 10):
        events += [op(name, start + 2 * place, start + 2 * place + 2) for place, name in enumerate(names)]
        events.append(op("aten::as_strided", start, start + 1))
    end = at + 10 * passes
    events += [op(name, end + 11 + place, end + 12 + place) for place, name in enumerate(last)]
    return [*events, *launched(end + 1, end + 10, kernel(end + 10, end + 20), LAUNCH)]


SELECTED = ("aten::select", "aten::select", "aten::copy_"), ("aten::select", "aten::mul", "aten::add_")
BRANCHES = [
    event
    for number in range(12)
    for event in loop(1, PASS if number % 3 else ("aten::select", "aten::add_"), at=40 * number)[:-2]
]
KINDS = [event for number in range(12) for event in loop(1, (*PASS, f"aten::f{number}"), at=40 * number)]
BESIDE = [call(LAUNCH, 0, 0, correlation=99), kernel(0, 140, stream=9, correlation=99)]
#: A kernel that each pass launches without an operator, as the program's own of Triton.
OF_ITS_OWN = again(range(5, 120, 10), *launched(0, 1, kernel(1, 2), LAUNCH))
IN_STEP = (
    "A tensor is indexed element by element, 12 times in a row, in 0 launches in 1 step (select → copy_): GPU 0 idles, "
    "or works for it, for 114 ns a step."
)


@pytest.mark.parametrize(
    ("events", "window", "stakes", "words"),
    [
        (loop(), Window(0, 140, count=1, each="step"), [114], (IN_STEP,)),
        (loop(names=SELECTED[0]), None, [116], ("(select → select → copy_)",)),
        (loop(names=SELECTED[1]), None, [116], ("12 times in a row, in 0 launches (select → mul → add_)",)),
        (loop(last=["aten::sum"] * 5), None, [114], ("12 times",)),
        ([*BRANCHES, *loop(1, at=480)], Window(0, 480), [480], ("13 times in a row, in 0 launches (select → add_)",)),
        ([*loop(), nvtx(ALONE, 0, 125)], None, [], ()),
        ([*loop(), nvtx(ALONE, -5, 0)], None, [114], ()),
        (loop(9), Window(0, 480), [], ()),
        (loop(names=("aten::mul", "aten::add_")), Window(0, 480), [], ()),
        (loop(names=("aten::select", *["aten::a"] * 6)), Window(0, 480), [], ()),
        (KINDS, Window(0, 480), [], ()),
        ([*loop(), *BESIDE], None, [], ()),
        ([*loop(), *OF_ITS_OWN], None, [], ()),
    ],
)
def test_the_same_operators_over_and_over(events, window, stakes, words):
    of = report([call("cudaEventQuery", 0, 0), *events]).narrow(window=window or Window(0, 140))
    assert_told(python_loops(of), stakes, *words)


STEPS = Window(count=2, each="step")


def two_kernels(apart_ns):
    second = 20_000 + apart_ns
    later = launched(second - 5_000, second, kernel(second + 1_000, second + 15_000))
    return [*launched(0, 5_000, kernel(6_000, 20_000)), *later]


def test_time_in_a_line_that_launches_nothing_is_told_with_its_call():
    events = two_kernels(100_000)
    lines = [line(0, 10_000, 3, "y = model(x)"), line(10_000, 110_000, 4, "log(json.dumps(row))")]
    of = report(events, source_lines=[*lines, line(110_000, 200_000, 5, "y = model(y)")])
    (one,) = own_code(of.narrow(window=STEPS))
    assert own_code(of) == []  # what a program does once is no step's
    assert one.at_stake_ns == 90_000  # from the end of the first kernel to the end of the line
    assert one.headline == "The GPU waits for code that launches nothing: log()"
    assert "most in a.py:4" in one.text


def test_the_time_of_threads_that_launch_nothing_is_not_spared():
    lines = [line(0, 10_000, 3, "y = model(x)"), line(10_000, 40_000, 4, "parse(row)"), line(40_000, 150_000, 5, "m()")]
    helper = {**line(0, 150_000, 4, "parse(row)"), "thread_id": 2}
    of = report(two_kernels(100_000), source_lines=[*lines, helper]).narrow(window=STEPS)
    (one,) = own_code(of)
    assert one.change(of).host.select("start", "end").rows() == [(10_000, 40_000)]


THERE = launched(60_000, 65_000, kernel(66_000, 70_000, device=1))
ASIDE = launched(11_000, 12_000, kernel(13_000, 15_000, stream=8))
READY = "The GPU waits for a host that waits for it: block_until_ready()"
LINE = "The GPU waits for code that launches nothing: "
AROUND = [line(0, 10_000, 3, "y = model(x)"), line(110_000, 200_000, 5, "y = model(y)")]


@pytest.mark.parametrize(
    ("lines", "more", "headline"),
    [
        ([line(0, 200_000, 3, "y = model(x)")], (), None),  # the line launches
        ([line(0, 25_000, 3, "y = model(x)"), line(25_000, 28_000, 4, "n += 1")], (), None),  # too short
        ([], (), None),
        *(([*AROUND, line(10_000, 110_000, 4, "z = other(y)")], more, None) for more in (THERE, ASIDE)),
        ([*AROUND, line(10_000, 110_000, 4, "torch.cuda.synchronize()")], (), None),  # a call that is recorded
        ([*AROUND, line(10_000, 110_000, 4, "float(y.block_until_ready())")], (), READY),
        (
            [*AROUND, line(10_000, 70_000, 4, "stream.synchronize()"), line(70_000, 110_000, 6, "p()")],
            (),
            LINE + "p()",
        ),
        ([*AROUND, line(10_000, 110_000, 4, "hvd.synchronize(x)")], (), LINE + "hvd.synchronize()"),
        *(
            ([*AROUND, line(10_000, 110_000, 4, text)], (), f"The GPU waits for code that launches nothing{told}")
            for text, told in (
                *(("while(True):", ""), ("n += 1  # as sum(x)", "")),
                *(("s = 'f(x)'", ""), ("if(ready(x)):", ": ready()")),
            )
        ),
    ],
)
def test_the_headline_has_a_call_of_the_line_that_launches_nothing(lines, more, headline):
    of = report([*two_kernels(100_000), *more], source_lines=lines).narrow(window=STEPS)
    assert [one.headline for one in own_code(of)] == [headline] * (headline is not None)


def converting(*texts, size_bytes=2 << 20, ns=200_000, passes=4):
    """Passes of 1 ms: a kernel, lines of so many ns in all, and a copy of 10 µs to the GPU 100 µs after them."""
    lines, each = [], ns // len(texts)
    copied = memcpy(120_000 + ns, 130_000 + ns, size_bytes=size_bytes)
    copied = launched(110_000 + ns, 115_000 + ns, copied, "cudaMemcpyAsync")
    for at in range(0, 1_000_000 * passes, 1_000_000):
        for place, text in enumerate(texts):
            start = at + 10_000 + each * place
            lines.append(line(start, start + each, 80 + place, text))
        lines.append(line(at + 10_000 + each * len(texts), at + 1_000_000, 95, "x = put(x)"))
    return alike(*launched(0, 5_000, kernel(6_000, 9_000)), *copied, count=passes, source_lines=lines)


SCALED = ["x = x.astype(np.float32)", "x -= MEAN", "x /= DEVIATION"]


@pytest.mark.parametrize(
    ("of", "host_ns", "copies_ns"),
    [
        (converting(*SCALED), 199_998 + 75_001, 7_500),
        (converting("x = x.astype('float32')"), 200_000, 0),  # perhaps of float64, which is copied as it is then
        (converting("x = x.astype(np.float32)", "count += 1", ns=400_000), 200_000, 0),
        (converting("x = x.astype(np.float16)"), None, None),  # half as many bytes, or as wide as can be
        (converting("x = np.float32(images) / 255"), 200_000 + 75_000, 7_500),
        (converting("return np.divide(x, 255, dtype=np.float32)"), 200_000 + 75_000, 7_500),
        (converting("x = np.zeros(shape, dtype=np.float32)"), None, None),
        (converting("x = np.multiply(mass, speed, dtype=np.float32)"), None, None),  # nobody knows of what
        (converting("x = np.divide(x, 255, out=x)  # dtype=float"), None, None),
        (converting("x = x.astype(np.float32)", size_bytes=1 << 19), None, None),
        (converting("y = y.astype(np.float32)", ns=90_000), None, None),  # of other data, which are smaller
        (converting("x = read(path).astype(np.float32)", ns=5_000_000, passes=1), None, None),
        (converting("x = x.astype(np.uint8)", "x -= MEAN"), None, None),
        (converting("x = put(x)"), None, None),
        (converting(*SCALED).whole, None, None),
    ],
)
def test_arrays_that_are_converted_before_they_are_copied(of, host_ns, copies_ns):
    found = rules.converted_arrays(of)
    assert [one.rule for one in found] == ["large-upload"] * (host_ns is not None)
    for one in found:
        change = one.change(of)
        assert change.host.select((pl.col("end") - pl.col("start")).unique()).to_series().to_list() == [host_ns]
        assert change.shorter.get_column("saved_ns").unique().to_list() == [copies_ns]


def test_phases_are_named_by_range_and_by_the_calls_around_them():
    launches = [*launching(10, 100), *launching(200, 300), *launching(400, 500), *launching(560, 600)]
    events = [*launches, nvtx("data {raw}", 100, 400), call("cudaEventRecord_v3020", 500, 510)]
    (one,) = host_computes(report(events))
    assert (one.rule, one.device, one.at_stake_ns, one.table) == ("host-computes", 0, 90 + 90 + 40, "culprits")
    assert one.text.format(*one.names) == (
        "GPU 0 idle while the program runs its own code, in no CUDA call: 36.7 % of the window. Most in data {raw}: "
        "180 ns in 2 gaps, the longest 90 ns; before launches: 40 ns. The longest stretch is 90 ns, "
        "from 100 ns on. More may follow: the host could run ahead."
    )


LOAD = "cuLibraryLoadData"


def spaced(*loads, gap=800 * US):
    """Two launches, and calls of these names late in the time between."""
    calls = [call(name, gap, gap + 10) for name in loads]
    return [*launching(10, 100), *calls, *launching(gap + gap // 2, 2 * gap)]


def loading(many):
    """Eight launches far apart, before so many of which modules are loaded."""
    starts = [1_000 * US * number for number in range(8)]
    loads = [call(LOAD, at - 20, at - 10) for at in starts[1 : many + 1]]
    return [*loads, *chain.from_iterable(launching(at, at + 10 * US) for at in starts)]


#: Two short stretches of the host's own code, and the same with a long one after them.
TWICE = [*spaced(gap=20 * US), *launching(60 * US, 70 * US)]
ONE_LONG = [*TWICE, *launching(800 * US, 900 * US)]
HALF = [*launching(10, 100), nvtx("data", 100, 290), *launching(300, 400), *launching(500, 600)]
OF_TORCH = kernel(60 * US, 61 * US, name="void at::native::add(int)")
UNKNOWN = ("The GPU waits for the program", "see what it does there")
NEW = ("The GPU waits while the host prepares new kernels", "keep to a few shapes")


@pytest.mark.parametrize(
    ("events", "window", "words"),
    [
        (TWICE, None, ("The GPU waits for the program in 2 short stretches", "fuse them")),
        (TWICE, STEPS, ("The GPU waits for the program in 1 short stretch a step", "fuse them")),
        *((spaced(gap=20 * US), window, UNKNOWN) for window in (None, STEPS)),
        ([*spaced(gap=20 * US), OF_TORCH], None, ("torch.compile(…",)),
        (ONE_LONG, STEPS, UNKNOWN),
        (spaced(), None, UNKNOWN),
        (spaced(LOAD), None, UNKNOWN),
        (spaced(LOAD), STEPS, NEW),
        # modules that are loaded all along are new kernels where nothing repeats
        (loading(5), None, UNKNOWN[:1]),
        (loading(6), None, NEW[:1]),
        (HALF, None, ("[data]",)),
        ([*HALF, *launching(900, 950)], None, ("[]",)),
        ([*launching(10, 100), *launching(110, 200)], None, None),
    ],
)
def test_what_to_do_is_told_by_the_length_of_gaps_and_what_comes_next(events, window, words):
    found = host_computes(report(events).narrow(window=window))
    assert_told(found, [one.at_stake_ns for one in found], *(words or ()))
    assert len(found) == (words is not None)


def test_a_wait_for_a_worker_is_told_and_no_call_before_it():
    found, *_ = ranked(real_report(SAMPLES / "sampled" / "loader.sqlite").narrow(window="steady"))
    assert (found.rule, found.headline) == ("host-computes", "The GPU waits while the program waits for process 893")
    assert "Most while it waits for process 893: 5.561 ms in 1 gap a repetition" in found.text
