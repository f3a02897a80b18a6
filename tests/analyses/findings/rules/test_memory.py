"""Time that managing memory takes: what raises each finding, what does not, and how much it claims."""

from itertools import chain
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import strategies as st

from kanalyze.analyses.findings.findings import findings
from kanalyze.analyses.findings.rules import memory as memory_rules
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.memory import memory
from kanalyze.window import Window
from support.build import again, call, host, kernel, launched, memcpy, report
from support.measures import assert_told
from support.real_reports import real_report
from support.shares import cases, holds
from support.steps import alike
from support.strategies import EVENTS, WINDOWS, few_given


def rounds(count, *, thread=1, free="cudaFree_v3020"):
    calls = call("cudaMalloc_v3020", 0, 10, thread=thread), call(free, 50, 60, thread=thread)
    return again(range(0, 100 * count, 100), *calls, *launched(20, 25, kernel(25, 55)))


def test_what_the_device_waited_for_in_such_calls():
    (finding,) = memory_rules.allocation_in_loop(report(rounds(10)))
    # rounds two to nine count, less the first of these; the kernel hides half of cudaFree
    assert finding.at_stake_ns == 7 * (10 + 5)
    assert finding.text == (
        "cudaMalloc and cudaFree are called over and over between launches: 14 calls in 7 rounds with 7 launches, "
        "140 ns of host time. The device waited 105 ns for them. More may follow: the host is spared "
        "the calls."
    )
    assert finding.table == "memory --by call"


def making(*calls, count=3):
    """Steps of 100, each of which makes `calls` (name, start, end) before it launches a kernel of PyTorch."""
    step = [call(*one) for one in calls] + launched(60, 70, kernel(70, 100, name="void at::native::add()"))
    return alike(*step, count=count, step_ns=100)


def move(span, address, size, way="Host-to-Device", cause="Page fault"):
    side = {"address": address, "migration_cause": cause}
    return memcpy(*span, direction=f"Unified {way}", size_bytes=size, side=side)


def fault(start, end, address, device=0):
    side = {"side": "GPU", "address": address, "faults": 1}
    return host("fault", "GPU page faults", start, end, thread=None, device=device, side=side)


def there_and_back(times):
    """A kernel of 20 ns that faults for 8, moves 64 bytes there behind it, and 5 ns in which they come back."""
    moves = move((4, 9), 4096, 64), move((30, 35), 4096, 64, "Device-to-Host")
    return again(range(0, 100 * times, 100), kernel(0, 20), fault(2, 10, 4096), *moves)


def program(faults):
    """Two kernels with 90 µs of the program's own code between, and CPU page faults in it."""
    times, side = range(2_000, 2_000 + faults), {"function": "check(float *)"}
    launches = [*launched(0, 100, kernel(100, 1_000)), *launched(91_000, 91_100, kernel(91_200, 92_000))]
    return report([*launches, *(host("fault", "", at, at, side=side) for at in times)])


FREES = ("cudaFree_v3020", 0, 20), ("cudaFree_v3020", 20, 30), ("cudaMalloc_v3020", 30, 50)
PER_STEP = (
    "cudaFree and cudaMalloc are called over and over between launches: 3 calls a step, 50 ns a step of host time. "
)


@pytest.mark.parametrize(
    ("of", "stakes", "words"),
    [
        (report([event for event in rounds(30) if event.name != "cudaFree_v3020"]), [], ()),  # memory that stays
        (report(rounds(6)), [], ()),
        (report([*rounds(10), kernel(0, 1000)]), [], ()),  # the device did not wait
        (report(rounds(10, thread=2)), [], ()),
        (report(rounds(10)).narrow(window=Window(305, 360)), [5 + 5], ()),
        (report([*rounds(10), kernel(0, 1000, process=2, device=1)]), [105], ()),
        (making(*FREES), [3 * 50], (PER_STEP, "waited 50 ns a step for them.", "empty_cache() out of the loop")),
        (making(*FREES[1:], count=2), [], ()),
        # memory that is short is told by a second try
        (making(("cudaMalloc_v3020", -5, 0), *FREES), [150], ("In 2 cases one to allocate was", "num_alloc_retries")),
    ],
)
def test_where_memory_is_taken_and_given_back_again_and_again(of, stakes, words):
    assert_told(memory_rules.allocation_in_loop(of), stakes, *words)


