"""Findings on what programs make the GPU do: types, copies, losses by hand, sums by atomics, work done twice."""

import pytest

from kanalyze.analyses.findings.rules.elementwise_by_hand import by_hand
from kanalyze.analyses.findings.rules.float64 import float64
from kanalyze.analyses.findings.rules.gathers import gathers
from kanalyze.analyses.findings.rules.growing_copies import growing_concatenations, growing_copies
from kanalyze.analyses.findings.rules.large_logits import large_logits
from kanalyze.analyses.findings.rules.layout_copies import layout_copies
from kanalyze.analyses.findings.rules.recomputation import recomputation
from kanalyze.analyses.findings.rules.scatter_atomics import scatter_atomics
from support.build import call, host, kernel, memcpy, report

ONE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
TANH64 = ONE.format("tanh_kernel_cuda(X&)::{{lambda(double)#1}}").replace("{{", "{").replace("}}", "}")
GEMM64 = "sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize128x64x16_stage3_warpsize2x2x1_tensor16x8x8_execute_kernel"
ADAM = (
    "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, "
    "at::native::FusedAdamMathFunctor<c10::BFloat16, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double>"
)
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
STRIDED = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    "(X&)::{lambda(float)#1}>(X)::{lambda(int)#1}>(int)"
)
UP = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(X&)::{lambda(float)#1}, "
    "std::array<char*, 2ul>, 4, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int)"
)
DOWN = ONE.format("bfloat16_copy_kernel_cuda(X&)::{lambda(float)#1}")
LOG = "void at::native::cunn_SoftMaxForward<4, float, float, float, at::native::LogSoftMaxForwardEpilogue>(float*)"
LOG_BACK = "void at::native::cunn_SoftMaxBackward<4, float, float, float, at::native::LogSoftMaxBackwardEpilogue>(X)"
MUL, ADD, POW = (ONE.format(f"{name}<float>") for name in ("MulFunctor", "CUDAFunctor_add", "PowFunctor"))
INDEX_ADD = "void at::native::indexFuncLargeIndex<float, long, unsigned int, 2, 2, -2, true, at::native::ReduceAdd>(X)"
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
CAT = "void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>(X)"
HOPPER = [{"device": 0, "name": "GPU 0", "compute_capability": "9.0"}]


def line(*kernels, at=0):
    """Kernels (name, ns) one after the other."""
    events = []
    for name, ns in kernels:
        events.append(kernel(at, at + ns, name=name))
        at += ns
    return events


def launched(*kernels, node=None):
    """The same, each in an operator of PyTorch: (name, ns, operator); all in one of autograd's with `node`."""
    events, at = [], 0
    for number, (name, ns, operator) in enumerate(kernels):
        events.append(kernel(at + 4, at + 4 + ns, name=name, correlation=number))
        events.append(call("cudaLaunchKernel", at + 1, at + 2, correlation=number))
        events.append(host("op", operator, at, at + 3))
        at += ns + 4
    if node:
        events.append(host("op", f"autograd::engine::evaluate_function: {node}", 0, at))
    return events


def told(rule, events, **tables):
    return [(found.at_stake_ns, found.headline) for found in rule(report(events, **tables))]


def saved(found, made):
    """What is left out and how much shorter kernels get by a finding's remedy."""
    change = found.mending(made)
    return len(change.gone), (0 if change.shorter is None else change.shorter["saved_ns"].sum())


def test_tensors_of_float64_are_told_and_scalars_are_not():
    made = report(line((GEMM64, 50_000), (TANH64, 30_000), (ADAM, 20_000)), devices=HOPPER)
    (found,) = float64(made)
    assert (found.at_stake_ns, found.headline) == (80_000, "Tensors are of float64: 80.0 % of kernel time")
    # products in TF32 at two thirds of 7.4 times the rate, and half of the bytes of others
    assert saved(found, made) == (0, 39_857 + 15_000)
    assert found.claims.rows() == [(0, 50_000), (50_000, 80_000)]


def test_complex_numbers_of_two_and_their_transforms_are_float64():
    fft = "void regular_fft<512u, EPT<8u>, 8u, 2u, (padding_t)6, unsigned int, double>(kernel_arguments_t<double>)"
    made = report(line((fft, 50_000), (ONE.format("CUDAFunctor_add<c10::complex<double>>"), 30_000), (TANH64, 20_000)))
    (found,) = float64(made)
    assert found.at_stake_ns == 100_000


@pytest.mark.parametrize("events", [line((ADAM, 90), (GEMM, 10)), line((TANH64, 2), (ADAM, 98)), line((GEMM64, 100))])
def test_little_float64_and_that_of_other_programs_is_not_told(events):
    assert float64(report(events)) == []


