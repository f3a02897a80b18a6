"""Kernels that leave parts of the GPU idle: by launch shapes, by sampled counters, by their bytes."""

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.device.occupancy import occupancy
from kanalyze.analyses.findings.findings import findings
from kanalyze.analyses.findings.rules import CHANNELS_LAST
from kanalyze.analyses.findings.rules.occupancy import (
    SAMPLED,
    far_apart,
    low_occupancy,
    narrow_blocks,
    small_grid,
    tail,
    thin_blocks,
)
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import BLOCK, FOUR_SMS as SMALL, again, call, graph, kernel, memset, report
from support.command import REPORTS
from support.exports import altered
from support.measures import assert_told
from support.real_reports import real_report

#: What every sentence on a small grid ends with.
SEVERAL = " A block for every SM gains at most the time at stake; more may follow with several."


def launch(start, end, blocks, *, threads=256, name="k", device=0, **side):  # noqa: PLR0913 - a launch has as many
    return kernel(
        start, end, name=name, device=device, grid=(blocks, 1, 1), block=(threads, 1, 1), side={**BLOCK, **side}
    )


def found(rule, *events, limits=None, **where):
    """What a rule says, as (device, nanoseconds, sentence)."""
    findings = rule(report(events, limits=SMALL if limits is None else limits).narrow(**where))
    return [(one.device, one.at_stake_ns, one.text.format(*one.names)) for one in findings]


OF_LIBRARIES = (
    "nvjet_sm90_tst_128x64_64x8_1x2_h_bz_NNT",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(T1::Params)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_cublas",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
)


def test_mending_the_tail_gained_no_more_than_was_at_stake():
    """The same program ran the same kernel without the last wave of 4 blocks."""
    rows = occupancy(real_report(REPORTS / "findings.sqlite")).filter(pl.col("name") == "long_blocks(float *, int)")
    with_tail, without = (rows.filter(pl.col("grid_x") == blocks).row(0, named=True) for blocks in (268, 264))
    assert with_tail["count"] == without["count"]
    assert 0 < with_tail["total_ns"] - without["total_ns"] <= with_tail["tail_ns"]


TORCH = launch(9000, 9001, 32, name="void at::native::fill(float *)")


@pytest.mark.parametrize(
    ("name", "beside", "words"),
    [
        ("work(float *)", (), "__launch_bounds__"),
        ("work(float *)", (TORCH,), "__launch_bounds__"),
        ("softmax_mine", (TORCH,), "num_warps"),
        ("softmax_mine", (), "__launch_bounds__"),
    ],
)
def test_what_makes_more_warps_fit_is_for_whoever_writes_the_kernel(name, beside, words):
    events = [launch(0, 1000, 32, name=name, registers_per_thread=255), *beside]
    (one,) = low_occupancy(report(events, limits=SMALL))
    assert one.names == (name,)
    assert words in one.action
    (small,) = small_grid(report([launch(0, 1000, 2, name=name), *beside], limits=SMALL))
    assert "smaller tiles" in small.action


@pytest.mark.parametrize(("shared", "told"), [(16_384, 1), (98_304, 0)])
def test_tiles_of_products_in_triton_leave_room_for_few_warps_by_design(shared, told):
    own = launch(0, 1000, 400, name="matmul_mine", dynamic_shared_bytes=shared, registers_per_thread=255)
    assert len(low_occupancy(report([own, TORCH], limits=SMALL))) == told


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused_add_0",
        "void at::native::reduce_kernel<512>(int)",
        "void cub::DeviceScanKernel<int>(int *)",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize32x32x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
        "void at::native::batch_norm_backward_channels_last_kernel<4>(int)",
    ],
)
@pytest.mark.parametrize("beside", [(), (TORCH,)])
@pytest.mark.parametrize(("rule", "blocks"), [(small_grid, 1), (tail, 5), (low_occupancy, 32)])
def test_grid_and_registers_of_a_librarys_kernel_are_nobodys_to_change(name, beside, rule, blocks):
    own = launch(0, 1000, blocks, name=name, registers_per_thread=255)
    assert rule(report([own, *beside], limits=SMALL)) == []


