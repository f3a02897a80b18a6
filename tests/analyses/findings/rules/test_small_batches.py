"""A model that is run for a few samples at a time."""

import pytest

from kanalyze.analyses.findings.rules.small_batches import small_batches
from kanalyze.window import Window
from support.build import call, host, kernel, report

LAUNCH = "cudaLaunchKernel_v7000"
STEP = 1_000_000
GEMM = "nvjet_sm90_tst_40x64_64x16_4x2_h_bz_TNN"
NORM = "void at::native::vectorized_layer_norm_kernel<float>()"
LIMITS = {"sm_count": 100, "max_warps_per_sm": 64, "threads_per_warp": 32}


def run(at, *, blocks=20, apart=40_000, took=2000, last=()):
    """A pass: products of matrices and norms, each of `blocks` blocks, launched `apart` from each other."""
    events = []
    for place, name in enumerate((GEMM, NORM, GEMM, NORM, f"{GEMM}_2", *last)):
        start = at + apart * place
        events.append(call(LAUNCH, start, start + 5000, correlation=start))
        shape = {"grid": (blocks, 1, 1), "block": (256, 1, 1)}
        events.append(kernel(start + 6000, start + 6000 + took, name=name, correlation=start, **shape))
    return events


def found(*, passes=20, each=1, more=(), **keys):
    events = [event for number in range(passes) for event in run(number * STEP, **keys)]
    window = Window(0, passes * STEP, count=passes // each, each="step")
    return small_batches(report([*events, *more], limits=LIMITS).narrow(window=window))


def test_passes_that_fill_a_part_of_the_gpu():
    (one,) = found(apart=190_000, more=[host("op", "aten::linear", 0, 10)])
    assert found(apart=190_000) == []  # of few layers: may be a part of a model
    assert one.text.startswith(
        "The model is run 1 time a step, for few samples each time: its kernels fill 13.1 % of the"
    )
    assert one.general


@pytest.mark.parametrize(("blocks", "told"), [(85, 1), (95, 0)])
def test_layers_that_all_but_fill_the_gpu_gain_nothing_by_more_samples(blocks, told):
    assert len(found(apart=190_000, blocks=blocks, more=[host("op", "aten::linear", 0, 10)])) == told


def test_several_passes_in_each_iteration_by_their_slices():
    names = (("embedding", 0, 8000), ("linear", 190_000, 8000), ("slice", 960_000, 10))
    slices = [
        host("op", f"aten::{name}", n * STEP + at, n * STEP + at + ns) for n in range(20) for name, at, ns in names
    ]
    (one,) = found(apart=190_000, each=5, more=slices)
    assert not one.general
    assert found(apart=190_000, each=5) == []


def split_and_joined(every):
    """Operators that split a tensor, and join results, in each of so many passes."""
    return [
        host("op", f"aten::{name}", n * STEP + at, n * STEP + at + 10)
        for n in range(0, 20, every)
        for name, at in (("split", 10), ("cat", 970_000))
    ]


def test_several_passes_over_a_tensor_that_is_split_once():
    layers = [host("op", "aten::linear", 100, 8000)]
    (one,) = found(apart=190_000, each=5, more=[*layers, *split_and_joined(5)])
    assert not one.general
    assert found(apart=190_000, each=5, more=[*layers, *split_and_joined(1)]) == []  # layers do that, too


@pytest.mark.parametrize(
    "keys",
    [
        {"blocks": 200},  # they fill the GPU
        {"took": 180_000},  # the GPU is busy
        {"last": ("void at::native::multi_tensor_apply_kernel<FusedAdam>()",)},  # an optimizer
        {"last": ("void at::native::reduce_kernel<ArgMaxOps>()",)},  # the next pass needs it
        {"passes": 6},
        {"apart": 10_000},  # the host does something else for long
    ],
)
def test_what_a_larger_batch_would_not_mend(keys):
    assert found(**{"apart": 190_000, **keys}, more=[host("op", "aten::linear", 0, 10)]) == []