def within(operator, *kernels, node=None):
    """Launches in one operator more, which begins first and ends last."""
    events = launched(*kernels, node=node)
    return [*events, host("op", operator, 0, sum(ns + 4 for _, ns, _ in kernels))]


def test_copies_into_another_order_are_told_by_what_is_written():
    events = within("aten::contiguous", (STRIDED, 40, "aten::copy_"))
    (found,) = layout_copies(report([*events, kernel(50, 110, name=GEMM)]))
    assert (found.at_stake_ns, found.headline) == (40, "Copies of transposed tensors: 40.0 % of kernel time")
    assert "into another order, most by .contiguous(): 40 ns, 40.0 % of kernel time." in found.text


@pytest.mark.parametrize(
    "events",
    [
        launched((STRIDED, 40, "aten::copy_"), (GEMM, 60, "aten::mm")),  # into a slice
        within("aten::reshape", (STRIDED, 40, "aten::copy_"), node="ViewBackward0"),
        launched((STRIDED, 40, "aten::linear"), (GEMM, 60, "aten::mm")),  # a bias for each row
        line((STRIDED, 9), (GEMM, 91)),
        line((UP, 40), (GEMM, 60)),
    ],
)
def test_other_copies_are_not_told(events):
    assert layout_copies(report(events)) == []


LOSS = [(GEMM, 50), (UP, 40), (LOG, 40), (MUL, 30), (MUL, 30), (ADD, 2), (LOG_BACK, 60), (DOWN, 20), (GEMM, 50)]


def test_a_loss_by_hand_leaves_one_softmax_forward_and_one_backward_in_the_type_of_the_logits():
    made = report(line(*LOSS))
    (found,) = large_logits(made)
    assert (found.at_stake_ns, found.headline) == (220, "Large logits in float32, the loss by hand: 68.3 %")
    assert saved(found, made) == (4, 20 + 30)


@pytest.mark.parametrize(
    "kernels",
    [
        [(GEMM, 50), (UP, 40), (LOG, 40), (LOG_BACK, 60), (DOWN, 20), (GEMM, 50)],  # of F.cross_entropy under autocast
        [(GEMM, 50), (MUL, 30), (MUL, 30), (ADD, 30), (GEMM, 50)],
        [*LOSS, (GEMM, 3000)],
    ],
)
def test_fused_losses_and_small_ones_are_not_told(kernels):
    assert large_logits(report(line(*kernels))) == []


AUTOCAST = [
    *((GEMM, 50, "aten::mm"), (LOG, 40, "aten::cross_entropy_loss"), (UP, 40, "aten::cross_entropy_loss")),
    *((DOWN, 40, "aten::to"), (LOG_BACK, 60, "aten::_log_softmax_backward_data"), (GEMM, 50, "aten::mm")),
]


def test_casts_of_autocast_within_the_loss_and_back_are_not_the_program_s():
    assert large_logits(report(launched(*AUTOCAST))) == []
    asked = [AUTOCAST[0], (UP, 40, "aten::to"), AUTOCAST[1], *AUTOCAST[3:]]
    assert [found.at_stake_ns for found in large_logits(report(launched(*asked)))] == [180]


def test_copies_of_logits_without_their_last_row_are_no_loss_by_hand():
    copied = [(STRIDED, 40, "aten::copy_"), (LOG, 40, "aten::log_softmax"), (LOG_BACK, 60, "aten::to")]
    assert large_logits(report(launched((GEMM, 50, "aten::mm"), *copied, copied[0], (GEMM, 50, "aten::mm")))) == []


def test_softmaxes_between_products_of_many_matrices_are_attention():
    chain = [(GEMM, 50, "aten::bmm"), (MUL, 40, "aten::mul"), (LOG, 40, "aten::softmax"), (MUL, 40, "aten::mul")]
    assert large_logits(report(launched(*chain, (GEMM, 50, "aten::bmm")))) == []
    assert large_logits(report(launched(*chain, (GEMM, 50, "aten::mm")))) != []


def test_sums_that_take_far_longer_than_what_is_beside_them_are_told():
    made = report(line((GEMM, 20), (MUL, 10), (INDEX_ADD, 300), (GEMM, 5)))
    (found,) = scatter_atomics(made)
    assert found.at_stake_ns == 300
    assert saved(found, made) == (0, 280)


@pytest.mark.parametrize(
    "kernels", [[(GEMM, 20), (MUL, 101), (INDEX_ADD, 300)], [(GEMM, 20), (INDEX_ADD, 100), (GEMM, 10_000)]]
)
def test_sums_at_the_rate_of_the_memory_are_not_told(kernels):
    assert scatter_atomics(report(line(*kernels))) == []


