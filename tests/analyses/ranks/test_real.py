"""Real jobs: known delays, messages, payloads of NCCL's ranges, the path over ranks, and what HTA printed."""

import json
import shutil

import polars as pl
import pytest

from kanalyze import read
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.idle.ledger import exposure, ledger
from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.ranks._job import job_of
from kanalyze.analyses.ranks._job_findings import job_findings, late_ranks
from kanalyze.analyses.ranks._reducing import reduced
from kanalyze.analyses.ranks.tables import rank_path
from kanalyze.analyses.replay.critical_path import critical_path
from kanalyze.renderers.page.job import answer
from kanalyze.several import Asked
from kanalyze.several.jobs import job, path_of_ranks
from kanalyze.window import Window
from support.build import MB, call, kernel, report
from support.command import REPORTS, SAMPLES
from support.exports import altered

pytestmark = pytest.mark.slow

REPORT = REPORTS / "nccl.sqlite"

#: What rank 1 slept in step 11 of two ranks, by its own clock.
LATE_NS = 30_330_000


@pytest.fixture(scope="module")
def late():
    return job([SAMPLES / "ddp_late"], Asked())


def test_the_late_rank_its_step_its_cause_and_the_size_are_told(late):
    first = late_ranks(late)[0]
    assert (first.rank, first.first, first.last) == (1, 11, 11)
    assert first.late_ns == pytest.approx(LATE_NS, rel=0.05)
    cause, ns = first.causes[0]
    assert cause == "host"
    assert ns == pytest.approx(LATE_NS, rel=0.05)
    assert sum(ns for _, ns in first.causes) == first.late_ns


def test_what_the_recorder_may_cost_is_no_more_than_the_gpu_idles_before_the_collective(late):
    busy = pl.col("bucket").is_in(["kernel", "communication", "memcpy", "memset"])
    idle = late.before.filter(~busy).group_by("member", "number").agg(idle=pl.col("ns").sum())
    rows = late.costs.join(idle, on=["member", "number"], how="left")
    assert rows.height
    assert (rows.get_column("delay_ns") <= rows.get_column("idle").fill_null(0)).all()
    assert late_ranks(late)[0].recorder_ns < 0.1 * LATE_NS  # a sleep is no cost
    assert "may be what torch.profiler costs it, by estimate." in answer(late)


def test_one_report_of_all_ranks_is_told_without_its_recorder(tmp_path):
    """Steps take as long as the run without it says, collectives end with the last rank, and no lateness is left."""
    with read(REPORT) as found:
        steady = steady_part(found)
        number, each_ns = steady.rows.filter(name=steady.each).height, steady.ns / steady.number
    folder = tmp_path / "capture"
    folder.mkdir()
    manifest = json.loads((SAMPLES / "mlp_train" / "manifest.json").read_text())
    run = {"name": "bare", "command": [], "exit_status": 0, "duration_ns": 10**9}
    nsys = [one for one in manifest["passes"] if one["name"] == "nsys"]
    manifest["passes"] = [{"name": "bare", "status": "done", "steps": [run]}, *nsys]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    starts = [5 + int(0.9 * each_ns) * at for at in range(number)]
    (folder / "bare.json").write_text(json.dumps({"schema": 1, "starts_ns": {steady.each: starts}}))
    shutil.copy(REPORT, folder / "nsys.sqlite")
    recorded, corrected = job([REPORT], Asked()), job([folder], Asked(cache=False))
    assert [one.ranks["corrected"].to_list() for one in (recorded, corrected)] == [[False] * 2, [True] * 2]
    steps = corrected.table("rank_steps").filter(kind="steady").get_column("ns")
    assert steps.mean() == pytest.approx(0.9 * each_ns, rel=0.05)
    assert "may be what" in answer(recorded)
    assert "may be what" not in answer(corrected)
    collectives = corrected.table("collectives").with_columns(end=pl.col("start_ns") + pl.col("dur_ns"))
    ends = collectives.group_by("id").agg(pl.col("end").max() - pl.col("start_ns").max())
    assert (ends.get_column("end") > 0).all()


