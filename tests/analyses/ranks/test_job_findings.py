"""Each finding on a job, and what of a late rank's host is told; jobs on CPUs, whose collectives are gloo's."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.communication._recorded import tensor_bytes
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.ranks._job import EARLIER, _without_carried, job_of
from kanalyze.analyses.ranks._job_findings import RULES, job_findings, late_ranks
from kanalyze.analyses.ranks._reducing import reduced
from kanalyze.analyses.ranks.tables import common_steps, rank_path
from kanalyze.reduction.tables import IN_LOADER
from kanalyze.renderers.page.job import answer, job_page
from kanalyze.renderers.tables.descriptions import names
from support.build import kernel, report
from support.made_traces import report_of, trace, x
from support.synthetic_job import Op, Plan, Straggler, play

#: All that ranks exchange runs beside kernels, and they compute alike.
HIDDEN = Op("all_reduce", "world", 4_000_000, compute_ns=900_000, overlapped=True)
END = Op("all_reduce", "world", 64, compute_ns=900_000)
SOUND = Plan(ops=(HIDDEN, HIDDEN, END), jitter=0, kernels=(100, 100, 100, 100))


def changed(**keys):
    return replace(SOUND, **keys)


def with_kinds(kinds):
    """The page's answer and the ranks that are named in what to do, of steps of these kinds; rank 2 sleeps in one."""
    plan = changed(steps=40, stragglers=(Straggler(2, 20, 20, 400_000, "host"),))
    made = [
        one | {"steps": one["steps"].with_columns(kind=pl.Series([kinds.get(at, "steady") for at in range(40)]))}
        for one in play(plan).reductions()
    ]
    job = job_of(made)
    told = [one.text for one in job_findings(job) if one.finding == "straggler"]
    return answer(job), told


def test_what_another_rank_hardly_waits_for_is_named_in_neither():
    plan = changed(steps=40, stragglers=(Straggler(2, 20, 20, 5_000, "host"),))
    job = job_of([*play(plan).reductions()])
    assert answer(job).endswith("none is late for long.")
    assert [one for one in job_findings(job) if one.finding == "straggler"] == []


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("delay_ns", "says", "acts"),
    [
        (None, "How much of its lateness is what torch costs it cannot be told.", "Look"),
        (0, "another rank waits 399.9 µs for it.", "Look"),
        (90_000, "Up to 90.00 µs of its lateness may be what torch costs it, by estimate.", "Look"),
        (300_000, "Up to 300.0 µs of its lateness may be what torch costs it, by estimate.", "Record less"),
        (900_000, "Up to all of its lateness may be what torch costs it, by estimate.", "Record less"),
    ],
)
def test_a_late_rank_is_told_with_what_its_recorder_may_cost(delay_ns, says, acts):
    """No more than the delay of the collective that it came last to counts, and that of no other one."""
    made = [*play(changed(steps=40, stragglers=(Straggler(2, 20, 20, 400_000, "host"),))).reductions()]
    costs = made[2]["collectives"].select("member", "number", delay_ns=pl.lit(delay_ns, dtype=pl.Int64)).drop_nulls()
    job = job_of([*made[:2], made[2] | {"costs": costs}, made[3]])
    assert answer(job).endswith(says)
    assert [one.action.startswith(acts) for one in job_findings(job) if one.finding == "straggler"] == [True]
    without = [one | {"ranks": one["ranks"].with_columns(corrected=True)} for one in made]
    assert "its lateness" not in answer(job_of(without))
    assert "times without the profiler" in job_page(job_of(without), 5).heading


def test_a_rank_recorded_otherwise_than_most_is_a_doubt():
    made = [*play(changed(steps=4)).reductions()]

    def doubts(**changes):
        others = [
            one | {"ranks": one["ranks"].with_columns(pl.lit(value).alias(name) for name, value in changes.items())}
            for one in made
        ]
        return [doubt[:2] for doubt in job_of([others[0], *made[1:]]).doubts]

    told = ("ranks recorded otherwise than most", 1)
    assert told in doubts(recorded="api op python")
    assert told in doubts(tool="nsys")
    assert told not in doubts(recorded="api op range")  # which a report has only where there are some


