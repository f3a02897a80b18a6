"""Memory over time: the step function and its peaks, against a model that keeps a list of what is allocated."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.memory.memory import memory
from kanalyze.errors import CannotTellError, UnknownNameError
from kanalyze.window import Window
from support.build import Event, call, kernel, report
from support.nsys_csv import report_of
from support.strategies import FEWER

MB = 1 << 20


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
    return memory(of, trace=True, **where).select(columns or ("t_ns", "delta_bytes", "in_use_bytes")).rows()


def test_the_step_function_and_its_totals():
    events = [taken(0, 1, 100), taken(10, 2, 50), given_back(20, 1, 100), taken(30, 1, 30), given_back(40, 2, 50)]
    of = report(events)
    assert trace(of) == [(0, 100, 100), (10, 50, 150), (20, -100, 50), (30, 30, 80), (40, -50, 30)]
    assert memory(of).to_dicts() == [
        {
            "device": 0,
            "process_id": 1,
            "memory": "Device",
            "allocations": 3,
            "frees": 2,
            "allocated_bytes": 180,
            "freed_bytes": 150,
            "peak_bytes": 150,
            "peak_at_ns": 10,
            "held_bytes": 30,
            "held": 1,
            "loop_allocations": 0,
            "loop_bytes": 0,
            "pool_peak_bytes": None,
            "unmatched": 0,
        }
    ]


def test_the_peak_is_where_it_was_first_reached():
    events = [taken(0, 1, 10), given_back(5, 1), taken(8, 1, 10)]
    assert totals(report(events), "peak_bytes", "peak_at_ns") == [(10, 0)]


def test_what_was_allocated_unseen_takes_nothing_away():
    of = report([given_back(0, 7, 100), taken(10, 7, 40), given_back(20, 7, 40), given_back(30, 7, 40)])
    assert trace(of) == [(0, None, 0), (10, 40, 40), (20, -40, 0), (30, None, 0)]
    assert totals(of, "frees", "held", "held_bytes", "peak_bytes", "unmatched") == [(3, 0, 0, 40, 2)]


def test_what_was_given_back_unseen_is_replaced():
    of = report([taken(0, 7, 100), taken(10, 7, 40), given_back(20, 7)])
    assert trace(of) == [(0, 100, 100), (10, -60, 40), (20, -40, 0)]
    assert totals(of, "allocations", "held", "peak_bytes", "unmatched") == [(2, 0, 100, 1)]


def test_a_deallocation_is_of_what_was_allocated_there():
    """Some reports say the device or kind only once."""
    of = report([taken(0, 7, 100, memory="Pinned"), given_back(5, 7, 0, memory=None, device=None)])
    assert trace(of, "memory", "device", "size_bytes", "in_use_bytes") == [
        ("Pinned", 0, 100, 100),
        ("Pinned", 0, 100, 0),
    ]


def test_kinds_processes_and_devices_are_apart():
    events = [
        *(taken(0, 1, 10), taken(1, 2, 20, memory="Pinned"), taken(2, 3, 40, device=1)),
        *(taken(3, 1, 80, process=2), taken(4, 4, 160, memory="Device Static")),
    ]
    of = report(events)
    keys = ("device", "process_id", "memory", "peak_bytes")
    assert totals(of, *keys) == [
        (0, 1, "Device Static", 160),
        (0, 2, "Device", 80),
        (1, 1, "Device", 40),
        (0, 1, "Pinned", 20),
        (0, 1, "Device", 10),
    ]
    assert totals(of, "device", "peak_bytes", "allocations", by="device") == [(0, 250, 3), (1, 40, 1)]
    assert trace(of, "device_bytes") == [(10,), (None,), (40,), (90,), (250,)]


def test_a_window_begins_with_what_was_in_use():
    events = [taken(0, 1, 100), taken(10, 2, 50), given_back(20, 1), taken(30, 3, 60), given_back(40, 2)]
    of = report(events)
    keys = ("allocations", "frees", "peak_bytes", "peak_at_ns", "held_bytes", "held")
    assert totals(of, *keys, window=Window(15, 35)) == [(1, 1, 150, 15, 110, 2)]
    assert totals(of, *keys, window=Window(12, 15)) == [(0, 0, 150, 12, 150, 2)]
    assert totals(of, *keys, window=Window(None, 5)) == [(1, 0, 100, 0, 100, 1)]
    assert totals(of, *keys, window=Window(41, None)) == [(0, 0, 60, 41, 60, 1)]
    assert trace(of, window=Window(15, 35)) == [(20, -100, 50), (30, 60, 110)]


def test_of_a_device_or_a_process():
    of = report(
        [kernel(0, 1), kernel(0, 1, device=1), taken(0, 1, 10), taken(0, 2, 20, device=1), taken(0, 3, 5, process=2)]
    )
    assert totals(of, "process_id", "peak_bytes", device=1) == [(1, 20)]
    assert totals(of, "device", "peak_bytes", process=2) == [(0, 5)]


def test_pools_have_a_size_of_their_own():
    pool = {"pool": 64, "pool_size_bytes": 1000}
    of = report([taken(0, 64, 10, **pool, pool_used_bytes=10), given_back(5, 64, 10, **pool, pool_used_bytes=0)])
    assert totals(of, "pool_peak_bytes") == [(1000,)]
    assert trace(of, "pool", "pool_size_bytes", "pool_used_bytes") == [(64, 1000, 10), (64, 1000, 0)]


def rounds(count, *, start=0, malloc="cudaMalloc_v3020", free="cudaFree_v3020"):
    """So often: allocate, launch, give back; ten nanoseconds each, the kernel in the middle."""
    events = []
    for number in range(count):
        at, ids = start + 100 * number, [start + 3 * number + step for step in (1, 2, 3)]
        events += [call(malloc, at, at + 10, correlation=ids[0]), taken(at + 9, 5, 64, correlation=ids[0])]
        events += [call("cudaLaunchKernel", at + 20, at + 30, correlation=ids[1])]
        events += [kernel(at + 30, at + 40, correlation=ids[1])]
        events += [call(free, at + 50, at + 60, correlation=ids[2]), given_back(at + 59, 5, correlation=ids[2])]
    return events


def looping(of):
    return memory(of, by="call").select("call", "count", "loop_calls", "loop_launches").rows()


def test_what_is_allocated_over_and_over_is_in_a_loop():
    """Of eight rounds the first is before the first round that counts, that one has to be, and the last has no end."""
    of = report(rounds(8))
    assert looping(of) == [("cudaFree", 8, 5, 5), ("cudaMalloc", 8, 5, 5)]
    assert totals(of, "allocations", "loop_allocations", "loop_bytes") == [(8, 5, 5 * 64)]


def test_a_few_rounds_are_no_loop():
    assert looping(report(rounds(6))) == [("cudaFree", 6, 0, 0), ("cudaMalloc", 6, 0, 0)]


def test_without_launches_there_is_no_loop():
    events = [event for event in rounds(20) if event.kind != "kernel"]
    assert looping(report([*events, kernel(5000, 5010)])) == [("cudaFree", 20, 0, 0), ("cudaMalloc", 20, 0, 0)]


def test_what_is_allocated_to_stay_is_in_no_loop():
    """A caching allocator takes memory between launches as long as it grows."""
    events = [event for event in rounds(20) if event.name not in ("cudaFree_v3020", "Deallocation")]
    assert looping(report(events)) == [("cudaMalloc", 20, 0, 0)]


def test_what_is_allocated_once_beside_a_loop_is_in_none():
    """It ends the last round, so that this one counts, too."""
    once = [call("cudaHostAlloc", 901, 902), call("cudaFreeHost", 903, 904), call("cudaMalloc_v3020", 905, 910)]
    found = {name: count for name, _, count, _ in looping(report([*rounds(9), *once]))}
    assert found == {"cudaFree": 7, "cudaMalloc": 7, "cudaHostAlloc": 0, "cudaFreeHost": 0}


def test_loops_of_two_processes_are_their_own():
    events = rounds(8)
    other = [Event(**{**vars(event), "process": 2}) for event in rounds(3, start=10_000)]
    assert looping(report([*events, *other])) == [("cudaFree", 11, 5, 5), ("cudaMalloc", 11, 5, 5)]


def test_exposed_time_is_that_of_the_ledger():
    of = report_of("memory")
    calls, held = memory(of, by="call"), ledger(of)
    held = {row["detail"]: row["ns"] for row in held.rows(named=True) if row["bucket"] == "allocation"}
    assert {row["call"]: row["exposed_ns"] for row in calls.rows(named=True)}.items() <= held.items()
    assert (calls["exposed_ns"] <= calls["total_ns"]).all()


def test_without_device_operations_nothing_is_exposed_to():
    of = report([call("cudaMalloc", 0, 10)], kinds=("api",))
    assert memory(of, by="call").select("call", "exposed_ns").rows() == [("cudaMalloc", None)]


def test_the_calls_of_a_window():
    of = report(rounds(8))
    assert memory(of, by="call", window=Window(200, 310)).select("call", "count", "loop_calls").rows() == [
        ("cudaMalloc", 2, 2),
        ("cudaFree", 1, 1),
    ]


def test_the_program_that_allocates_in_loops():
    """100 rounds of cudaMalloc, and 20 of two cudaMallocAsync; then a peak of seven allocations beside 8 MB."""
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
    assert calls["cudaHostAlloc"] == calls["cudaMallocManaged"] == calls["cudaMallocPitch"] == 0


def test_a_caching_allocator_is_in_no_loop():
    assert memory(report_of("torch"))["loop_allocations"].sum() == 0


def test_what_is_missing():
    with pytest.raises(CannotTellError):
        memory(report([kernel(0, 1)]))
    with pytest.raises(CannotTellError):
        memory(report([], kinds=("memory",)), by="call")
    with pytest.raises(UnknownNameError):
        memory(report([]), by="kind")
    nothing = report([], kinds=("memory", "api"))
    assert memory(nothing).is_empty()
    assert memory(nothing, trace=True).is_empty()
    assert memory(nothing, by="device").is_empty()
    assert memory(nothing, by="call").is_empty()
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
        earlier = allocated.pop(place, None)
        if event.name == "Allocation":
            allocated[place] = ((event.device, event.process, event.side["memory"]), event.side["size_bytes"])
        if event.start < high:
            in_use = defaultdict(int)
            for key, size in allocated.values():
                in_use[key] += size
            levels.append((event.start, dict(in_use)))
            held = dict(in_use)
        del earlier
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
    steps = memory(report(events, kinds=("memory",)), trace=True)
    assert (steps["in_use_bytes"] >= 0).all()


def _changes_hands(earlier, event):
    """Whether an address was another kind of memory, or another device's, before: no report can have that."""
    same = [one for one in earlier if (one.process, one.side["address"]) == (event.process, event.side["address"])]
    return any((one.device, one.side["memory"]) != (event.device, event.side["memory"]) for one in same)
