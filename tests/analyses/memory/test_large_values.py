"""Tables of reports whose times and sizes go up to 2^62: the sums are those of whole numbers, and never wrap."""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import assume, given, strategies as st

import kanalyze
from kanalyze import catalog
from kanalyze.analyses.device.occupancy import launch_occupancy
from kanalyze.analyses.findings.rules.memory import many_small_copies, unified_memory
from kanalyze.analyses.launches._launch_costs import launched_kernels
from kanalyze.analyses.memory.migrations import migration_totals, migrations
from kanalyze.columns import LARGEST
from kanalyze.errors import CannotTellError
from support.build import call, host, kernel, launched, memcpy, nvtx, report
from support.strategies import EVENTS, few_given, slow_given

#: A report's sizes and times, so that all of them together are at most the largest.
PARTS = 8
SIZES = st.integers(0, 59).flatmap(lambda bits: st.integers(0, 1 << bits))

#: Columns that say how two times or sizes differ, or that a trace's own clock gives.
SIGNED = ("late", "delta", "self", "extra", "device_bytes", "cpu_bytes", "first", "min_", "start", "gap")


@st.composite
def moved(draw):
    """Copies one after the other, of any size and duration, by calls that take as long."""
    at, found = 0, []
    for number in range(draw(st.integers(1, PARTS))):
        ns, size = draw(SIZES), draw(SIZES)
        way = draw(st.sampled_from(["Host-to-Device", "Device-to-Host"]))
        way = draw(st.sampled_from(["", "Unified "])) + way
        cause = draw(st.sampled_from(["Page fault", "Eviction", "User prefetch"]))
        side = {"address": draw(SIZES), "migration_cause": cause} if "Unified" in way else {}
        found.append(memcpy(at, at + ns, direction=way, size_bytes=size, side=side, correlation=number))
        if not side:
            found.append(call("cudaMemcpyAsync", at, at + ns, correlation=number))
        at += ns
    return found


def sums(events, key):
    found = defaultdict(lambda: [0, 0])
    for one in events:
        if one.kind == "memcpy":
            found[key(one)][0] += one.size_bytes
            found[key(one)][1] += one.end - one.start
    return found


@given(moved())
def test_bytes_and_rates_of_copies_are_those_of_whole_numbers(events):
    expected = sums(events, lambda one: one.name)
    for row in kanalyze.copies(report(events)).to_dicts():
        size, ns = expected.pop(row["operation"])
        assert (row["total_bytes"], row["total_ns"]) == (size, ns)
        rate = row["bandwidth_bytes_per_s"]
        assert rate is None if ns == 0 else rate == pytest.approx(size * 10**9 / ns)
    assert not expected


@slow_given(moved())
def test_bytes_and_rates_of_unified_memory_are_those_of_whole_numbers(events):
    unified = [one for one in events if one.side]
    assume(unified)
    found = report(events, kinds=("memcpy", "api", "fault"))
    expected = sums(unified, lambda one: one.side["address"])
    for row in migrations(found).to_dicts():
        size, ns = expected.pop(row["address"])
        assert row["total_ns"] == ns
        if ns:
            assert row["bandwidth_bytes_per_s"] == pytest.approx(size * 10**9 / ns)
            whole = size * (10**9 // ns)
            assert row["throughput_bytes_per_s"] == (whole if whole < 1 << 63 else None)
    assert not expected
    (whole,) = migration_totals(found).to_dicts()
    assert whole["total_ns"] == sum(one.end - one.start for one in unified)
    assert (whole["h2d_bytes"] or 0) + (whole["d2h_bytes"] or 0) == sum(one.size_bytes for one in unified)


@slow_given(moved())
def test_what_moved_again_is_at_stake_and_no_more(events):
    found = report(events, kinds=("memcpy", "api", "fault"))
    held = sum(one.end - one.start for one in events if one.kind == "memcpy")
    for one in [*unified_memory(found), *many_small_copies(found)]:
        assert 0 <= one.at_stake_ns <= held


@given(st.tuples(*[st.integers(1, (1 << 31) - 1)] * 3), st.integers(1, 32), SIZES)
def test_costs_of_a_launch_are_parts_of_its_time(grid, warps, ns):
    config = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}
    gpu = {"compute_capability": "9.0", "sm_count": 132}
    found = report([kernel(0, ns, grid=grid, block=(32 * warps, 1, 1), side=config)], limits=gpu)
    (row,) = launch_occupancy(found).to_dicts()
    blocks = grid[0] * grid[1] * grid[2]
    assert row["blocks"] == (blocks if blocks < 1 << 63 else None)
    if row["blocks"] is None:
        assert row["tail_ns"] is None
        return
    room = row["blocks_per_sm"] * 132
    dealt = -(-blocks // room) * room
    assert row["tail_ns"] == (ns * (dealt - blocks) // dealt if blocks > room else 0)
    assert row["idle_sm_ns"] == ns * max(132 - blocks, 0) // 132
    assert 0 <= row["low_occupancy_ns"] <= ns


@few_given(EVENTS, st.integers(0, 53))
def test_no_table_has_less_than_nothing_of_anything(events, bits):
    names = [nvtx("r", 0, 30), nvtx("r", 5, 20), host("osrt", "poll", 0, 9)]
    low = min([one.start for one in events], default=0)
    moved_up = [replace(one, start=one.start - low, end=max(one.end, one.start) - low) for one in events]
    found = report([replace(one, start=one.start << bits, end=one.end << bits) for one in (*moved_up, *names)])
    looked = 0
    for name in catalog.names():
        try:
            table = catalog.make(found, name)
        except CannotTellError:
            continue
        for column in catalog.table(name).columns:
            if not column.unit or column.name.startswith(SIGNED) or any(f"_{word}" in column.name for word in SIGNED):
                continue
            values = table[column.name].drop_nulls().to_list()
            looked += len(values)
            assert all(0 <= value <= (1 if column.unit == "0..1" else LARGEST) for value in values), (name, column.name)
    assert looked or not events


@pytest.mark.one_in(3)
@pytest.mark.parametrize("other", [2, 1 + (1 << 24), 1 + (1 << 40), 1 << 61])
@pytest.mark.parametrize("process", [1, 0])
def test_a_kernel_is_first_in_each_process_whatever_their_ids(process, other):
    events = []
    for number, one in enumerate((process, other, process, other)):
        at = 100 * number
        events += launched(at, at + 5, kernel(at + 10, at + 20, correlation=number, process=one), process=one)
    assert launched_kernels(report(events))["first"].to_list() == [True, True, False, False]
