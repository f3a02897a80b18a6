"""Copies that hold up the work: pageable ones, data that go to the host, and those by which NCCL sets up."""

from dataclasses import replace
from functools import partial

import polars as pl
import pytest
from hypothesis import strategies as st

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.findings.rules import memory as rules
from kanalyze.analyses.findings.rules.memory import copies_by_calls, many_small_copies, pageable_copies, pageable_copy
from kanalyze.analyses.findings.rules.waits import boolean_masks, downloads, reads
from kanalyze.units import time
from kanalyze.window import Window
from support import machine
from support.build import MS, again, call, host, in_line, kernel, launched, memcpy, nvtx, report
from support.command import REPORTS
from support.machine import Task
from support.measures import assert_told
from support.real_reports import real_report
from support.shares import cases, holds
from support.steps import alike, in_steps
from support.strategies import slow_given

KINDS = ("kernel", "memcpy", "memset", "api", "range")
TIMES = st.integers(0, 40)
STREAMS = st.sampled_from([7, 7, 8])
TASKS = st.one_of(
    st.builds(Task, st.just("host"), TIMES),
    st.builds(Task, st.just("kernel"), TIMES, TIMES, STREAMS),
    st.builds(Task, st.just("copy"), TIMES, TIMES, STREAMS),
    st.builds(Task, st.just("wait"), TIMES),
    st.builds(Task, st.just("pageable"), TIMES, TIMES, STREAMS, st.booleans(), st.booleans()),
    st.builds(Task, st.just("synchronous"), TIMES, TIMES, STREAMS, st.just(value=True), st.booleans()),
)
OF_PAGEABLE = ("pageable", "synchronous")
PROGRAMS = st.lists(TASKS, min_size=1, max_size=12)


def stakes(events):
    return {one.rule: one.at_stake_ns for one in pageable_copy(report(events, kinds=KINDS))}


def mended(tasks, take):
    """How long a program takes whose copies of pageable memory take other times."""
    return machine.run([one.mended(take(), take()) if one.kind in OF_PAGEABLE else one for one in tasks])[1]


@cases(0.25)
@slow_given(PROGRAMS, st.data())
def test_no_way_to_mend_them_gains_more_than_is_at_stake(tasks, data):
    events, before = machine.run(tasks)
    holds(mended(tasks, int) < before)
    assert before - mended(tasks, lambda: data.draw(TIMES)) <= sum(stakes(events).values())


@slow_given(PROGRAMS)
def test_the_stake_leaves_the_other_work_of_the_busiest_stream(tasks):
    events, window = machine.run(tasks)
    others = [sum(one.work_ns for one in tasks if one.kind in ("kernel", "copy") and one.stream == of) for of in (7, 8)]
    assert max(stakes(events).values(), default=0) <= max(window - max(others), 0)


def a_copy(at, ns, number, *, to_host=False, name="cudaMemcpyAsync", **keys):
    ends = ("Pageable", "Device")[:: -1 if to_host else 1]
    side = dict(zip(("source_memory", "target_memory"), ends, strict=True))
    way = "Device-to-Host" if to_host else "Host-to-Device"
    copy = memcpy(at + 1, at + 1 + ns, correlation=number, side=side, direction=way, **{"size_bytes": 1 << 20, **keys})
    return launched(at, at + ns + 2, copy, name)


synchronous = partial(a_copy, name="cudaMemcpy")


def a_step(at, number, name="step"):
    """A step of 1,000 ns with a copy at its beginning that blocks for 102 ns, and a kernel."""
    work = launched(at + 200, at + 205, kernel(at + 210, at + 800))
    return [nvtx(name, at, at + 1000), *a_copy(at + 10, 100, number), *work]


def steps(count, *, first=10_000, name="step"):
    return [event for number in range(count) for event in a_step(first + 1000 * number, number + 1, name)]


