"""The ledger, rule by rule of definitions.md section 5, and against a model; its pieces, in windows and intervals."""

import re

import polars as pl
import pytest
from hypothesis import example, given, strategies as st

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.host import _call_kinds
from kanalyze.analyses.idle import _attribution
from kanalyze.analyses.idle._attribution import idle_pieces, idle_within, ledger_pieces
from kanalyze.analyses.idle._idle_parts import IDLE
from kanalyze.analyses.idle.culprits import culprits, waiting_trees
from kanalyze.analyses.idle.ledger import bucket_sums, gaps, ledger, utilisation
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.intervals import AFTER_ALL, BEFORE_ALL
from kanalyze.window import Window
from support.build import MS, call, kernel, launched, nvtx, report, timeline
from support.command import REPORTS, SAMPLES
from support.large import in_batches
from support.real_reports import EXPORTS, TRACES, real_report
from support.shares import cases, holds
from support.slow_gaps import gap_reports
from support.slow_model import BUSY, SlowModel
from support.strategies import EVENTS, PROCESSES, WINDOWS, few_given, slow_given


def rows(of):
    found = ledger(of)
    assert found.get_column("device").n_unique() <= 1
    return found.select("bucket", "detail", "ns").rows()


#: A ledger by block: what it shows, by the number of its rule; its events; and after = its rows, without shares.
LEDGERS = """
1 a kernel wins over everything
    0-30 memset; 0-30 memcpy Host-to-Device; 0-30 kernel:ncclDevKernel_AllReduce; 10-20 kernel
    = kernel 10; communication 20

2 communication is what no kernel hides
    0-10 kernel; 5-20 kernel:ncclDevKernel_AllReduce; 0-25 memcpy Peer-to-Peer
    = kernel 10; communication 10; memcpy Peer-to-Peer 5

3 copies by direction the first started wins
    0-10 memcpy Host-to-Device; 5-17 memcpy Device-to-Host; 17-20 memcpy Unified Host-to-Device
    = memcpy Host-to-Device 10; memcpy Device-to-Host 7; memcpy Unified Host-to-Device 3

5 the profilers overhead wins over every call
    0-10 cuModuleLoadData; 5-15 !CUPTI buffer flush; 10-30 cudaLaunchKernel #1; 32-34 !CUPTI buffer flush
    40-50 kernel #1
    = kernel 10; profiler CUPTI buffer flush 12; loading cuModuleLoadData 5; launch call 15; launch latency 8

6 loading nested inside a launch
    0-100 cudaLaunchKernel #1; 10-90 cuLibraryLoadData; 105-110 kernel #1
    = kernel 5; loading cuLibraryLoadData 80; launch call 20; launch latency 5

6 the profiler says which call made the context
    0-3 cudaStreamCreate; 3-60 cudaMalloc_v3020; 10-50 cuCtxSynchronize; 20-25 !CUDA context created
    60-70 cudaMalloc_v3020; 70-80 cudaLaunchKernel #1; 80-90 kernel #1
    = kernel 10; profiler CUDA context created 5; loading context 17; allocation cudaMalloc 45; launch call 10
      api cudaStreamCreate 3

6 without the profilers word a long first call made the context
    0-20000000 cuInit; 20000000-30000000 cudaMalloc; 30000000-40000000 cudaMalloc
    40000000-40000010 cudaLaunchKernel #1; 40000010-40000020 kernel #1
    = kernel 10; loading context 10000000; allocation cudaMalloc 10000000; launch call 10; api cuInit 20000000

7 allocation wins over the launch too
    0-10 cudaMalloc_v3020; 12-15 cudaHostRegister; 20-40 cudaLaunchKernel #1; 25-30 cuMemAlloc_v2
    41-43 cudaFree_v3020; 45-50 kernel #1
    = kernel 5; allocation cudaMalloc 10; allocation cuMemAlloc_v2 5; allocation cudaHostRegister 3
      allocation cudaFree 2; launch call 15; launch latency 3; host 7

8 launch inside the call and its latency
    0-10 kernel; 12-20 cudaLaunchKernel #1; 20-40 cudaStreamSynchronize; 26-40 kernel #1
    = kernel 24; launch call 8; launch latency 6; host 2

8 a copy that blocks is a launch before its copy and a sync after it
    0-30 cudaMemcpy #1; 10-20 memcpy Host-to-Device #1
    = memcpy Host-to-Device 10; launch call 10; sync cudaMemcpy 10

8 of operations that start together the one with the first bucket ends the wait
    0-2 cudaMemcpyAsync #1; 12-20 cudaLaunchKernel #2; 0-10 kernel; 30-40 memcpy Host-to-Device #1; 30-40 kernel #2
    = kernel 20; launch latency 10; launch call 8; host 2

9 queued when the call had begun before the device fell idle
    0-2 cudaLaunchKernel #1; 3-12 cudaLaunchKernel #2; 12-30 cudaStreamSynchronize; 2-10 kernel #1; 20-30 kernel #2
    = kernel 18; launch call 4; queued 8

10 sync before the launch wins over other calls
    0-10 kernel; 8-30 cudaEventQuery; 12-20 cudaStreamSynchronize_v3020; 20-24 cudaMemcpy_v3020
    30-40 cudaLaunchKernel #1; 40-50 kernel #1
    = kernel 20; launch call 10; sync cudaStreamSynchronize 8; sync cudaMemcpy 4; api cudaEventQuery 8

11 any other call by name without the short version suffix
    0-5 cudaEventRecord_v3020; 5-7 cudaLaunchKernelExC_v11060; 7-8 cudaLaunchKernel #1; 8-10 kernel #1
    = kernel 2; launch call 1; api cudaEventRecord 5; api cudaLaunchKernelExC_v11060 2

12 host when the thread is in no call
    0-1 cudaLaunchKernel #1; 1-10 kernel #1; 5-90 cudaDeviceSynchronize t2; 80-82 cudaLaunchKernel #2
    82-90 kernel #2
    = kernel 17; launch call 3; host 70

13 unknown when the process launched nothing
    0-40 cudaDeviceSynchronize; 10-20 kernel #9; 25-30 kernel
    = kernel 15; unknown 25

without launch the thread of the most recent launch is looked at without launch and queued
    0-2 cudaLaunchKernel #1; 3-12 cudaLaunchKernel #2 t2; 12-16 cudaStreamSynchronize t2; 16-18 cudaMalloc t2
    10-40 cudaFree; 2-5 kernel #1; 5-10 kernel #2; 20-40 memcpy Unified Host-to-Device
    = kernel 8; memcpy Unified Host-to-Device 20; allocation cudaMalloc 2; launch call 2
      sync cudaStreamSynchronize 4; api cudaLaunchKernel 2; host 2

after the last operation the thread of the most recent launch is looked at
    0-2 cudaLaunchKernel #1; 2-14 cudaLaunchKernel #2 t2; 14-16 cudaDeviceSynchronize t2; 20-30 cudaFree t2
    10-40 cudaFree; 2-5 kernel #1; 5-10 kernel #2
    = kernel 8; allocation cudaFree 10; launch call 2; sync cudaDeviceSynchronize 2; api cudaLaunchKernel 4
      host 14
"""


