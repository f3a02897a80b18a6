"""Memory over time: the step function and its peaks, against a model that keeps a list of what is allocated."""

import gzip
import json
from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.memory.memory import memory, told
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import MB, Event, call, kernel, launched, report
from support.command import REPORTS
from support.nsys_csv import report_of
from support.real_reports import real_report
from support.strategies import FEWER

STEPS = ("t_ns", "delta_bytes", "in_use_bytes")


def taken(at, address, size, **told):
    return _event("Allocation", at, {"address": address, "size_bytes": size, **told})


def given_back(at, address, size=0, **told):
    return _event("Deallocation", at, {"address": address, "size_bytes": size, **told})


def _event(name, at, told):
    of_event = {"process": 1, "device": 0, "correlation": None}
    keys = {key: told.pop(key, default) for key, default in of_event.items()}
    return Event("memory", name, at, at, side={"memory": "Device", **told}, **keys)


def totals(of, *columns, **where):
    return memory(of, **where).select(columns).rows()


def trace(of, *columns, **where):
    return memory(of, trace=True, **where).select(columns or STEPS).rows()


TOLD_ONCE = [taken(0, 7, 100, memory="Pinned"), given_back(5, 7, 0, memory=None, device=None)]
FIRST_PEAK = {"peak_bytes": 10, "peak_at_ns": 0}
ALL = [taken(0, 1, 100), taken(10, 2, 50), given_back(20, 1, 100), taken(30, 1, 30), given_back(40, 2, 50)]
EVERY_COLUMN = {
    "device": 0, "process_id": 1, "memory": "Device", "allocations": 3, "frees": 2, "allocated_bytes": 180,
    "freed_bytes": 150, "peak_bytes": 150, "peak_at_ns": 10, "held_bytes": 30, "held": 1,
    "loop_allocations": 0, "loop_bytes": 0, "pool_peak_bytes": None, "unmatched": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("events", "steps", "sums"),
    [
        (ALL, [(0, 100, 100), (10, 50, 150), (20, -100, 50), (30, 30, 80), (40, -50, 30)], EVERY_COLUMN),
        # the peak is where it was first reached
        ([taken(0, 1, 10), given_back(5, 1), taken(8, 1, 10)], [(0, 10, 10), (5, -10, 0), (8, 10, 10)], FIRST_PEAK),
        # what was allocated unseen takes nothing away
        (
            [given_back(0, 7, 100), taken(10, 7, 40), given_back(20, 7, 40), given_back(30, 7, 40)],
            [(0, None, 0), (10, 40, 40), (20, -40, 0), (30, None, 0)],
            {"frees": 3, "held": 0, "held_bytes": 0, "peak_bytes": 40, "unmatched": 2},
        ),
        # what was given back unseen is replaced
        (
            [taken(0, 7, 100), taken(10, 7, 40), given_back(20, 7)],
            [(0, 100, 100), (10, -60, 40), (20, -40, 0)],
            {"allocations": 2, "held": 0, "peak_bytes": 100, "unmatched": 1},
        ),
        # a deallocation is of what was allocated there: some reports say the device or kind only once
        (TOLD_ONCE, [(0, 100, 100), (5, -100, 0)], {"device": 0, "memory": "Pinned", "frees": 1}),
    ],
)
def test_steps_and_sums(events, steps, sums):
    of = report(events)
    assert trace(of) == steps
    assert totals(of, *sums) == [tuple(sums.values())]


def rounds(*kinds, start=0):
    """A round each of 100 ns: allocate 64 bytes, launch (or not), give back."""
    events = []
    for number, (take, give, launches) in enumerate(kinds):
        at, ids = start + 100 * number, [start + 3 * number + step for step in (1, 2, 3)]
        events += [call(take, at, at + 10, correlation=ids[0]), taken(at + 9, 5, 64, correlation=ids[0])]
        if launches:
            events += launched(at + 20, at + 30, kernel(at + 30, at + 40, correlation=ids[1]))
        events += [call(give, at + 50, at + 60, correlation=ids[2]), given_back(at + 59, 5, correlation=ids[2])]
    return events