# Which steps count, and what of a cause was told of an earlier collective.


PARTS = st.dictionaries(st.sampled_from(("kernel", "host", "communication", EARLIER)), st.integers(-1_000, 1_000))


def parts(told):
    rows = [(match, bucket, ns) for match, own in enumerate(told) for bucket, ns in own.items()]
    return pl.DataFrame(rows, schema={"match": pl.Int64, "bucket": pl.String, "ns": pl.Int64}, orient="row")


@given(st.lists(PARTS, max_size=4))
def test_causes_keep_their_sum_and_no_part_changes_its_sign(told):
    before, after = parts(told), _without_carried(parts(told))
    for match, own in enumerate(told):
        left = dict(after.filter(pl.col("match") == match).select("bucket", "ns").iter_rows())
        assert sum(left.values()) == sum(own.values())
        for bucket, ns in own.items():
            assert ns * left[bucket] >= 0
            assert abs(left[bucket]) <= abs(ns)
        if own.get(EARLIER, 0) < 0 < own.get("kernel", 0):
            assert 0 in (left["kernel"], left[EARLIER])
    assert before.height == after.height


def steps(*told):
    """Two ranks with the same steps, each its kind and time."""
    rows = [(rank, step, kind, ns) for rank in (0, 1) for step, (kind, ns) in enumerate(told)]
    return pl.DataFrame(rows, schema=["rank", "step", "kind", "ns"], orient="row")


@pytest.mark.parametrize(
    ("told", "used"),
    [
        ([("warm-up", 900), ("steady", 10), *[("steady", 100)] * 4, ("steady", 10), ("cut", 50)], [2, 3, 4, 5]),
        ([("odd", 900), ("steady", 100), ("odd", 300), ("steady", 100), ("odd", 900)], [0, 1, 2, 3, 4]),
        ([("steady", 20), ("steady", 1), ("steady", 22), ("steady", 20)], [0, 1, 2, 3]),
        ([("steady", 12), ("steady", 20), ("steady", 20)], [0, 1, 2]),
        ([("steady", 20)], [0]),
    ],
)
def test_steps_at_both_ends_that_are_no_usual_ones_are_left_out_of_means(told, used):
    assert common_steps(steps(*told)).get_column("step").unique().sort().to_list() == used


def test_ranks_without_collectives_are_a_doubt_and_no_ranks_that_never_wait():
    """As with gloo on GPUs, whose collectives are no kernels."""
    made = report([kernel(10, 60, device=rank, process=1 + rank) for rank in (0, 1)])
    doubts = {check: count for check, count, _ in job_of([reduced(made)]).doubts}
    assert doubts["ranks without collectives"] == 2


#: Of a step in microseconds: its length, the usual time in the loader, that of the kernel, and of the transfer.
STEP, USUAL, COMPUTES, TRANSFERS = 100_000, 20_000, 10_000, 500
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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loads", [False, True])
def test_what_is_told_apart_is_a_part_of_its_bucket(reports, loads):
    report = reports(loads=loads)[1]
    made = reduced(report)
    spans = made["collectives"].select("number", start=(pl.col("start_ns") + pl.col("dur_ns")).shift(1), end="start_ns")
    for number, start, end in spans.drop_nulls().iter_rows():
        own = made["before"].filter(number=number)
        assert int(own.get_column("ns").sum()) == end - start
        inside = USUAL + (LATE if loads and number == SLOW else 0)
        assert own.drop_nulls("detail").select("bucket", "detail", "ns").rows() == [("host", IN_LOADER, inside * 1_000)]
    whole = ledger(report).filter(pl.col("bucket").cast(pl.String) == "host").get_column("ns").sum()
    assert 0 < made["before"].filter(bucket="host").get_column("ns").sum() <= whole