@pytest.mark.parametrize(("free", "more_us", "told_us"), [("FreeAsync", 60, 60), ("FreeAsync", 40, 0), ("Free", 60, 0)])
def test_a_pool_that_gives_all_back_holds_up_the_waits(free, more_us, told_us):
    """In each of 10 steps a wait returns so many µs after the kernel before it."""
    step = [
        call("cudaMallocAsync_v11020", 0, 10_000),
        *launched(10_000, 15_000, kernel(20_000, 50_000)),
        call(f"cuda{free}_v11020", 20_000, 21_000),
        call("cudaDeviceSynchronize", 22_000, 50_000 + 1000 * more_us),
    ]
    (one,) = memory_rules.allocation_in_loop(alike(*step, count=10, step_ns=200_000))
    assert one.at_stake_ns == 10 * (10_000 + 1000 * told_us)
    assert ("cudaMemPoolAttrReleaseThreshold" in one.remedy) == bool(told_us)


OWN_FAULTS = "were handled. More may follow where the host waits for page faults of its own."
THRASHES = (
    "Page faults moved 384 B of managed memory, 256 B of it to where it had been before; the busiest page went there",
    f"and back 3 times. For 16 ns kernels ran while page faults of the GPU {OWN_FAULTS}",
)
FAULTS = (
    "Page faults moved 512 B of managed memory in 8 copies of 64 B on average, at 12.80 GB/s, prefetched memory at",
    f"at 20.97 TB/s. For 60 ns kernels ran while page faults of the GPU {OWN_FAULTS}",
)
IN_STEPS = (
    "Managed memory moves in 10 copies a step by page faults",
    "Page faults moved 1.920 kB of managed memory in all, in 10 copies a step of 64 B on",
    "For 80 ns a step kernels ran while page faults",
)
OTHER_PAGES = [
    move((100 * at + late, 100 * at + late + 5), at << 12, 64, way)
    for at in range(20)
    for late, way in ((0, "Host-to-Device"), (50, "Device-to-Host"))
]
FULL = [
    move((100 * at, 100 * at + 5), 4096, 64, *(("Device-to-Host", "Eviction") if at % 2 else ())) for at in range(20)
]
WAYS = ("Host-to-Device", "Device-to-Host")
ASKED = [move((100 * at, 100 * at + 5), 4096, 64, WAYS[at % 2], "User prefetch") for at in range(20)]
MANY = [
    *(kernel(0, 100), fault(0, 30, 0), fault(20, 50, 4096), fault(90, 120, 8192)),
    *(move((100 + 10 * at, 105 + 10 * at), at << 12, 64) for at in range(8)),
    move((200, 300), 1 << 30, 2 << 20, cause="User prefetch"),
]
ALL_ALONG = [
    event
    for at in range(0, 3_000, 100)
    for event in (kernel(at, at + 20), fault(at + 2, at + 10, 4096 * at), move((at + 4, at + 9), 4096 * at, 64))
]
THRASH, PREFETCH = "unified-memory-thrash", "unified-memory-prefetch"


@pytest.mark.parametrize(
    ("of", "rule", "stakes", "words"),
    [
        # the first time it had to move; what a kernel hid is not counted
        (report(there_and_back(3)), THRASH, [2 * 5 + 2 * 8], THRASHES),
        (report(there_and_back(1)), THRASH, [], ()),
        (report(OTHER_PAGES), THRASH, [], ()),
        (report(FULL), THRASH, [18 * 5], ("The device had no room for 640 B. ",)),
        *((report(ASKED), rule, [], ()) for rule in (THRASH, PREFETCH)),
        (report(MANY), PREFETCH, [8 * 5 + 50 + 10], FAULTS),
        (report(ALL_ALONG).narrow(window=Window(0, 3_000, count=3, each="step")), PREFETCH, [240], IN_STEPS),
        (report([move((10 * at, 10 * at + 5), at << 12, 64) for at in range(7)]), PREFETCH, [], ()),  # a few
        (report([*there_and_back(8), kernel(0, 800, device=1)]), PREFETCH, [8 * 5 + 8 * 8], ()),
        (report(there_and_back(8)).narrow(window=Window(5, 732)), PREFETCH, [7 * 5 + 2 + 7 * 8 + 5], ()),
    ],
)
def test_pages_that_go_to_and_fro_or_that_one_prefetch_would_bring(of, rule, stakes, words):
    assert_told([one for one in memory_rules.unified_memory(of) if one.rule == rule], stakes, *words)


