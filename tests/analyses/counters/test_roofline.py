"""Work, bytes and roof of kernels: by hand, of workloads whose work is known, and as ncu's own rule says."""

import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from support.command import SAMPLES
from support.counters import measured
from support.real_reports import real_report

DONE = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
CORES = {op: DONE.format(op) for op in ("dadd", "dmul", "dfma", "fadd", "fmul", "ffma", "hadd", "hmul", "hfma")}

#: A GPU that does 64 double, 128 single and half fused products per cycle at 1 GHz, and moves 10 bytes per cycle there.
MACHINE = {
    "sm__sass_thread_inst_executed_op_dfma_pred_on.sum.peak_sustained": 64,
    "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained": 128,
    "sm__sass_thread_inst_executed_op_hfma_pred_on.sum.peak_sustained": 128,
    "sm__ops_path_tensor_src_fp16.sum.peak_sustained": 4096,
    "sm__cycles_elapsed.avg.per_second": 1e9,
    "dram__bytes.sum.peak_sustained": 10,
    "dram__cycles_elapsed.avg.per_second": 1e9,
}


def kernel(*, tensor=0, read=0, written=0, **per_cycle):
    """A kernel of 1000 cycles, which take 1 µs, with so many operations per cycle."""
    return {
        **MACHINE,
        **{metric: per_cycle.get(op, 0) for op, metric in CORES.items()},
        "sm__ops_path_tensor_src_fp16.sum": tensor,
        "smsp__cycles_elapsed.avg": 1000,
        "dram__bytes_read.sum": read,
        "dram__bytes_write.sum": written,
        "gpu__time_duration.sum": 1000,
    }


def only(frame):
    return frame.row(0, named=True)


@pytest.mark.parametrize(
    ("of", "flop", "bound", "precision", "roof"),
    [
        ({"ffma": 64, "read": 100}, 128_000, "compute", "fp32", 0.5),
        ({"fadd": 64, "fmul": 64, "read": 100}, 128_000, "compute", "fp32", 0.5),
        ({"dfma": 64, "ffma": 64, "read": 100}, 256_000, "compute", "fp64", 1.0),
        ({"ffma": 1, "read": 4000, "written": 1000}, 2000, "memory", "fp32", 0.5),
        ({"read": 2500}, 0, "memory", None, 0.25),
        ({"tensor": 2_048_000, "read": 100}, 2_048_000, "compute", "tensor fp16", 0.5),
        ({"hfma": 64, "hadd": 64, "read": 100}, 384_000, "compute", "fp16", 0.75),
        ({"hfma": 64, "read": 100}, 0, "memory", None, 0.01),  # only fused ones: register moves
    ],
)
def test_roof_of_a_kernel(of, flop, bound, precision, roof):
    row = only(kanalyze.roofline(measured(kernel(**of))))
    assert (row["flop"], row["bound"], row["precision"]) == (flop, bound, precision)
    assert row["roof_share"] == pytest.approx(roof)
    assert row["achieved_flop_per_s"] == pytest.approx(flop * 1e6)
    assert row["peak_dram_bytes_per_s"] == 1e10


@given(
    # of the least numbers there are not even half of one can be told
    st.dictionaries(st.sampled_from([*CORES]), st.just(0.0) | st.floats(1e-9, 100), max_size=9),
    st.integers(0, 10_000),
    st.integers(1, 10_000),
)
def test_attainable_is_the_least_of_both_roofs(per_cycle, read, written):
    """Achieved is roof_share of attainable, and attainable the lower of the memory roof and the compute roof."""
    row = only(kanalyze.roofline(measured(kernel(read=read, written=written, **per_cycle))))
    assert row["dram_bytes"] == read + written
    assert row["achieved_flop_per_s"] == pytest.approx(row["roof_share"] * row["attainable_flop_per_s"])
    if row["flop"]:
        slope = row["intensity_flop_per_byte"] * row["peak_dram_bytes_per_s"]
        assert row["attainable_flop_per_s"] <= slope * (1 + 1e-9)
        compute = row["ridge_flop_per_byte"] < row["intensity_flop_per_byte"]
        single = sum(row[f"{name}_flop"] > 0 for name in ("fp64", "fp32", "fp16")) == 1
        if single:
            assert row["attainable_flop_per_s"] == pytest.approx(min(slope, row["peak_flop_per_s"]))
            assert (row["bound"] == "compute") == compute


def test_what_was_not_collected_is_null():
    row = only(kanalyze.roofline(measured({"gpu__time_duration.sum": 5})))
    assert {name for name, value in row.items() if value is not None} == {"event_id", "name", "device", "dur_ns"}


def work_of(workload: str, name: str) -> float:
    found = kanalyze.roofline(real_report(SAMPLES / workload / "ncu.details.csv"))
    return found.filter(pl.col("name").str.contains(name, literal=True)).get_column("flop").to_list()[-1]


@pytest.mark.parametrize(
    ("workload", "name", "flop"),
    [
        ("square", "MulFunctor", 1e8),  # a * a on 10000 × 10000
        ("streams", "sgemm", 2 * 2048**3),  # a matrix product
    ],
)
def test_work_is_that_of_the_workload(workload, name, flop):
    assert work_of(workload, name) == pytest.approx(flop, rel=1e-3)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*/ncu*.details.csv")), ids=lambda path: path.parent.name)
def test_shares_of_the_peaks_are_those_that_ncu_tells_of(path):
    """Its rule SOLFPRoofline says which parts of the FP32 and FP64 peaks were reached, in whole percent."""
    report = real_report(path)
    pattern = r"close to (\d+)% of this device's FP32 peak|achieved (\d+)% of this device's FP32 peak"
    said = report.table("rule_results").filter(pl.col("rule") == "SOLFPRoofline")
    rows = {row["event_id"]: row for row in kanalyze.roofline(report).iter_rows(named=True)}
    peaks = report.table("metrics").filter(
        pl.col("metric") == "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained"
    )
    clocks = report.table("metrics").filter(pl.col("metric") == "sm__cycles_elapsed.avg.per_second")
    for event_id, message in said.select("event_id", "message").iter_rows():
        close, exact = re.search(pattern, message).groups()
        row, here = rows[event_id], pl.col("event_id") == event_id
        peak = 2 * peaks.filter(here).item(0, "value") * clocks.filter(here).item(0, "value")
        share = row["fp32_flop"] / row["dur_ns"] * 1e9 / peak
        assert share == pytest.approx(int(exact or close) / 100, abs=0.011)