@pytest.mark.slow
@pytest.mark.parametrize("gloo", [False, True])
def test_collectives_of_gloo_beside_those_of_nccl_are_said_not_to_be_told(reports, gloo):
    job = job_of([reduced(one) for one in reports(gloo=gloo)], one_host=True)
    told = {check: count for check, count, _ in job.doubts}
    assert told == ({"collectives of gloo beside a GPU": 2 * len(STEPS)} if gloo else {})
    assert job.table("collectives").get_column("group").unique().to_list() == ["0"]


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


def test_of_a_job_on_cpus_no_path_is_known(tmp_path):
    reports = [rank_of_gloo(tmp_path, rank, SHAPES) for rank in range(2)]
    job = job_of([reduced(one) for one in reports], one_host=True)
    rows = rank_path(job, zip(job.ranks["rank"], reports, strict=True))
    assert rows.select("rank", "ns", "mostly").rows() == [(0, 100_000_000 * len(STEPS), "unknown")]


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


@pytest.mark.parametrize("kinds", [{20: "steady"}, {20: "odd"}, {20: "odd", 39: "odd"}])
def test_the_step_in_which_a_rank_sleeps_counts_whatever_it_is_called(kinds):
    """A sleep of 400 µs in one step of 40: much of that step, and little of a mean one."""
    said, stragglers = with_kinds(kinds)
    assert "40 steps" in said
    assert "left out" not in said
    assert "Rank 2 is 399.9 µs late in step 21: host" in said
    assert [text[:8] for text in stragglers] == ["Rank 2 i"]


@pytest.mark.slow
@pytest.mark.parametrize(("loads", "detail", "at"), [(True, IN_LOADER, " in DataLoader.__next__"), (False, None, "")])
def test_a_rank_is_late_for_its_loader_if_that_took_longer_than_on_the_rank_before_it(reports, loads, detail, at):
    job = job_of([reduced(one) for one in reports(loads=loads)], one_host=True)
    (late,) = late_ranks(job)
    assert (late.rank, late.first, late.last, late.late_ns) == (1, SLOW, SLOW, LATE * 1_000)
    assert (late.causes, late.detail) == ((("host", LATE * 1_000),), detail)
    assert f"late in step {SLOW}: host +20.00 ms{at}" in answer(job)
    (straggler,) = [one for one in job_findings(job) if one.finding == "straggler"]
    assert f"most for its host{at}: another one waits" in straggler.text
    assert straggler.action.startswith("Look at this rank's DataLoader") == loads
    rows = job.table("rank_steps").drop_nulls("detail").select("rank", "step", "cause", "detail").rows()
    assert rows == [(1, SLOW, "host", IN_LOADER)] * loads


def test_of_jobs_on_cpus_sizes_are_those_of_tensors_and_a_delay_counts_once(job):
    made = job(SHAPES)
    rows = made.table("collectives")
    assert rows.get_column("bytes").unique().to_list() == [1024 * 257 * 4]
    first = rows.filter(rank=0).sort("start_ns").row(0, named=True)
    assert first["busbw_bytes_per_s"] == pytest.approx(1024 * 257 * 4 / (TAKES * 1e-6), rel=1e-6)  # of two ranks f = 1
    (late,) = late_ranks(made)  # though two threads wait for it
    assert (late.rank, late.first, late.last) == (1, 3, 3)
    assert late.late_ns == pytest.approx(LATE_US[3] * 1_000, rel=1e-6)
    # what other threads did is not known, so that nothing is said to be exposed
    assert [(one.finding, one.text) for one in job_findings(made)] == [
        ("straggler", "Rank 1 is 40.00 ms late in 1 step: another one waits 40.20 ms.")
    ]


def test_without_shapes_sizes_are_not_told(job):
    rows = job({}).table("collectives")
    assert rows.get_column("bytes").null_count() == rows.height == 2 * 2 * len(STEPS)
    assert rows.get_column("busbw_bytes_per_s").null_count() == rows.height