def test_a_wait_behind_a_copy_to_the_host_is_not_to_be_gained():
    """As of `.item()`: pinned memory would leave the host to wait for the kernel in the next call."""
    item = Task("pageable", 5, 10, blocks=True, to_host=True)
    kernel_runs = Task("kernel", 2, 1000)
    events, before = machine.run([kernel_runs, item, Task("wait", 1), kernel_runs])
    _, after = machine.run([kernel_runs, item.mended(0, 0), Task("wait", 1), kernel_runs])
    (stake,) = stakes(events).values()
    assert before - after <= stake <= 20
    events, _ = machine.run([kernel_runs, item, Task("host", 1000), kernel_runs])
    assert stakes(events)["pageable-copy-once"] > 900


def several(count, *, first=0, every=1_000, **keys):
    """Synchronous copies of 900 ns."""
    parts = (synchronous(first + every * one, 900, first + one + 1, **keys) for one in range(count))
    return [event for part in parts for event in part]


def test_whether_a_process_has_rounds_does_not_depend_on_others():
    alone = [replace(event, process=2) for event in several(6, first=50)]
    recurs = pageable_copies(report([*steps(5), *alone], kinds=KINDS)).get_column("recurs")
    assert sorted(recurs) == [False] * 6 + [True] * 5


def test_replayed_the_host_still_waits_for_what_a_synchronous_call_copies_to_it():
    """A pinned copy of the same direction tells what pinned memory takes."""
    pinned = {"source_memory": "Device", "target_memory": "Pinned"}
    fast = memcpy(9_001, 9_101, correlation=99, size_bytes=1 << 20, side=pinned, direction="Device-to-Host")
    slow = stepwise(*[1 << 20] * 5, to_host=True)
    whole = report([*slow, call("cudaMemcpyAsync", 9_000, 9_003, correlation=99), fast], kinds=KINDS)
    (seen,) = pageable_copy(whole)
    mending = seen.change(whole)
    assert mending.shorter.get_column("saved_ns").to_list() == [800] * 5
    assert mending.unwaited.is_empty()


ITERATIONS = Window(0, 4_000, count=4, each="repetition")


def looped(*copied):
    """Two ranges that take turns, without copies in them, and copies at these times between them."""
    ranges = again(range(0, 4_000, 1_000), nvtx("a", 500, 600), nvtx("b", 700, 800))
    return [*ranges, *(event for number, at in enumerate(copied, 1) for event in a_copy(at, 50, number))]


def stepwise(*sizes, ranges=False, to_host=False):
    """A synchronous copy before each of a few kernels."""
    events = [nvtx(name, at, at + 5) for at in range(0, 9_000, 3_000) for name in "ab"] if ranges else []
    for number, size in enumerate(sizes, 1):
        at = 10_000 * number
        events += synchronous(at, 900, number, size_bytes=size, to_host=to_host)
        events += launched(at + 1_000, at + 1_005, kernel(at + 1_010, at + 5_000))
    return events


@pytest.mark.parametrize(("capability", "saved"), [("9.0", 100_000 - 23_302), ("8.0", 100_000 - 52_429), ("7.0", None)])
def test_large_copies_take_what_pinned_ones_reach_on_such_a_gpu_where_the_report_has_none(capability, saved):
    """Of 1 MiB, at 45 and 20 GB/s."""
    events = [event for number in range(8) for event in a_copy(1_000_000 * number, 100_000, number + 1)]
    events += [kernel(1_000_000 * number + 500_000, 1_000_000 * number + 500_100) for number in range(8)]
    of = report(events, kinds=KINDS, limits={"compute_capability": capability})
    (one,) = pageable_copy(of)
    change = one.change(of)
    assert (change and change.shorter.get_column("saved_ns").unique().to_list()) == (saved and [saved])


def launched_steps():
    """Seven steps that launches tell, with copies of seven sizes, so that nothing else tells that they recur."""
    events = []
    for step in range(7):
        events += synchronous(100_000 * step, 900, step + 1, size_bytes=(1 << 20) + step)
        for number in range(10):
            at = 100_000 * step + 2_000 + 100 * number
            events += launched(at, at + 5, kernel(at + 10, at + 90, name=f"k{number % 6}"))
    return events


