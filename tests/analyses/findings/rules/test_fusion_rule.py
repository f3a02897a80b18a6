"""The finding about elementwise kernels that could be one."""

from pathlib import Path

import polars as pl

import kanalyze
from kanalyze.analyses.findings.rules.small_kernels import fusible
from support.real_reports import real_report

SAMPLES = Path(__file__).parents[4] / "sample_reports"


def test_the_manual_gelu_is_found_with_its_kernels_and_what_one_would_take():
    (found,) = fusible(real_report(SAMPLES / "gelu" / "torch.json.gz"))
    assert found.text == (
        "168 elementwise kernels in 21 chains pass their results through memory: 18.29 ms. Most: aten::mul → aten::pow "
        "→ … → aten::add → aten::mul, 8 kernels 21 times, taking 18.29 ms; about 2.026 ms as one kernel each. "
        "More may follow, where the GPU waits for their launches."
    )
    # without shapes: of each chain the shortest kernel, which is what one that does all of it really takes there
    assert found.at_stake_ns == 18_285_857 - 2_025_818
    kernels = kanalyze.kernels(real_report(SAMPLES / "gelu" / "torch.json.gz"))
    fused = kernels.filter(pl.col("name").str.contains("GeluCUDAKernelImpl"))["total_ns"].sum()
    assert 0.97 * fused < 2_025_818 <= fused


def test_a_loop_over_one_operator_is_no_chain():
    report = real_report(SAMPLES / "launch_bound_plain" / "torch.json.gz")
    assert sum(found.at_stake_ns for found in fusible(report)) < 1000


def test_nothing_is_claimed_where_no_two_elementwise_kernels_follow_each_other():
    assert fusible(real_report(SAMPLES / "mlp_train" / "torch.json.gz")) == []


def test_nothing_is_claimed_without_operators():
    assert fusible(real_report(SAMPLES / "gelu" / "nsys.sqlite")) == []