def test_the_three_share_the_time_of_a_launch():
    """What one claims the others do not, and together they claim no more than the device ran kernels."""
    events = [launch(0, 990, 5, registers_per_thread=255), launch(990, 1990, 2, registers_per_thread=255)]
    stakes = [found(rule, *events)[0][1] for rule in (small_grid, tail, low_occupancy)]
    assert stakes == [500, 371, 123]
    assert sum(stakes) <= ledger(report(events, limits=SMALL)).get_column("ns").sum()


REDUCE, MANY = "ncclDevKernel_AllReduce", {"registers_per_thread": 255}
SHARED = {"dynamic_shared_bytes": 90_000, "static_shared_bytes": 10_000}
SETTING = {"dynamic_shared_bytes": 15_000, "shared_config_bytes": 32_768}
NO_REGISTERS = launch(0, 1000, 1, registers_per_thread=None)
SMALL_SHAPES = [launch(0, 1000, 1), launch(1000, 1500, 3), launch(1500, 1600, 2, name="other")]
SETTINGS = [launch(0, 100, 2, shared_config_bytes=8192), launch(100, 200, 2, shared_config_bytes=16384)]
SOLVED = [launch(0, 44_130, 1, name="solve"), launch(50_000, 50_067, 32, name="solve")]
VARIANCES = ((40_000, "cupy_mean"), (100, "cupy_var_core_float32"), (40_000, "_nanvar_core"))
PER_CHANNEL = "void at::native::batch_norm_backward_kernel<float>(int)"
TAILS = [launch(0, 640, 33), launch(640, 740, 40, name="other"), launch(740, 999, 32)]
LOW = [launch(0, 1000, 400, **MANY), launch(1000, 1100, 400, name="o", **MANY)]
VARIANCE = [launch(0, 40_000, 1, name="cupy_var_core_float32")]
MANY_OF_BOTH = [launch(0, 1000, 400, **MANY, dynamic_shared_bytes=200_000)]
FEW_BLOCKS, OLDER = launch(0, 1000, 12_800, threads=32), SMALL | {"compute_capability": "8.6"}
OF_SMALL = (
    "k uses 1 block of 256 threads on 4 SMs, 256 threads of the 8,192 that fit, for 1.000 µs. Also: 2 other launch "
    "shapes with fewer blocks than SMs."
)
OF_TAIL = (
    "k has 33 blocks where 32 run at once, for 640 ns: its last wave holds 1, and leaves 48.4 % of that idle if all "
    "blocks take as long. Also: 1 other launch shape with such a tail."
)
SOLVED_WITH = " With 32 blocks it took 67 ns in this report, with these 44.13 µs."
LIMITED = "k gets at most {} of 64 warps on an SM ({}.{} % occupancy), for 1.000 µs; the limit is {}."
LIMITS = {
    "registers": LIMITED.format(8, 12, 5, "registers (255 per thread; with 128 one more block fits)"),
    "shared": LIMITED.format(16, 25, 0, "shared memory (100.0 kB per block; with 76.80 kB one more fits)"),
    "setting": LIMITED.format(16, 25, 0, "the setting of the shared memory (32.77 kB of the SM's 233.5 kB)"),
    "blocks": LIMITED.format(16, 33, 3, "the number of blocks (16 blocks of 32 threads)").replace("64", "48"),
    "several": LIMITED.format(8, 12, 5, "registers and shared memory"),
}


