"""Findings on what programs make the GPU do: types, copies, losses by hand, sums by atomics, work done twice."""

import pytest

from kanalyze.analyses.findings.rules.arrays import growing_concatenations, growing_copies
from kanalyze.analyses.findings.rules.needless_kernels import full_sort, large_logits, layout_copies, recomputation
from kanalyze.analyses.findings.rules.slower_kernels import float64, gathers, scatter_atomics
from kanalyze.analyses.findings.rules.unfused import by_hand
from support.build import call, host, kernel, memcpy, report
from support.kernel_names import ADD, DOWN, GEMM, MUL, ONE, POW, STRIDED, UP

TANH64 = ONE.format("tanh_kernel_cuda(X&)::{{lambda(double)#1}}").replace("{{", "{").replace("}}", "}")
GEMM64 = "sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize128x64x16_stage3_warpsize2x2x1_tensor16x8x8_execute_kernel"
ADAM = (
    "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, "
    "at::native::FusedAdamMathFunctor<c10::BFloat16, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double>"
)
LOG = "void at::native::cunn_SoftMaxForward<4, float, float, float, at::native::LogSoftMaxForwardEpilogue>(float*)"
LOG_BACK = "void at::native::cunn_SoftMaxBackward<4, float, float, float, at::native::LogSoftMaxBackwardEpilogue>(X)"
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


def within(operator, *kernels, node=None):
    """Launches in one operator more, which begins first and ends last."""
    events = launched(*kernels, node=node)
    return [*events, host("op", operator, 0, sum(ns + 4 for _, ns, _ in kernels))]


def saved(found, made):
    """What is left out and how much shorter kernels get by a finding's remedy."""
    change = found.mending(made)
    return len(change.gone), (0 if change.shorter is None else change.shorter["saved_ns"].sum())


FFT = "void regular_fft<512u, EPT<8u>, 8u, 2u, (padding_t)6, unsigned int, double>(kernel_arguments_t<double>)"
COMPLEX = ONE.format("CUDAFunctor_add<c10::complex<double>>")
LOSS = [(GEMM, 50), (UP, 40), (LOG, 40), (MUL, 30), (MUL, 30), (ADD, 2), (LOG_BACK, 60), (DOWN, 20), (GEMM, 50)]
AUTOCAST = [
    *((GEMM, 50, "aten::mm"), (LOG, 40, "aten::cross_entropy_loss"), (UP, 40, "aten::cross_entropy_loss")),
    *((DOWN, 40, "aten::to"), (LOG_BACK, 60, "aten::_log_softmax_backward_data"), (GEMM, 50, "aten::mm")),
]
CHAIN = [(GEMM, 50, "aten::bmm"), (MUL, 40, "aten::mul"), (LOG, 40, "aten::softmax"), (MUL, 40, "aten::mul")]
ROWS = [(STRIDED, 40, "aten::copy_"), (LOG, 40, "aten::log_softmax"), (LOG_BACK, 60, "aten::to")]
AGAIN = [(GEMM, 30, "aten::linear"), (MUL, 10, "aten::mul"), (MUL, 10, "aten::gelu"), (GEMM, 30, "aten::mm")]
FORMULA = [(POW, 10_000), (MUL, 15_000), (ADD, 15_000), (MUL, 15_000)]

DOUBLES = line((GEMM64, 50_000), (TANH64, 30_000), (ADAM, 20_000))
COMPLEXES = line((FFT, 50_000), (COMPLEX, 30_000), (TANH64, 20_000))
COPIED = [*within("aten::contiguous", (STRIDED, 40, "aten::copy_")), kernel(50, 110, name=GEMM)]
CAST = launched(AUTOCAST[0], (UP, 40, "aten::to"), AUTOCAST[1], *AUTOCAST[3:])
SUMS = line((GEMM, 20), (MUL, 10), (INDEX_ADD, 300), (GEMM, 5))
GATHERS = line(*[(GATHER, 10), (ADD, 12)] * 8, (GEMM, 30))
WEIGHTS = launched((GATHER, 60, "aten::index"), (GEMM, 40, "aten::bmm"))


