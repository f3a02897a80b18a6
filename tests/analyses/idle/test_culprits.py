"""Culprits: the ledger's idle time by name, bucket by bucket, then against a model that goes instant by instant."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.idle.culprits import culprits
from kanalyze.window import Window
from support.build import report, timeline
from support.large import in_batches
from support.slow_gaps import SlowGaps, gap_reports
from support.strategies import WINDOWS

#: Idle time by block: what it shows; its events; and after = the culprits of GPU 0, with their ranges and time.
CULPRITS = """
calls and overheads go by their names and ranges
    0-40 [load]; 0-10 cuModuleLoadData; 10-13 !CUPTI buffer flush; 20-60 cudaMalloc_v3020
    60-70 cudaStreamSynchronize_v3020; 75-80 cudaLaunchKernel_v7000 #1; 80-90 kernel #1
    = profiler CUPTI buffer flush [load] 3; loading cuModuleLoadData [load] 10; allocation cudaMalloc 20
      allocation cudaMalloc [load] 20; launch k 5; sync cudaStreamSynchronize 10; host load [load] 7
      host between cudaStreamSynchronize and cudaLaunchKernel 5

launch goes by the operation, call and latency together
    0-4 [step]; 0-10 cudaLaunchKernel_v7000 #1; 15-20 kernel:gemm #1; 30-35 cudaMemcpyAsync_v3020 #2
    40-50 memcpy Host-to-Device #2
    = launch gemm [step] 15; launch [CUDA memcpy Host-to-Device] 10
      host between cudaLaunchKernel and cudaMemcpyAsync 10

host goes by the innermost range
    0-100 [epoch]; 20-50 [data]; 0-5 cudaLaunchKernel_v7000 #1; 5-10 kernel #1; 60-65 cudaLaunchKernel_v7000 #2
    65-70 kernel #2
    = launch k [epoch] 10; host data [data] 30; host epoch [epoch] 20

host without a range goes by the calls around it
    0-2 cudaGetDevice; 5-10 cudaLaunchKernel_v7000 #1; 10-20 kernel #1; 30-32 cudaMemcpyAsync_v3020
    40-45 cudaLaunchKernel_v7000 #2; 45-50 kernel #2; 80-90 kernel s8
    = launch k 10; api cudaGetDevice 2; api cudaMemcpyAsync 2; host after cudaLaunchKernel 30
      host between cudaLaunchKernel and cudaMemcpyAsync 10; host between cudaMemcpyAsync and cudaLaunchKernel 8
      host between cudaGetDevice and cudaLaunchKernel 3

queued behind another stream
    0-5 cudaLaunchKernel_v7000 #1; 5-50 kernel:first #1; 10-15 cudaLaunchKernel_v7000 #2; 60-70 kernel #2 s8
    = launch first 5; queued after first on stream 7 10

queued behind another process
    0-50 kernel:other p2; 10-15 cudaLaunchKernel_v7000 #1; 60-70 kernel #1
    = queued after other of process 2 10
"""


def named(of):
    """Bucket, culprit, range and time of each row, as written above."""
    rows = culprits(of.narrow(device=0)).select("bucket", "culprit", "range", "ns").rows()
    return [
        " ".join([bucket, *([culprit] if culprit else []), *([f"[{range_}]"] if range_ else []), str(ns)])
        for bucket, culprit, range_, ns in rows
    ]


@pytest.mark.parametrize("block", CULPRITS.strip().split("\n\n"), ids=lambda block: block.partition("\n")[0])
def test_each_bucket_by_its_name(block):
    events, _, expected = block.partition("\n")[2].partition("\n    = ")
    rows = named(report(timeline(events)))
    times = [int(row.rpartition(" ")[2]) for row in rows]
    assert times == sorted(times, reverse=True)
    assert sorted(rows) == sorted(re.split(r"; |;?\n\s+", expected))


@given(gap_reports(), WINDOWS, st.sampled_from([1, 2, 3, 1_000]))
def test_culprits_equal_the_model(made, window, batch):
    events, records = made
    narrowed = report(events, event_records=records).narrow(window=Window(*window))
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        found = culprits(narrowed)
    keys = ("device", "bucket", "culprit", "range")
    got = {row[:4]: row[4:] for row in found.select(*keys, "ns", "gaps", "longest_ns").iter_rows()}
    assert len(got) == found.height
    assert got == SlowGaps(events, window, records).culprits()