@pytest.mark.parametrize("block", LEDGERS.strip().split("\n\n"), ids=lambda block: block.partition("\n")[0])
def test_each_rule(block):
    events, _, expected = block.partition("\n")[2].partition("\n    = ")
    told = [" ".join(str(value) for value in row if value is not None) for row in rows(report(timeline(events)))]
    assert told == re.split(r"; |;?\n\s+", expected)


@pytest.mark.parametrize("number", [0, 1, 6])
def test_6_in_a_recording_that_begins_at_a_later_step_no_call_made_the_context(number):
    begun = 10 + 14 * MS
    events = [call("cudaMalloc", 10, begun, correlation=1), nvtx(f"ProfilerStep#{number}", 0, 15 * MS)]
    events += launched(begun, begun + 5, kernel(begun + 10, begun + MS, correlation=2))
    assert (("loading", "context", 14 * MS) in rows(report(events))) == (number == 0)


def test_shares_are_parts_of_the_devices_window():
    events = [kernel(0, 10), kernel(30, 40), kernel(0, 5, process=2, device=1)]
    shown = ledger(report(events)).select("device", "bucket", "ns", "share").rows()
    assert shown == [(0, "kernel", 20, 0.5), (0, "unknown", 20, 0.5), (1, "kernel", 5, 1.0)]


def assert_same(found: pl.DataFrame, expected):
    order = {bucket: place for place, bucket in enumerate(BUCKETS)}
    got = [(device, bucket, detail, ns) for device, bucket, detail, ns, _ in found.iter_rows()]
    assert sorted(got, key=repr) == sorted(((*key, ns) for key, ns in expected.items()), key=repr)
    assert got == sorted(got, key=lambda row: (row[0], order[row[1]], -row[3], row[2] or ""))


