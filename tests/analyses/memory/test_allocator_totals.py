"""Memory of a framework's allocator, which tells with every event what it has in use and what it holds."""

import gzip
import json
from pathlib import Path

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.memory.memory import memory, told
from kanalyze.window import Window
from support.build import Event, call, report
from support.real_reports import real_report

TRACE = Path(__file__).parents[2] / "reports" / "torch" / "memory.json.gz"


def event(name, at, address, size, used):
    side = {"address": address, "size_bytes": size, "pool_used_bytes": used, "pool_size_bytes": 1000}
    return Event("memory", name, at, at, device=0, side={"memory": "Device", **side})


def taken(at, address, size, used):
    return event("Allocation", at, address, size, used)


def given_back(at, address, size, used):
    return event("Deallocation", at, address, size, used)


#: A tensor of 300 bytes that was there before, and given back; one that stays; and the calls of a program.
EVENTS = [
    call("cudaLaunchKernel", 0, 1),
    taken(10, 1, 50, 350),
    given_back(20, 99, 300, 50),
    taken(30, 2, 100, 150),
    given_back(40, 1, 50, 100),
]


def test_what_was_there_before_counts_and_is_given_back():
    of = report(EVENTS)
    assert memory(of, trace=True).select("delta_bytes", "in_use_bytes", "device_bytes").rows() == [
        (50, 350, 350),
        (-300, 50, 50),
        (100, 150, 150),
        (-50, 100, 100),
    ]
    columns = ("peak_bytes", "peak_at_ns", "held_bytes", "held", "pool_peak_bytes", "unmatched", "loop_allocations")
    assert memory(of).select(columns).rows() == [(350, 10, 100, None, 1000, 1, None)]
    assert memory(of, by="device").select(columns).rows() == [(350, 10, 100, None, 1000, 1, None)]


def test_what_was_there_before_may_be_the_peak():
    of = report([given_back(20, 99, 300, 50), taken(30, 2, 100, 150)])
    assert memory(of).select("peak_bytes", "peak_at_ns", "held_bytes").rows() == [(350, 20, 150)]
    assert memory(of, window=Window(25, 40)).select("peak_bytes", "peak_at_ns").rows() == [(150, 30)]
    assert memory(of, window=Window(10, 40)).select("peak_bytes", "peak_at_ns").rows() == [(350, 20)]


def test_a_page_says_what_such_an_allocation_is():
    assert told(memory(report(EVENTS))) == (
        "What the framework's allocator gave out, which held up to 1.000 kB of GPU 0: no CUDA calls."
    )


def test_pools_of_cuda_and_their_loops_are_as_they_were():
    pool = report([taken(10, 1, 50, 350)])
    side = {"memory": "Device", "address": 1, "size_bytes": 50, "pool": 64, "pool_used_bytes": 350}
    of_cuda = report([call("cudaMalloc", 0, 1), Event("memory", "Allocation", 10, 10, device=0, side=side)])
    assert memory(pool).select("peak_bytes").item() == 350
    assert memory(of_cuda).select("peak_bytes", "held", "loop_allocations").rows() == [(50, 1, 0)]
    assert told(memory(of_cuda)) == ""


def test_running_out_of_memory_takes_none():
    of = report([taken(10, 1, 50, 350), event("Out of memory", 20, 0, 900, 350)])
    assert memory(of).select("allocations", "frees", "held_bytes").rows() == [(1, 0, 350)]


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
            events.append(given_back(at, address, live.pop(address), used))
        elif before and data.draw(st.booleans()):
            size = data.draw(st.integers(1, before))
            before, used = before - size, used - size
            events.append(given_back(at, 1000 + at, size, used))
        else:
            live[at] = data.draw(st.integers(1, 99))
            used += live[at]
            events.append(taken(at, at, live[at], used))
    shown = memory(report(events), trace=True)
    assert shown.get_column("in_use_bytes").equals(shown.get_column("pool_used_bytes"), check_names=False)
    first = events[0]
    start = first.side["pool_used_bytes"] + (1 if first.name == "Deallocation" else -1) * first.side["size_bytes"]
    levels = [start, *(event.side["pool_used_bytes"] for event in events)]
    assert memory(report(events)).select("peak_bytes", "held_bytes").rows() == [(max(levels), levels[-1])]
