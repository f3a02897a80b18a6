"""What remedies change, replayed: by hand on small recordings, and as `whatif` where that can say the same."""

import polars as pl
import pytest
from hypothesis import strategies as st

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.idle.syncs import WAITING, blocking_calls
from kanalyze.analyses.replay._changes import Changes, Mending, host_times, without_profiler
from kanalyze.analyses.replay._host_time import HostTime
from kanalyze.analyses.replay._network import as_recorded, network, replayed
from kanalyze.analyses.replay._whatif import mended, prepared, whatif_of
from support.build import call, kernel, memcpy, report
from support.slow_replay import TURNS, simulated
from support.strategies import few_given, slow_given

LAUNCH, COPY, WAIT = "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaDeviceSynchronize_v3020"


def launched(number, begin, start, end):
    """A call of 10 ns, and the kernel that it launches."""
    begun = call(LAUNCH, begin, begin + 10, correlation=number, thread=1)
    return begun, kernel(start, end, correlation=number)


def rows(*numbers):
    return pl.Series("row", numbers, dtype=pl.UInt32)


def less(**saved_ns):
    return pl.DataFrame({"row": rows(*(int(row[1:]) for row in saved_ns)), "saved_ns": list(saved_ns.values())})


def ends(found, mending, window=None):
    """When the last thing of the window ends."""
    net = prepared(found) if window is None else network(found, *window)
    return replayed(net, mended(found, net, as_recorded(net), mending))[-1]


def busy():
    """Three kernels one right after the other, launched ahead: 30, 50 and 20 ns from 12 on."""
    return report([*launched(1, 0, 12, 42), *launched(2, 10, 42, 92), *launched(3, 20, 92, 112)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mending", "end"),
    [
        (Mending(), 112),
        (Mending(shorter=less(r1=20)), 92),
        (Mending(shorter=less(r1=60)), 62),
        (Mending(shorter=less(r2=-8)), 120),
        (Mending(gone=rows(1)), 62),
        (Mending(gone=rows(0, 2)), 62),  # the launch of the second, ends at 10 + 2 once the first call is gone
        (Mending(gone=rows(1), shorter=less(r0=-10)), 72),
    ],
)
def test_operations_of_a_busy_device(mending, end):
    assert ends(busy(), mending) == end


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mending", "end"),
    [
        (Mending(), 107),
        (Mending(shorter=less(r3=3)), 104),
        (Mending(shorter=less(r1=3)), 107),  # the host is the limit
        (Mending(gone=rows(1)), 77),  # a launch, and the 20 ns before it
        (Mending(gone=rows(1, 2)), 47),
        (Mending(gone=rows(3)), 87 - 10),  # nothing is left after the third
        (Mending(host=pl.DataFrame({"process_id": [1], "start": [10], "end": [30]})), 87),
        (Mending(host=pl.DataFrame({"process_id": [1], "start": [0], "end": [200]})), 47),
        (Mending(host=pl.DataFrame({"process_id": [2], "start": [0], "end": [200]})), 107),
    ],
)
def test_operations_for_which_the_host_is_late(mending, end):
    # four launches of 10 ns, 20 ns of the program before each, kernels of 5 ns that start 2 ns after
    lazy = report([event for n in range(4) for event in launched(n, 30 * n, 30 * n + 12, 30 * n + 17)])
    assert ends(lazy, mending) == end


def test_a_launch_after_a_long_pause_takes_no_more_of_it_along_than_is_usual():
    """The third of four launches comes after 290 ns, in which something else was done; 20 is usual."""
    begins = [0, 30, 330, 360]
    made = report([event for n, at in enumerate(begins) for event in launched(n, at, at + 12, at + 17)])
    assert ends(made, Mending()) == 377
    assert ends(made, Mending(gone=rows(2))) == 377 - 30


def test_waits_that_are_gone():
    """The host waits for 60 ns of kernel, and launches the next one after that."""
    events = [*launched(1, 0, 12, 72), call(WAIT, 10, 75, correlation=2, thread=1), *launched(3, 80, 92, 100)]
    found = report(events)
    assert ends(found, Mending()) == 100
    assert ends(found, Mending(calls=rows(1))) == 72 + 2 + 8  # in its stream, a launch latency later: none was seen


@pytest.mark.slow
@pytest.mark.parametrize(("process", "end"), [(1, 200 - 50), (2, 200)])
def test_what_a_wait_does_after_what_it_is_for_is_the_hosts(process, end):
    """A wait for a kernel's end at 72 returns at 175; of the 50 ns from 100 on nothing is left."""
    events = [*launched(1, 0, 12, 72), call(WAIT, 10, 175, correlation=2, thread=1), *launched(3, 180, 192, 200)]
    spared = pl.DataFrame({"process_id": [process], "start": [100], "end": [150]})
    assert ends(report(events), Mending(host=spared)) == end


def test_copies_that_do_not_block():
    """A copy is put aside by the host for 38 ns before it starts, in a call of 50; launches take 10."""
    size = {"size_bytes": 1 << 20, "direction": "Host-to-Device"}
    sides = {"side": {"source_memory": "Pageable", "target_memory": "Device"}}
    copy = memcpy(48, 60, correlation=2, **size, **sides)
    events = [*launched(1, 0, 12, 17), call(COPY, 10, 60, correlation=2, thread=1), copy, *launched(3, 60, 72, 80)]
    found = report(events)
    assert ends(found, Mending()) == 80
    # the kernel behind it begins as soon as launches do, not when the host had put the copy aside
    assert ends(found, Mending(unwaited=rows(1))) == 17 + 2 + 12 + 2 + 8