@given(EVENTS, WINDOWS, st.sampled_from([3, 8, 1_000]), st.sampled_from([1, 5, 1_000]), st.sampled_from([1, 2, 1_000]))
@example([], (None, None), 3, 1, 1)
def test_ledger_equals_the_model(events, window, context_from_ns, prompt_ns, batch):
    model = SlowModel(events, window, context_from_ns, prompt_ns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_call_kinds, "CONTEXT_FROM_NS", context_from_ns)
        patch.setattr(_call_kinds, "PROMPT_NS", prompt_ns)
        in_batches(patch, batch)
        found = bucket_sums(report(events).narrow(window=Window(*window)))
    assert_same(found, model.ledger())
    sums = dict(found.group_by("device").agg(pl.col("ns").sum()).iter_rows())
    lengths = {device: end - start for device in model.devices for start, end in [model.window(device)]}
    assert sums == {device: length for device, length in lengths.items() if length > 0}


@few_given(EVENTS, WINDOWS, st.sampled_from([1, 2, 3, 1_000]))
def test_the_parts_add_up_to_the_ledger(events, window, batch):
    narrowed, model = report(events).narrow(window=Window(*window)), SlowModel(events, window)
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        found, waits = ledger(narrowed), _attribution.launch_waits(narrowed)
    on = operations(narrowed).get_column("device").gather(waits.get_column("row"))
    for device in windows(narrowed).get_column("device"):
        launch_ns = waits.filter(on == device).get_column("launch_ns").sum()
        assert launch_ns == found.filter(device=device, bucket="launch").get_column("ns").sum()
        idle = {instant for instant, bucket, _ in model.instants(device) if bucket == "host"}
        short_ns, making = _attribution.host_time(narrowed)[device]
        for span in making.select("start", "end").iter_rows():
            idle -= set(range(*span))
        assert short_ns == len(idle)  # all are shorter than 300 µs


@slow_given(EVENTS, PROCESSES)
def test_one_process_is_read_as_if_it_had_been_alone(events, process):
    whole = report([*events, call("cudaGetDevice", 0, 1, process=process)])
    own = [*(event for event in events if event.process == process), call("cudaGetDevice", 0, 1, process=process)]
    assert_same(bucket_sums(whole.narrow(process=process)), SlowModel(own).ledger())


@few_given(EVENTS, WINDOWS, st.integers(0, 2))
def test_one_device_is_read_as_it_is_among_the_others(events, window, device):
    whole = report([*events, kernel(3, 4, device=device)]).narrow(window=Window(*window))
    among = ledger(whole).filter(pl.col("device") == device)
    assert_same(ledger(whole.narrow(device=device)), {row[:3]: row[3] for row in among.iter_rows()})


def sums(rows, ns):
    found = rows.group_by("device", pl.col("bucket").cast(pl.String)).agg(ns=ns.sum()).filter(pl.col("ns") > 0)
    return {row[:2]: row[2] for row in found.iter_rows()}


@pytest.mark.parametrize("path", [*EXPORTS, *TRACES, *sorted(SAMPLES.glob("*/torch.json.gz"))], ids=str)
@pytest.mark.one_in(7)
def test_pieces_gaps_culprits_and_utilisation_of_real_reports_sum_to_the_ledger(path):
    of = real_report(path)
    if not {"kernel", "memcpy"} & {*of.kinds}:
        pytest.skip("nothing ran on a device")
    ns, whole = pl.col("ns"), sums(ledger(of), pl.col("ns"))
    assert sums(ledger_pieces(of), pl.col("end") - pl.col("start")) == whole
    assert utilisation(of).get_column("busy_ns").sum() == sum(ns for (_, name), ns in whole.items() if name in BUSY)
    idle = {key: ns for key, ns in whole.items() if key[1] in IDLE}
    assert sums(culprits(of), ns) == idle
    assert not culprits(of).filter(~pl.col("bucket").is_in(["unknown", "api"])).get_column("culprit").null_count()
    for device, tree in waiting_trees(of, 0.01).items():
        assert tree.filter(pl.col("parent").is_null()).get_column("ns").sum() == whole[device, "host"]
        inside = tree.group_by("parent").agg(ns.sum()).drop_nulls()
        assert all(tree.item(parent, "ns") >= time for parent, time in inside.iter_rows())
    each = gaps(of, threshold_ns=0).unpivot([f"{name}_ns" for name in IDLE], index="device", variable_name="bucket")
    assert sums(each.with_columns(pl.col("bucket").str.strip_suffix("_ns")), pl.col("value")) == idle