def first_of_thirty():
    """Copies in the first seven of thirty iterations, none of them within a range."""
    ranges = again(range(0, 30_000, 1_000), nvtx("a", 100, 200), nvtx("b", 700, 800))
    copies = again(range(0, 7_000, 1_000), *a_copy(300, 50, 1))
    return [*ranges, *copies, kernel(29_990, 30_000)]


def of_other_stream():
    """A copy to the host that waits for a kernel of another stream."""
    side = {"source_memory": "Device", "target_memory": "Pageable"}
    copy = memcpy(1_001, 1_011, size_bytes=1 << 20, side=side, direction="Device-to-Host")
    return [*launched(0, 5, kernel(10, 1_000, stream=13)), *launched(6, 1_012, copy, "cudaMemcpy")]


def beside_most():
    """A kernel on another stream runs all along but for 300 ns, so that five copies of 902 ns gain no more."""
    ranges = [nvtx("step", 1_000 * one, 1_000 * one + 950) for one in range(5)]
    return [*ranges, call("cudaLaunchKernel", 0, 1, correlation=50), kernel(1, 4_602, correlation=50, stream=9)]


#: A kernel runs all along on one stream; on another one the copies cost nothing.
BESIDE = [call("cudaLaunchKernel", 0, 5, correlation=50), kernel(0, 10_000, correlation=50, stream=9)]
BESIDE += [event for number in range(5) for event in a_copy(1000 * number, 100, number + 1)]
NUMBERED = [event for number in range(4) for event in a_step(1000 * number, number + 1, f"iteration {number}")]
ON_HOST = {"direction": "Host-to-Host", "side": {"source_memory": "Pageable", "target_memory": "Pageable"}}
HOST_TO_HOST = launched(0, 900, memcpy(1, 800, size_bytes=1 << 20, **ON_HOST), "cudaMemcpy")
HOST_TO_HOST = again(range(0, 6_000, 1_000), *HOST_TO_HOST)
# with the call
STAGED = [event for one in range(4) for event in synchronous(1_000 * one, 900, one + 1, size_bytes=1 << 15)]
ONCE = "nothing shows that they recur"
OFTEN, AT_START = "pageable-copy", "pageable-copy-once"
SYNCHRONOUS = machine.run([Task("kernel", 2, 1000), Task("synchronous", 5, 10, blocks=True, to_host=True)])[0]
OF_STEPS = ("they recur", "block the host for 510 ns: at most 510 ns can be gained")


@pytest.mark.parametrize(
    ("events", "window", "rule", "stake", "words"),
    [
        (a_copy(0, 900, 1), None, AT_START, 902, (ONCE,)),
        (several(5), None, AT_START, 5 * 902, (ONCE, "5 copies of pageable memory, 5.243 MB at")),  # nothing between
        (stepwise(*[1 << 20] * 3), None, AT_START, 3 * 902, (ONCE,)),
        (stepwise(*[1 << 20] * 5), None, OFTEN, 5 * 902, ("they recur", "cudaHostAlloc")),
        (stepwise(*[1 << 20] * 5, ranges=True), None, OFTEN, 5 * 902, ("they recur",)),  # in no range
        (launched_steps(), None, OFTEN, 7 * 902, ("they recur",)),  # of seven sizes
        (first_of_thirty(), None, OFTEN, 7 * 52, ("they recur",)),
        # an upload before the steps, or in the first one, is told apart from what they repeat
        ([*a_copy(0, 9000, 99), *steps(5)], None, AT_START, 9002, (ONCE, "leave it out of what you compare")),
        ([*a_copy(0, 9000, 99), *steps(5)], None, OFTEN, 5 * 102, OF_STEPS),
        ([*a_copy(0, 9000, 99), *steps(5)], "step#2", OFTEN, 102, ()),
        ([nvtx("step", 0, 9500), *a_copy(0, 9000, 99), *a_copy(9100, 100, 98), *steps(5)], None, AT_START, 9002, ()),
        ([nvtx("step", 0, 9500), *a_copy(0, 9000, 99), *a_copy(9100, 100, 98), *steps(5)], None, OFTEN, 6 * 102, ()),
        (NUMBERED, None, OFTEN, 4 * 102, ()),
        # what recurs in the report recurs in a window with one of them
        (stepwise(*[1 << 20] * 10), "20us..30us", OFTEN, 902, ()),
        # a synchronous copy waits for the kernels of all streams: it counts from their end on
        (of_other_stream(), None, AT_START, 12, ()),
        (SYNCHRONOUS, None, AT_START, 10, ()),
        ([*beside_most(), *several(5)], None, OFTEN, 301, (f"at most {time(301)} can be gained",)),
        *((events, None, OFTEN, None, ()) for events in (HOST_TO_HOST, STAGED, BESIDE)),
    ],
)
def test_whether_copies_recur_is_told_by_what_there_is(events, window, rule, stake, words):
    every = pageable_copy(report(events, kinds=KINDS).narrow(window=window))
    assert_told([one for one in every if one.rule == rule], [stake] if stake else [], *words)
    assert stake or every == []