def test_gathers_of_a_loop_are_told_with_what_reads_each():
    made = report(line(*[(GATHER, 10), (ADD, 12)] * 8, (GEMM, 30)))
    (found,) = gathers(made)
    assert found.at_stake_ns == 8 * 22
    assert saved(found, made) == (15, 10 - 8 * 4)


@pytest.mark.parametrize("kernels", [[(GATHER, 10), (ADD, 12)] * 7, [*[(GATHER, 1), (ADD, 2)] * 8, (GEMM, 30)]])
def test_few_gathers_are_not_told(kernels):
    assert gathers(report(line(*kernels))) == []


def test_weights_that_are_gathered_for_products_of_many_matrices_are_told():
    made = report(launched((GATHER, 60, "aten::index"), (GEMM, 40, "aten::bmm")))
    (found,) = gathers(made)
    assert (found.at_stake_ns, found.headline) == (60, "Weights are gathered for each token: 60.0 %")
    assert saved(found, made) == (1, 0)
    assert gathers(report(launched((GATHER, 60, "aten::index"), (GEMM, 40, "aten::mm")))) == []


FORWARD = [(GEMM, 30, "aten::linear"), (MUL, 10, "aten::mul"), (MUL, 10, "aten::gelu")]


def test_layers_that_run_again_in_backward_are_told_from_first_to_last():
    again = [*FORWARD, (GEMM, 30, "aten::mm")]
    assert told(recomputation, launched(*again, node="MulBackward0")) == [
        (50, "Layers are computed again in backward: 62.5 %")
    ]
    assert told(recomputation, launched(*again)) == []
    assert told(recomputation, launched((GEMM, 30, "aten::mm"), (MUL, 9, "aten::mul"), node="MulBackward0")) == []


def test_concatenations_that_take_longer_and_longer_are_told():
    grows = [kernel_ns for at in range(40) for kernel_ns in ((CAT, 3000 + 30 * at), (GEMM, 500))]
    made = report(line(*grows))
    (found,) = growing_concatenations(made)
    assert found.headline.startswith("torch.cat copies a growing tensor for each piece: 87.")
    assert saved(found, made) == (0, found.at_stake_ns - 40 * 2000)
    assert growing_concatenations(report(line(*[(CAT, 3000), (GEMM, 500), (CAT, 3100), (GEMM, 500)] * 20))) == []


def copied(sizes):
    """Copies within the device, one after the other, that take as many ns as they have bytes."""
    events, at = [], 0
    for size in sizes:
        events.append(memcpy(at, at + size, direction="Device-to-Device", size_bytes=size))
        at += size
    return report(events)


def test_copies_of_an_array_that_grows_by_pieces_are_told():
    grows = [size for at in range(1, 30) for size in (100 * at, 100)][1:]  # the first array is a piece, too
    (found,) = growing_copies(copied(grows))
    assert found.rule == "growing-copies"
    assert found.at_stake_ns == sum(size for size in grows if size > 100)
    assert growing_copies(copied([300, 100] * 30)) == []
    assert growing_copies(copied([100 * at for at in range(1, 60)])) == []
    assert growing_copies(copied(grows[:20])) == []


def test_tensors_that_are_repeated_in_memory_are_told():
    events = launched((STRIDED, 40, "aten::repeat_interleave"), (GEMM, 60, "aten::mm"))
    assert told(growing_concatenations, events) == [(40, "Tensors are repeated in memory (repeat_interleave): 40.0 %")]


def test_formulas_in_elementwise_kernels_are_told_where_no_operators_are_recorded():
    formula = [(GEMM, 50_000), (POW, 10_000), (MUL, 15_000), (ADD, 15_000), (MUL, 15_000), (GEMM, 50_000)]
    made = report(line(*formula))
    (found,) = by_hand(made)
    assert (found.rule, found.at_stake_ns) == ("fusion", 55_000 - 20_000)
    assert found.headline == "Formulas kernel by kernel (mul, add, pow): 35.5 %"
    assert saved(found, made) == (3, -10_000)
    assert found.retold(found.claims.head(3)) is None
    assert found.retold(found.claims).at_stake_ns == 35_000


@pytest.mark.parametrize(
    "kernels",
    [
        [(GEMM, 50_000), (ADD, 15_000), (MUL, 15_000), (ADD, 15_000), (GEMM, 50_000)],  # residuals and biases
        [*[(POW, 10_000), (MUL, 15_000), (ADD, 15_000)] * 9, (GEMM, 5_000)],  # a loop over tensors
        [(GEMM, 900), (POW, 1000), (MUL, 1500), (ADD, 1500), (MUL, 1500), (GEMM, 900)],  # small ones
        [(POW, 10_000), (MUL, 15_000), (ADD, 15_000), (MUL, 15_000), (GEMM, 5_000_000)],
    ],
)
def test_other_elementwise_kernels_are_not_told(kernels):
    assert by_hand(report(line(*kernels))) == []
