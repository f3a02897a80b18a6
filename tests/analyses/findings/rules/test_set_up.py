"""Copies by which NCCL sets up communicators: none of the program's, with and without NCCL's own ranges."""

from pathlib import Path

import pytest

from kanalyze.analyses.findings.rules.pageable_copies import copies_by_calls, pageable_copy
from kanalyze.analyses.findings.rules.small_copies import many_small_copies, small_copies
from support.build import call, host, kernel, memcpy, nvtx, report
from support.real_reports import real_report

NCCL = Path(__file__).parents[3] / "reports" / "nccl.sqlite"
KINDS = ("kernel", "memcpy", "memset", "api", "range")


def copies(number, at, *, stream=14, size=152, thread=1):
    """Asynchronous copies of pageable memory, each with a call of 20 ns."""
    side = {"source_memory": "Pageable", "target_memory": "Device"}
    events = []
    for one in range(number):
        begin, key = at + 50 * one, at + one
        events += [
            call("cudaMemcpyAsync", begin, begin + 20, correlation=key, thread=thread),
            memcpy(begin + 5, begin + 15, size_bytes=size, correlation=key, side=side, stream=stream),
        ]
    return events


def launch(name, at, *, stream=7, thread=1):
    return [
        call("cudaLaunchKernel", at, at + 5, correlation=at, thread=thread),
        kernel(at + 10, at + 100, name=name, correlation=at, stream=stream),
    ]


def reduces(at):
    return launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)", at)


def left(*parts, **keys):
    """The number of copies that are the program's."""
    found = report([event for part in parts for event in part], kinds=KINDS, **keys)
    assert small_copies(found).height in {0, copies_by_calls(found).height}
    return copies_by_calls(found).height


def test_no_copy_of_a_job_is_one_of_the_program_but_those_of_its_results():
    of = real_report(NCCL)
    assert copies_by_calls(of).get_column("detail").to_list() == ["Device-to-Host"] * 4
    assert pageable_copy(of) == many_small_copies(of) == []


@pytest.mark.parametrize("name", ["ncclCommInitRankConfig", "ncclCommSplit", "ncclAllReduce", "ncclGroupEnd"])
def test_copies_in_ranges_of_nccl_are_its_own(name):
    ranges = [nvtx(f"{name}", 990, 2_000, domain="NCCL"), nvtx("upload", 2_990, 4_000)]
    assert left(ranges, copies(12, 1_000), copies(11, 3_000, stream=7), reduces(5_000)) == 11
    assert left(ranges, copies(12, 1_000, stream=7), reduces(5_000)) == 0


def test_copies_of_threads_that_nccl_starts_are_its_own():
    ranges = [nvtx("ncclGroupEnd", 990, 2_000, domain="NCCL")]
    assert left(ranges, copies(12, 1_000, thread=2), reduces(5_000)) == 0
    other = nvtx("ncclAllReduce", 2_500, 2_600, thread=2, domain="NCCL")
    assert left([*ranges, other], copies(12, 1_000, thread=2), reduces(5_000)) == 12
    assert left(ranges, copies(12, 1_000, thread=2), copies(12, 3_000, thread=2), reduces(5_000)) == 24


@pytest.mark.parametrize("name", ["record_param_comms", "c10d::allreduce_", "nccl:all_reduce"])
def test_copies_in_operators_of_collectives_are_nccl_s_own(name):
    whole = [*copies(12, 1_000), *copies(11, 3_000, stream=7), *reduces(5_000)]
    assert copies_by_calls(report([host("op", name, 990, 2_000), *whole])).height == 11
    assert copies_by_calls(report([host("op", "aten::to", 990, 2_000), *whole])).height == 11
    assert copies_by_calls(report([host("op", name, 990, 2_000), *copies(12, 1_000)])).height == 0


def test_without_ranges_small_copies_before_the_first_collective_are_nccl_s():
    assert left(copies(12, 1_000), launch("k", 2_000), reduces(5_000)) == 0
    assert left(copies(12, 1_000), launch("k", 2_000)) == 12  # no collective
    assert left(copies(12, 1_000), launch("k", 2_000, stream=14), reduces(5_000)) == 12  # a stream of the program
    assert left(copies(12, 1_000, size=65_537), reduces(5_000)) == 12
    assert left(launch("k", 500), reduces(600), copies(12, 1_000), launch("k", 2_000), reduces(5_000)) == 12


def test_without_ranges_small_copies_right_before_another_collective_are_nccl_s():
    other = launch("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)", 2_000)
    assert left(reduces(600), copies(12, 1_000), other) == 0
    assert left(reduces(600), copies(12, 1_000), launch("k", 1_900), other) == 12
    assert left(reduces(600), copies(12, 1_000), reduces(2_000)) == 12


def test_what_another_process_does_says_nothing():
    moved = [event.__class__(**{**vars(event), "process": 2}) for event in reduces(5_000)]
    assert left(copies(12, 1_000), moved) == 12