def test_findings_are_of_the_mean_step_and_name_the_rank_that_the_answer_names(late):
    told = job_findings(late)
    assert [one.finding for one in told] == ["straggler", "exposed-transfer"]
    assert told[0].text.startswith("Rank 1 is 29.23 ms late in 1 step, most for its host")
    assert "Rank 1 is 29.23 ms late in step 11" in answer(late)
    assert "5 steps, not all of them steady; 1 left out" in answer(late)  # that with the sleep is one of them
    step = late.table("rank_steps").get_column("ns").median()
    assert all(0 < one.at_stake_ns < step for one in told)


def test_nothing_is_told_of_one_rank_alone():
    alone = job([SAMPLES / "ddp_late" / "rank1.json.gz"], Asked())
    assert job_findings(alone) == []
    assert answer(alone).startswith("Only one rank was read")
    assert alone.missing == [0]
    rows = alone.table("collectives")
    assert rows.get_column("id").null_count() == rows.height
    assert rows.get_column("wait_ns").null_count() == rows.height


#: What rank 2 multiplied in steps 8 to 10, by CUDA events, and what rank 1 slept in step 12, by its own clock.
MULTIPLIED_NS = (11_309_000, 11_588_000, 11_935_000)
SLEPT_NS = 30_179_000
STAGES, MICROBATCHES, STEPS = 4, 8, 2


@pytest.fixture(scope="module")
def pipeline():
    return job([SAMPLES / "pipeline_four"], Asked())


def test_late_ranks_their_steps_causes_and_sizes_are_told():
    four = job([SAMPLES / "ddp_four"], Asked())
    multiplies, sleeps = sorted(late_ranks(four)[:2], key=lambda one: one.first)
    assert (multiplies.rank, multiplies.first, multiplies.last) == (2, 8, 10)
    assert (sleeps.rank, sleeps.first, sleeps.last) == (1, 12, 12)
    mean = sum(MULTIPLIED_NS) // 3
    assert (multiplies.causes[0][0], sleeps.causes[0][0]) == ("kernel", "host")
    assert multiplies.late_ns == pytest.approx(mean, rel=0.05)
    assert multiplies.causes[0][1] == pytest.approx(mean, rel=0.05)
    assert sleeps.late_ns == pytest.approx(SLEPT_NS, rel=0.05)
    assert sleeps.causes[0][1] == pytest.approx(SLEPT_NS, rel=0.05)
    assert {one.rank for one in late_ranks(four) if one.late_ns > 1_000_000} == {1, 2}
    assert "Rank 2 is 11.48 ms late in steps 8 to 10: kernel +11.78 ms" in answer(four)
    rows = four.table("collectives")
    assert rows.get_column("id").null_count() == 0
    assert rows.group_by("id").len().get_column("len").unique().to_list() == [4]


def test_messages_of_a_pipeline_are_all_matched_between_neighbours(pipeline):
    rows = pipeline.table("collectives")
    assert rows.get_column("id").null_count() == 0
    assert rows.get_column("size").unique().to_list() == [2]
    pairs = rows.group_by("id").agg(ranks=pl.col("rank").sort(), kind=pl.col("kind").cast(pl.String).sort())
    assert all(high - low == 1 for low, high in pairs.get_column("ranks").to_list())
    # a send_recv is a message each way
    kinds = pairs.get_column("kind").to_list()
    assert {*map(tuple, kinds)} == {("recv", "send"), ("send_recv", "send_recv")}
    messages = sum(2 if kind[0] == "send_recv" else 1 for kind in kinds)
    assert messages == 2 * (STAGES - 1) * MICROBATCHES * STEPS
    assert rows.get_column("bytes").unique().to_list() == [4096 * 4096 * 2]


def test_the_slow_stage_of_a_pipeline_is_found(pipeline):
    assert late_ranks(pipeline) == []
    first = job_findings(pipeline)[0]
    assert (first.finding, first.text[:6]) == ("other-work", "Rank 2")