ALONE = HIDDEN._replace(bytes=40_000_000, overlapped=False)
LARGE, SMALL = Op("all_reduce", "world", 100_000_000, 100_000), Op("all_reduce", "world", 100_000, 10_000)
TENSOR_PARALLEL = Plan(ranks=8, ops=(Op("all_reduce", "tp", 10_000_000, 50_000),) * 2, jitter=0)
UNEVEN = Op("all_to_all", "world", 20_000_000, compute_ns=100_000, uneven=2)
MORE = {"kernels": (100, 110, 100, 100), "stragglers": (Straggler(1, 0, 5, 300_000, "kernel"),)}
LATE_FOR = {bucket: changed(stragglers=(Straggler(2, 1, 4, 500_000, bucket),)) for bucket in ("kernel", "host")}

#: By finding: jobs that have the fault, with what is at stake (roughly) and a part of the sentence; and jobs without.
FINDINGS = {
    "straggler": (
        [
            (LATE_FOR["kernel"], 500_000 * 4 / 6, 0.02, "Rank 2 is 500.0 µs late in 4 steps, most for its kernel: "),
            (LATE_FOR["host"], 500_000 * 4 / 6, 0.02, "most for its host: another one waits 500.0 µs"),
        ],
        [SOUND],
    ),
    # at 200 bytes a ns, and up to 10 % more
    "exposed-transfer": (
        [(changed(ops=(ALONE, END)), 40_000_000 / 200 * 1.05, 0.15, "")],
        [SOUND, changed(ops=(ALONE._replace(overlapped=True), END))],
    ),
    "small-collectives": (
        [(changed(ops=(LARGE, *[SMALL] * 12)), 12 * 8_250, 0.4, "12 all_reduce a step of at most 100.0 kB each")],
        [changed(ops=(LARGE, *[SMALL] * 7)), changed(ops=(LARGE,) * 13)],
    ),
    # as long again as at full speed; of two groups none is usual
    "slow-group": (
        [(replace(TENSOR_PARALLEL, slow={"tp2": 0.5}), 2 * 10_000_000 / 200, 0.2, "Group tp2 reaches ")],
        [TENSOR_PARALLEL, replace(TENSOR_PARALLEL, ranks=4, slow={"tp1": 0.5})],
    ),
    # half of what it takes
    "uneven-all-to-all": (
        [(changed(ops=(UNEVEN, END)), 100_000, 0.2, "Parts of 6 all_to_all are uneven: up to 2.00 × the mean")],
        [changed(ops=(UNEVEN._replace(uneven=even), END)) for even in (1, 1.2, 0)],
    ),
    # neither of hardly more kernels, nor of more that take no longer, nor where kernels are not known
    "other-work": (
        [(changed(**MORE), 300_000, 0.01, "Rank 1 runs 1.10 × as many kernels as the others, and computes 299.9 µs")],
        [changed(**{**MORE, **other}) for other in ({"kernels": (100, 101, 100, 100)}, {"stragglers": ()})]
        + [changed(kernels=(100, 150, 0, 0), stragglers=())],
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", FINDINGS)
def test_each_finding_on_jobs_with_the_fault_and_without(name):
    faulty, sound = FINDINGS[name]
    for plan, stake, near, text in faulty:
        (one,) = [one for one in job_findings(job_of([*play(plan).reductions()])) if one.finding == name]
        assert one.at_stake_ns == pytest.approx(stake, rel=near)
        assert text in one.text
        assert one.action
    for plan in sound:
        assert name not in {one.finding for one in job_findings(job_of([*play(plan).reductions()]))}


def test_a_sound_job_has_no_finding_and_each_is_explained():
    assert job_findings(job_of([*play(SOUND).reductions()])) == []
    assert len(RULES) == len(FINDINGS)
    assert {*FINDINGS} <= {*names()}
