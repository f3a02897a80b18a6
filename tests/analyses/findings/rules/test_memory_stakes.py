"""What is at stake in memory is never more than the ledger of the device holds, on reports that hypothesis makes up."""

from itertools import chain
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.findings.rules import memory as memory_rules
from kanalyze.analyses.findings.rules import small_copies
from kanalyze.analyses.findings.rules.memory import allocation_in_loop, unified_memory
from kanalyze.analyses.findings.rules.small_copies import many_small_copies
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.memory import memory
from kanalyze.window import Window
from support.build import call, host, kernel, memcpy, report
from support.shares import cases, holds
from support.strategies import EVENTS, FEWER, WINDOWS

WORK, IDLE = ("kernel", "communication", "memcpy"), ("launch", "queued", "sync", "api")


def held(of, device, *buckets):
    return sum(row["ns"] for row in ledger(of).rows(named=True) if row["device"] == device and row["bucket"] in buckets)


@st.composite
def copies(draw):
    start, correlation = draw(st.integers(0, 60)), draw(st.integers(10, 40))
    name = draw(st.sampled_from(["cudaMemcpy_v3020", "cudaMemcpyAsync_v3020"]))
    size = draw(st.sampled_from([1, 64 << 10, 1 << 20]))
    copy = memcpy(start + 2, start + draw(st.integers(2, 9)), correlation=correlation, size_bytes=size)
    return [call(name, start, start + draw(st.integers(0, 9)), correlation=correlation), copy]


@st.composite
def rounds(draw):
    start, correlation = draw(st.integers(0, 60)), draw(st.integers(10, 40))
    launch = call("cudaLaunchKernel_v7000", start + 3, start + 4, correlation=correlation)
    free = call("cudaFree_v3020", start + 6, start + draw(st.integers(6, 12)))
    took = call("cudaMalloc_v3020", start, start + draw(st.integers(0, 9)), thread=draw(st.sampled_from([1, 1, 2])))
    return [took, launch, kernel(start + 4, start + 6, correlation=correlation), free]


@st.composite
def faults(draw):
    start, address = draw(st.integers(0, 60)), draw(st.integers(0, 3))
    way = draw(st.sampled_from(["Unified Host-to-Device", "Unified Device-to-Host"]))
    side = {"address": address, "migration_cause": draw(st.sampled_from(["Page fault", "Eviction", "User prefetch"]))}
    moved = memcpy(start, start + draw(st.integers(0, 9)), direction=way, size_bytes=draw(st.integers(0, 4)), side=side)
    told = {"side": "GPU", "address": address, "faults": 1}
    end = start + draw(st.integers(0, 9))
    return [moved, host("fault", "GPU page faults", start, end, thread=None, device=0, side=told)]


#: As a rule the whole report.
SEEN = st.one_of(st.just((None, None)), st.just((None, None)), WINDOWS)


def with_some(of):
    return st.tuples(EVENTS, st.lists(of, max_size=10)).map(lambda parts: [*parts[0], *chain.from_iterable(parts[1])])


@cases(0.05)
@given(with_some(copies()), SEEN)
@FEWER
def test_small_copies(events, window):
    of = report(events).narrow(window=Window(*window))
    with patch.object(small_copies, "RUN", 2):
        found = many_small_copies(of)
        holds(found)
        assert all(0 < one.at_stake_ns <= held(of, one.device, "memcpy", *IDLE) for one in found)


@cases(0.05)
@given(with_some(rounds()), SEEN)
@FEWER
def test_allocation_in_loop(events, window):
    of = report(events).narrow(window=Window(*window))
    with patch.object(memory, "LOOP_ROUNDS", 1):
        found = allocation_in_loop(of)
        holds(found)
        assert all(0 < one.at_stake_ns <= held(of, one.device, "allocation") for one in found)


@cases(0.05)
@given(with_some(faults()), SEEN)
@FEWER
def test_unified_memory(events, window):
    of = report(events).narrow(window=Window(*window))
    with patch.object(memory_rules, "_MANY", 1):
        found = unified_memory(of)
        holds(found)
        assert all(0 <= one.at_stake_ns <= held(of, one.device, *WORK) for one in found)