def test_exposed_parts_sum_to_the_bucket_of_the_ledger():
    with read(REPORT) as report:
        sums = ledger(report).filter(pl.col("bucket") == "communication").group_by("device").agg(pl.col("ns").sum())
    own = job([REPORT], Asked()).table("collectives").group_by("device").agg(
        ns=pl.col("exposed_wait_ns").sum() + pl.col("exposed_transfer_ns").sum()
    )  # fmt: skip
    assert dict(own.iter_rows()) == dict(sums.iter_rows())


# Busy, idle and overlapped time of each rank equal those of HolisticTraceAnalysis 0.5.0, which printed these figures
# with `HTA_DISABLE_NS_ROUNDING=1` and `include_last_profiler_step` (docs/ranks.md).


#: By rank: idle, computing and other time of `get_temporal_breakdown` in microseconds, and the overlap of
#: communication with computing of `get_comm_comp_overlap`, in percent.
PRINTED = {0: (20558.052359, 124395.600859, 30272.147680, 36.50), 1: (50620.587391, 120971.568000, 3580.788188, 68.97)}


@pytest.mark.parametrize("rank", PRINTED)
def test_times_and_overlap(rank):
    idle, computing, other, overlapped = PRINTED[rank]
    with read(SAMPLES / "ddp_late" / f"rank{rank}.json.gz") as report:
        work = operations(report)
        window = Window(*work.select(pl.col("start").min(), pl.col("end").max()).row(0))
        sums = dict(ledger(report, window=window).group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
        told = exposure(report).filter(pl.col("category") == "communication")
    busy = {name: sums.get(name, 0) for name in ("kernel", "communication", "memcpy", "memset")}
    assert busy.pop("kernel") / 1e3 == pytest.approx(computing, abs=0.5)
    assert sum(busy.values()) / 1e3 == pytest.approx(other, abs=0.5)
    assert (window.end_ns - window.start_ns - sum(busy.values())) / 1e3 == pytest.approx(idle + computing, abs=0.5)
    assert 100 * told.item(0, "hidden_share") == pytest.approx(overlapped, abs=0.005)


#: Kind and bytes as nccl-tests counts them, in the order in which the program calls them (groups.py).
CALLED = [
    ("all_reduce", 64 * MB), ("all_reduce", 16 * MB), ("all_reduce", 4), ("broadcast", 48 * MB), ("reduce", 40 * MB),
    ("all_gather", 48 * MB), ("all_gather", 40 * MB), ("reduce_scatter", 56 * MB), ("reduce_scatter", 24 * MB),
    ("all_to_all", 64 * MB),
]  # fmt: skip


@pytest.fixture(scope="module")
def rows():
    return job([REPORTS / "communicators.sqlite"], Asked()).table("collectives")


def test_kinds_and_sizes_are_those_that_the_program_called(rows):
    first = rows.filter(pl.col("rank") == 0, pl.col("stream") == 7).sort("start_ns")
    assert list(first.select("kind", "bytes").head(len(CALLED)).iter_rows()) == CALLED
    assert first.get_column("size").head(len(CALLED)).to_list() == [2] * len(CALLED)


def test_every_collective_is_on_both_ranks_with_the_same_kind_and_size(rows):
    pairs = rows.group_by("id").agg(pl.len(), pl.col("bytes").n_unique(), pl.col("group").n_unique())
    assert rows.get_column("id").null_count() == 0
    assert pairs.select(pl.col("len").unique()).to_series().to_list() == [2]
    assert pairs.select((pl.col("bytes") == 1) & (pl.col("group") == 1)).to_series().all()
    sends = rows.filter(pl.col("kind").is_in(["send", "recv"])).group_by("id").agg(pl.col("kind").sort())
    assert {tuple(kinds) for kinds in sends.get_column("kind")} == {("recv", "send")}


def test_communicators_on_two_streams_are_two_groups(rows):
    groups = rows.filter(pl.col("stream").is_in([33, 37])).group_by("stream").agg(pl.col("group").unique())
    assert [len(one) for one in groups.get_column("group").to_list()] == [1, 1]
    assert groups.get_column("group").explode().n_unique() == 2


FIRST = "WHERE rowid = (SELECT min(rowid) FROM NVTX_EVENTS WHERE binaryData IS NOT NULL)"


@pytest.mark.parametrize(
    ("blob", "undecoded"),
    [
        ("NULL", None),
        ("CAST(substr(binaryData, 1, 8) || x'0800000000000000' || substr(binaryData, 17) AS BLOB)", None),
        ("x''", 1),
        ("CAST('short' AS BLOB)", 1),
        ("substr(binaryData, 1, 44)", 1),
        ("CAST(substr(binaryData, 1, 16) || x'9001000000000000' || substr(binaryData, 25) AS BLOB)", 1),
        ("3", 1),
    ],
    ids=["none", "another schema", "empty", "short", "shorter than its schema", "cut", "a number"],
)
def test_what_is_no_payload_of_nccl_is_no_call(tmp_path, blob, undecoded):
    export = REPORTS / "communicators.sqlite"
    with read(altered(tmp_path, export, f"UPDATE NVTX_EVENTS SET binaryData = {blob} {FIRST}")) as changed:
        calls = changed.table("communicator_calls")
        notes = dict(changed.table("notes").select("check", "count").iter_rows())
    assert calls.height == read(export).table("communicator_calls").height - 1
    assert notes.get("payloads of ranges that cannot be decoded") == undecoded


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def _rank(process, launched, start, end, device=0):
    return [
        call("cudaLaunchKernel", 0, 5, process=process, correlation=1),
        call("cudaLaunchKernel", launched, launched + 5, process=process, correlation=2),
        kernel(6, 9, name="own", process=process, device=device, correlation=1),
        kernel(start, end, name=ALL_REDUCE, process=process, device=device, correlation=2),
        kernel(end, end + 10, name="next", process=process, device=device),
    ]


def _said(*rows):
    told = {"collective": "allreduce", "group_size": 2, "group": "0", "in_elements": 8, "type": "Float"}
    return [{"event_id": row, **told} for row in rows]


def test_of_two_reports():
    first = report(_rank(1, 5, 12, 100), collective_detail=_said(3))
    second = report(_rank(2, 60, 66, 100), collective_detail=_said(3))
    job = job_of([reduced(first), reduced(second)], one_host=True)
    rows = rank_path(job, zip(job.ranks["rank"], (first, second), strict=True))
    told = rows.select("rank", "ns", "device_ns", "mostly", "mostly_ns").rows()
    # until 66 the host of rank 1, then the transfer of rank 0, since both end at once and it is the first
    assert told == [(1, 66, 0, "host", 55), (0, 44, 44, "transfer", 34)]
    assert rows["ns"].sum() == 110


def test_of_one_report():
    events = [*_rank(1, 5, 12, 100), *_rank(2, 60, 66, 100, device=1)]
    rows = critical_path(report(events, collective_detail=_said(3, 8)), segments=True)
    assert rows.select("cause", "process_id", "start_ns", "dur_ns").rows() == [
        ("launch", 2, 0, 5),
        ("host", 2, 5, 55),
        ("launch", 2, 60, 5),
        ("launch latency", 2, 65, 1),
        ("transfer", 1, 66, 34),
        ("kernel", 1, 100, 10),
    ]


def test_the_ranks_of_a_sample():
    rows = path_of_ranks([SAMPLES / "ddp_late"], Asked(cache=False))
    assert rows["rank"].sort().to_list() == [0, 1]
    assert abs(rows["share"].sum() - 1) < 1e-12
    # rank 1 sleeps for 30 ms in one of the steps, rank 0 waits for it
    alone = critical_path(read(SAMPLES / "ddp_late" / "rank0.json.gz"))
    assert alone.filter(pl.col("cause") == "communication")["ns"].sum() > 26_000_000
    assert rows.filter(pl.col("rank") == 1)["ns"].item() > 29_000_000
