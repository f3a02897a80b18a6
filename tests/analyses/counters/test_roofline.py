"""Work, bytes and roof of kernels: by hand, of workloads whose work is known, and as ncu's own rule and pipe say.

Of tensor cores the peak of each path, dense where no sparse instruction ran.
"""

import re

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from support.command import REPORTS, SAMPLES
from support.counters import measured
from support.real_reports import real_report
from support.strategies import slow_given

DONE = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
CORES = {op: DONE.format(op) for op in ("dadd", "dmul", "dfma", "fadd", "fmul", "ffma", "hadd", "hmul", "hfma")}
PEAK = "sm__sass_thread_inst_executed_op_{}_pred_on.sum.peak_sustained"
CLOCK = "sm__cycles_elapsed.avg.per_second"
BUSY = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
PATH = "sm__ops_path_tensor_"

#: A kernel of 1,000 cycles in 1 µs, on a GPU that moves 10 bytes per cycle; it does nothing.
IDLE = {
    **dict.fromkeys(CORES.values(), 0), "device__attribute_compute_capability_major": 9,
    "device__attribute_compute_capability_minor": 0, CLOCK: 1e9, "smsp__cycles_elapsed.avg": 1000,
    "gpu__time_duration.sum": 1000, "dram__bytes_read.sum": 0, "dram__bytes_write.sum": 0,
    "dram__bytes.sum.peak_sustained": 10, "dram__cycles_elapsed.avg.per_second": 1e9,
}  # fmt: skip

#: That GPU does 64 double, 128 single and half fused products per cycle.
MACHINE = {PEAK.format(op): most for op, most in (("dfma", 64), ("ffma", 128), ("hfma", 128))}


def kernel(*, tensor=0, read=0, written=0, **per_cycle):
    """A kernel with so many operations per cycle."""
    done = {DONE.format(op): count for op, count in per_cycle.items()}
    moved = {"dram__bytes_read.sum": read, "dram__bytes_write.sum": written}
    return {**IDLE, **MACHINE, **path("src_fp16_sparsity_off", tensor, 4096), **done, **moved}


def path(name, work, peak):
    return {f"{PATH}{name}.sum": work, f"{PATH}{name}.sum.peak_sustained": peak}


def roof(*paths, **others):
    every = {name: value for one in (IDLE, *paths, others) for name, value in one.items()}
    return kanalyze.roofline(measured(every)).row(0, named=True)


@given(
    # of the least numbers there are not even half of one can be told
    st.dictionaries(st.sampled_from([*CORES]), st.just(0.0) | st.floats(1e-9, 100), max_size=9),
    st.integers(0, 10_000),
    st.integers(1, 10_000),
)
def test_attainable_is_the_least_of_both_roofs(per_cycle, read, written):
    """Achieved is roof_share of attainable, and attainable the lower of the memory roof and the compute roof."""
    row = roof(kernel(read=read, written=written, **per_cycle))
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
    row = kanalyze.roofline(measured({"gpu__time_duration.sum": 5})).row(0, named=True)
    assert {name for name, value in row.items() if value is not None} == {"event_id", "name", "device", "dur_ns"}


@pytest.mark.parametrize(
    ("workload", "name", "flop"),
    [
        ("square", "MulFunctor", 1e8),  # a * a on 10000 × 10000
        ("streams", "sgemm", 2 * 2048**3),  # a matrix product
    ],
)
def test_work_is_that_of_the_workload(workload, name, flop):
    found = kanalyze.roofline(real_report(SAMPLES / workload / "ncu.details.csv"))
    work = found.filter(pl.col("name").str.contains(name, literal=True)).get_column("flop")
    assert work[-1] == pytest.approx(flop, rel=1e-3)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*/ncu*.details.csv")), ids=lambda path: path.parent.name)
def test_shares_of_the_peaks_are_those_that_ncu_tells_of(path):
    """Its rule SOLFPRoofline says which parts of the FP32 and FP64 peaks were reached, in whole percent."""
    report = real_report(path)
    pattern = r"close to (\d+)% of this device's FP32 peak|achieved (\d+)% of this device's FP32 peak"
    said = report.table("rule_results").filter(pl.col("rule") == "SOLFPRoofline")
    rows = {row["event_id"]: row for row in kanalyze.roofline(report).iter_rows(named=True)}
    peaks = report.table("metrics").filter(pl.col("metric") == PEAK.format("ffma"))
    clocks = report.table("metrics").filter(pl.col("metric") == CLOCK)
    for event_id, message in said.select("event_id", "message").iter_rows():
        close, exact = re.search(pattern, message).groups()
        row, here = rows[event_id], pl.col("event_id") == event_id
        peak = 2 * peaks.filter(here).item(0, "value") * clocks.filter(here).item(0, "value")
        share = row["fp32_flop"] / row["dur_ns"] * 1e9 / peak
        assert share == pytest.approx(int(exact or close) / 100, abs=0.011)


