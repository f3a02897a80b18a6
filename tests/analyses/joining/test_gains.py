"""What the program gains by each piece of advice: worked out by hand, and within the roofs on captures."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.device._operations import SHAPE
from kanalyze.analyses.joining.gains import gains
from kanalyze.errors import CannotTellError
from support.build import call, kernel, report, rows_of
from support.command import SAMPLES
from support.counters import measured
from support.real_reports import real_capture

CAPTURES = ("add", "add_parallel", "cdist", "gelu", "launch_bound_graph", "mlp_train", "square", "streams")
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
COLUMNS = ("name", "rule", "window_share", "exclusive_ns", "gain_share", "gain_ns")


def timed(*events, path="of nsys"):
    made = report([call("cudaDeviceSynchronize", 0, 1, correlation=1), *events])
    return replace(made, meta=replace(made.meta, tool="nsys", path=Path(path)))


def rule(event_id, name, share, scope="global"):
    """What a rule of ncu says of a kernel."""
    return (event_id, None, name, "optimization", f"It is {name}.", scope, share)


def rows(*reports, columns=COLUMNS, **where):
    """What ncu's rules gain; ours speak of counters, of which there are none here."""
    return gains(*reports, **where).filter(source="ncu").select(columns).rows()


def test_every_column_of_a_piece_of_advice():
    """The kernel takes 80 of 100 ns in two launches, a quarter of which could be saved."""
    nsys = timed(kernel(0, 60), kernel(60, 80), kernel(90, 100, name="j"))
    found = gains(nsys, measured({}, rules=[rule(0, "slow", 0.25)], block=(32, 1, 1)))
    assert found.drop(SHAPE).to_dicts() == rows_of(
        "name device event_id ncu_match window_share exclusive_ns gain_share gain_ns source rule scope speedup_share "
        "roof_share possible_share possible_from sentence remedy evidence",
        (
            *("k", 0, 0, "shape", 0.8, 80, pytest.approx(0.2), pytest.approx(20), "ncu", "slow", "global", 0.25),
            *(None, 0.25, "estimate", "It is slow.", None, None),
        ),
    )
    assert found.select(SHAPE).row(0) == (1, 1, 1, 32, 1, 1)


def test_no_more_is_gained_than_the_roof_leaves():
    """At 75 % of the bandwidth of DRAM a quarter of 40 ns is left, whatever the rule hopes for."""
    nsys = timed(kernel(0, 40), kernel(60, 100, name="j"))
    ncu = measured({DRAM: 75}, rules=[rule(0, "slow", 0.9), rule(0, "slower", 0.1)], block=(32, 1, 1))
    columns = ("rule", "speedup_share", "possible_share", "possible_from", "gain_share", "gain_ns")
    assert rows(nsys, ncu, columns=columns) == [
        ("slow", 0.9, 0.25, "roof", pytest.approx(0.1), pytest.approx(10)),
        ("slower", 0.1, 0.1, "estimate", pytest.approx(0.04), pytest.approx(4)),
    ]


def test_advice_that_gains_no_known_time_comes_last_by_the_time_of_its_kernel():
    nsys = timed(kernel(0, 10, name="small"), kernel(10, 100, name="large"))
    rules = [rule(0, "none", None), rule(0, "local", 0.9, "local"), rule(1, "none", None), rule(0, "some", 0.1)]
    rules.append(rule(1, "most", 0.2))
    ncu = measured({}, {}, names=["small", "large"], rules=rules, block=(32, 1, 1))
    columns = ("name", "rule", "exclusive_ns", "gain_share", "gain_ns")
    assert rows(nsys, ncu, columns=columns) == [
        ("large", "most", 90, pytest.approx(0.18), pytest.approx(18)),
        ("small", "some", 10, pytest.approx(0.01), pytest.approx(1)),
        ("large", "none", 90, None, None),
        ("small", "local", 10, None, None),
        ("small", "none", 10, None, None),
    ]


def test_a_kernel_that_only_ncu_saw_or_that_is_not_in_the_window_has_no_time_to_gain():
    nsys = timed(kernel(0, 20), kernel(50, 100, name="j"))
    rules = [rule(0, "slow", 0.5), rule(1, "slow", 0.5), rule(2, "slow", 0.5)]
    ncu = measured({}, {}, {}, names=["k", "j", "other"], rules=rules, block=(32, 1, 1))
    assert rows(nsys, ncu) == [
        ("j", "slow", 0.5, 50, 0.25, 25.0),
        ("k", "slow", 0.2, 20, 0.1, 10.0),
        ("other", "slow", None, None, None, None),
    ]
    assert rows(nsys, ncu, window="0ns..40ns") == [
        ("k", "slow", 0.5, 20, 0.25, 10.0),
        ("j", "slow", None, None, None, None),
        ("other", "slow", None, None, None, None),
    ]


def test_two_reports_that_give_time_have_their_rows_each():
    ncu = measured({}, rules=[rule(0, "slow", 0.5)], block=(32, 1, 1))
    first, second = timed(kernel(0, 100), path="first"), timed(kernel(0, 40), kernel(40, 80, name="j"), path="second")
    assert rows(first, second, ncu, columns=("report", *COLUMNS)) == [
        ("first", "k", "slow", 1.0, 100, 0.5, 50.0),
        ("second", "k", "slow", 0.5, 40, 0.25, 20.0),
    ]


@pytest.mark.parametrize("name", CAPTURES)
def test_gains_of_captures_stay_within_the_roofs(name):
    reports = real_capture(SAMPLES / name)
    if not {one.meta.tool for one in reports} & {"nsys", "torch.profiler"}:
        pytest.skip("no report gives the time")
    rows = gains(*reports).drop_nulls(["gain_share", "roof_share"])
    assert rows.height
    assert rows.filter(pl.col("gain_share") > pl.col("window_share") * (1 - pl.col("roof_share")) + 1e-9).is_empty()


def test_without_advice_there_are_no_rows_and_without_time_or_counters_nothing_can_be_told():
    ncu = measured({}, block=(32, 1, 1))
    assert gains(timed(kernel(0, 10)), ncu).is_empty()
    assert gains(timed(), measured({}, rules=[rule(0, "slow", 0.5)])).get_column("gain_ns").to_list() == [None]
    with pytest.raises(CannotTellError, match="cannot tell gains, because the report has no counters"):
        kanalyze.gains(timed(kernel(0, 10)))
    with pytest.raises(CannotTellError, match="cannot tell gains, because no report gives the time"):
        kanalyze.gains(ncu)
