"""Sampled counters of a GPU by what ran meanwhile: by hand, against a slow model, and on kernels of known traffic."""

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze.analyses.counters._sampled_means import COUNTERS, Grid, grids, means
from kanalyze.analyses.timeline.gpu_units import BY_BUCKET, BY_GAP, BY_ITERATION, BY_RANGE, TABLE, gpu_units
from kanalyze.errors import CannotTellError, UnknownNameError
from support.build import LAUNCH, kernel, launched, nvtx, report
from support.command import REPORTS
from support.shares import cases, holds
from support.strategies import FEWER


def run(start, dur, value, *, metric="SMs Active", unit="Throughput %"):
    """A row of gpu_metrics, of samples of 10 ns."""
    row = {"device": 0, "metric": metric, "unit": unit, "start_ns": start, "dur_ns": dur, "value": value}
    return {**row, "samples": dur // 10}


PROGRAM = (
    *launched(0, 5, kernel(10, 50, name="long", correlation=1), LAUNCH),
    *launched(6, 9, kernel(53, 57, name="short", correlation=2), LAUNCH),
    *launched(90, 99, kernel(100, 130, name="long", correlation=3), LAUNCH),
)

METRICS = [run(0, 10, 0), run(10, 30, 80), run(40, 10, 60), run(50, 50, 5), run(100, 30, 80)]


def told(metrics=METRICS, by=None, columns=("name", "total_ns", "samples", "sampled_ns", "sms_active_share"), **limits):
    return gpu_units(report(PROGRAM, gpu_metrics=metrics, limits=limits or None), by=by).select(columns).rows()


def test_means_weigh_samples_by_time_and_sum_over_launches():
    mean = (80 * 30 + 60 * 10 + 80 * 30) / 70 / 100
    assert told() == [("long", 70, 7, 70, pytest.approx(mean)), ("short", 4, 0, 0, None)]  # shorter than a sample
    # a sample that is in part of something else tells nothing
    metrics = [run(5, 10, 50), run(15, 10, 90), run(25, 10, 80), run(35, 10, 70), run(45, 10, 20)]
    assert told(metrics, columns=("name", "samples", "sms_active_share"))[0] == ("long", 3, pytest.approx(0.8))
    found = gpu_units(report(PROGRAM, gpu_metrics=METRICS), window="10ns..40ns")
    assert found.select("total_ns", "sms_active_share").rows() == [(30, pytest.approx(0.8))]


@pytest.mark.parametrize(("percent", "told_bytes"), [(4, None), (5, 14), (40, 112)])
def test_bytes_of_a_share_that_is_too_small_for_whole_percents_are_not_told(percent, told_bytes):
    metrics = [run(0, 130, percent, metric="DRAM Read Bandwidth")]
    found = told(metrics, columns=("dram_read_share", "dram_read_bytes"), memory_bandwidth_bytes_per_s=4_000_000_000)
    assert found[0] == (percent / 100, told_bytes)


def test_the_parts_of_nvlinks_traffic_are_summed():
    parts = {"Requests User": 80, "Requests Protocol": 5, "Responses User": 0, "Responses Protocol": 1}
    metrics = [run(0, 130, value, metric=f"NVLink TX {part} Data") for part, value in parts.items()]
    metrics += [run(0, 60, 3, metric="NVLink RX Requests User Data"), run(0, 130, 4, metric="NVLink RX Bandwidth")]
    found = told(metrics, columns=("nvlink_write_share", "nvlink_read_share"))
    assert found[0] == (pytest.approx(0.86), pytest.approx(0.07))  # of the time in which all of them are recorded


def test_by_bucket_the_times_are_the_ledgers():
    found = gpu_units(report(PROGRAM, gpu_metrics=METRICS), by="bucket")
    assert dict(found.schema) == BY_BUCKET.schema
    times = dict(found.select("bucket", "total_ns").iter_rows())
    ledger = kanalyze.ledger(report(PROGRAM))
    assert times == {
        bucket: ns for bucket, ns in ledger.group_by("bucket").agg(pl.col("ns").sum()).rows() if ns and bucket in times
    }
    assert sum(times.values()) == 130


def test_by_range_what_it_launched_counts_and_by_gap_each_that_is_long_enough():
    made = report((*PROGRAM, nvtx("step", 0, 8), nvtx("step", 85, 99)), gpu_metrics=METRICS)
    found = gpu_units(made, by="range")
    assert dict(found.schema) == BY_RANGE.schema
    assert found.select("range", "total_ns", "samples").rows() == [("step", 70, 7)]
    gaps = gpu_units(made, by="gap")
    assert dict(gaps.schema) == BY_GAP.schema
    assert gaps.select("start_ns", "reason", "total_ns", "sampled_ns").rows() == [(57, "host", 43, 43)]
    assert dict(gpu_units(made, by="iteration").schema) == BY_ITERATION.schema


def test_it_cannot_be_told_without_counters():
    with pytest.raises(CannotTellError) as raised:
        gpu_units(report(PROGRAM))
    assert "--gpu-metrics-devices=all" in raised.value.remedy
    with pytest.raises(UnknownNameError):
        gpu_units(report(PROGRAM, gpu_metrics=METRICS), by="stream")


CELLS = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=12)
SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 120), st.integers(1, 50)), max_size=6)


