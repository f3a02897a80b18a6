"""Waiting and transfer in the ledger of one report: by hand, on real reports, and for any events."""

import sys
from pathlib import Path
from subprocess import run

import polars as pl
import pytest
from hypothesis import given

from kanalyze import read
from kanalyze.analyses.idle.ledger import bucket_sums, ledger
from kanalyze.analyses.page.overview_page import overview
from kanalyze.analyses.page.time_page import summarize
from kanalyze.renderers.page.overview import overview_page
from kanalyze.renderers.page.time import page_of
from kanalyze.several import Asked
from kanalyze.several.jobs import job
from kanalyze.window import Window
from support.build import kernel, report
from support.strategies import EVENTS

REPORTS = Path(__file__).parents[2] / "reports"
SIZED, UNSIZED = REPORTS / "communicators.sqlite", REPORTS / "nccl.sqlite"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def reduces(*starts, ends, size=None, devices=None, processes=None):
    """Ranks that come to one all_reduce at `starts` and leave it at `ends`, as a report with what is recorded of it."""
    devices, processes = devices or range(len(starts)), processes or range(1, 1 + len(starts))
    events = [
        kernel(start, end, name=ALL_REDUCE, device=device, process=process)
        for start, end, device, process in zip(starts, ends, devices, processes, strict=True)
    ]
    said = {"collective": "allreduce", "group_size": size, "group": None if size is None else "0"}
    return events, [{"event_id": at, **said} for at in range(len(events))]


def details(of, **where):
    """The rows of communication of each device."""
    rows = ledger(of, **where).filter(pl.col("bucket") == "communication")
    return rows.select("device", "detail", "ns").sort("device", "detail", nulls_last=True).rows()


def test_a_rank_waits_until_the_last_has_come():
    events, said = reduces(0, 60, ends=(100, 100), size=2)
    assert details(report(events, collective_detail=said)) == [
        (0, "transfer", 40), (0, "waiting for GPU 1", 60), (1, "transfer", 40),
    ]  # fmt: skip


def test_what_a_kernel_hides_is_neither():
    events, said = reduces(0, 60, ends=(100, 100), size=2)
    hiding = [kernel(10, 30, process=1), kernel(70, 75, process=1)]
    assert details(report([*events, *hiding], collective_detail=said)) == [
        (0, "transfer", 35), (0, "waiting for GPU 1", 40), (1, "transfer", 40),
    ]  # fmt: skip


def test_of_a_window_it_is_the_part_inside_and_the_partner_may_be_outside():
    events, said = reduces(0, 60, ends=(100, 100), size=2)
    made = report(events, collective_detail=said)
    assert details(made, window=Window(20, 70), device=0) == [(0, "transfer", 10), (0, "waiting for GPU 1", 40)]
    assert details(made, window=Window(0, 50), device=0) == [(0, "waiting for GPU 1", 50)]


def test_where_the_size_of_the_group_is_not_recorded_the_rest_has_no_name():
    """Ranks of another machine may come later."""
    events, said = reduces(0, 60, ends=(100, 100))
    assert details(report(events, collective_detail=said)) == [
        (0, "waiting for GPU 1", 60), (0, None, 40), (1, None, 40),
    ]  # fmt: skip


def test_where_ranks_are_missing_nothing_is_told():
    events, said = reduces(0, 60, ends=(100, 100), size=4)
    assert details(report(events, collective_detail=said)) == [(0, None, 100), (1, None, 40)]


def test_three_ranks_without_a_recorded_group_may_be_of_several():
    events, said = reduces(0, 60, 80, ends=(100, 100, 100))
    assert details(report(events, collective_detail=said)) == [(0, None, 100), (1, None, 40), (2, None, 20)]


def test_of_three_ranks_the_last_is_named():
    events, said = reduces(0, 80, 60, ends=(100, 100, 100), size=3)
    assert details(report(events, collective_detail=said)) == [
        (0, "transfer", 20), (0, "waiting for GPU 1", 80), (1, "transfer", 20), (2, "transfer", 20),
        (2, "waiting for GPU 1", 20),
    ]  # fmt: skip


def test_ranks_that_come_last_at_once_are_the_others():
    events, said = reduces(0, 60, 60, ends=(100, 100, 100), size=3)
    assert details(report(events, collective_detail=said))[:2] == [(0, "transfer", 40), (0, "waiting for others", 60)]


def test_processes_that_share_a_gpu_are_told_apart():
    events, said = reduces(0, 60, ends=(100, 100), size=2, devices=(0, 0))
    assert details(report(events, collective_detail=said)) == [(0, "transfer", 40), (0, "waiting for process 2", 60)]


def test_a_single_rank_has_no_details():
    events, said = reduces(0, ends=(100,), size=2)
    assert details(report(events, collective_detail=said)) == [(0, None, 100)]
    events, said = reduces(0, 60, ends=(100, 100), size=2)
    assert details(report(events, collective_detail=said), process=1) == [(0, None, 100)]


@pytest.mark.slow
@pytest.mark.parametrize("path", [SIZED, UNSIZED], ids=["sized", "unsized"])
def test_it_is_what_the_job_waits(path):
    found = job([path], Asked())
    own = dict(found.rows.group_by("device").agg(pl.col("exposed_wait_ns").sum()).iter_rows())
    with read(path) as opened:
        rows = ledger(opened).filter(pl.col("bucket") == "communication")
        waits = rows.filter(pl.col("detail").str.starts_with("waiting for GPU"))
        assert {device: ns for device, ns in own.items() if ns} == dict(waits.select("device", "ns").iter_rows())
        rest = rows.filter(~pl.col("detail").str.starts_with("waiting").fill_null(value=False))
        assert rest.get_column("detail").unique().to_list() == ["transfer" if path == SIZED else None]


@pytest.mark.slow
@given(EVENTS)
def test_details_sum_to_the_buckets_and_shares_to_one(events):
    made = report(events)
    keys = ["device", "bucket"]
    found, wanted = (of(made).group_by(keys).agg(pl.col("ns", "share").sum()) for of in (ledger, bucket_sums))
    both = found.join(wanted, on=keys, how="full")
    assert both.select((pl.col("ns") == pl.col("ns_right")).all()).item()
    assert both.select(((pl.col("share") - pl.col("share_right")).abs() < 1e-9).all()).item()
    assert not ledger(made).select((pl.col("ns") <= 0).any()).item()


@pytest.mark.slow
def test_the_page_names_whom_it_waits_for():
    with read(UNSIZED) as opened:
        shares = overview_page(overview(opened), 10).ledgers[0].shares
        full = page_of(summarize(opened), 10).ledgers[1].shares
    told = {share.bucket: share.detail for share in (*full, *shares)}
    assert told["communication"] == "waiting for GPU 0 32 %"
    assert next(one.detail for one in full if one.bucket == "communication") == "waiting for GPU 0 72 %"


@pytest.mark.slow
def test_pages_of_other_reports_load_nothing_of_it():
    """What matches collectives needs numpy, which takes longer than a small page."""
    program = (
        "import sys; from kanalyze.analyses.page.overview_page import overview; from kanalyze.readers import read;"
        "from pathlib import Path; page = overview(read(Path(sys.argv[1])));"
        "print([name for name in sys.modules if name.endswith(('_matching', '_waits'))])"
    )
    told = [
        run([sys.executable, "-c", program, path], check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
        for path in (REPORTS / "add.sqlite", UNSIZED)
    ]
    assert told[0] == "[]"
    assert "communication._matching" in told[1]
