"""Waiting and transfer in the ledger of one report, which calls a kernel was launched for, and which shifts fit."""

import sys
from subprocess import run

import numpy as np
import polars as pl
import pytest
from hypothesis import strategies as st

from kanalyze import read
from kanalyze.analyses.communication._matching import SIZE_BITS, Sequence, _shift
from kanalyze.analyses.communication._recorded import last_arrivals, sums_of_calls
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
from support.strategies import EVENTS, slow_given

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


@slow_given(EVENTS)
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


CALLS = {
    "process_id": pl.Int64, "thread_id": pl.Int64, "start_ns": pl.Int64, "kind": pl.String, "group": pl.String,
    "size": pl.Int64, "own": pl.Int64, "peer": pl.Int64, "root": pl.Int64, "bytes": pl.Int64,
}  # fmt: skip
KERNELS = {
    "process_id": pl.Int64, "thread_id": pl.Int64, "event_id": pl.Int64, "device": pl.Int64, "kind": pl.String,
    "call_start": pl.Int64,
}  # fmt: skip


def call(at, kind="all_reduce", bytes_=100, **where):
    said = {"own": 0, "peer": None, "thread": 1, **where}
    return {
        "process_id": 1, "thread_id": said["thread"], "start_ns": at, "kind": kind, "group": "g", "size": 4,
        "own": said["own"], "peer": said["peer"], "root": None, "bytes": bytes_,
    }  # fmt: skip


def launched(at, event, *, device=0, kind="all_reduce", thread=1):
    return {
        "process_id": 1, "thread_id": thread, "event_id": event, "device": device, "kind": kind, "call_start": at,
    }  # fmt: skip


def told(calls, kernels):
    found = sums_of_calls(pl.DataFrame(calls, schema=CALLS), pl.DataFrame(kernels, schema=KERNELS))
    return {row["event_id"]: row for row in found.iter_rows(named=True)}


def test_a_call_is_that_of_the_next_kernel_of_its_thread():
    calls = [call(0, bytes_=1), call(10, bytes_=2), call(11, bytes_=4, thread=2)]
    found = told(calls, [launched(1, 7), launched(12, 8), launched(20, 9, thread=2)])
    assert {event: row["in_bytes"] for event, row in found.items()} == {7: 1, 8: 2, 9: 4}


def test_calls_that_do_not_share_out_evenly_tell_no_size():
    assert told([call(0), call(1), call(2)], [launched(4, 7, device=0), launched(5, 8, device=1)]) == {}


def send_recv(*calls):
    """What is told of a kernel of some sends and receives: kind, source, target, in_bytes, out_bytes."""
    made = [call(at, way, size, own=2, peer=peer) for at, (way, size, peer) in enumerate(calls)]
    row = told(made, [launched(99, 7, kind="send_recv")])[7]
    return tuple(row[name] for name in ("kind", "source", "target", "in_bytes", "out_bytes"))


def test_what_goes_between_two_ranks_is_theirs():
    assert send_recv(("send", 30, 1), ("recv", 40, 1)) == ("send_recv", 1, 2, 30, 40)
    assert send_recv(("send", 30, 1), ("recv", 40, 3)) == ("send_recv", None, None, 30, 40)
    assert send_recv(("send", 30, 1)) == ("send", 2, 1, 30, None)
    # to all others and from one of them
    assert send_recv(("send", 9, 1), ("send", 9, 3), ("send", 9, 0), ("recv", 9, 1))[0] == "send_recv"


GROUPS = st.lists(
    st.tuples(st.integers(1, 4), st.lists(st.integers(1, 1_000), min_size=1, max_size=3)), min_size=1, max_size=5
)


@slow_given(GROUPS)
def test_each_gpu_of_a_group_has_its_own_calls(groups):
    """A model apart: in each group the GPUs call the same sizes one GPU after the other, and each runs one kernel."""
    calls, kernels, expected, at, event = [], [], {}, 0, 0
    for devices, sizes in groups:
        for _ in range(devices):
            for size in sizes:
                calls.append(call(at, bytes_=size))
                at += 1
        for device in range(devices):
            kernels.append(launched(at, event, device=device))
            expected[event] = sum(sizes)
            at, event = at + 1, event + 1
    assert {number: row["in_bytes"] for number, row in told(calls, kernels).items()} == expected


@pytest.mark.parametrize(
    ("peers", "size", "kind", "bytes_"),
    [
        ([0, 1, 2, 3], 4, "all_to_all", 360),  # as PyTorch does it, with what stays
        ([0, 2, 3], 4, "all_to_all", 360),
        ([0, 1], 2, "all_to_all", 180),
        ([0], 2, "send_recv", 90),  # as the stages of a pipeline do
        ([0, 2], 4, "send_recv", 180),
        ([0, 1, 2], 4, "send_recv", 270),
        ([0, 2, 3], None, "send_recv", 270),
    ],
)
def test_sends_to_and_receives_from_all_others_are_an_all_to_all(peers, size, kind, bytes_):
    """Of 90 bytes each."""
    calls = [call(at, way, 90, own=1, peer=peer) for at, peer in enumerate(peers) for way in ("send", "recv")]
    row = told([one | {"size": size} for one in calls], [launched(99, 7, kind="send_recv")])[7]
    assert (row["kind"], row["in_bytes"], row["out_bytes"]) == (kind, bytes_, bytes_)


EACH, STEPS = 3, 8


def alike(first_step=6, *, clock, numbered=True, lost=0):
    """A rank with so many like collectives in each of equal steps, which lost some at the beginning."""
    number = EACH * STEPS - lost
    start = (np.arange(number) + lost) * 1_000_000 + first_step * EACH * 1_000_000
    steps = first_step + (np.arange(number) + lost) // EACH
    together = np.ones(number, dtype=np.bool_)
    each = np.arange(number), np.full(number, 5), start, start + 500_000, together, together, ~together, ~together
    return Sequence(*each, clock, steps=(lambda: steps) if numbered else None)


@pytest.mark.parametrize(
    ("base", "other", "shift"),
    [
        # nothing tells equal steps apart: a clock may be off by a step
        ({"numbered": False}, {"numbered": False}, None),
        ({}, {}, 0),
        # what a rank lost at its beginning: within a step shifts by one collective leave most in another step
        *(({}, {"lost": lost}, lost) for lost in (1, 2, 3, 4)),
        # ranks that count their steps differently have none in common
        ({}, {"first_step": 60}, None),
        ({}, {"numbered": False}, None),
    ],
)
def test_numbers_of_steps_tell_shifts_apart(base, other, shift):
    assert _shift(alike(clock=0, **base), alike(clock=1, **other)) == shift


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [((2, 7), (2, 7), 0), ((2, 0), (2, 7), 0), ((2, 7), (2, 0), 0), ((2, 7), (2, 8), None), ((2, 0), (3, 7), None)],
)
def test_collectives_whose_size_one_rank_does_not_tell_are_the_same_by_their_kind(left, right, found):
    """Each a kind and a size in bytes, counted from 1 on."""
    sides = [
        alike(clock=clock)._replace(what=np.full(EACH * STEPS, (kind << SIZE_BITS) + size))
        for clock, (kind, size) in enumerate((left, right))
    ]
    assert _shift(*sides) == found