def test_only_the_window_changes():
    found = busy()
    assert ends(found, Mending(gone=rows(0, 1)), window=(50, 112)) == 112  # the second began before it
    assert ends(found, Mending(shorter=less(r1=50)), window=(50, 112)) == 112 - 42


def queued(kernel_ns, *, launches=1100, room=1022):
    """A program that launches ahead until its stream holds `room` launches, and when it ends."""
    events, done, now = [], [], 0
    for number in range(launches):
        begun, now = now, now + 2000
        if number >= room:
            now = max(now, done[number - room] + 3000)
        start = max(now + 1000, done[-1] + 500) if done else now + 1000
        done.append(start + kernel_ns)
        events += [call(LAUNCH, begun, now, correlation=number, thread=1)]
        events += [kernel(start, done[-1], correlation=number)]
    return report(events), done[-1]


@pytest.mark.parametrize("kernel_ns", [10_000, 14_000])
def test_launches_that_wait_for_room_in_their_stream_wait_less_where_kernels_are_shorter(kernel_ns):
    found, end = queued(20_000)
    work = operations(found)
    assert ends(found, Mending()) == end
    saved = work.select("row", saved_ns=20_000 - pl.lit(kernel_ns))
    assert ends(found, Mending(shorter=saved)) == queued(kernel_ns)[1]


@pytest.mark.parametrize("name", ["cuLaunchHostFunc", "cuEventRecord"])
def test_host_functions_that_wait_for_room_wait_less_where_kernels_are_shorter(name):
    """A thread enqueues one in the first of two kernels, returns as that ends, and launches the second."""
    events = [call(LAUNCH, 0, 2_000, correlation=1), kernel(3_000, 4_003_000, correlation=1)]
    events += [call(name, 5_000, 4_004_000), call(LAUNCH, 4_005_000, 4_007_000, correlation=2)]
    found = report([*events, kernel(4_008_000, 4_009_000, correlation=2)])
    halved = ends(found, Mending(shorter=less(r0=3_000_000)))
    assert (ends(found, Mending()), halved < 1_100_000) == (4_009_000, name == "cuLaunchHostFunc")


@slow_given(TURNS, st.sampled_from([2, 4]))
def test_shorter_kernels_of_simulated_programs(turns, factor):
    made = simulated(turns).report
    work = operations(made).filter(pl.col("kind") == "kernel")
    saved = work.select("row", saved_ns=pl.col("dur_ns") - pl.col("dur_ns") // factor)
    expected = simulated(turns, kernel_ns=lambda one: one.ns // factor).end
    assert ends(made, Mending(shorter=saved)) - prepared(made).start == expected


@few_given(TURNS)
def test_calls_that_only_wait_are_gone_as_without_sync(turns):
    made = simulated(turns).report
    waits = blocking_calls(made).filter(pl.col("scope").is_in(WAITING)).get_column("call_row")
    expected = whatif_of(made, Changes(without=("sync",)), [], each=False, measured_ns=None).then_ns
    assert ends(made, Mending(calls=waits)) - prepared(made).start == expected


@slow_given(TURNS, st.integers(1, 5), st.integers(1, 5))
def test_with_fewer_operations_nothing_is_later(turns, every, more):
    made = simulated(turns).report
    all_rows = operations(made).get_column("row")
    some, fewer = all_rows.gather_every(every * more), all_rows.gather_every(every)
    took = [ends(made, Mending(gone=gone)) for gone in (all_rows.head(0), some, fewer)]
    assert took == sorted(took, reverse=True)


def test_kernels_that_the_host_waits_for_one_by_one_follow_each_other_closely_without():
    """Of a stream none was seen to begin behind another: it takes a microsecond, less than a launch."""
    events = []
    for number in range(4):
        at = 20_000 * number
        events += [call(LAUNCH, at, at + 500, correlation=number), kernel(at + 3_000, at + 8_000, correlation=number)]
        events.append(call(WAIT, at + 600, at + 10_000))
    found = report([one for one in events if one.name != WAIT or one.start < 60_000])
    waits = pl.Series("row", [1, 3, 5], dtype=pl.UInt32)
    assert 3_000 + 4 * 5_000 + 3 * 1_000 <= ends(found, Mending(calls=waits)) < 68_000


def test_a_launch_that_a_free_gpu_begins_far_too_late_was_held_up_by_something_else():
    """Without the profiler it begins as soon as others do."""
    events = [event for n in range(4) for event in launched(n, 30 * n, 30 * n + 12, 30 * n + 17)]
    late = [*launched(4, 120, 1_000_132, 1_000_137), *launched(5, 1_000_150, 1_000_162, 1_000_167)]
    found = report([*events, *late])
    net = prepared(found)
    state = without_profiler(net, as_recorded(net), HostTime(0.5), host_times(found, net))
    held, lags = net.edges.get_column("slack") > 200_000, state.lags
    assert held.sum() >= 1
    kinds = net.edges.get_column("kind").cast(pl.String)
    assert lags.filter(held & (kinds == "launch")).to_list() == [2]