@pytest.mark.parametrize(
    ("rule", "events", "stake", "headline", "change"),
    [
        # products in TF32 at two thirds of 7.4 times the rate, and half of the bytes of others
        (float64, DOUBLES, 80_000, "Tensors are of float64: 80.0 %", (0, 39_857 + 15_000)),
        (float64, COMPLEXES, 100_000, "Tensors are of float64: 100.0 %", (0, 50_000)),
        # a cast right after is from float64, and gone
        (float64, line((TANH64, 50_000), (UP, 10_000)), 50_000, "Tensors are of float64: 83.3 %", (1, 25_000)),
        (layout_copies, COPIED, 40, "Copies of transposed tensors: 40.0 %", (1, 0)),
        # one softmax forward and one backward are left, in the type of the logits
        (large_logits, line(*LOSS), 220, "Large logits in float32, the loss by hand: 68.3 %", (4, 20 + 30)),
        (large_logits, CAST, 180, "Large logits in float32, the loss by hand: 64.3 %", (2, 20 + 30)),
        (scatter_atomics, SUMS, 300, "Atomics into few rows (sums): 89.6 %", (0, 280)),
        (gathers, GATHERS, 8 * 22, "8 gathers of rows, one by one: 38.8 %", (15, 10 - 8 * 4)),
        (gathers, WEIGHTS, 60, "Weights are gathered for each token: 60.0 %", (1, 0)),
        (recomputation, launched(*AGAIN, node="B0"), 50, "Layers are computed again in backward: 62.5 %", (3, 0)),
        (
            by_hand,
            line(*FORMULA, (GEMM, 10**5)),
            35_000,
            "Formulas kernel by kernel (mul, add, pow): 35.5",
            (3, -10_000),
        ),
    ],
)
def test_what_is_told(rule, events, stake, headline, change):
    made = report(events, devices=HOPPER)
    (found,) = rule(made)
    assert (found.at_stake_ns, saved(found, made)) == (stake, change)
    assert found.headline.startswith(headline)