def test_work_of_the_cpu_is_told_by_its_page_faults():
    (one,) = memory_rules.cpu_page_faults(program(10))
    assert (one.at_stake_ns, one.where) == (90_000, "check(float *)")
    assert "faults in 10 pages as it goes: check(float *) 90.00 µs" in one.text
    assert memory_rules.cpu_page_faults(program(4)) == []
    (one,) = memory_rules.cpu_page_faults(real_report(Path(__file__).parents[4] / "sample_reports" / "add_parallel"))
    assert "is after the last kernel" in one.text


def pinning(*calls):
    """Calls (name, start, end, thread) between two launches."""
    launches = again((0, 95), *launched(0, 10, kernel(10, 30)))
    return report([*launches, *(call(name, start, end, thread=thread) for name, start, end, thread in calls)])


UNPINNED = ("Malloc", "FreeHost", "HostGetDevicePointer")
PINNED = "GPU 0 waits 60 ns for 2 calls to pin memory of the host, not in a loop (cudaHostAlloc, cudaHostRegister)."


@pytest.mark.parametrize(
    ("of", "stakes", "words"),
    [
        (pinning(("cudaHostAlloc_v3020", 20, 80, 1), ("cudaHostRegister_v4000", 80, 90, 1)), [60], (PINNED,)),
        *((pinning((f"cuda{name}_v3020", 30, 80, 1)), [], ()) for name in UNPINNED),
        (pinning(("cudaHostAlloc", 30, 80, 2)), [], ()),  # the device does not wait for that thread
    ],
)
def test_pinning_of_memory_is_waited_for(of, stakes, words):
    assert_told(memory_rules.pinned_allocation(of), stakes, *words)


@pytest.mark.slow
def test_pinning_in_a_loop_is_another_finding():
    """The first rounds are needed, and the last one has no end."""
    pinned = call("cudaHostAlloc_v3020", 0, 30), call("cudaFreeHost_v3020", 80, 90)
    events = again(range(100, 900, 100), *pinned, *launched(40, 50, kernel(50, 70)))
    events += [call("cudaGetDevice", 0, 1), *launched(2, 12, kernel(12, 32))]
    assert "allocation-in-loop" in findings(report(events)).get_column("rule").to_list()
    assert [one.at_stake_ns for one in memory_rules.pinned_allocation(report(events))] == [3 * 30]


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
def made_rounds(draw):
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


@pytest.mark.parametrize(
    ("part", "module", "limit", "rule", "buckets"),
    [
        (copies(), memory_rules, {"RUN": 2}, memory_rules.many_small_copies, ("memcpy", *IDLE)),
        (made_rounds(), memory, {"LOOP_ROUNDS": 1}, memory_rules.allocation_in_loop, ("allocation",)),
        (faults(), memory_rules, {"_MANY": 1}, memory_rules.unified_memory, WORK),
    ],
    ids=["copies", "allocations", "page faults"],
)
@cases(0.05)
@few_given(data=st.data(), window=SEEN)
def test_no_more_is_at_stake_than_the_buckets_hold(part, module, limit, rule, buckets, data, window):  # noqa: PLR0913
    events = [*data.draw(EVENTS), *chain.from_iterable(data.draw(st.lists(part, max_size=10)))]
    of = report(events).narrow(window=Window(*window))
    with patch.multiple(module, **limit):
        found = rule(of)
        holds(found)
        assert all(0 <= one.at_stake_ns <= held(of, one.device, *buckets) for one in found)
