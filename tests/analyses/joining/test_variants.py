"""One operation in several implementations: found by the ranges, measured in their last run."""

from dataclasses import replace
from pathlib import Path

import pytest

import kanalyze
from support.build import call, kernel, nvtx, report
from support.command import SAMPLES
from support.counters import measured
from support.real_reports import real_capture


def implementation(name, at, kernels):
    """A range of that name with a warm-up and two steps that are timed, which launch `kernels` (name, duration)."""
    events = [nvtx(name, at, at + 900), nvtx("warm-up", at, at + 100), nvtx("timed", at + 200, at + 800)]
    starts = [at + 10, at + 310, at + 510]
    events += [nvtx("step", start - 5, start + 100) for start in starts]
    for start in starts:
        for number, (what, duration) in enumerate(kernels):
            key, first = start * 10 + number, start + 50 * number
            events += [
                call("cudaLaunchKernel", first, first + 1, correlation=key),
                kernel(first + 5, first + 5 + duration, name=what, correlation=key, side={"registers_per_thread": 32}),
            ]
    return events


def made(*events):
    found = report(events)
    return replace(found, meta=replace(found.meta, tool="nsys", path=Path("made by hand")))


def test_implementations_stand_side_by_side():
    nsys = made(*implementation("eager", 1000, [("a", 20), ("b", 10)]), *implementation("fused", 3000, [("f", 15)]))
    ncu = measured({"sm__maximum_warps_per_active_cycle_pct": 50.0}, names=["f"], block=(32, 1, 1))
    columns = (
        "variant",
        "inside",
        "repeats",
        "avg_kernel_ns",
        "slower",
        "launches",
        "kernel",
        "registers",
        "ncu_match",
    )
    found = kanalyze.variants(nsys, ncu)
    assert found.select(columns).rows() == [
        ("fused", "timed", 2, 15, 1, 1, "f", 32, "shape"),
        ("eager", "timed", 2, 30, 2, 2, "a", 32, "none"),
    ]
    assert found.select("occupancy_share", "measured_share").rows() == [(0.5, 1.0), (None, 0.0)]


def test_ranges_of_one_name_are_no_variants():
    assert kanalyze.variants(made(*implementation("eager", 1000, [("a", 20)]))).is_empty()


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("gelu", {"torch": 1, "compile": 1, "triton": 1, "cuda": 1, "manual": 8}),
        ("square", {"mul": 1, "pow": 1, "square": 1}),
    ],
)
def test_workloads_with_variants(name, launches):
    """How many kernels each launches is what the workload itself says."""
    found = kanalyze.variants(*real_capture(SAMPLES / name))
    assert dict(found.select("variant", "launches").iter_rows()) == launches
    assert found["repeats"].unique().to_list() == [10]
    assert found["avg_kernel_ns"].is_sorted()
