"""Findings from sampled counters of a GPU: on recordings with the fault and without, and on edges by hand."""

import shutil
import sqlite3
from contextlib import closing

import pytest

import kanalyze
from kanalyze.analyses.findings.findings import findings
from kanalyze.analyses.findings.rules.occupancy import SAMPLED
from support.build import call, kernel, report
from support.command import REPORTS

RULES = ("few-sms", "idle-tensor-cores", "dram-bound", "busy-pcie", "clock-drop")


def raised(found):
    """The findings of these rules, and of what one of them replaces."""
    rows = findings(found)
    return {row["rule"]: row for row in rows.iter_rows(named=True) if row["rule"] in (*RULES, "small-grid")}


def changed(tmp_path, name, *statements):
    """A copy of a report with changes."""
    path = tmp_path / f"{name}.sqlite"
    shutil.copyfile(REPORTS / path.name, path)
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return kanalyze.read(path)


def values(metric, change):
    return (
        f"UPDATE GPU_METRICS SET value = {change} WHERE metricId IN "
        f"(SELECT metricId FROM TARGET_INFO_GPU_METRICS WHERE metricName LIKE '{metric}%')"
    )


def test_a_kernel_of_eight_blocks_keeps_few_sms_active():
    found = raised(kanalyze.read(REPORTS / "metrics_phases.sqlite"))
    assert list(found) == ["few-sms"]  # which small-grid would say, too
    row = found["few-sms"]
    assert row["headline"] == "6.0 % of the SMs are active: few_blocks(float *, long long)"
    assert row["sentence"] == (
        "While few_blocks(float *, long long) ran, 6.0 % of the SMs were active (mean of 600 samples), for 60.01 ms."
    )
    assert (row["where"], row["at_most"]) == ("few", False)
    assert row["at_stake_ns"] == pytest.approx(60.01e6 * 0.94, rel=1e-3)


def test_with_the_sms_at_work_it_is_not_raised(tmp_path):
    assert raised(changed(tmp_path, "metrics_phases", values("SMs Active", "90"))).keys() == {"small-grid"}


def test_without_enough_samples_the_shape_of_the_grid_tells_it(tmp_path):
    thinned = "DELETE FROM GPU_METRICS WHERE timestamp % 10 != 0 OR timestamp > 852000000"
    assert raised(changed(tmp_path, "metrics_phases", thinned)).keys() == {"small-grid"}


def test_copies_at_the_limit_of_memory_are_told():
    row = raised(kanalyze.read(REPORTS / "gpu_metrics.sqlite"))["dram-bound"]
    assert row["headline"] == "Kernels at DRAM's limit are 100.0 % of kernel time"
    assert "41.5 % read, 41.5 % written of the bandwidth, mean of 220 samples" in row["sentence"]
    assert row["at_most"]


def test_at_half_of_the_bandwidth_they_are_not(tmp_path):
    assert not raised(changed(tmp_path, "gpu_metrics", values("DRAM", "value / 2")))


def test_a_clock_that_falls_under_load_is_told():
    found = raised(kanalyze.read(REPORTS / "metrics_matmul.sqlite"))
    assert list(found) == ["clock-drop"]
    row = found["clock-drop"]
    assert row["headline"] == "The SM clock falls to 88.6 % of 1,795 MHz"
    assert row["at_stake_ns"] == pytest.approx(22.19e6 * (1 - 0.886), rel=0.01)
    assert row["at_most"]


@pytest.mark.parametrize("clock", ["1980000000", "1300000000"])
def test_a_clock_that_stays_is_not_high_or_low(tmp_path, clock):
    assert not raised(changed(tmp_path, "metrics_matmul", values("GPC Clock", clock)))


def test_a_clock_that_rises_as_work_begins_has_not_fallen(tmp_path):
    ramp = values("GPC Clock", "min(1980000000, 345000000 + (timestamp - 3346500000) * 150)")
    assert not raised(changed(tmp_path, "metrics_matmul", ramp))


def test_tensor_cores_that_wait_in_a_product_are_told(tmp_path):
    made = changed(tmp_path, "metrics_matmul", values("Tensor Active", "value / 10"), values("GPC Clock", "1980000000"))
    row = raised(made)["idle-tensor-cores"]
    assert row["headline"].startswith("Tensor cores are active in 8.7 %")
    assert "samples)" in row["sentence"]
    assert row["at_stake_ns"] == pytest.approx(23.62e6 * (1 - 0.087), rel=0.01)


def test_a_product_that_waits_for_memory_is_not_one_whose_tensor_cores_are_idle(tmp_path):
    made = changed(
        tmp_path,
        "metrics_matmul",
        values("Tensor Active", "value / 10"),
        values("DRAM Read", "80"),
        values("GPC Clock", "1980000000"),
    )
    assert raised(made).keys() == {"dram-bound"}


def test_pcie_that_is_busy_while_nothing_is_recorded_is_told(tmp_path):
    made = changed(tmp_path, "metrics_phases", "DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE start < 941000000")
    row = raised(made)["busy-pcie"]
    assert row["sentence"].startswith("While no operation of this report ran on the GPU, PCIe was busy for ")
    assert row["table"] == "gpu_units --by gap"


def test_copies_that_are_recorded_are_not_idle_time():
    assert "busy-pcie" not in raised(kanalyze.read(REPORTS / "metrics_phases.sqlite"))


# Edges

LAUNCH = "cudaLaunchKernel_v7000"


def told(value, *, samples=40, kernels=1, metric="SMs Active"):
    """Findings on kernels of 400 ns in all, each with samples of 10 ns."""
    each = 400 // kernels
    events = []
    for at in range(kernels):
        events += [call(LAUNCH, 10 * at, 10 * at + 5, correlation=at + 1)]
        events += [kernel(1000 + each * at, 1000 + each * (at + 1), name="work", correlation=at + 1)]
    row = {"device": 0, "metric": metric, "unit": "Throughput %", "start_ns": 1000, "dur_ns": 10 * samples}
    made = report(tuple(events), gpu_metrics=[{**row, "value": value, "samples": samples}])
    return [one.rule for rule in SAMPLED for one in rule(made)]


@pytest.mark.parametrize(("value", "samples", "many"), [(50, 40, 1), (51, 40, 0), (0, 40, 1), (10, 20, 1), (10, 19, 0)])
def test_half_of_the_sms_are_few_and_samples_have_to_tell_of_half_of_the_time(value, samples, many):
    assert told(value, samples=samples) == ["few-sms"] * many


def test_without_counters_nothing_is_claimed():
    events = (call(LAUNCH, 0, 5, correlation=1), kernel(10, 50, name="work", correlation=1))
    assert [one for rule in SAMPLED for one in rule(report(events))] == []