@pytest.mark.parametrize(
    ("rule", "events", "limits", "stakes", "words"),
    [
        # a full wave, communication, a whole graph, a GPU without limits
        *(
            (rule, events, limits, [], ())
            for rule in (small_grid, tail, low_occupancy)
            for events, limits in (
                ([launch(0, 1000, 32)], SMALL),
                ([launch(0, 1000, 3, name=REDUCE)], SMALL),
                ([launch(0, 1000, 33, name=REDUCE, **MANY)], SMALL),
                ([graph(0, 1000)], SMALL),
                ([launch(0, 1000, 1), launch(1000, 2000, 33, **MANY)], {}),
            )
        ),
        (small_grid, SMALL_SHAPES, SMALL, [750 + 125 + 50], (OF_SMALL + SEVERAL,)),
        (small_grid, [launch(0, 1000, 4)], SMALL, [], ()),
        # beside another kernel it wastes only what it has alone
        (small_grid, [launch(0, 1000, 2, name="a"), launch(600, 1400, 4, name="b")], SMALL, [300], ()),
        (small_grid, SETTINGS, SMALL, [100], ("for 200 ns." + SEVERAL,)),
        (small_grid, [NO_REGISTERS], {"sm_count": 4}, [750], ("on 4 SMs, for 1.000 µs." + SEVERAL,)),
        (small_grid, [NO_REGISTERS], {"compute_capability": "9.0"}, [], ()),
        (small_grid, [launch(0, 100, at + 1, device=at) for at in (0, 1)], SMALL, [75, 50], ()),
        (small_grid, [launch(0, 100, 1, name=PER_CHANNEL)], SMALL, [75], (CHANNELS_LAST, "1 block for 4 SMs: ")),
        (small_grid, VARIANCE, SMALL, [30_000], ("cp.square(x", "1 block for 4 SMs")),
        *((small_grid, [launch(0, ns, 1, name=name)], SMALL, [], ()) for ns, name in VARIANCES),
        (small_grid, [launch(0, 100, 1, name="void batch_norm_of_my_own(int)")], SMALL, [75], ("<<<(n + 255) / 256",)),
        (small_grid, SOLVED, SMALL, [33_097], (SOLVED_WITH,)),
        (tail, TAILS, SMALL, [310 + 37], (OF_TAIL,)),
        *((tail, [launch(0, 1000, 32 * waves + 1)], SMALL, ns, ()) for waves, ns in ((10, []), (8, [107]))),
        *((tail, [launch(0, 1000, blocks)], SMALL, [], ()) for blocks in (3, 20)),
        (low_occupancy, LOW[:1], SMALL, [875], (LIMITS["registers"], "Use fewer registers")),
        (low_occupancy, [launch(0, 1000, 800, **SHARED)], SMALL, [750], (LIMITS["shared"], "Use less shared memory")),
        (low_occupancy, [launch(0, 1000, 800, **SETTING)], SMALL, [750], (LIMITS["setting"], "Let the SM use more")),
        (low_occupancy, [FEW_BLOCKS], OLDER, [666], (LIMITS["blocks"], "Use larger blocks")),
        (low_occupancy, MANY_OF_BOTH, SMALL, [875], (LIMITS["several"],)),
        (low_occupancy, LOW, SMALL, [875 + 87], ("Also: 1 other launch shape of low occupancy.",)),
        (low_occupancy, [launch(0, 1000, 400, registers_per_thread=48)], SMALL, [], ()),  # half of the warps
        (low_occupancy, [launch(0, 1000, 400, registers_per_thread=96)], SMALL, [], ()),  # a quarter, for registers
        (low_occupancy, [launch(0, 1000, 4, **MANY)], SMALL, [], ()),  # all resident
        *((low_occupancy, [launch(0, 1000, 400, **MANY, name=name)], SMALL, [], ()) for name in OF_LIBRARIES),
    ],
)
def test_shapes_that_leave_a_part_of_the_gpu_idle(rule, events, limits, stakes, words):
    assert_told(rule(report(events, limits=limits)), stakes, *words)


@pytest.mark.parametrize("event", [launch(0, 100_000, 800, **SHARED), launch(0, 100_000, 400, **MANY)])
def test_more_warps_are_worth_what_is_enough_of_them(event):
    """Half of them, or a quarter where registers alone limit them: of 16 are 32 enough, of 8 are 16."""
    made = report([event], limits=SMALL)
    (one,) = low_occupancy(made)
    assert one.at_stake_ns > 50_000
    assert one.change(made).shorter.get_column("saved_ns").sum() == pytest.approx(50_000, abs=2)


@pytest.mark.parametrize(("threads", "took", "told"), [(1, 3000, 0), (1, 30_000, 1), (64, 3000, 1)])
def test_a_flag_that_one_thread_sets_is_no_small_grid(threads, took, told):
    assert len(small_grid(report([launch(0, took, 1, threads=threads)], limits=SMALL))) == told


