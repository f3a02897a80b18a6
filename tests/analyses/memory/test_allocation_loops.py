"""What is in a loop of allocations, by call: rounds near each other, not anywhere in the program."""

from pathlib import Path

from kanalyze.analyses.memory.memory import memory
from support.build import call, host, kernel, report
from support.real_reports import real_report

REPORTS = Path(__file__).parents[2] / "reports"

MALLOC, FREE, ASYNC, FREE_ASYNC = "cudaMalloc_v3020", "cudaFree_v3020", "cudaMallocAsync_v11020", "cudaFreeAsync_v11020"


def program(*rounds):
    """A round each of 64 bytes: its calls that take and give back, and whether there is a launch in between."""
    events = []
    for number, (take, give, launches) in enumerate(rounds):
        at, first = 100 * number, 3 * number + 1
        side = {"address": 4096, "size_bytes": 64}
        events += [call(take, at, at + 10, correlation=first)]
        events += [host("memory", "Allocation", at + 9, at + 9, device=0, correlation=first, side=side)]
        if launches:
            events += [call("cudaLaunchKernel", at + 20, at + 30, correlation=first + 1)]
            events += [kernel(at + 30, at + 40, correlation=first + 1)]
        events += [call(give, at + 50, at + 60, correlation=first + 2)]
        events += [host("memory", "Deallocation", at + 59, at + 59, device=0, correlation=first + 2, side=side)]
    return report(events)


def in_loops(of):
    return {row["call"]: row["loop_calls"] for row in memory(of, by="call").rows(named=True)}


SYNC_ROUND, ASYNC_ROUND = (MALLOC, FREE, True), (ASYNC, FREE_ASYNC, True)


def test_one_round_long_after_a_loop_is_in_none():
    # rounds 2 to 9 are in the first loop and 11 to 18 in the second: one has to be, and the last has no end
    of = program(*[SYNC_ROUND] * 10, *[ASYNC_ROUND] * 9, SYNC_ROUND, ASYNC_ROUND)
    assert in_loops(of)["cudaMalloc"] == 8


def test_a_few_rounds_after_a_loop_are_in_none():
    of = program(*[SYNC_ROUND] * 10, *[ASYNC_ROUND] * 10, *[SYNC_ROUND] * 4, ASYNC_ROUND)
    assert in_loops(of)["cudaMalloc"] == 8


def test_a_second_loop_of_the_same_call_is_one_of_its_own():
    of = program(*[SYNC_ROUND] * 10, *[ASYNC_ROUND] * 10, *[SYNC_ROUND] * 6, ASYNC_ROUND)
    assert in_loops(of)["cudaMalloc"] == 8 + 5


def test_two_kinds_of_rounds_in_turn_are_two_loops():
    of = program(*[SYNC_ROUND, ASYNC_ROUND] * 10)
    assert in_loops(of)["cudaMalloc"] == 8


def test_rounds_without_a_launch_do_not_break_a_loop():
    of = program(*[SYNC_ROUND, (MALLOC, FREE, False)] * 10)
    assert in_loops(of)["cudaMalloc"] == 8


def test_the_program_with_two_loops_and_one_large_allocation():
    """64 kB to 640 kB in turn, 100 times; a loop of 1 and 2 MiB, 20 times; one allocation of 300 MB, in no loop.

    Of each loop the rounds from the third on are in it (the first is before the first that counts), and of the second
    all but the last, which ends elsewhere.
    """
    of = real_report(REPORTS / "memory.sqlite")
    device = memory(of).filter(memory="Device").row(0, named=True)
    sizes = [4 * 1024 * 16 * (1 + number % 10) for number in range(2, 100)]
    assert device["loop_allocations"] == 98 + 2 * 19
    assert device["loop_bytes"] == sum(sizes) + 19 * 3 * (1 << 20)