#: Reports with products of matrices: in each precision, dense and sparse, by libraries and by hand.
WITH_PRODUCTS = [
    *(REPORTS / "ncu" / f"{name}.raw.csv" for name in ("gemm", "mma", "wmma")),
    *(pytest.param(path, marks=pytest.mark.slow) for path in sorted(SAMPLES.glob("*/ncu*.raw.csv"))),
]


@pytest.mark.parametrize("page", WITH_PRODUCTS, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_the_distance_to_the_roof_is_what_ncu_says_of_the_pipe(page):
    """Of kernels that tensor cores bound; no other one keeps the pipe busier than its roof tells."""
    report = real_report(page)
    busy = report.table("metrics").filter(pl.col("metric") == BUSY).select("event_id", busy=pl.col("value") / 100)
    rows = kanalyze.roofline(report).join(busy, on="event_id", how="left")
    worked = rows.filter(pl.col("tensor_flop") + pl.col("tensor_int_op") > 0)
    bound = worked.filter((pl.col("bound") == "compute") & pl.col("precision").str.starts_with("tensor"))
    assert bound.height >= (7 if page.parent == REPORTS / "ncu" else 0)
    assert bound.filter((pl.col("roof_share") - pl.col("busy")).abs() >= 0.001).is_empty()
    assert worked.filter(pl.col("roof_share") < pl.col("busy") - 0.001).is_empty()


#: Of each kernel what it is, and the peak of that on an SM of an H200, per cycle. It emulates fp8 by mma.sync (as fp32)
#: and int4 (as int8); what is not sparse has two thirds where warps do it, instead of warpgroups.
PEAKS = {
    "gemm": [
        ("tensor bf16", "hgmma", 4096), ("tensor fp16", "hgmma", 4096), ("tensor tf32", "hgmma", 2048),
        ("fp32", None, 256), ("tensor fp64", None, 256), ("tensor fp8", None, 8192),
        ("tensor int8", "imma", 8192 * 2 / 3), ("tensor bf16", "hgmma", 4096), ("tensor bf16", "hgmma", 4096),
        ("tensor bf16", "hgmma", 4096), ("tensor bf16 sparse", "hgmma", 8192),
    ],
    "mma": [
        ("tensor bf16", "hmma", 4096 * 2 / 3), ("tensor fp16", "hmma", 4096 * 2 / 3),
        ("tensor fp16", "hmma", 4096 * 2 / 3), ("tensor tf32", "hmma", 2048 * 2 / 3), ("fp32", None, 256),
        ("tensor int8", "imma", 8192 * 2 / 3), ("tensor int8", "imma", 8192 * 2 / 3),
        ("tensor int1", "bmma", 65536 * 2 / 3), ("tensor fp64", None, 256), ("tensor fp64", None, 256),
        ("tensor bf16 sparse", "hmma", 4096), ("tensor fp16 sparse", "hmma", 4096),
        ("tensor tf32 sparse", "hmma", 2048), ("tensor int8 sparse", "imma", 8192),
    ],
    "wmma": [
        ("tensor fp16", "hmma", 4096 * 2 / 3), ("tensor fp16", "hmma", 4096 * 2 / 3),
        ("tensor bf16", "hmma", 4096 * 2 / 3), ("tensor tf32", "hmma", 2048 * 2 / 3),
        ("tensor int8", "imma", 8192 * 2 / 3), ("tensor fp64", None, 256), ("tensor fp16 sparse", "hmma", 4096),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", [*PEAKS])
def test_peaks_are_dense_unless_sparse_instructions_ran(name):
    report = real_report(REPORTS / "ncu" / f"{name}.raw.csv")
    clock = report.table("metrics").filter(pl.col("metric") == CLOCK)
    rows = kanalyze.roofline(report).join(clock.select("event_id", clock="value"), on="event_id")
    found = [
        (row["precision"], row["instruction"], round(row["peak_flop_per_s"] / row["clock"] / 132, 1))
        for row in rows.filter(pl.col("achieved_flop_per_s") > 1e12).to_dicts()
    ]
    assert found == [(precision, op, round(peak, 1)) for precision, op, peak in PEAKS[name]]


def test_a_product_of_integers_has_a_roof_and_no_flop():
    rows = kanalyze.roofline(real_report(REPORTS / "ncu" / "gemm.raw.csv"))
    (row,) = rows.filter(pl.col("precision") == "tensor int8").to_dicts()
    assert (row["flop"], row["tensor_int_op"]) == (0, 2 * 4096**3)
    assert row["achieved_flop_per_s"] == pytest.approx(2 * 4096**3 / row["dur_ns"] * 1e9)
    assert (row["bound"], round(row["roof_share"], 2)) == ("compute", 0.67)


BF16 = "src_bf16_dst_fp32"
READ = "dram__bytes_read.sum"
BY_TENSOR = {"bound": "compute", "roof_share": 0.7, "precision": "tensor", "flop": None, "peak_flop_per_s": None}
IN_FP64 = path("src_fp64", 2000, 4) | {BUSY: 98.0}
IN_FP16 = {"precision": "tensor fp16", "peak_flop_per_s": 8e9}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        # as with --metrics, and on Blackwell: the peak of a metric of all paths is that of sparse work
        (path(BF16, 2000, 8), {"precision": "tensor bf16", "peak_flop_per_s": 4e9, "roof_share": 0.5}),
        # which no dense path can do
        (path(BF16, 6000, 8), {"precision": "tensor bf16 sparse", "peak_flop_per_s": 8e9, "roof_share": 0.75}),
        # without a sparse path
        (path("src_fp64", 2000, 8), {"peak_flop_per_s": 8e9}),
        (path("src_int1", 2000, 8), {"peak_flop_per_s": 8e9}),
        (path("op_bgmma_src_int1", 2000, 8), {"peak_flop_per_s": 8e9}),
        # before Ampere no path is
        (path("src_fp16", 2000, 8) | {"device__attribute_compute_capability_major": 7}, IN_FP16),
        # GeForce GPUs accumulate in FP32 at half the rate; the pipe is busy for half of the time (of an RTX 3050)
        (
            path("src_fp16_dst_fp32_sparsity_off", 480, 512e-3)
            | path("src_fp16_dst_fp16_sparsity_off", 0, 1024e-3)
            | {BUSY: 47.0},
            {"roof_share": 480 / 512},
        ),
        # rates, where sums were not collected
        (
            {
                f"{PATH}{BF16}_sparsity_off.sum.per_cycle_elapsed": 3.0,
                f"{PATH}{BF16}_sparsity_off.sum.peak_sustained": 4.0,
            },
            {"tensor_flop": 3000, "roof_share": 0.75},
        ),
        # instructions of small shapes, 8 × 8 × 4 in FP64, keep the pipe of a Hopper GPU busy for half of its peak
        (IN_FP64, {"bound": "compute", "roof_share": 0.98, "achieved_flop_per_s": 2e9, "peak_flop_per_s": 4e9}),
        # register moves are in the pipe, too, and no work of tensor cores
        (path(BF16, 0, 8) | {BUSY: 4.0, READ: 100}, {"bound": "memory", "roof_share": 0.01, "flop": 0}),
        # where no path is counted, as of GPUs before Ampere: the work is not known, its time is
        ({BUSY: 70.0, READ: 5000}, BY_TENSOR),
        # nothing is claimed without paths and pipe
        ({READ: 5000}, {"tensor_flop": None, "bound": None, "roof_share": None}),
        # packed pairs: FFMA2 of GPUs from compute capability 10.0 on, two fused products
        (path("src_fp16", 0, 1) | {DONE.format("ffma2"): 3}, {"fp32_flop": 12_000}),
    ],
)
def test_roof_of_tensor_cores(metrics, expected):
    row = roof(metrics)
    assert {name: row[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(("pipe", "known"), [(0.0, True), (1.0, False)])
def test_half_precision_of_older_versions(pipe, known):
    """They count fused products only; whether there were others tells the pipe."""
    left_out = {name: value for name, value in IDLE.items() if "hadd" not in name and "hmul" not in name}
    pipe_use = {"sm__inst_executed_pipe_fp16.avg.pct_of_peak_sustained_active": pipe}
    row = kanalyze.roofline(measured({**left_out, **path("src_fp64", 0, 1), **pipe_use})).row(0, named=True)
    assert (row["fp16_flop"], row["roof_share"]) == ((0, 0) if known else (None, None))


#: A type's paths on Hopper: instruction and sparsity, with peaks; the metric of them all has the largest.
FORMS = {
    ("op_hgmma_", "_sparsity_off"): 4, ("op_hgmma_", "_sparsity_on"): 8, ("op_hmma_", "_sparsity_off"): 4 * 2 / 3,
    ("op_hmma_", "_sparsity_on"): 4,
}  # fmt: skip
works = st.just(0) | st.integers(1, 500)
of_type = st.tuples(works, works, works, works).filter(any)


@slow_given(
    st.dictionaries(st.sampled_from(["bf16_dst_fp32", "tf32_dst_fp32", "fp8", "int8"]), of_type, min_size=1),
    st.booleans(),
    st.none() | st.integers(0, 100),
)
def test_paths_add_up(types, whole, busy):
    """Against a sum by hand; the metric of all paths of a type, given or not, changes nothing."""
    every, seconds, total = [], 0.0, {"flop": 0, "int": 0}
    for source, done in types.items():
        for ((before, behind), peak), work in zip(FORMS.items(), done, strict=True):
            every.append(path(f"{before}src_{source}{behind}", work, peak))
            seconds += work / (peak * 1e9)
        total["int" if source == "int8" else "flop"] += sum(done)
        if whole:
            every.append(path(f"src_{source}", sum(done), max(FORMS.values())))
    row = roof(*every, {} if busy is None else {BUSY: busy})
    assert (row["tensor_flop"], row["tensor_int_op"]) == (total["flop"], total["int"])
    assert row["roof_share"] == pytest.approx(max(seconds / 1e-6, (busy or 0) / 100))
    assert row["precision"].startswith("tensor")
    assert row["achieved_flop_per_s"] == pytest.approx(sum(total.values()) * 1e6)
