"""The roof of tensor cores: the peak of each path, dense where no sparse instruction ran, as ncu's own pipe says."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kanalyze
from support.command import REPORTS, SAMPLES
from support.counters import measured
from support.real_reports import real_report

BUSY = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
PATH = "sm__ops_path_tensor_"
CORES = {
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed": 0
    for op in ("dadd", "dmul", "dfma", "fadd", "fmul", "ffma", "hadd", "hmul", "hfma")
}

#: A kernel of 1,000 cycles in 1 µs on a GPU that moves 10 bytes per cycle; it does nothing.
IDLE = {
    **CORES,
    "device__attribute_compute_capability_major": 9,
    "device__attribute_compute_capability_minor": 0,
    "sm__cycles_elapsed.avg.per_second": 1e9,
    "smsp__cycles_elapsed.avg": 1000,
    "gpu__time_duration.sum": 1000,
    "dram__bytes_read.sum": 0,
    "dram__bytes_write.sum": 0,
    "dram__bytes.sum.peak_sustained": 10,
    "dram__cycles_elapsed.avg.per_second": 1e9,
}

#: Reports with products of matrices: in each precision, dense and sparse, by libraries and by hand.
WITH_PRODUCTS = [
    *(REPORTS / "ncu" / f"{name}.raw.csv" for name in ("gemm", "mma", "wmma")),
    *sorted(SAMPLES.glob("*/ncu*.raw.csv")),
]


def path(name: str, work: float, peak: float) -> dict[str, float]:
    return {f"{PATH}{name}.sum": work, f"{PATH}{name}.sum.peak_sustained": peak}


def roof(*paths: dict[str, float], **others: float) -> dict[str, object]:
    every = {name: value for one in paths for name, value in one.items()}
    return kanalyze.roofline(measured({**IDLE, **every, **others})).row(0, named=True)


def per_cycle(row: dict[str, object], clock_hz: float, sms: int = 132) -> float:
    return row["peak_flop_per_s"] / clock_hz / sms


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


#: Of each kernel what it is, and the peak of that on an SM of an H200, per cycle.
PEAKS = {
    "gemm": [
        ("tensor bf16", "hgmma", 4096),
        ("tensor fp16", "hgmma", 4096),
        ("tensor tf32", "hgmma", 2048),
        ("fp32", None, 256),
        ("tensor fp64", None, 256),
        ("tensor fp8", None, 8192),
        ("tensor int8", "imma", 8192 * 2 / 3),
        ("tensor bf16", "hgmma", 4096),
        ("tensor bf16", "hgmma", 4096),
        ("tensor bf16", "hgmma", 4096),
        ("tensor bf16 sparse", "hgmma", 8192),
    ],
    "mma": [
        ("tensor bf16", "hmma", 4096 * 2 / 3),
        ("tensor fp16", "hmma", 4096 * 2 / 3),
        ("tensor fp16", "hmma", 4096 * 2 / 3),
        ("tensor tf32", "hmma", 2048 * 2 / 3),
        ("fp32", None, 256),  # fp8 by mma.sync, which Hopper emulates
        ("tensor int8", "imma", 8192 * 2 / 3),
        ("tensor int8", "imma", 8192 * 2 / 3),  # int4, which it emulates
        ("tensor int1", "bmma", 65536 * 2 / 3),
        ("tensor fp64", None, 256),
        ("tensor fp64", None, 256),
        ("tensor bf16 sparse", "hmma", 4096),
        ("tensor fp16 sparse", "hmma", 4096),
        ("tensor tf32 sparse", "hmma", 2048),
        ("tensor int8 sparse", "imma", 8192),
    ],
    "wmma": [
        ("tensor fp16", "hmma", 4096 * 2 / 3),
        ("tensor fp16", "hmma", 4096 * 2 / 3),
        ("tensor bf16", "hmma", 4096 * 2 / 3),
        ("tensor tf32", "hmma", 2048 * 2 / 3),
        ("tensor int8", "imma", 8192 * 2 / 3),
        ("tensor fp64", None, 256),
        ("tensor fp16 sparse", "hmma", 4096),
    ],
}


@pytest.mark.parametrize("name", [*PEAKS])
def test_peaks_are_dense_unless_sparse_instructions_ran(name):
    report = real_report(REPORTS / "ncu" / f"{name}.raw.csv")
    clock = report.table("metrics").filter(pl.col("metric") == "sm__cycles_elapsed.avg.per_second")
    rows = kanalyze.roofline(report).join(clock.select("event_id", clock="value"), on="event_id")
    found = [
        (row["precision"], row["instruction"], round(per_cycle(row, row["clock"]), 1))
        for row in rows.filter(pl.col("achieved_flop_per_s") > 1e12).to_dicts()
    ]
    assert found == [(precision, op, round(peak, 1)) for precision, op, peak in PEAKS[name]]


def test_a_product_of_integers_has_a_roof_and_no_flop():
    rows = kanalyze.roofline(real_report(REPORTS / "ncu" / "gemm.raw.csv"))
    (row,) = rows.filter(pl.col("precision") == "tensor int8").to_dicts()
    assert (row["flop"], row["tensor_int_op"]) == (0, 2 * 4096**3)
    assert row["achieved_flop_per_s"] == pytest.approx(2 * 4096**3 / row["dur_ns"] * 1e9)
    assert (row["bound"], round(row["roof_share"], 2)) == ("compute", 0.67)


def test_a_metric_of_all_paths_alone_has_the_peak_of_the_dense_one():
    """As with --metrics, and on Blackwell: its own peak is that of sparse work."""
    row = roof(path("src_bf16_dst_fp32", 2000, 8))
    assert (row["precision"], row["peak_flop_per_s"], row["roof_share"]) == ("tensor bf16", 4e9, 0.5)


def test_work_that_no_dense_path_can_do_was_sparse():
    row = roof(path("src_bf16_dst_fp32", 6000, 8))
    assert (row["precision"], row["peak_flop_per_s"], row["roof_share"]) == ("tensor bf16 sparse", 8e9, 0.75)


@pytest.mark.parametrize("name", ["src_fp64", "src_int1", "op_bgmma_src_int1"])
def test_what_has_no_sparse_path_keeps_its_peak(name):
    assert roof(path(name, 2000, 8))["peak_flop_per_s"] == 8e9


def test_before_ampere_no_path_is_sparse():
    row = roof(path("src_fp16", 2000, 8), device__attribute_compute_capability_major=7)
    assert (row["precision"], row["peak_flop_per_s"]) == ("tensor fp16", 8e9)


def test_what_accumulates_at_half_the_rate_has_half_the_peak():
    """GeForce GPUs do so in FP32; the pipe is then busy for half of the time at most (figures of an RTX 3050)."""
    row = roof(
        path("src_fp16_dst_fp32_sparsity_off", 480, 512e-3),
        path("src_fp16_dst_fp16_sparsity_off", 0, 1024e-3),
        **{BUSY: 47.0},
    )
    assert row["roof_share"] == pytest.approx(480 / 512)


def test_rates_do_where_sums_were_not_collected():
    rates = {f"{PATH}src_bf16_dst_fp32_sparsity_off.sum.per_cycle_elapsed": 3.0}
    row = roof(rates, {f"{PATH}src_bf16_dst_fp32_sparsity_off.sum.peak_sustained": 4.0})
    assert (row["tensor_flop"], row["roof_share"]) == (3000, 0.75)


def test_the_pipe_tells_what_instructions_of_small_shapes_cost():
    """A product in FP64 by instructions of 8 × 8 × 4 keeps the pipe of a Hopper GPU busy for half of its peak."""
    row = roof(path("src_fp64", 2000, 4), **{BUSY: 98.0})
    assert (row["bound"], row["roof_share"]) == ("compute", 0.98)
    assert row["achieved_flop_per_s"] == pytest.approx(row["peak_flop_per_s"] / 2)


def test_register_moves_are_no_work_of_tensor_cores():
    """They are in the pipe, too."""
    row = roof(path("src_bf16_dst_fp32", 0, 8), **{BUSY: 4.0, "dram__bytes_read.sum": 100})
    assert (row["bound"], row["roof_share"], row["flop"]) == ("memory", 0.01, 0)


def test_where_no_path_is_counted_the_pipe_tells_the_bound():
    """As of GPUs before Ampere: the work is not known, its time is."""
    row = roof(**{BUSY: 70.0, "dram__bytes_read.sum": 5000})
    assert (row["bound"], row["roof_share"], row["precision"]) == ("compute", 0.7, "tensor")
    assert (row["flop"], row["achieved_flop_per_s"], row["peak_flop_per_s"]) == (None, None, None)


def test_without_paths_and_pipe_nothing_is_claimed():
    row = roof(**{"dram__bytes_read.sum": 5000})
    assert (row["tensor_flop"], row["bound"], row["roof_share"]) == (None, None, None)


def test_packed_pairs_are_work():
    """FFMA2 of GPUs from compute capability 10.0 on: two fused products."""
    packed = "smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum.per_cycle_elapsed"
    assert roof(path("src_fp16", 0, 1), **{packed: 3})["fp32_flop"] == 12_000


@pytest.mark.parametrize(("pipe", "known"), [(0.0, True), (1.0, False)])
def test_half_precision_of_older_versions(pipe, known):
    """They count fused products only; whether there were others tells the pipe."""
    left_out = {name: value for name, value in IDLE.items() if "hadd" not in name and "hmul" not in name}
    found = measured(
        {**left_out, **path("src_fp64", 0, 1), "sm__inst_executed_pipe_fp16.avg.pct_of_peak_sustained_active": pipe}
    )
    row = kanalyze.roofline(found).row(0, named=True)
    assert (row["fp16_flop"], row["roof_share"]) == ((0, 0) if known else (None, None))


#: A type's paths on Hopper: instruction and sparsity, with peaks; the metric of them all has the largest.
FORMS = {
    ("op_hgmma_", "_sparsity_off"): 4,
    ("op_hgmma_", "_sparsity_on"): 8,
    ("op_hmma_", "_sparsity_off"): 4 * 2 / 3,
    ("op_hmma_", "_sparsity_on"): 4,
}
works = st.just(0) | st.integers(1, 500)
of_type = st.tuples(works, works, works, works).filter(any)


@given(
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
    row = roof(*every, **({} if busy is None else {BUSY: busy}))
    assert (row["tensor_flop"], row["tensor_int_op"]) == (total["flop"], total["int"])
    assert row["roof_share"] == pytest.approx(max(seconds / 1e-6, (busy or 0) / 100))
    assert row["precision"].startswith("tensor")
    assert row["achieved_flop_per_s"] == pytest.approx(sum(total.values()) * 1e6)
