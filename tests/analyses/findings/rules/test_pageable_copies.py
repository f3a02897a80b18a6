"""Pageable copies: no way to mend them gains more than is said, and what recurs is told from what does not."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.findings.rules.pageable_copies import pageable_copies, pageable_copy
from kanalyze.units import time
from kanalyze.window import Window
from support import machine
from support.build import call, kernel, memcpy, nvtx, report
from support.machine import Task
from support.real_reports import real_report

SAMPLES = Path(__file__).parents[4] / "sample_reports"
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


@given(PROGRAMS, st.data())
def test_no_way_to_mend_them_gains_more_than_is_at_stake(tasks, data):
    events, before = machine.run(tasks)
    mended = [one.mended(data.draw(TIMES), data.draw(TIMES)) if one.kind in OF_PAGEABLE else one for one in tasks]
    _, after = machine.run(mended)
    assert before - after <= sum(stakes(events).values())


def test_the_programs_gain_something_often_enough():
    gained = []

    @given(PROGRAMS)
    def look(tasks):
        mended = [one.mended(0, 0) if one.kind in OF_PAGEABLE else one for one in tasks]
        gained.append(machine.run(tasks)[1] - machine.run(mended)[1])

    look()
    assert sum(one > 0 for one in gained) >= len(gained) / 4


@given(PROGRAMS)
def test_the_stake_leaves_the_other_work_of_the_busiest_stream(tasks):
    events, window = machine.run(tasks)
    others = [sum(one.work_ns for one in tasks if one.kind in ("kernel", "copy") and one.stream == of) for of in (7, 8)]
    assert max(stakes(events).values(), default=0) <= max(window - max(others), 0)


def a_copy(at, ns, number, *, blocked=None, size=1 << 20):
    side = {"source_memory": "Pageable", "target_memory": "Device"}
    copy = memcpy(at + 1, at + 1 + ns, correlation=number, size_bytes=size, side=side)
    return [call("cudaMemcpyAsync", at, at + (blocked or ns + 2), correlation=number), copy]


def a_step(at, number, name="step"):
    """A step of 1,000 ns with a copy at its beginning that blocks for 102 ns, and a kernel."""
    launch = call("cudaLaunchKernel", at + 200, at + 205, correlation=500 + number)
    work = kernel(at + 210, at + 800, correlation=500 + number)
    return [nvtx(name, at, at + 1000), *a_copy(at + 10, 100, number), launch, work]


def steps(count, *, first=10_000, name="step"):
    return [event for number in range(count) for event in a_step(first + 1000 * number, number + 1, name)]


def found(events, **keys):
    return {one.rule: one for one in pageable_copy(report(events, kinds=KINDS, **keys))}


def test_an_upload_before_the_steps_is_told_apart_from_what_they_repeat():
    seen = found([*a_copy(0, 9000, 99), *steps(5)])
    assert seen["pageable-copy-once"].at_stake_ns == 9002
    assert "do not recur" in seen["pageable-copy-once"].text
    assert "pin_memory" not in seen["pageable-copy-once"].remedy
    assert seen["pageable-copy"].at_stake_ns == 5 * 102
    assert "in 5 of 5 steps; in the median 1 in each" in seen["pageable-copy"].text
    assert "block the host for 102 ns: at most 102 ns in each can be gained by pinning it" in seen["pageable-copy"].text


def test_an_upload_inside_the_first_step_is_told_apart_too():
    slow = nvtx("step", 0, 9500)
    seen = found([slow, *a_copy(0, 9000, 99), *a_copy(9100, 100, 98), *steps(5)])
    assert seen["pageable-copy-once"].at_stake_ns == 9002
    assert seen["pageable-copy"].at_stake_ns == 6 * 102


def test_numbers_in_names_of_ranges_make_no_other_range():
    events = [event for number in range(4) for event in a_step(1000 * number, number + 1, f"iteration {number}")]
    assert "in 4 of 4 rounds of iteration #" in found(events)["pageable-copy"].text


def test_copies_between_the_ranges_recur_as_well():
    """The loop takes its batch before the range begins."""
    events = [event for number in range(4) for event in a_step(1000 * number, number + 1)]
    moved = [nvtx("step", one.start + 150, one.end) if one.kind == "range" else one for one in events]
    assert pageable_copies(report(moved, kinds=KINDS))["when"].to_list() == ["once", "recurs", "recurs", "recurs"]


def test_a_wait_behind_a_copy_to_the_host_is_not_to_be_gained():
    """As of `.item()`: pinned memory would leave the host to wait for the kernel in the next call."""
    item = Task("pageable", 5, 10, blocks=True, to_host=True)
    kernel_runs = Task("kernel", 2, 1000)
    events, before = machine.run([kernel_runs, item, Task("wait", 1), kernel_runs])
    _, after = machine.run([kernel_runs, item.mended(0, 0), Task("wait", 1), kernel_runs])
    (stake,) = stakes(events).values()
    assert before - after <= stake <= 20
    events, _ = machine.run([kernel_runs, item, Task("host", 1000), kernel_runs])
    assert stakes(events)["pageable-copy"] > 900


def synchronous(at, ns, number, *, size=1 << 20, to_host=False):
    ends = ("Pageable", "Device")[:: -1 if to_host else 1]
    side = dict(zip(("source_memory", "target_memory"), ends, strict=True))
    way = "Device-to-Host" if to_host else "Host-to-Device"
    copy = memcpy(at + 1, at + 1 + ns, correlation=number, size_bytes=size, side=side, direction=way)
    return [call("cudaMemcpy", at, at + ns + 2, correlation=number), copy]


def several(count, *, first=0, size=1 << 20, every=1_000, **keys):
    """Synchronous copies of 900 ns."""
    parts = (synchronous(first + every * one, 900, first + one + 1, size=size, **keys) for one in range(count))
    return [event for part in parts for event in part]


def test_what_recurs_in_the_report_recurs_in_a_window_with_one_of_them():
    whole = report(several(10), kinds=KINDS)
    (seen,) = pageable_copy(whole.narrow(window="2us..3us"))
    assert seen.rule == "pageable-copy"


def test_whether_a_process_has_rounds_does_not_depend_on_others():
    alone = [replace(event, process=2) for event in several(6, first=50)]
    seen = found([*steps(5), *alone])["pageable-copy"]
    assert "Their process has no steps" in seen.text or "they recur" in seen.text
    whens = pageable_copies(report([*steps(5), *alone], kinds=KINDS)).get_column("when")
    assert sorted(whens) == ["recurs"] * 5 + ["unknown"] * 6


def test_a_synchronous_copy_waits_for_the_kernels_of_all_streams():
    kernels = [call("cudaLaunchKernel", 0, 5, correlation=50), kernel(10, 1_000, correlation=50, stream=13)]
    copy = memcpy(
        1_001,
        1_011,
        correlation=51,
        size_bytes=1 << 20,
        side={"source_memory": "Device", "target_memory": "Pageable"},
        direction="Device-to-Host",
    )
    seen = found([*kernels, call("cudaMemcpy", 6, 1_012, correlation=51), copy])["pageable-copy-once"]
    assert seen.at_stake_ns == 12  # from the end of the kernel on
    assert not seen.at_most  # the host may do without the wait


def test_the_sentence_promises_no_more_than_is_at_stake():
    """A kernel on another stream runs all along but for 300 ns, so that five copies of 902 ns gain no more."""
    ranges = [nvtx("step", 1_000 * one, 1_000 * one + 950) for one in range(5)]
    whole = [call("cudaLaunchKernel", 0, 1, correlation=50), kernel(1, 4_602, correlation=50, stream=9)]
    seen = found([*ranges, *whole, *several(5)])["pageable-copy"]
    assert f"at most {time(seen.at_stake_ns / 5)} in each can be gained" in seen.text


def test_a_synchronous_copy_to_the_host_waits_for_the_kernel_all_the_same():
    events, _ = machine.run([Task("kernel", 2, 1000), Task("synchronous", 5, 10, blocks=True, to_host=True)])
    assert stakes(events) == {"pageable-copy-once": 10}


def test_replayed_the_host_still_waits_for_what_a_synchronous_call_copies_to_it():
    """A pinned copy of the same direction tells what pinned memory takes."""
    pinned = {"source_memory": "Device", "target_memory": "Pinned"}
    fast = memcpy(9_001, 9_101, correlation=99, size_bytes=1 << 20, side=pinned, direction="Device-to-Host")
    slow = several(5, to_host=True)
    whole = report([*slow, call("cudaMemcpyAsync", 9_000, 9_003, correlation=99), fast], kinds=KINDS)
    (seen,) = pageable_copy(whole)
    mending = seen.change(whole)
    assert mending.shorter.get_column("saved_ns").to_list() == [800] * 5
    assert mending.unwaited.is_empty()


def test_a_window_of_one_step_knows_that_its_copies_recur():
    whole = report([*a_copy(0, 9000, 99), *steps(5)], kinds=KINDS)
    (seen,) = pageable_copy(whole.narrow(window="step#2"))
    assert (seen.rule, seen.at_stake_ns) == ("pageable-copy", 102)


def test_the_calls_of_a_training_that_block_the_host_are_at_stake():
    """Their copies run for 0.45 ms, and their calls block the host for five times as long."""
    naive = real_report(SAMPLES / "mlp_train" / "nsys.sqlite").narrow(window="naive")
    (seen,) = pageable_copy(naive)
    blocked = pageable_copies(naive).select(
        (pageable_copies(naive)["call_end"] - pageable_copies(naive)["call_start"]).sum()
    )
    assert seen.at_stake_ns >= blocked.item()
    assert "here in 20 of the report's 42 steps; in the median 2 in each" in seen.text


def test_of_a_window_it_is_said_that_rounds_are_the_report_s():
    read = real_report(SAMPLES / "mlp_train" / "nsys.sqlite")
    (seen,) = pageable_copy(read.narrow(window="step#20"))
    assert "they recur, here in 1 of the report's 42 steps; in the median 2 in each" in seen.text


ITERATIONS = Window(0, 4_000, count=4, each="repetition")


def looped(*copied):
    """Two ranges that take turns, without copies in them, and copies at these times between them."""
    ranges = [
        nvtx(name, at, at + 100)
        for begin in range(0, 4_000, 1_000)
        for name, at in (("a", begin + 500), ("b", begin + 700))
    ]
    return [*ranges, *(event for number, at in enumerate(copied, 1) for event in a_copy(at, 50, number))]


def when(of):
    return pageable_copies(of).get_column("when").to_list()


@pytest.mark.parametrize(
    ("copied", "told"),
    [
        ((10, 1_010, 2_010, 3_010), ["often"] * 4),
        ((10, 1_010, 2_010), ["often"] * 3),
        ((10, 20, 30, 1_010), ["once"] * 4),
    ],
)
def test_copies_in_most_iterations_recur_wherever_the_ranges_are(copied, told):
    of = in_iterations(report(looped(*copied)))
    assert when(of) == told
    assert [one.rule for one in pageable_copy(of)] == ["pageable-copy" if told[0] == "often" else "pageable-copy-once"]


def test_a_long_copy_among_short_ones_is_made_once():
    of = in_iterations(report([*looped(1_010, 2_010, 3_010), *a_copy(10, 400, 9)]))
    assert when(of) == ["often", "often", "often", "once"]


def test_of_one_iteration_nothing_recurs():
    of = report(looped(10, 20)).narrow(window=Window(0, 1_000, count=1, each="repetition"))
    assert when(of) == ["once"] * 2


def test_all_along_the_whole_recording_is_often_too():
    of = report(looped(*(begin + at for begin in range(0, 4_000, 1_000) for at in (10, 350, 850))))
    assert when(of) == ["often"] * 12
    (one,) = pageable_copy(of)
    assert "they recur. Their calls" in one.text
    assert when(report([*looped(10, 110, 210, 310), kernel(3_990, 4_000)])) == ["once"] * 4


def test_copies_of_rounds_are_told_with_those_all_along():
    of = in_iterations(report([*looped(10, 1_010, 2_010, 3_010), *a_copy(510, 50, 8), *a_copy(1_510, 50, 9)]))
    assert set(when(of)) == {"often"}
    assert len(pageable_copy(of)) == 1


def in_iterations(of):
    return of.narrow(window=ITERATIONS)


def stepwise(*sizes, ranges=False):
    """A synchronous copy before each of a few kernels."""
    events = [nvtx(name, at, at + 5) for at in range(0, 9_000, 3_000) for name in "ab"] if ranges else []
    for number, size in enumerate(sizes, 1):
        at = 10_000 * number
        launch = call("cudaLaunchKernel", at + 1_000, at + 1_005, correlation=100 + number)
        events += [
            *synchronous(at, 900, number, size=size),
            launch,
            kernel(at + 1_010, at + 5_000, correlation=100 + number),
        ]
    return events


@pytest.mark.parametrize(("capability", "saved"), [("9.0", 100_000 - 23_302), ("8.0", 100_000 - 52_429), ("7.0", None)])
def test_large_copies_take_what_pinned_ones_reach_on_such_a_gpu_where_the_report_has_none(capability, saved):
    """Of 1 MiB, at 45 and 20 GB/s."""
    events = [event for number in range(8) for event in a_copy(1_000_000 * number, 100_000, number + 1)]
    of = report(events, kinds=KINDS, limits={"compute_capability": capability})
    (one,) = pageable_copy(of)
    change = one.change(of)
    assert (change and change.shorter.get_column("saved_ns").unique().to_list()) == (saved and [saved])


def host_to_host(number):
    side = {"source_memory": "Pageable", "target_memory": "Pageable"}
    keys = {"size_bytes": 1 << 20, "side": side, "direction": "Host-to-Host"}
    events = [memcpy(1_000 * one + 1, 1_000 * one + 800, correlation=one + 1, **keys) for one in range(number)]
    return [
        *events,
        *(call("cudaMemcpy", 1_000 * one, 1_000 * one + 900, correlation=one + 1) for one in range(number)),
    ]


def launched_steps():
    """Seven steps that launches tell, with copies of seven sizes, so that nothing else tells that they recur."""
    events = []
    for step in range(7):
        events += synchronous(100_000 * step, 900, 100 * step + 1, size=(1 << 20) + step)
        for number in range(10):
            at, key = 100_000 * step + 2_000 + 100 * number, 100 * step + 10 + number
            launch = call("cudaLaunchKernel", at, at + 5, correlation=key)
            events += [launch, kernel(at + 10, at + 90, name=f"k{number % 6}", correlation=key)]
    return events


def first_of_thirty():
    """Copies in the first seven of thirty iterations, none of them within a range."""
    ranges = [
        nvtx(name, begin + at, begin + at + 100)
        for begin in range(0, 30_000, 1_000)
        for name, at in (("a", 100), ("b", 700))
    ]
    copies = [event for one in range(7) for event in a_copy(1_000 * one + 300, 50, one + 1)]
    return [*ranges, *copies, kernel(29_990, 30_000)]


def beside_a_kernel():
    """A kernel runs all along on one stream; on another one the copies cost nothing."""
    whole = [call("cudaLaunchKernel", 0, 5, correlation=50), kernel(0, 10_000, correlation=50, stream=9)]
    return [*whole, *(event for number in range(5) for event in a_copy(1000 * number, 100, number + 1))]


OF_ANY_SIZE = [event for one in range(40) for event in several(1, first=1_000 * one, size=(1 << 20) + one)]
RECURS, UNTOLD, ONCE = "they recur. Their calls", "which would tell whether they recur", "nothing shows that they recur"


@pytest.mark.parametrize(
    ("events", "rule", "stake", "words"),
    [
        (a_copy(0, 900, 1), "pageable-copy", 902, UNTOLD),
        (several(5), "pageable-copy", 5 * 902, UNTOLD),
        (several(4), "pageable-copy-once", 4 * 902, ONCE),
        (OF_ANY_SIZE, "pageable-copy", 40 * 902, UNTOLD),
        (OF_ANY_SIZE[:40], "pageable-copy-once", 20 * 902, ONCE),
        (stepwise(1 << 20, 1 << 20, 1 << 20), "pageable-copy", 3 * 902, UNTOLD),
        (stepwise(1 << 20, 1 << 21, 1 << 22), "pageable-copy-once", 3 * 902, ONCE),
        (stepwise(*[1 << 20] * 5, ranges=True), "pageable-copy", 5 * 902, RECURS),
        (stepwise(*[1 << 20] * 4, ranges=True), "pageable-copy-once", 4 * 902, "do not recur"),
        (launched_steps(), "pageable-copy", 7 * 902, RECURS),
        (first_of_thirty(), "pageable-copy", 7 * 52, RECURS),
    ],
)
def test_whether_copies_recur_is_told_by_what_there_is(events, rule, stake, words):
    (seen,) = found(events).values()
    assert (seen.rule, seen.at_stake_ns, words in seen.text) == (rule, stake, True)


def test_where_there_are_no_rounds_the_host_s_words_are_those_of_cuda():
    (seen,) = found(several(5)).values()
    assert seen.text.startswith("5 copies of pageable memory, 5.243 MB at")
    assert "cudaHostAlloc" in seen.action


@pytest.mark.parametrize(
    "events",
    [
        host_to_host(6),
        [event for one in range(4) for event in synchronous(1_000 * one, 900, one + 1, size=1 << 15)],  # with the call
        beside_a_kernel(),
    ],
)
def test_what_gains_nothing_is_none(events):
    assert found(events) == {}
