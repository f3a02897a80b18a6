"""What of a late rank's host is told (DataLoader, gloo beside NCCL), and jobs on CPUs, whose collectives are gloo's."""

import polars as pl
import pytest

from kanalyze.analyses.communication._recorded import tensor_bytes
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.ranks._job import job_of
from kanalyze.analyses.ranks._job_findings import job_findings, late_ranks
from kanalyze.analyses.ranks._reducing import reduced
from kanalyze.reduction.tables import IN_LOADER
from kanalyze.renderers.page.job import answer
from support.made_traces import report_of, trace, x

#: Of a step in microseconds: its length, the usual time in the loader, that of the kernel, and of the transfer.
STEP, USUAL, COMPUTES, TRANSFERS = 100_000, 2_000, 10_000, 500
STEPS = range(6)

#: By how much rank 1 is late, and in which step.
LATE, SLOW = 20_000, 3

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
COLLECTIVE = {
    "Collective name": "allreduce", "In msg nelems": 1_000, "Out msg nelems": 1_000, "Group size": 2, "dtype": "Float",
    "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def rank_of(folder, rank, *, loads, gloo):
    """The trace of a rank: in each step a batch, what the program does then, a kernel, and an all_reduce."""
    events, pid = [], 10 + rank
    for step in STEPS:
        begin, late = STEP * step, LATE if step == SLOW else 0
        own = late if rank else 0
        launched, behind = begin + USUAL + own, begin + USUAL + late + 150 + COMPUTES
        on_gpu = {"device": rank, "context": 1, "stream": 7}
        events += [
            x("user_annotation", f"ProfilerStep#{step}", begin, STEP, pid=pid, tid=1),
            x("user_annotation", LOADER, begin, USUAL + (own if loads else 0), pid=pid, tid=1),
            x("cuda_runtime", "cudaLaunchKernel", launched, 50, {"correlation": 2 * step + 1}, pid=pid, tid=1),
            x("cuda_runtime", "cudaLaunchKernel", launched + 60, 50, {"correlation": 2 * step + 2}, pid=pid, tid=1),
            x("kernel", "gemm", launched + 150, COMPUTES, {**on_gpu, "correlation": 2 * step + 1}),
        ]
        came = launched + 150 + COMPUTES
        args = {**on_gpu, **COLLECTIVE, "stream": 20, "correlation": 2 * step + 2}
        events.append(x("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", came, behind - came + TRANSFERS, args))
        if gloo:
            events.append(x("user_annotation", "gloo:all_reduce", begin + 50_000, 300, pid=pid, tid=9))
    head = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}, "baseTimeNanoseconds": 10**18}
    return report_of(folder, trace(events, head=head))


@pytest.fixture
def reports(tmp_path):
    return lambda *, loads=True, gloo=False: [rank_of(tmp_path, rank, loads=loads, gloo=gloo) for rank in range(2)]


@pytest.mark.slow
def test_a_rank_that_waits_for_its_loader_is_late_for_that(reports):
    job = job_of([reduced(one) for one in reports()], one_host=True)
    (late,) = late_ranks(job)
    assert (late.rank, late.first, late.last, late.late_ns) == (1, SLOW, SLOW, LATE * 1_000)
    assert (late.causes, late.detail) == ((("host", LATE * 1_000),), IN_LOADER)
    assert f"late in step {SLOW}: host +20.00 ms in DataLoader.__next__; " in answer(job)
    (found,) = [one for one in job_findings(job) if one.finding == "straggler"]
    assert "most for its host in DataLoader.__next__: another one waits" in found.text
    assert found.action.startswith("Look at this rank's DataLoader")
    rows = job.table("rank_steps").drop_nulls("detail")
    assert rows.select("rank", "step", "cause", "detail").rows() == [(1, SLOW, "host", IN_LOADER)]


@pytest.mark.slow
def test_a_rank_whose_program_takes_longer_elsewhere_is_not(reports):
    job = job_of([reduced(one) for one in reports(loads=False)], one_host=True)
    (late,) = late_ranks(job)
    assert (late.causes, late.detail) == ((("host", LATE * 1_000),), None)
    assert job.table("rank_steps").get_column("detail").null_count() == 2 * len(STEPS)
    (found,) = [one for one in job_findings(job) if one.finding == "straggler"]
    assert "most for its host: another one waits" in found.text


