"""All instances of a range beside each other: a ledger each, the spread over them, and the odd ones out."""

import polars as pl
import pytest
from hypothesis import given

from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.ranges._instances import INSTANCES, SPREAD, compare
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.window import Window
from support.build import call, kernel, nvtx, report
from support.strategies import EVENTS, FEWER


def compared(events, name="step"):
    of = report(events)
    return compare([of.narrow(window=window) for window in of.windows(name)])


def steps(*lengths):
    """Steps of 10 ns of kernel and the rest host, one after the other, launched before all of them."""
    events, at = [call("cudaLaunchKernel", 0, 1, correlation=1)], 10
    for length in lengths:
        events += [nvtx("step", at, at + length), kernel(at, at + 10, correlation=1)]
        at += length
    return events


def test_each_instance_has_its_own_ledger():
    found = compared(steps(20, 30)).instances
    rows = found.select("device", "instance", "start_ns", "dur_ns", "kernel_ns", "queued_ns", "odd", "cause").rows()
    assert rows == [(0, 1, 10, 20, 10, 10, False, None), (0, 2, 30, 30, 10, 0, False, None)]
    assert found.get_column("unknown_ns").to_list() == [0, 0]


def test_the_buckets_of_an_instance_add_up_to_it():
    found = compared(steps(20, 30, 45, 100, 12)).instances
    sums = found.select(pl.sum_horizontal(f"{bucket}_ns" for bucket in BUCKETS)).to_series()
    assert sums.equals(found.get_column("dur_ns"), check_names=False)


def test_the_spread_over_all():
    spread = compared(steps(20, 30, 70)).spread
    assert spread.filter(pl.col("bucket") == "kernel").rows() == [(0, 1, "kernel", 10.0, 10, 10, 0.0, 30, 0.25)]
    total = spread.filter(pl.col("bucket") == "total").row(0, named=True)
    assert (total["median_ns"], total["min_ns"], total["max_ns"], total["total_ns"], total["share"]) == (
        30.0,
        20,
        70,
        120,
        1.0,
    )


def test_the_odd_one_is_named_with_its_bucket():
    found = compared(steps(20, 21, 20, 19, 90, 20))
    odd = found.instances.filter("odd")
    assert odd.select("instance", "cause").rows() == [(5, "queued")]
    assert found.answer == (
        "6 instances of step: 20 ns in the median, from 19 ns to 21 ns without the odd ones: #5 takes 4.50 × that "
        "(queued)."
    )


def test_of_equally_odd_ones_the_first_are_named():
    found = compared(steps(*(90 if number % 5 == 4 else 20 for number in range(60))))
    assert found.instances.filter("odd").height == 12
    assert "without the odd ones: #5 takes 4.50 × that (queued), #10 takes 4.50 × that (queued), #15" in found.answer


def test_shares_and_medians_speak_of_the_same_instances():
    spread = compared(steps(20, 21, 20, 19, 90, 20)).spread
    total = spread.filter(pl.col("bucket") == "total").row(0, named=True)
    assert (total["median_ns"], total["min_ns"], total["max_ns"], total["total_ns"]) == (20.0, 19, 21, 100)
    (kernels,) = spread.filter(pl.col("bucket") == "kernel").to_dicts()
    assert (kernels["median_ns"], kernels["total_ns"], kernels["share"]) == (10.0, 50, 0.5)


def test_a_faster_one_is_odd_by_what_it_lacks():
    odd = compared(steps(60, 61, 60, 59, 12, 60)).instances.filter("odd")
    assert odd.select("instance", "cause").rows() == [(5, "queued")]


@pytest.mark.parametrize("lengths", [(20, 90), (20, 20, 90), (20, 20, 20, 21, 22)])
def test_few_or_alike_ones_are_not_odd(lengths):
    assert not compared(steps(*lengths)).instances.get_column("odd").any()


def test_a_device_that_did_nothing_meanwhile_is_left_out():
    events = [*steps(20, 30), kernel(500, 510, device=1)]
    assert compared(events).instances.get_column("device").unique().to_list() == [0]


def test_instances_of_the_page_span_them_all():
    assert compared(steps(20, 30)).scope.window == Window(10, 60, "step#*")


@pytest.mark.slow
@FEWER
@given(EVENTS)
def test_an_instance_equals_the_ledger_of_its_window(events):
    ranges = [nvtx("step", start, start + length) for start, length in ((0, 7), (7, 13), (15, 30))]
    of = report([*events, kernel(0, 1), *ranges])
    windows = of.windows("step")
    found = compare([of.narrow(window=window) for window in windows])
    assert INSTANCES.check(found.instances).height % len(windows) == 0
    SPREAD.check(found.spread)
    for number, window in enumerate(windows, 1):
        for device, bucket, ns in (
            ledger(of, window=window).group_by("device", "bucket").agg(pl.col("ns").sum()).iter_rows()
        ):
            here = found.instances.filter((pl.col("instance") == number) & (pl.col("device") == device))
            if here.height:
                assert here.get_column(f"{bucket}_ns").to_list() == [ns]


def test_one_instance_is_compared_with_none():
    found = compared(steps(20))
    assert found.instances.select("instance", "odd", "dur_ns").rows() == [(1, False, 20)]
    assert found.name == "step"