@pytest.mark.parametrize(
    ("change", "stake"),
    [
        ({}, 31_500),  # of 64 warps that an SM has room for 32 are there
        ({"threads": 8}, 28_000),
        ({"blocks": 128}, 31_000),  # which have all room already
        ({"registers_per_thread": 255}, 31_000),  # larger blocks need as many
        ({"threads": 32}, None),
        ({"blocks": 3}, None),  # SMs without a block are told of
        ({"end": 9_000}, None),  # too short to have much to do
        ({"name": "void at::native::index_kernel(float *)"}, None),
    ],
)
def test_blocks_smaller_than_a_warp(change, stake):
    of = {"start": 0, "end": 32_000, "blocks": 4096, "threads": 1, "name": "rows(float *)"} | change
    rows = found(thin_blocks, launch(**of))
    assert [ns for _, ns, _ in rows] == ([stake] if stake else [])
    assert all(f"{of['blocks']:,} blocks of {of['threads']} thread" in text for *_, text in rows)


@pytest.mark.parametrize(
    ("grid", "block", "stake"),
    [
        ((8192, 24, 1), (1, 256, 1), 28_000),
        ((2048, 24, 1), (4, 64, 1), 16_000),
        ((1024, 24, 1), (8, 32, 1), 0),  # a sector each
        ((8192, 1, 1), (1, 256, 1), 0),  # a block for each row
        ((24, 24, 1), (1, 16, 4), 0),  # over a volume
    ],
)
def test_blocks_whose_warps_run_down_columns(grid, block, stake):
    one = kernel(0, 32_000, name="hop(float *)", grid=grid, block=block, side=BLOCK)
    assert [ns for _, ns, _ in found(narrow_blocks, one)] == [stake] * bool(stake)


def test_quicker_launches_of_more_blocks_and_a_window():
    (other,) = small_grid(report([launch(0, 100, 1, name="solve"), launch(200, 900, 32, name="solve")], limits=SMALL))
    assert "in this report" not in other.text
    assert [ns for _, ns, _ in found(tail, launch(0, 640, 33), window=Window(0, 64))] == [31]


RULES = ("few-sms", "idle-tensor-cores", "dram-bound", "busy-pcie", "clock-drop")


def values(metric, change):
    return (
        f"UPDATE GPU_METRICS SET value = {change} WHERE metricId IN "
        f"(SELECT metricId FROM TARGET_INFO_GPU_METRICS WHERE metricName LIKE '{metric}%')"
    )


FEW = (
    "6.0 % of the SMs are active: few_blocks(float *, long long)",
    "While few_blocks(float *, long long) ran, 6.0 % of the SMs were active (mean of 600 samples), for 60.01 ms.",
)
DRAM = "41.5 % read, 41.5 % written of the bandwidth, mean of 220 samples"
BUSY = "While no operation of this report ran on the GPU, PCIe was busy for "
SLOW_TENSORS = (values("Tensor Active", "value / 10"), values("GPC Clock", "1980000000"))
TENSOR_WORDS = ("Tensor cores are active in 8.7 %", "samples)")
RISING = (values("GPC Clock", "min(1980000000, 345000000 + (timestamp - 3346500000) * 150)"),)
NO_EARLY_COPIES = ("DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE start < 941000000",)
FEW_SAMPLES = ("DELETE FROM GPU_METRICS WHERE timestamp % 10 != 0 OR timestamp > 852000000",)


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("name", "statements", "rules", "stake", "words"),
    [
        ("metrics_phases", (), ["few-sms"], 60.01e6 * 0.94, FEW),  # which small-grid would say, too
        ("metrics_phases", (values("SMs Active", "90"),), ["small-grid"], None, ()),
        # without enough samples the shape of the grid tells it
        ("metrics_phases", FEW_SAMPLES, ["small-grid"], None, ()),
        ("metrics_phases", NO_EARLY_COPIES, ["few-sms", "busy-pcie"], None, (BUSY,)),
        ("gpu_metrics", (), ["dram-bound"], None, ("Kernels at DRAM's limit are 100.0 % of kernel time", DRAM)),
        ("gpu_metrics", (values("DRAM", "value / 2"),), [], None, ()),
        ("metrics_matmul", (), ["clock-drop"], 22.19e6 * (1 - 0.886), ("The SM clock falls to 88.6 % of 1,795 MHz",)),
        *(("metrics_matmul", (values("GPC Clock", clock),), [], None, ()) for clock in ("1980000000", "1300000000")),
        # a clock that rises as work begins has not fallen
        ("metrics_matmul", RISING, [], None, ()),
        ("metrics_matmul", SLOW_TENSORS, ["idle-tensor-cores"], 23.62e6 * (1 - 0.087), TENSOR_WORDS),
        ("metrics_matmul", (*SLOW_TENSORS, values("DRAM Read", "80")), ["dram-bound"], None, ()),
    ],
)
def test_what_samples_of_counters_tell(tmp_path, name, statements, rules, stake, words):  # noqa: PLR0913
    rows = findings(kanalyze.read(altered(tmp_path, REPORTS / f"{name}.sqlite", *statements))).rows(named=True)
    found = {row["rule"]: row for row in rows if row["rule"] in (*RULES, "small-grid")}
    assert sorted(found) == sorted(rules)
    row = found[rules[-1]] if rules else {}
    assert [word for word in words if word not in f"{row['headline']} {row['sentence']}"] == []
    assert stake is None or row["at_stake_ns"] == pytest.approx(stake, rel=0.01)


