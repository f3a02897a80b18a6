"""The finding about elementwise kernels that could be one."""

from pathlib import Path

import polars as pl

import kanalyze
from kanalyze.analyses.findings.rules.unfused import fusible
from support.build import call, host, kernel, report
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


def test_who_compiles_already_is_told_to_compile_these_too():
    add = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul>>(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
    )
    events = []
    for at, name in ((0, "aten::add"), (100_000, "aten::mul")):
        row = len(events)
        events += [
            host("op", name, at, at + 50, thread=1),
            call("cudaLaunchKernel", at + 1, at + 2, correlation=at, thread=1, parent=row),
            kernel(at + 5, at + 90_005, name=add, correlation=at, stream=7, parent=row),
        ]
    actions = []
    for more in ([], [kernel(200_000, 200_001, name="triton_poi_fused_add_mul_0")]):
        (found,) = fusible(report(events + more, kinds=("kernel", "memcpy", "memset", "api", "op", "range")))
        actions.append((found.action, "not compiled, as other kernels are" in found.remedy))
    assert actions == [
        ("torch.compile, or one kernel in Triton or CUDA", False),
        ("torch.compile them, too, or one kernel in Triton or CUDA", True),
    ]
