"""Waiting and transfer in the ledger of one report: by hand, on real reports, and for any events."""

import sys
from subprocess import run

import polars as pl
import pytest
from hypothesis import given

from kanalyze import read
from kanalyze.analyses.communication._recorded import last_arrivals
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.idle.ledger import bucket_sums, ledger
from kanalyze.analyses.page.overview_page import overview
from kanalyze.analyses.page.time_page import summarize
from kanalyze.renderers.page.overview import overview_page
from kanalyze.renderers.page.time import page_of
from kanalyze.several import Asked
from kanalyze.several.jobs import job
from kanalyze.window import Window
from support.build import kernel, report
from support.command import REPORTS
from support.strategies import EVENTS

SIZED, UNSIZED = REPORTS / "communicators.sqlite", REPORTS / "nccl.sqlite"


def reduces(*starts, hidden=(), size=None, devices=None):
    """Ranks that come to one all_reduce at `starts` and leave it at 100, as a report with what is recorded of it."""
    events = [
        kernel(start, 100, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", device=device, process=process)
        for process, (start, device) in enumerate(zip(starts, devices or range(len(starts)), strict=True), 1)
    ]
    said = {"collective": "allreduce", "group_size": size, "group": None if size is None else "0"}
    details = [{"event_id": at, **said} for at in range(len(events))]
    return report([*events, *(kernel(*span, process=1) for span in hidden)], collective_detail=details)


def details(of, **where):
    rows = ledger(of, **where).filter(pl.col("bucket") == "communication")
    return rows.select("device", "detail", "ns").sort("device", "detail", nulls_last=True).rows()


def dispatches(name, *starts):
    """Ranks that come to one kernel of an expert-parallel library, of which nothing is recorded but its name."""
    spans = enumerate(starts)
    return report([kernel(start, 100, name=name, device=rank, process=rank + 1) for rank, start in spans])


PAIR = reduces(0, 60, size=2)
OF_FOUR = [(0, "transfer", 20), (0, "waiting for GPU 3", 80), (1, "transfer", 20), (1, "waiting for GPU 3", 40)]
OF_FOUR += [(2, "transfer", 20), (2, "waiting for GPU 3", 20), (3, "transfer", 20)]
HIDDEN = reduces(0, 60, size=2, hidden=[(10, 30), (70, 75)])
OF_WAITING = [(0, "waiting for GPU 1", 60), (0, None, 40), (1, None, 40)]
NOTIFIED = dispatches("void deep_ep::intranode::notify_dispatch<2>(int const*)", 0, 40, 60, 80)


@pytest.mark.parametrize(
    ("of", "where", "expected"),
    [
        # a rank waits until the last has come
        (PAIR, {}, [(0, "transfer", 40), (0, "waiting for GPU 1", 60), (1, "transfer", 40)]),
        # of DeepEP in a node the name says how many ranks there are, of others that of more than two is not known
        (dispatches("void deep_ep::legacy::intranode::dispatch<4, 768, 8192>(int4*)", 0, 40, 60, 80), {}, OF_FOUR),
        (dispatches("void deep_ep::intranode::combine<__nv_bfloat16, (int)4, 768>(int)", 0, 40, 60, 80), {}, OF_FOUR),
        (NOTIFIED, {"device": 0}, [(0, None, 100)]),
        (dispatches("void (anonymous namespace)::dispatchKernel<10u, true, true>(int*)", 0, 60), {}, OF_WAITING),
        # what a kernel hides is neither
        (HIDDEN, {}, [(0, "transfer", 35), (0, "waiting for GPU 1", 40), (1, "transfer", 40)]),
        # of a window it is the part inside, and the partner may be outside
        (PAIR, {"window": Window(20, 70), "device": 0}, [(0, "transfer", 10), (0, "waiting for GPU 1", 40)]),
        (PAIR, {"window": Window(0, 50), "device": 0}, [(0, "waiting for GPU 1", 50)]),
        # where the size of the group is not recorded, ranks of another machine may come later
        (reduces(0, 60), {}, [(0, "waiting for GPU 1", 60), (0, None, 40), (1, None, 40)]),
        # where ranks are missing nothing is told
        (reduces(0, 60, size=4), {}, [(0, None, 100), (1, None, 40)]),
        # three ranks without a recorded group may be of several
        (reduces(0, 60, 80), {}, [(0, None, 100), (1, None, 40), (2, None, 20)]),
        # of three ranks the last is named; those that come last at once are the others
        (
            reduces(0, 80, 60, size=3),
            {},
            [
                *((0, "transfer", 20), (0, "waiting for GPU 1", 80), (1, "transfer", 20), (2, "transfer", 20)),
                (2, "waiting for GPU 1", 20),
            ],
        ),
        (reduces(0, 60, 60, size=3), {"device": 0}, [(0, "transfer", 40), (0, "waiting for others", 60)]),
        # processes that share a GPU are told apart
        (reduces(0, 60, size=2, devices=(0, 0)), {}, [(0, "transfer", 40), (0, "waiting for process 2", 60)]),
        # a single rank has no details
        (reduces(0, size=2), {}, [(0, None, 100)]),
        (PAIR, {"process": 1}, [(0, None, 100)]),
    ],
)
def test_waiting_and_transfer(of, where, expected):
    assert details(of, **where) == expected


@pytest.mark.slow
@pytest.mark.parametrize("path", [SIZED, UNSIZED], ids=["sized", "unsized"])
def test_it_is_what_the_job_waits(path):
    found = job([path], Asked())
    own = dict(found.rows_at(found.found.order).group_by("device").agg(pl.col("exposed_wait_ns").sum()).iter_rows())
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
        "print([name for name in sys.modules if name.endswith(('_matching', '_waits')) or name == 'numpy'])"
    )
    told = [
        run([sys.executable, "-c", program, path], check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
        for path in (REPORTS / "add.sqlite", UNSIZED)
    ]
    assert told[0] == "[]"
    assert "communication._matching" in told[1]


EXPERTS = REPORTS / "experts"


def test_kernels_between_experts_wait_as_long_as_they_say_themselves():
    """Two GPUs that write to each other and wait, some late by a set time; the clock of one is ahead by a constant."""
    log = pl.read_csv(EXPERTS / "log.csv")
    call = ["step", "layer", "call"]
    ends = log.pivot(on="rank", index=call, values="ended_ns").select(pl.col("1") - pl.col("0"))
    ahead = pl.when(rank=1).then(int(ends.to_series().median())).otherwise(0)
    began = log.with_columns(began=pl.col("began_ns") - ahead).sort("rank", "began_ns")
    waited = began.select(pl.col("began").max().over(call) - pl.col("began")).to_series()
    with read(EXPERTS / "experts.sqlite") as experts:
        work = operations(experts).join(last_arrivals(experts), on="row").sort("device", "start")
    told = work.select(pl.min_horizontal("end", "arrival") - pl.col("start")).to_series().clip(0)
    assert len(told) == len(waited) == 2 * 8 * 6 * 2
    assert (told - waited).abs().max() < 1_000
    assert told.sum() == pytest.approx(waited.sum(), rel=0.005)
    late = work.filter(told > 380_000)  # the threads begin 370 µs apart
    assert late.group_by("last").len().sort("last").rows() == [("GPU 0", 4), ("GPU 1", 8)]