def told(value, samples):
    """Findings on a kernel of 400 ns, with samples of 10 ns."""
    events = (call("cudaLaunchKernel_v7000", 0, 5, correlation=1), kernel(1000, 1400, name="work", correlation=1))
    row = {"device": 0, "metric": "SMs Active", "unit": "Throughput %", "start_ns": 1000, "dur_ns": 10 * samples}
    made = report(events, gpu_metrics=[{**row, "value": value, "samples": samples}] if samples else [])
    return [one.rule for rule in SAMPLED for one in rule(made)]


@pytest.mark.parametrize(
    ("value", "samples", "many"), [(50, 40, 1), (51, 40, 0), (0, 40, 1), (10, 20, 1), (10, 19, 0), (0, 0, 0)]
)
def test_half_of_the_sms_are_few_and_samples_have_to_tell_of_half_of_the_time(value, samples, many):
    assert told(value, samples) == ["few-sms"] * many


#: 1 GB/s: a byte takes 1 ns.
SLOW_MEMORY = {"sm_count": 4, "memory_bandwidth_bytes_per_s": 1_000_000_000}


def program(*before, name="sum_rows(float *)", dur=1_000_000, blocks=8, bytes_there=100_000):
    """Two launches of `dur` ns with 16 threads a block, after `bytes_there` were set; `before` ran at first."""
    work = kernel(1_000, 1_000 + dur, name=name, grid=(blocks, 1, 1), block=(16, 1, 1))
    events = [*before, memset(100, 200, size_bytes=bytes_there), *again((0, 1_000 + dur), work)]
    return report(events, limits=SLOW_MEMORY)


def test_a_kernel_that_takes_far_longer_than_its_bytes():
    of = program()
    (finding,) = far_apart(of)
    assert finding.headline == "A thread for 781 B, perhaps a row apart: {0}"
    assert finding.at_stake_ns == 2 * (1_000_000 - 130_000)
    assert finding.change(of).shorter.get_column("saved_ns").to_list() == [870_000, 870_000]


@pytest.mark.parametrize(
    "other",
    [
        program(dur=250_000),  # near
        program(dur=3_300_000),  # it computes
        program(blocks=64),  # short pieces
        program(blocks=2),  # few blocks
        program(kernel(0, 10, name="fill(float *)")),  # made by a kernel
        program(name="void cub::DeviceReduceKernel<float>(float *)"),
        program(name="void at::native::sum(int)"),
        program(bytes_there=1_000),
        report([memset(0, 5)], limits=SLOW_MEMORY),
    ],
)
def test_what_is_not_known_is_not_said(other):
    assert far_apart(other) == []