SYNC, IDLE = (("cudaMalloc_v3020", "cudaFree_v3020", launches) for launches in (True, False))
ASYNC = ("cudaMallocAsync_v11020", "cudaFreeAsync_v11020", True)


def looping(events):
    return {row["call"]: row["loop_calls"] for row in memory(report(events), by="call").rows(named=True)}


#: Rounds, with the calls to cudaMalloc that are in a loop.
LOOPS = {
    "a few rounds are none": ([SYNC] * 6, 0),
    "one more is one": ([SYNC] * 7, 4),
    "without launches there is none": ([IDLE] * 20, 0),
    # rounds 2 to 9 are in the first loop and 11 to 18 in the second: one has to be, and the last has no end
    "one round long after a loop is in none": ([*[SYNC] * 10, *[ASYNC] * 9, SYNC, ASYNC], 8),
    "a few rounds after a loop are in none": ([*[SYNC] * 10, *[ASYNC] * 10, *[SYNC] * 4, ASYNC], 8),
    "a second loop of the same call is one of its own": ([*[SYNC] * 10, *[ASYNC] * 10, *[SYNC] * 6, ASYNC], 8 + 5),
    "two kinds of rounds in turn are two loops": ([SYNC, ASYNC] * 10, 8),
    "rounds without a launch do not break a loop": ([SYNC, IDLE] * 10, 8),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", LOOPS)
def test_loops(name):
    kinds, count = LOOPS[name]
    assert looping([*rounds(*kinds), kernel(9000, 9010)])["cudaMalloc"] == count


def test_what_is_in_no_loop():
    """A caching allocator takes memory between launches as long as it grows; what is once beside a loop ends it."""
    events = [event for event in rounds(*[SYNC] * 20) if event.name not in ("cudaFree_v3020", "Deallocation")]
    assert looping(events) == {"cudaMalloc": 0}
    once = [call("cudaHostAlloc", 901, 902), call("cudaFreeHost", 903, 904), call("cudaMalloc_v3020", 905, 910)]
    assert looping([*rounds(*[SYNC] * 9), *once]) == {
        "cudaFree": 7, "cudaMalloc": 7, "cudaHostAlloc": 0, "cudaFreeHost": 0,
    }  # fmt: skip


def test_exposed_time_is_that_of_the_ledger():
    of = report_of("memory")
    calls, held = memory(of, by="call"), ledger(of)
    held = {row["detail"]: row["ns"] for row in held.rows(named=True) if row["bucket"] == "allocation"}
    assert {row["call"]: row["exposed_ns"] for row in calls.rows(named=True)}.items() <= held.items()
    assert (calls["exposed_ns"] <= calls["total_ns"]).all()


def test_the_program_that_allocates_in_loops():
    """64 kB to 640 kB in turn, 100 times; 1 and 2 MiB, 20 times; then a peak of seven allocations beside 8 MB.

    Of each loop the rounds from the third on are in it (the first is before the first that counts), and of the second
    all but the last, which ends elsewhere.
    """
    of = report_of("memory")
    found = {row["memory"]: row for row in memory(of).rows(named=True)}
    held = (16 + 1 + 64 + 256 + 3 + 512 + 128) * MB
    freed = (128 + 3 + 64 + 16) * MB
    assert found["Device"]["peak_bytes"] == max(held, held - freed + 300 * MB) + 8 * MB
    assert (found["Device"]["held"], found["Device"]["held_bytes"]) == (2, 18 * MB)
    assert (found["Pinned"]["peak_bytes"], found["Managed"]["peak_bytes"]) == (14 * MB, 4 * MB)
    calls = {row["call"]: row["loop_calls"] for row in memory(of, by="call").rows(named=True)}
    assert calls["cudaMalloc"] == 98
    assert calls["cudaMallocAsync_v11020"] == 38
    sizes = [4 * 1024 * 16 * (1 + number % 10) for number in range(2, 100)]
    assert found["Device"]["loop_allocations"] == 98 + 2 * 19
    assert found["Device"]["loop_bytes"] == sum(sizes) + 19 * 3 * MB
    assert calls["cudaHostAlloc"] == calls["cudaMallocManaged"] == calls["cudaMallocPitch"] == 0


def test_what_is_missing():
    with pytest.raises(CannotTellError):
        memory(report([], kinds=("memory",)), by="call")
    unknown = report([taken(0, 1, 10)], kinds=("memory",))
    assert totals(unknown, "loop_allocations", "loop_bytes") == [(None, None)]


STEP = st.builds(
    lambda name, *fields: (taken if name else given_back)(
        *fields[:3], memory=fields[3], process=fields[4], device=fields[5]
    ),
    st.booleans(),
    st.integers(0, 30),
    st.integers(1, 4),
    st.integers(0, 9),
    st.sampled_from(["Device", "Device", "Pinned"]),
    st.sampled_from([1, 1, 2]),
    st.sampled_from([0, 0, 1]),
)


def slowly(events, low, high):
    """What is in use by device, process and kind after each event; then in a window: its peak, and what is held."""
    allocated, levels, held = {}, [], {}
    for event in sorted(events, key=lambda event: event.start):
        place = (event.process, event.side["address"])
        allocated.pop(place, None)
        if event.name == "Allocation":
            allocated[place] = ((event.device, event.process, event.side["memory"]), event.side["size_bytes"])
        if event.start < high:
            in_use = defaultdict(int)
            for key, size in allocated.values():
                in_use[key] += size
            levels.append((event.start, dict(in_use)))
            held = dict(in_use)
    peaks = defaultdict(int)
    before = [in_use for at, in_use in levels if at < low]
    for in_use in (*before[-1:], *(in_use for at, in_use in levels if at >= low)):
        for key, size in in_use.items():
            peaks[key] = max(peaks[key], size)
    return {key: size for key, size in peaks.items() if size}, {key: size for key, size in held.items() if size}


@given(st.lists(STEP, max_size=14), st.integers(0, 20), st.integers(21, 40))
@FEWER
def test_peaks_and_what_is_held_equal_the_model(events, low, high):
    events = [event for number, event in enumerate(events) if not _changes_hands(events[:number], event)]
    found = memory(report(events, kinds=("memory",)), window=Window(low, high))
    rows = found.select("device", "process_id", "memory", "peak_bytes", "held_bytes").rows()
    peaks, held = slowly(events, low, high)
    assert {row[:3]: row[3] for row in rows if row[3]} == peaks
    assert {row[:3]: row[4] for row in rows if row[4]} == held
    assert (memory(report(events, kinds=("memory",)), trace=True)["in_use_bytes"] >= 0).all()


def _changes_hands(earlier, event):
    """Whether an address was another kind of memory, or another device's, before: no report can have that."""
    same = [one for one in earlier if (one.process, one.side["address"]) == (event.process, event.side["address"])]
    return any((one.device, one.side["memory"]) != (event.device, event.side["memory"]) for one in same)


# an allocator of a framework, which tells with every event what it has in use and what it holds

TRACE = REPORTS / "torch" / "memory.json.gz"


def used_up(at, address, size, used, event=taken):
    return event(at, address, size, pool_used_bytes=used, pool_size_bytes=1000)


def let_go(at, address, size, used):
    return used_up(at, address, size, used, given_back)


#: A tensor of 300 bytes that was there before, and given back; one that stays; and the calls of a program.
EVENTS = [
    call("cudaLaunchKernel", 0, 1), used_up(10, 1, 50, 350), let_go(20, 99, 300, 50), used_up(30, 2, 100, 150),
    let_go(40, 1, 50, 100),
]  # fmt: skip


def test_a_page_says_what_such_an_allocation_is():
    """Pools of CUDA have a number, and their loops are as they were."""
    assert told(memory(report(EVENTS))) == (
        "What the framework's allocator gave out, which held up to 1.000 kB of GPU 0: no CUDA calls."
    )
    pool = {"pool": 64, "pool_used_bytes": 350}
    of_cuda = report([call("cudaMalloc", 0, 1), taken(10, 1, 50, **pool)])
    assert totals(of_cuda, "peak_bytes", "held", "loop_allocations") == [(50, 1, 0)]
    assert told(memory(of_cuda)) == ""


def test_the_totals_of_a_real_trace():
    of = real_report(TRACE)
    with gzip.open(TRACE) as file:
        found = [event["args"] for event in json.load(file)["traceEvents"] if event["name"] == "[memory]"]
    totals = [args["Total Allocated"] for args in found if args["Device Type"] == 1]
    (row,) = memory(of).filter(pl.col("memory") == "Device").iter_rows(named=True)
    assert (row["peak_bytes"], row["allocations"] + row["frees"]) == (max(totals), len(totals))
    shown = memory(of, trace=True).filter(pl.col("memory") == "Device")
    assert shown.get_column("in_use_bytes").equals(shown.get_column("pool_used_bytes"), check_names=False)


@given(st.data())
def test_in_use_is_what_the_allocator_says(data):
    before, used, events, live = data.draw(st.integers(0, 500)), 0, [], {}
    used = before
    for at in range(data.draw(st.integers(1, 8))):
        if live and data.draw(st.booleans()):
            address = data.draw(st.sampled_from(sorted(live)))
            used -= live[address]
            events.append(let_go(at, address, live.pop(address), used))
        elif before and data.draw(st.booleans()):
            size = data.draw(st.integers(1, before))
            before, used = before - size, used - size
            events.append(let_go(at, 1000 + at, size, used))
        else:
            live[at] = data.draw(st.integers(1, 99))
            used += live[at]
            events.append(used_up(at, at, live[at], used))
    shown = memory(report(events), trace=True)
    assert shown.get_column("in_use_bytes").equals(shown.get_column("pool_used_bytes"), check_names=False)
    first = events[0]
    start = first.side["pool_used_bytes"] + (1 if first.name == "Deallocation" else -1) * first.side["size_bytes"]
    levels = [start, *(event.side["pool_used_bytes"] for event in events)]
    assert totals(report(events), "peak_bytes", "held_bytes") == [(max(levels), levels[-1])]


FIVE = [taken(0, 1, 100), taken(10, 2, 50), given_back(20, 1), taken(30, 3, 60), given_back(40, 2)]
APART = [
    *(taken(0, 1, 10), taken(1, 2, 20, memory="Pinned"), taken(2, 3, 40, device=1), kernel(0, 1, device=1)),
    *(taken(3, 1, 80, process=2), taken(4, 4, 160, memory="Device Static"), kernel(0, 1)),
]
IN_WINDOW = ("allocations", "frees", "peak_bytes", "peak_at_ns", "held_bytes", "held")
BEFORE = [let_go(20, 99, 300, 50), used_up(30, 2, 100, 150)]
WHOLE = ("peak_bytes", "peak_at_ns", "held_bytes", "held", "pool_peak_bytes", "unmatched", "loop_allocations")
FULL = {"address": 0, "size_bytes": 900, "pool_used_bytes": 350, "pool_size_bytes": 1000}
LOOPED = ("call", "count", "loop_calls", "loop_launches")


@pytest.mark.parametrize(
    ("events", "where", "columns", "rows"),
    [
        # kinds, processes and devices are apart
        (
            APART, {}, ("device", "process_id", "memory", "peak_bytes"),
            [(0, 1, "Device Static", 160), (0, 2, "Device", 80), (1, 1, "Device", 40), (0, 1, "Pinned", 20),
             (0, 1, "Device", 10)],
        ),
        (APART, {"by": "device"}, ("device", "peak_bytes", "allocations"), [(0, 250, 3), (1, 40, 1)]),
        (APART, {"device": 1}, ("process_id", "peak_bytes"), [(1, 40)]),
        (APART, {"process": 2}, ("device", "peak_bytes"), [(0, 80)]),
        (APART, {"trace": True}, ("device_bytes",), [(10,), (None,), (40,), (90,), (250,)]),
        # a window begins with what was in use
        (FIVE, {"window": Window(15, 35)}, IN_WINDOW, [(1, 1, 150, 15, 110, 2)]),
        (FIVE, {"window": Window(12, 15)}, IN_WINDOW, [(0, 0, 150, 12, 150, 2)]),
        (FIVE, {"window": Window(None, 5)}, IN_WINDOW, [(1, 0, 100, 0, 100, 1)]),
        (FIVE, {"window": Window(41, None)}, IN_WINDOW, [(0, 0, 60, 41, 60, 1)]),
        (FIVE, {"window": Window(15, 35), "trace": True}, STEPS, [(20, -100, 50), (30, 60, 110)]),
        # what an allocator had before counts, may be the peak, and is let go
        (EVENTS, {}, WHOLE, [(350, 10, 100, None, 1000, 1, None)]),
        (EVENTS, {"by": "device"}, WHOLE, [(350, 10, 100, None, 1000, 1, None)]),
        (EVENTS, {"trace": True}, STEPS, [(10, 50, 350), (20, -300, 50), (30, 100, 150), (40, -50, 100)]),
        (BEFORE, {}, WHOLE[:3], [(350, 20, 150)]),
        (BEFORE, {"window": Window(25, 40)}, WHOLE[:2], [(150, 30)]),
        (BEFORE, {"window": Window(10, 40)}, WHOLE[:2], [(350, 20)]),
        # running out of memory takes none
        ([used_up(10, 1, 50, 350), _event("Out of memory", 20, FULL)], {}, IN_WINDOW[:2], [(1, 0)]),
        # of rounds the first is before the first that counts, that one has to be, and the last has no end
        (rounds(*[SYNC] * 8), {}, ("allocations", "loop_allocations", "loop_bytes"), [(8, 5, 5 * 64)]),
        (rounds(*[SYNC] * 8), {"by": "call"}, LOOPED, [("cudaFree", 8, 5, 5), ("cudaMalloc", 8, 5, 5)]),
        (
            rounds(*[SYNC] * 8), {"by": "call", "window": Window(200, 310)}, ("call", "count", "loop_calls"),
            [("cudaMalloc", 2, 2), ("cudaFree", 1, 1)],
        ),
    ],
)  # fmt: skip
def test_which_memory_counts(events, where, columns, rows):
    assert memory(report(events), **where).select(columns).rows() == rows


def test_pools_have_a_size_of_their_own():
    pool = {"pool": 64, "pool_size_bytes": 1000}
    of = report([taken(0, 64, 10, **pool, pool_used_bytes=10), given_back(5, 64, 10, **pool, pool_used_bytes=0)])
    assert totals(of, "pool_peak_bytes") == [(1000,)]
    assert trace(of, "pool", "pool_size_bytes", "pool_used_bytes") == [(64, 1000, 10), (64, 1000, 0)]


def test_loops_of_two_processes_are_their_own_and_without_devices_nothing_is_exposed_to():
    other = [Event(**{**vars(event), "process": 2}) for event in rounds(*[SYNC] * 3, start=10_000)]
    assert looping([*rounds(*[SYNC] * 8), *other]) == {"cudaFree": 5, "cudaMalloc": 5}
    of = report([call("cudaMalloc", 0, 10)], kinds=("api",))
    assert memory(of, by="call").select("call", "exposed_ns").rows() == [("cudaMalloc", None)]
    assert memory(report_of("torch"))["loop_allocations"].sum() == 0  # a caching allocator is in no loop
