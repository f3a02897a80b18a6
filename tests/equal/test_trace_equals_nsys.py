"""The same workload under torch.profiler and under nsys: what ran agrees, and the times but for the tools' part."""

import polars as pl
import pytest

import kanalyze
from kanalyze.model import LAUNCH_SHAPE
from support.command import SAMPLES
from support.real_reports import real_report

#: Those that both tools recorded from beginning to end; mlp_train's trace is of 7 of its 42 steps, and what gelu's
#: autotuning tries differs from run to run.
WORKLOADS = ("cdist", "launch_bound_graph", "launch_bound_plain", "square", "streams")
STEPS = 6
SHAPE = [column.name for column in LAUNCH_SHAPE]

#: Of two runs of one program; the longest kernels of the samples take milliseconds, the shortest a microsecond.
TOLERANCE = 0.05


@pytest.fixture(scope="module", params=WORKLOADS)
def pair(request):
    folder = SAMPLES / request.param
    return real_report(folder / "nsys.sqlite"), real_report(folder / "torch.json.gz")


def by_shape(report):
    """Launch shape, registers and family of the kernels: how many, and how long they took."""
    kernels = report.kind("kernel").join(report.kernel_config, on="event_id")
    sums = kernels.group_by(*SHAPE, "registers_per_thread").agg(pl.len(), pl.col("dur_ns").sum())
    return sums.sort(*SHAPE, "registers_per_thread")


LIMITS = ("name", "compute_capability", "sm_count", "max_warps_per_sm", "max_blocks_per_sm", "registers_per_sm")
OCCUPANCY = (*SHAPE, "occupancy_share", "limiter")

#: What both tools tell alike: kernels by shape and by family, copies, devices, occupancy.
ALIKE = {
    "kernels": lambda report: by_shape(report).drop("dur_ns"),
    "families": lambda report: kanalyze.kernels(report, by="family").select("family", "count").sort("family"),
    "copies": lambda report: kanalyze.copies(report).select("operation", "count", "total_bytes").sort("operation"),
    "devices": lambda report: report.devices.select(*LIMITS, "shared_per_sm_bytes"),
    "occupancy": lambda report: kanalyze.occupancy(report).select(OCCUPANCY).unique().sort(OCCUPANCY),
}


@pytest.mark.parametrize("what", ALIKE)
def test_both_tools_tell_the_same(pair, what):
    nsys, torch = map(ALIKE[what], pair)
    assert nsys.rows() == torch.rows()


def test_kernels_took_as_long(pair):
    nsys, torch = (by_shape(report)["dur_ns"].sum() for report in pair)
    assert torch == pytest.approx(nsys, rel=TOLERANCE)


def test_a_trace_of_some_steps_has_its_part_of_the_kernels():
    folder = SAMPLES / "mlp_train"
    all_steps, some = (by_shape(real_report(folder / name)) for name in ("nsys.sqlite", "torch.json.gz"))
    together = some.join(all_steps, on=[*SHAPE, "registers_per_thread"], suffix="_all")
    assert together.height == some.height
    assert (together["len"] * STEPS <= together["len_all"]).all()  # kernels of one shape may also run outside of steps
    assert (together["len"] * STEPS == together["len_all"]).mean() > 1 / 2
