"""Jobs on CPUs: gloo's collectives are annotations, and their sizes those of recorded shapes."""

import pytest

from kanalyze.analyses.communication._recorded import tensor_bytes
from kanalyze.analyses.ranks._job import job_of
from kanalyze.analyses.ranks._job_findings import job_findings, late_ranks
from kanalyze.analyses.ranks._reducing import reduced
from support.made_traces import report_of, trace, x

#: When each of two all_reduces, on two threads of gloo, begins after its step, in microseconds, and how long the last
#: rank takes; how late rank 1 is in a step.
BEGINS, TAKES = (1_000, 1_500), 300
LATE = {3: 40_000}
STEPS = range(6)

SHAPES = {"Input Dims": [[1024, 257]], "Input type": ["float"]}


def rank_of(folder, rank, shapes):
    """The trace of a rank: steps of 100 ms, in each two all_reduces that end when the later rank has come."""
    events = []
    for step in STEPS:
        at, late = 100_000 * step, LATE.get(step, 0)
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
    return lambda shapes: job_of([reduced(rank_of(tmp_path, rank, shapes)) for rank in range(2)], one_host=True)


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
    assert late.late_ns == pytest.approx(LATE[3] * 1_000, rel=1e-6)


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