def test_the_host_may_do_without_what_it_waits_for():
    (one,) = pageable_copy(report(of_other_stream(), kinds=KINDS))
    assert not one.at_most


ALL_ALONG = [begin + at for begin in range(0, 4_000, 1_000) for at in (10, 350, 850)]
EACH = (10, 1_010, 2_010, 3_010)
TAKEN_BEFORE = [
    nvtx("step", one.start + 150, one.end) if one.kind == "range" else one
    for number in range(4)
    for one in a_step(1000 * number, number + 1)
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("events", "window", "told", "many"),
    [
        (looped(*EACH), ITERATIONS, [False, True, True, True], 2),
        (looped(10, 20, 30, 1_010), ITERATIONS, [False] * 4, 1),
        # a long one
        ([*looped(*EACH[1:]), *a_copy(10, 400, 9)], ITERATIONS, [True, True, True, False], 2),
        (looped(*ALL_ALONG), None, [False] * 2 + [True] * 9 + [False], 2),  # before and after the iterations
        ([*looped(10, 110, 210, 310), kernel(3_990, 4_000)], None, [False] * 4, 1),
        (TAKEN_BEFORE, None, [False, True, True, True], 2),  # the loop takes its batch before the range
    ],
)
def test_when_copies_are_made(events, window, told, many):
    of = report(events, kinds=KINDS).narrow(window=window)
    assert pageable_copies(of).get_column("recurs").to_list() == told
    assert len(pageable_copy(of)) == many


STEP = 1_000_000
MIB = 1 << 20


def launch_at(at, name):
    return launched(at, at + 5000, kernel(at + 6000, at + 10_000, name=name))


def copy(at, size, *, direction="Device-to-Host", took=20_000):
    made = memcpy(at + 5000, at + took, direction=direction, size_bytes=size)
    return launched(at, at + took, made, "cudaMemcpyAsync")


def masked(at):
    """nonzero: a count that is copied to the host, and the kernel that selects."""
    return [
        host("op", "aten::nonzero", at, at + 100_000),
        *launch_at(at + 10_000, "void at_cuda_detail::cub::DeviceReduceKernel<NonZeroOp<bool>>()"),
        *copy(at + 30_000, 8),
        *launch_at(at + 70_000, "void at_cuda_detail::cub::DeviceSelectSweepKernel()"),
    ]


def step(at):
    own = launch_at(at + 500_000, "void at::native::k()")
    return [event for place in range(3) for event in masked(at + 150_000 * place)] + own