@pytest.mark.parametrize(
    ("capability", "saved_ns"), [("7.0", 12_738), ("8.0", 40_625), ("10.0", 47_477), ("8.6", 47_656)]
)
def test_products_in_float64_are_as_much_slower_as_the_gpu_makes_them(capability, saved_ns):
    """And a kernel of 100 ns is no shorter than one can be."""
    made = report(line((GEMM64, 50_000), (TANH64, 100)), devices=[{**HOPPER[0], "compute_capability": capability}])
    (found,) = float64(made)
    assert saved(found, made) == (0, saved_ns)


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        (float64, line((ADAM, 90), (GEMM, 10))),
        (float64, line((TANH64, 2), (ADAM, 98))),
        (float64, line((GEMM64, 100))),
        (layout_copies, launched((STRIDED, 40, "aten::copy_"), (GEMM, 60, "aten::mm"))),  # into a slice
        (layout_copies, within("aten::reshape", (STRIDED, 40, "aten::copy_"), node="ViewBackward0")),
        (layout_copies, launched((STRIDED, 40, "aten::linear"), (GEMM, 60, "aten::mm"))),  # a bias for each row
        (layout_copies, line((STRIDED, 9), (GEMM, 91))),
        (layout_copies, line((UP, 40), (GEMM, 60))),
        (large_logits, line(*(LOSS[at] for at in (0, 1, 2, 6, 7, 8)))),  # of F.cross_entropy under autocast
        (large_logits, line((GEMM, 50), (MUL, 30), (MUL, 30), (ADD, 30), (GEMM, 50))),
        (large_logits, line(*LOSS, (GEMM, 3000))),
        (large_logits, launched(*AUTOCAST)),
        (
            large_logits,
            launched((GEMM, 50, "aten::mm"), *ROWS, ROWS[0], (GEMM, 50, "aten::mm")),
        ),  # but for the last row
        (large_logits, launched(*CHAIN, (GEMM, 50, "aten::bmm"))),  # attention
        (scatter_atomics, line((GEMM, 20), (MUL, 101), (INDEX_ADD, 300))),
        (scatter_atomics, line((GEMM, 20), (INDEX_ADD, 100), (GEMM, 10_000))),
        (gathers, line(*[(GATHER, 10), (ADD, 12)] * 7)),
        (gathers, line(*[(GATHER, 1), (ADD, 2)] * 8, (GEMM, 30))),
        (gathers, launched((GATHER, 60, "aten::index"), (GEMM, 40, "aten::mm"))),
        (recomputation, launched(*AGAIN)),
        (recomputation, launched((GEMM, 30, "aten::mm"), (MUL, 9, "aten::mul"), node="B0")),
        (by_hand, line((GEMM, 50_000), *FORMULA[2:] * 2, (GEMM, 50_000))),  # residuals and biases
        (by_hand, line(*FORMULA[:3] * 9, (GEMM, 5_000))),  # a loop over tensors
        (by_hand, line((GEMM, 900), *((name, ns // 10) for name, ns in FORMULA), (GEMM, 900))),  # small ones
        (by_hand, line(*FORMULA, (GEMM, 5_000_000))),
    ],
)
def test_what_is_not_told(rule, events):
    assert rule(report(events)) == []


def test_where_layers_run_again_the_memory_of_the_gpu_is_told():
    devices = [{**HOPPER[0], "memory_bytes": 80_000_000_000}]
    (found,) = recomputation(report(launched(*AGAIN, node="B0"), devices=devices))
    assert "which saves memory. The GPU has 80.00 GB. Where" in found.text


def test_softmaxes_between_other_products_are_a_loss():
    assert large_logits(report(launched(*CHAIN, (GEMM, 50, "aten::mm")))) != []


def test_what_is_written_that_copies_a_tensor_is_named():
    (found,) = layout_copies(report(COPIED))
    assert "into another order, most by .contiguous(): 40 ns, 40.0 % of kernel time." in found.text


def test_formulas_that_others_tell_of_are_left_out():
    (found,) = by_hand(report(line((GEMM, 50_000), *FORMULA, (GEMM, 50_000))))
    assert found.rule == "fusion"
    assert found.retold(found.claims.head(3)) is None
    assert found.retold(found.claims).at_stake_ns == 35_000


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
    (found,) = growing_concatenations(report(events))
    assert found.at_stake_ns == 40
    assert found.headline == "Tensors are repeated in memory (repeat_interleave): 40.0 %"


TOPK = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)"
BITONIC = "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long, at::native::LTOp<float, true>>(int)"
RADIX = "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<Policy1000>(int)"


@pytest.mark.parametrize(
    ("operator", "kernels", "stakes"),
    [
        pytest.param("aten::sort", (RADIX, GEMM), [4000], id="a sort"),
        pytest.param("aten::topk", (TOPK, BITONIC), [], id="what topk found is sorted"),
        pytest.param("aten::index_put_", (RADIX, GEMM), [], id="indices are sorted for another operator"),
    ],
)
def test_sorts_of_whole_rows_are_told(operator, kernels, stakes):
    events = [host("op", operator, 0, 90_000), host("op", "aten::mm", 90_000, 99_000)]
    for number, name in enumerate([*kernels] * 4):
        at = 10_000 * number
        events += [call("cudaLaunchKernel", at + 10, at + 50, correlation=number + 1)]
        events += [kernel(at + 100, at + 1100, name=name, correlation=number + 1)]
    assert [one.at_stake_ns for one in full_sort(report(events))] == stakes