def test_time_that_the_recording_does_not_cover_is_unknown():
    of, whole, after = real_report(REPORTS / "add.sqlite"), 60 * 10**9, Window(70 * 10**9, 71 * 10**9)
    wide, rest = sums(ledger(of, window="0s..60s"), pl.col("ns")), whole - of.meta.end_ns
    assert (sum(wide.values()), wide[0, "unknown"]) == (whole, rest)
    assert wide[0, "kernel"] == sums(ledger(of), pl.col("ns"))[0, "kernel"]
    assert ledger(of, window=after).rows() == [(0, "unknown", None, 10**9, 1.0)]
    assert culprits(of, window=after).rows() == [(0, "unknown", None, None, 10**9, 1.0, 1, 10**9, None)]
    last = gaps(of, window="0s..60s").row(-1, named=True)
    assert (last["start_ns"], last["dur_ns"], last["unknown_ns"]) == (of.meta.end_ns, rest, rest)


@few_given(EVENTS, WINDOWS, WINDOWS, st.sampled_from([1, 1 << 13]), st.booleans())
def test_pieces_are_the_same_whatever_was_attributed_before(events, window, before, batch, whole):
    of = report(events)
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        idle_pieces(of.narrow(window=Window(*before)))
        if whole:
            idle_pieces(of)
        view, alone = of.narrow(window=Window(*window)), report(events).narrow(window=Window(*window))
        known, fresh = idle_pieces(view), idle_pieces(alone)
        assert ledger_pieces(view).equals(ledger_pieces(alone))
    assert {device: ours.equals(fresh[device]) for device, ours in known.items()} == dict.fromkeys(fresh, True)


SPANS = st.lists(st.tuples(st.integers(-5, 40), st.integers(1, 30)), min_size=1, max_size=3)


def one_by_one(of, spans):
    found = {}
    for number, (start, end) in enumerate(spans):
        rows = ledger(of.narrow(window=Window(start, end))).group_by("device", "bucket").agg(pl.col("ns").sum())
        found |= {(number, device, bucket): ns for device, bucket, ns in rows.iter_rows() if ns}
    return found


@few_given(EVENTS, st.lists(SPANS, min_size=1, max_size=5), st.sampled_from([1, 1 << 13]))
def test_parts_attributed_one_after_the_other_give_the_ledger_of_each_window(events, asked, batch):
    of = report(events)
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        for spans in asked:
            sides = [(start, start + length) for start, length in spans]
            frame = pl.DataFrame(sides, schema={"start": pl.Int64, "end": pl.Int64}, orient="row")
            sums = _attribution.window_ledgers(of, frame).unpivot(index=["window", "device"], value_name="ns")
            found = {(at, device, name.removesuffix("_ns")): ns for at, device, name, ns in sums.iter_rows() if ns}
            assert found == one_by_one(of, sides)


INTERVALS = dict.fromkeys(("process_id", "thread_id", "start", "end"), pl.Int64)


def spans(*rows):
    return pl.DataFrame(list(rows), schema=INTERVALS, orient="row")


@cases(0.3)
@few_given(gap_reports(), WINDOWS, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=4))
def test_the_pieces_are_parts_of_the_ledger(made, window, cut):
    """All of time gives each bucket of the ledger, but for what has no thread; and any part and the rest give all."""
    events, records = made
    of = report(events, event_records=records).narrow(window=Window(*window))
    keys = {(event.process, event.thread) for event in events if event.kind == "api"}
    if not keys:
        return
    whole = idle_within(of, spans(*((*key, BEFORE_ALL, AFTER_ALL) for key in keys)))
    part = spans(*((*key, min(sides), max(sides)) for key in keys for sides in cut))
    inside = idle_within(of, part)
    for device, pieces in whole.items():
        sums = sums_of(pieces)
        held = ledger(of).filter(device=device)
        held = dict(held.group_by("bucket").agg(pl.col("ns").sum()).cast({"bucket": pl.String}).iter_rows())
        for bucket, ns in sums.items():
            assert ns == held[bucket] if bucket != "unknown" else ns <= held[bucket]
        idle = {"loading", "allocation", "launch", "queued", "sync", "api", "host"} & held.keys()
        holds(idle and part.height)
        assert idle <= sums.keys()
        line = inside[device].sort("start")
        assert (line.get_column("start").shift(-1) >= line.get_column("end")).all()
        for bucket, ns in sums_of(line).items():
            assert ns <= sums[bucket]


def sums_of(pieces):
    sums = pieces.group_by(pl.col("bucket").cast(pl.String)).agg((pl.col("end") - pl.col("start")).sum())
    return dict(sums.iter_rows())
