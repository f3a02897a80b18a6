"""Small grids, tails and low occupancy: each on a report that has it and on one that has not."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze.analyses.device.occupancy import occupancy
from kanalyze.analyses.findings.rules import CHANNELS_LAST
from kanalyze.analyses.findings.rules.occupancy import low_occupancy, small_grid, tail
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import graph, kernel, report
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"

#: 4 SMs of capability 9.0.
SMALL = {"compute_capability": "9.0", "sm_count": 4}

#: What an SM holds 8 blocks of, and what a launch may use more of.
BLOCK = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}

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


FULL = launch(0, 1000, 32)


@pytest.mark.parametrize("rule", [small_grid, tail, low_occupancy])
@pytest.mark.parametrize(
    "event",
    [
        FULL,
        launch(0, 1000, 3, name="ncclDevKernel_AllReduce"),
        launch(0, 1000, 33, name="ncclDevKernel_AllReduce", registers_per_thread=255),
        graph(0, 1000),
    ],
    ids=["a full wave", "small communication", "communication with a tail", "a whole graph"],
)
def test_nothing_to_say(rule, event):
    assert found(rule, event) == []


@pytest.mark.parametrize("rule", [small_grid, tail, low_occupancy])
def test_nothing_to_say_of_a_gpu_without_limits(rule):
    assert found(rule, launch(0, 1000, 1), launch(1000, 2000, 33, registers_per_thread=255), limits={}) == []


@pytest.mark.parametrize(
    ("rule", "name", "evidence"),
    [
        (small_grid, "busy(", "4 blocks of 32 threads on 132 SMs"),
        (tail, "long_blocks(", "268 blocks where 264 run at once"),
        (low_occupancy, "much_shared(", "16 of 64 warps on an SM (25.0 % occupancy)"),
    ],
)
def test_a_program_that_does_it_and_one_that_does_not(rule, name, evidence):
    one = rule(real_report(REPORTS / "findings.sqlite"))[0]
    assert one.names[0].startswith(name)
    assert evidence in one.text
    assert rule(real_report(REPORTS / "findings_clean.sqlite")) == []


def test_mending_the_tail_gained_no_more_than_was_at_stake():
    """The same program ran the same kernel without the last wave of 4 blocks."""
    rows = occupancy(real_report(REPORTS / "findings.sqlite")).filter(pl.col("name") == "long_blocks(float *, int)")
    with_tail, without = (rows.filter(pl.col("grid_x") == blocks).row(0, named=True) for blocks in (268, 264))
    assert with_tail["count"] == without["count"]
    assert 0 < with_tail["total_ns"] - without["total_ns"] <= with_tail["tail_ns"]


def test_a_small_grid():
    text = (
        "k uses 1 block of 256 threads on 4 SMs, 256 threads of the 8,192 that fit, for 1.000 µs. Also: 2 other launch "
        "shapes with fewer blocks than SMs." + SEVERAL
    )
    small = [launch(0, 1000, 1), launch(1000, 1500, 3), launch(1500, 1600, 2, name="other")]
    assert found(small_grid, *small) == [(0, 750 + 125 + 50, text)]
    assert found(small_grid, launch(0, 1000, 4)) == []


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


def test_a_small_grid_beside_another_kernel_wastes_only_what_it_has_alone():
    beside = [launch(0, 1000, 2, name="a"), launch(600, 1400, 4, name="b")]
    assert [(device, ns) for device, ns, _ in found(small_grid, *beside)] == [(0, 300)]


def test_a_shape_under_several_settings_of_the_shared_memory_is_one_shape():
    settings = [launch(0, 100, 2, shared_config_bytes=8192), launch(100, 200, 2, shared_config_bytes=16384)]
    assert found(small_grid, *settings)[0][2].endswith("for 200 ns." + SEVERAL)


def test_a_small_grid_needs_no_more_than_the_number_of_sms():
    of = launch(0, 1000, 1, registers_per_thread=None)
    assert found(small_grid, of, limits={"sm_count": 4}) == [
        (0, 750, "k uses 1 block of 256 threads on 4 SMs, for 1.000 µs." + SEVERAL)
    ]
    assert found(small_grid, of, limits={"compute_capability": "9.0"}) == []


def test_a_tail():
    """32 blocks run at once: 33 need two waves, of which 31 of 64 places stay empty."""
    text = (
        "k has 33 blocks where 32 run at once, for 640 ns: its last wave holds 1, and leaves 48.4 % of that idle if all"
        " blocks take as long. Also: 1 other launch shape with such a tail."
    )
    shapes = [launch(0, 640, 33), launch(640, 740, 40, name="other"), launch(740, 999, 32)]
    assert found(tail, *shapes) == [(0, 310 + 37, text)]


@pytest.mark.parametrize(("blocks", "ns"), [(32 * 10 + 1, []), (32 * 8 + 1, [107]), (3, []), (20, [])])
def test_a_tail_after_many_waves_is_not_worth_a_word_and_few_blocks_are_none(blocks, ns):
    assert [stake for _, stake, _ in found(tail, launch(0, 1000, blocks))] == ns


def test_a_window_cuts_what_is_at_stake():
    assert [ns for _, ns, _ in found(tail, launch(0, 640, 33), window=Window(0, 64))] == [31]


SHARED = {"dynamic_shared_bytes": 90_000, "static_shared_bytes": 10_000}
SETTING = {"dynamic_shared_bytes": 15_000, "shared_config_bytes": 32_768}
BOTH = {"registers_per_thread": 255, "dynamic_shared_bytes": 200_000}
LIMITS = {
    "registers": ("registers (255 per thread; with 128 one more block fits)", "Use fewer registers"),
    "shared": ("shared memory (100.0 kB per block; with 76.80 kB one more fits)", "Use less shared memory"),
    "setting": ("the setting of the shared memory (32.77 kB of the SM's 233.5 kB)", "Let the SM use more"),
    "blocks": ("the number of blocks (32 blocks of 32 threads)", "Use larger blocks"),
    "several": ("registers and shared memory", "Use fewer registers"),
}


@pytest.mark.parametrize(
    ("limit", "event", "stake", "warps"),
    [
        ("registers", launch(0, 1000, 400, registers_per_thread=255), 875, "8 of 64 warps on an SM (12.5 %"),
        ("shared", launch(0, 1000, 800, **SHARED), 750, "16 of 64 warps on an SM (25.0 %"),
        ("setting", launch(0, 1000, 800, **SETTING), 750, "16 of 64 warps on an SM (25.0 %"),
        ("blocks", launch(0, 1000, 12_800, threads=32), 500, "32 of 64 warps on an SM (50.0 %"),
        ("several", launch(0, 1000, 400, **BOTH), 875, "8 of 64 warps on an SM (12.5 %"),
    ],
)
def test_low_occupancy(limit, event, stake, warps):
    (text, remedy) = LIMITS[limit]
    told = f"k gets at most {warps} occupancy), for 1.000 µs; the limit is {text}."
    assert found(low_occupancy, event) == [(0, stake, told)]
    assert low_occupancy(report([event], limits=SMALL))[0].remedy.startswith(remedy)


def test_low_occupancy_of_several_kernels():
    events = [
        launch(0, 1000, 400, registers_per_thread=255),
        launch(1000, 1100, 400, name="o", registers_per_thread=168),
    ]
    assert [(ns, text.split(". ")[-1]) for _, ns, text in found(low_occupancy, *events)] == [
        (875 + 87, "Also: 1 other launch shape of low occupancy.")
    ]


@pytest.mark.parametrize(("blocks", "registers"), [(400, 48), (4, 255)], ids=["half of the warps", "all resident"])
def test_kernels_that_gain_nothing_by_occupancy(blocks, registers):
    assert found(low_occupancy, launch(0, 1000, blocks, registers_per_thread=registers)) == []


@pytest.mark.parametrize(
    "name",
    [
        "nvjet_sm90_tst_128x64_64x8_1x2_h_bz_NNT",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(T1::Params)",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_cublas",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
    ],
)
def test_libraries_kernels_that_want_few_warps_are_left_alone(name):
    assert found(low_occupancy, launch(0, 1000, 400, registers_per_thread=255, name=name)) == []


def test_the_three_share_the_time_of_a_launch():
    """What one claims the others do not, and together they claim no more than the device ran kernels."""
    events = [launch(0, 990, 5, registers_per_thread=255), launch(990, 1990, 2, registers_per_thread=255)]
    stakes = [found(rule, *events)[0][1] for rule in (small_grid, tail, low_occupancy)]
    assert stakes == [500, 371, 123]
    assert sum(stakes) <= ledger(report(events, limits=SMALL)).get_column("ns").sum()


def test_each_device_has_its_own():
    both = [launch(0, 100, 1, device=0), launch(0, 100, 2, device=1)]
    assert [(device, ns) for device, ns, _ in found(small_grid, *both)] == [(0, 75), (1, 50)]
    assert [(device, ns) for device, ns, _ in found(small_grid, *both, device=1)] == [(1, 50)]


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("void at::native::batch_norm_backward_kernel<float>(int)", CHANNELS_LAST),
        ("void batch_norm_of_my_own(int)", "<<<(n + 255) / 256"),
    ],
)
def test_more_blocks_are_had_in_another_way_where_each_channel_has_one(name, action):
    (finding,) = small_grid(report([launch(0, 100, 1, name=name)], limits=SMALL))
    assert finding.action.startswith(action)
    assert finding.headline == "1 block for 4 SMs: {0}"


def test_the_same_kernel_with_more_blocks_is_told_beside_a_small_grid():
    (finding,) = small_grid(
        report([launch(0, 44_130, 1, name="solve"), launch(50_000, 50_067, 32, name="solve")], limits=SMALL)
    )
    assert finding.text.endswith(" With 32 blocks it took 67 ns in this report, with these 44.13 µs.")
    (other,) = small_grid(report([launch(0, 100, 1, name="solve"), launch(200, 900, 32, name="solve")], limits=SMALL))
    assert "in this report" not in other.text