@pytest.mark.parametrize("loads", [False, True])
def test_what_is_told_apart_is_a_part_of_its_bucket(reports, loads):
    report = reports(loads=loads)[1]
    made = reduced(report)
    spans = made.collectives.select("number", start=(pl.col("start_ns") + pl.col("dur_ns")).shift(1), end="start_ns")
    for number, start, end in spans.drop_nulls().iter_rows():
        own = made.before.filter(number=number)
        assert int(own.get_column("ns").sum()) == end - start
        inside = USUAL + (LATE if loads and number == SLOW else 0)
        assert own.drop_nulls("detail").select("bucket", "detail", "ns").rows() == [("host", IN_LOADER, inside * 1_000)]
    whole = ledger(report).filter(pl.col("bucket").cast(pl.String) == "host").get_column("ns").sum()
    assert 0 < made.before.filter(bucket="host").get_column("ns").sum() <= whole


@pytest.mark.slow
@pytest.mark.parametrize("gloo", [False, True])
def test_collectives_of_gloo_beside_those_of_nccl_are_said_not_to_be_told(reports, gloo):
    job = job_of([reduced(one) for one in reports(gloo=gloo)], one_host=True)
    told = {check: count for check, count, _ in job.doubts}
    assert told == ({"collectives of gloo beside a GPU": 2 * len(STEPS)} if gloo else {})
    assert job.table("collectives").get_column("group").unique().to_list() == ["0"]


# Jobs on CPUs: gloo's collectives are annotations, and their sizes those of recorded shapes.


#: When each of two all_reduces, on two threads of gloo, begins after its step, in microseconds, and how long the last
#: rank takes; how late rank 1 is in a step.
BEGINS, TAKES = (1_000, 1_500), 300
LATE_US = {3: 40_000}

SHAPES = {"Input Dims": [[1024, 257]], "Input type": ["float"]}


def rank_of_gloo(folder, rank, shapes):
    """The trace of a rank: steps of 100 ms, in each two all_reduces that end when the later rank has come."""
    events = []
    for step in STEPS:
        at, late = 100_000 * step, LATE_US.get(step, 0)
        events.append(x("user_annotation", f"ProfilerStep#{step}", at, 100_000, pid=10 + rank, tid=1))
        for thread, begin in enumerate(BEGINS):
            came, end = at + begin + late * rank, at + begin + late + TAKES
            args = dict(shapes)
            events.append(
                x("user_annotation", "gloo:all_reduce", came, end - came, args, pid=10 + rank, tid=7 + thread)
            )
    head = {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}, "baseTimeNanoseconds": 10**18}
    (folder / str(rank)).mkdir()
    return report_of(folder / str(rank), trace(events, head=head))


@pytest.fixture
def job(tmp_path):
    return lambda shapes: job_of([reduced(rank_of_gloo(tmp_path, rank, shapes)) for rank in range(2)], one_host=True)


def test_sizes_are_those_of_the_tensors(job):
    rows = job(SHAPES).table("collectives")
    assert rows.get_column("bytes").unique().to_list() == [1024 * 257 * 4]
    first = rows.filter(rank=0).sort("start_ns").row(0, named=True)
    assert first["busbw_bytes_per_s"] == pytest.approx(1024 * 257 * 4 / (TAKES * 1e-6), rel=1e-6)  # of two ranks f = 1


def test_without_shapes_sizes_are_not_told(job):
    rows = job({}).table("collectives")
    assert rows.height == 2 * 2 * len(STEPS)
    assert rows.get_column("bytes").null_count() == rows.height
    assert rows.get_column("busbw_bytes_per_s").null_count() == rows.height


def test_a_delay_counts_once_though_two_threads_wait_for_it(job):
    (late,) = late_ranks(job(SHAPES))
    assert (late.rank, late.first, late.last) == (1, 3, 3)
    assert late.late_ns == pytest.approx(LATE_US[3] * 1_000, rel=1e-6)


def test_what_other_threads_did_is_not_known_so_that_nothing_is_said_to_be_exposed(job):
    found = job_findings(job(SHAPES))
    assert [one.finding for one in found] == ["straggler"]
    assert found[0].text == "Rank 1 is 40.00 ms late in 1 step: another one waits 40.20 ms."


@pytest.mark.parametrize(
    ("shapes", "types", "size"),
    [
        ("[[2, 3], [4]]", '["float", "c10::Half"]', 32),
        ("[[]]", '["double"]', 8),
        ("[[0, 5]]", '["c10::BFloat16"]', 0),
        ("[[3]]", '["long int"]', 24),
        ("[[3]]", '["unsigned char"]', 3),
        ("[[2], []]", '["float", ""]', None),
        ("[[[4], [5]]]", '["TensorList"]', None),
        ("[[2]]", '["float", "float"]', None),
        ("[]", "[]", None),
        ("[[2", '["float"]', None),
        ("7", "[]", None),
        ('[["2"]]', '["float"]', None),
        ("[[-2]]", '["float"]', None),
        ("[[9000000000, 9000000000]]", '["float"]', None),
        ("[[true]]", '["float"]', None),
    ],
)
def test_bytes_of_tensors(shapes, types, size):
    assert tensor_bytes(shapes, types) == size