def of_cupy(at, *before, takes="cupy_getitem_mask"):
    chosen = [*launch_at(at + 10_000, "cupy_scan_naive"), *copy(at + 30_000, 8)]
    chosen += [
        one for place, name in enumerate([*before, takes]) for one in launch_at(at + 70_000 + 9000 * place, name)
    ]
    other = launch_at(at + 150_000, "cupy_minimum__float32")
    return [*launch_at(at, "cupy_greater__float32_float_bool"), *chosen, *other]


def gradients(at):
    """Each converted on the GPU and copied; the host computes for 700 µs with what it got."""
    sizes = enumerate((MIB, MIB, 72))
    parts = [[*launch_at(at + 90_000 * n, "k"), *copy(at + 90_000 * n + 50_000, size)] for n, size in sizes]
    return [event for part in parts for event in part] + launch_at(at + 950_000, "k")


def by_another(at):
    return [replace(event, thread=2) if event.thread else event for event in launch_at(at, "cupy_add__float32")]


MASKS = "Indices of a mask's true elements are asked for 3 times a step, for whose number the host waits: GPU 0 idles"


@pytest.mark.parametrize(
    ("rule", "make", "words"),
    [
        (boolean_masks, step, MASKS),
        (boolean_masks, lambda at: [event for event in step(at) if event.kind != "op"], MASKS),
        (boolean_masks, of_cupy, "cupy.where(mask, x, 0) in place of x[mask]"),
        (boolean_masks, lambda at: of_cupy(at, "cupy_copy__bool_bool", "cupy_bsum_shfl"), "cupy.where(mask, x, 0)"),
        (boolean_masks, lambda at: [*of_cupy(at), *by_another(at + 500_000)], "cupy.where(mask, x, 0)"),
        (boolean_masks, lambda at: of_cupy(at, "cupy_scan_naive", takes="cupy_divide"), None),  # a sum's number
        (boolean_masks, lambda at: [*launch_at(at, "void at::native::k()"), *copy(at + 100_000, 4)], None),
        (
            *(downloads, lambda at: [one for n in range(5) for one in copy(at + 100_000 * n, 2 * MIB, took=80_000)]),
            "5 copies to the host a step, 10.49 MB in each: GPU 0 idles",
        ),
        (
            downloads,
            gradients,
            "3 copies to the host a step, 2.097 MB in each: GPU 0 idles, or works for it, for 800.0 µs",
        ),
        (downloads, lambda at: copy(at, MIB // 2), None),
        (downloads, lambda at: [*copy(at, 20 * MIB), *copy(at + 300_000, MIB, direction="Host-to-Device")], None),
        (
            *(downloads, lambda at: [*copy(at, 2 * MIB), *copy(at + 600_000, MIB, direction="Host-to-Device")]),
            "1 copy to the host a step, 2.097 MB in each: GPU 0 idles",
        ),
    ],
)
def test_data_that_the_host_asks_for(rule, make, words):
    events = [event for number in range(4) for event in make(number * STEP)]
    found = rule(in_steps(events, 4))
    assert [words in f"{one.text} {one.action}" for one in found] == [True] * (words is not None)


@pytest.mark.parametrize(
    ("copying", "after", "ms"),
    [
        ("log(x.cpu().numpy(), y)", [("a", 2), ("b", 3), ("f", 1)], [2, 3, 1]),  # what it calls, until that returns
        ("x = y.cpu().numpy()", [("f", 2, "top = np.argmax(x, 1)"), ("f", 3, "n += np.bincount(top)")], [2, 3]),
        ("x = y.cpu().numpy()", [("f", 2, "for row in x:"), ("a", 3), ("f", 1, "for row in x:")], [2, 3, 1]),
        ("x = y.cpu().numpy()", [("f", 2, "np.save(path, x)"), ("f", 3, "batch = next(batches)")], []),
        ("x = y.cpu().numpy()", [("f", 2, "x = next(batches)"), ("f", 3, "top(x)")], []),
        ("x = y.cpu().numpy()", [("f", 2, "b = next(at, x=3)  # as x"), ("f", 3, "info('mean of x')")], []),
        ("if keep: x = y.cpu()", [("f", 2, "b = next(at) if more else 0")], []),
        (
            "x = y.cpu().numpy()",
            [("f", 2, "save_video(x)"), ("g", 3, "stream.append(one)"), ("f", 1, "save_video(x)")],
            [],
        ),
        ("x = y.cpu().numpy()", [("f", 3, "tokens.batch_decode(x)"), ("f", 3, "del x")], []),
        ("return y.cpu().numpy()", [("main", 2, "x = f(y)"), ("main", 3, "batch = next(batches)")], []),
        ("return y.cpu().numpy()", [("main", 3), ("f", 4)], []),  # which copies again
    ],
)
def test_what_lines_do_with_what_was_copied_counts_until_the_next_launch(copying, after, ms):
    """A line copies 2 MiB in each step; some ms later the thread launches again."""
    lines, at = [in_line(0, MS, 1, copying)], MS
    for function, took, *text in after:
        number = 1 if not text and function == "f" else 1 + len(text[0] if text else "")
        lines.append(in_line(at, at + took * MS, number, text[0] if text else copying, function=function))
        at += took * MS
    every = [line | {"start_ns": line["start_ns"] + 10 * MS * n} for n in range(4) for line in lines]
    events = again(range(0, 40 * MS, 10 * MS), *copy(0, 2 * MIB), *launch_at(8 * MS, "k"))
    found, short = (downloads(in_steps(events, 4, 10 * MS, source_lines=rows)) for rows in (every, []))
    assert found[0].at_stake_ns - short[0].at_stake_ns == pytest.approx(4 * MS * sum(ms), abs=1_200_000)


@pytest.mark.parametrize(("memory", "looks", "told"), [("Pageable", 0, 0), ("Pageable", 900_000, 1), ("Pinned", 0, 0)])
def test_pageable_copies_that_the_host_does_not_read_at_once_are_no_downloads(memory, looks, told):
    """Of pictures that wait for an encoder: 20 MB each, after which the thread launches the next at once."""
    of = {"size_bytes": 20 * MIB, "side": {"source_memory": "Device", "target_memory": memory}}
    picture = launched(0, 90_000, memcpy(5000, 80_000, direction="Device-to-Host", **of), "cudaMemcpyAsync")
    events = again(range(0, 24 * STEP, 3 * STEP), *picture, *launch_at(100_000 + looks, "jacobi"))
    made = in_steps(events, 8, 3 * STEP)
    assert len(list(downloads(made))) == told
    assert told or memory == "Pinned" or reads(made).is_empty()


@pytest.mark.parametrize(("many", "spared"), [(2, 0), (9, 9)])
def test_many_masks_are_sorted_once_with_what_they_gather(many, spared):
    """Of experts: rows of each are asked for, and gathered; what each gathers is gone where they are many."""

    def expert(at):
        gather = launch_at(at + 110_000, "void at::native::index_kernel()")
        return [*masked(at), host("op", "aten::index", at + 105_000, at + 125_000), *gather]

    starts = [4 * number * STEP + 150_000 * part for number in range(4) for part in range(many)]
    of = in_steps([event for at in starts for event in expert(at)], 4, 4 * STEP)
    (found,) = boolean_masks(of)
    gone = operations(of).get_column("name").cast(pl.String).gather(found.change(of).gone)
    assert gone.str.contains("index_kernel").sum() == 4 * spared


#: An index_put that adds.
ADDS = {"input_values": '["", "", "", "True"]'}


def test_what_backward_sorts_for_a_mask_is_the_masks():
    """A gradient is put where the true elements were, for which they are looked for again."""
    node = "autograd::engine::evaluate_function: IndexBackward0"
    step = [host("op", node, 200_000, 400_000), host("op", "aten::_index_put_impl_", 205_000, 390_000, side=ADDS)]
    step += [*masked(210_000), *launch_at(350_000, "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel()")]
    step += [*masked(0), *launch_at(420_000, "void at::native::fill()")]
    of = alike(*step, count=4)
    (found,) = boolean_masks(of)
    names = operations(of).get_column("name").cast(pl.String).gather(found.change(of).shorter.get_column("row"))
    # what nonzero launches is within the put, too
    assert (names.str.contains("RadixSort").sum(), names.str.contains("fill").sum(), len(names)) == (4, 0, 12)


def copies(number, at, *, stream=14, size=152, thread=1):
    """Asynchronous copies of pageable memory, each with a call of 20 ns."""
    keys = {"size_bytes": size, "side": {"source_memory": "Pageable", "target_memory": "Device"}, "stream": stream}
    one = launched(0, 20, memcpy(5, 15, **keys), "cudaMemcpyAsync", thread=thread)
    return again(range(at, at + 50 * number, 50), *one)


def launch(name, at, *, stream=7, thread=1):
    return launched(at, at + 5, kernel(at + 10, at + 100, name=name, stream=stream), thread=thread)


def reduces(at):
    return launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)", at)


def test_no_copy_of_a_job_is_one_of_the_program_but_those_of_its_results():
    of = real_report(REPORTS / "nccl.sqlite")
    assert copies_by_calls(of).get_column("detail").to_list() == ["Device-to-Host"] * 4
    assert pageable_copy(of) == many_small_copies(of) == []


RANGES = [nvtx("ncclGroupEnd", 990, 2_000, domain="NCCL")]
FIRST = copies(12, 1_000)
ANOTHER = launch("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)", 2_000)
OF_THREAD = copies(12, 1_000, thread=2)


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        # in ranges and operators of NCCL
        *(
            (([nvtx(name, 990, 2_000, domain="NCCL")], FIRST, copies(11, 3_000, stream=7), reduces(5_000)), 11)
            for name in ("ncclCommInitRankConfig", "ncclCommSplit", "ncclAllReduce", "ncclGroupEnd")
        ),
        ((RANGES, copies(12, 1_000, stream=7), reduces(5_000)), 0),
        *(
            (([host("op", name, 990, 2_000)], FIRST, copies(11, 3_000, stream=7), reduces(5_000)), 11)
            for name in ("record_param_comms", "c10d::allreduce_", "nccl:all_reduce", "aten::to")
        ),
        (([host("op", "c10d::allreduce_", 990, 2_000)], FIRST), 0),
        # on threads that NCCL starts, which call nothing else
        ((RANGES, OF_THREAD, reduces(5_000)), 0),
        ((RANGES, [nvtx("ncclAllReduce", 2_500, 2_600, thread=2, domain="NCCL")], OF_THREAD, reduces(5_000)), 12),
        ((RANGES, OF_THREAD, copies(12, 3_000, thread=2), reduces(5_000)), 24),
        # without ranges: small ones before the first collective, in streams without kernels
        ((FIRST, launch("k", 2_000), reduces(5_000)), 0),
        ((FIRST, launch("k", 2_000)), 12),  # no collective
        ((FIRST, launch("k", 2_000, stream=14), reduces(5_000)), 12),
        ((copies(12, 1_000, size=65_537), reduces(5_000)), 12),
        ((launch("k", 500), reduces(600), FIRST, launch("k", 2_000), reduces(5_000)), 12),
        # and right before another collective
        ((reduces(600), FIRST, ANOTHER), 0),
        ((reduces(600), FIRST, launch("k", 1_900), ANOTHER), 12),
        ((reduces(600), FIRST, reduces(2_000)), 12),
        ((FIRST, [replace(event, process=2) for event in reduces(5_000)]), 12),  # of another process
    ],
)
def test_copies_by_which_nccl_sets_up_are_not_the_program_s(parts, left):
    events = [event for part in parts for event in part]
    found = report(events, kinds=(*KINDS, *(["op"] if any(one.kind == "op" for one in events) else [])))
    assert rules.small_copies(found).height in {0, copies_by_calls(found).height}
    assert copies_by_calls(found).height == left