@cases(0.3)
@FEWER
@given(CELLS, SPANS)
def test_means_are_those_of_the_slow_model(cells, spans):
    """Samples of 10 ns; one that is not recorded is a hole."""
    rows = [run(at * 10, 10, value * 25) for at, (recorded, value) in enumerate(cells) if recorded]
    made = report(PROGRAM, gpu_metrics=rows)
    if not rows:
        assert not grids(made)
        return
    grid = grids(made)[0]
    assert grid.period_ns == 10
    frame = pl.DataFrame(
        [(key, start, start + dur) for key, start, dur in spans],
        schema={"key": pl.UInt32, "start": pl.Int64, "end": pl.Int64},
        orient="row",
    )
    found = {row["key"]: row for row in means(grid, frame).iter_rows(named=True)}
    assert sorted(found) == sorted({key for key, _, _ in spans})
    for key, row in found.items():
        mine = {time for one, start, dur in spans if one == key for time in range(start, start + dur)}
        own = [[time for time in range(at, at + 10) if time in mine] for at in range(0, 10 * len(cells), 10)]
        pure = [(len(times), cells[at]) for at, times in enumerate(own) if len(times) >= 9 and cells[at][0]]
        assert (row["total_ns"], row["sampled_ns"]) == (len(mine), sum(ns for ns, _ in pure))
        assert row["samples"] == len(pure)
        if pure:
            mean = sum(ns * value / 4 for ns, (_, value) in pure) / row["sampled_ns"]
            assert row["sms_active_share"] == pytest.approx(mean)
        else:
            assert row["sms_active_share"] is None
        holds(bool(pure))


def test_cells_of_equal_values_tell_of_a_part_that_is_a_sample_long():
    cells = pl.DataFrame({"start": [0], "end": [100], "sms_active_share": [0.5]})
    spans = pl.DataFrame({"key": [0, 1], "start": [5, 5], "end": [20, 12]}, schema_overrides={"key": pl.UInt32})
    found = means(Grid(cells, 10), spans).select("key", "samples", "sampled_ns", "sms_active_share").rows()
    assert found == [(0, 2, 15, 0.5), (1, 0, 0, None)]


def test_copies_of_known_size_have_that_traffic():
    """Ten kernels that copy 4 GiB each."""
    found = gpu_units(kanalyze.read(REPORTS / "gpu_metrics.sqlite"))
    assert dict(found.schema) == TABLE.schema
    row = found.filter(pl.col("name").str.starts_with("copy_long")).row(0, named=True)
    launches = kanalyze.kernels(kanalyze.read(REPORTS / "gpu_metrics.sqlite")).item(0, "count")
    assert row["dram_read_bytes"] == pytest.approx(launches * (4 << 30), rel=0.05)
    assert row["dram_write_bytes"] == pytest.approx(launches * (4 << 30), rel=0.05)
    assert row["sms_active_share"] > 0.95
    assert row["tensor_active_share"] == 0
    assert row["sm_clock_hz"] == pytest.approx(1.98e9, rel=0.01)
    assert set(COUNTERS) <= set(row)
