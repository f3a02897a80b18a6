"""Rules on kernels of libraries: kernels and operators in, finding out; one row a case."""

import json
from dataclasses import replace

import pytest

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.needless_kernels import (
    bias_before_batchnorm,
    full_sort,
    large_logits,
    layout_conversions,
    layout_copies,
    recomputation,
    recurring_casts,
    repeated_coalescing,
    unfused_attention,
)
from kanalyze.analyses.findings.rules.needless_products import one_hot_products
from kanalyze.analyses.findings.rules.needless_work import (
    atomics_in_code,
    float64_in_code,
    growing_concatenations,
    growing_copies,
    no_kv_cache,
    products_in_code,
)
from kanalyze.analyses.findings.rules.slower_kernels import (
    float64,
    gathers,
    half_precision,
    no_tensor_cores,
    no_tf32,
    old_architecture_gemm,
    scatter_atomics,
    scatters_of_jax,
    transform_length,
    unaligned_gemm,
)
from kanalyze.analyses.findings.rules.unfused import bags_by_hand, by_hand, fusible
from kanalyze.analyses.findings.rules.weights import weight_norm
from kanalyze.model import DEVICE_KINDS
from kanalyze.window import Window
from support.build import HOPPER, again, call, host, kernel, launched as called, memcpy, memset, nvtx, report
from support.kernel_names import ADD, BACKWARD, CAT, DOWN, GEMM, LOG_SOFTMAX, MUL, ONE, POW, SOFTMAX, STRIDED, UP
from support.measures import assert_told
from support.steps import shaped

TANH64 = ONE.format("tanh_kernel_cuda(X&)::{{lambda(double)#1}}").replace("{{", "{").replace("}}", "}")
GEMM64 = "sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize128x64x16_stage3_warpsize2x2x1_tensor16x8x8_execute_kernel"
ADAM = (
    "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, "
    "at::native::FusedAdamMathFunctor<c10::BFloat16, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double>"
)
XLOGY = ONE.format("xlogy_kernel_cuda(X&)::{{lambda(float)#1}}").replace("{{", "{").replace("}}", "}")
EXP = XLOGY.replace("xlogy", "exp")
LOG = "void at::native::cunn_SoftMaxForward<4, float, float, float, at::native::LogSoftMaxForwardEpilogue>(float*)"
LOG_BACK = "void at::native::cunn_SoftMaxBackward<4, float, float, float, at::native::LogSoftMaxBackwardEpilogue>(X)"
INDEX_ADD = "void at::native::indexFuncLargeIndex<float, long, unsigned int, 2, 2, -2, true, at::native::ReduceAdd>(X)"
PUT = (
    "void at::native::index_elementwise_kernel<128, 4, at::native::cuda_take_put_kernel<c10::complex<float>, int, "
    "at::native::put_kernel(X&, bool)::{lambda()#1}::operator()() const::{lambda(c10::complex<float>&, int)#1}>>"
)
BY_VALUE = (
    "void at::native::_scatter_gather_elementwise_kernel<128, 8, "
    "at::native::_cuda_scatter_gather_internal_kernel<false, at::native::OpaqueType<2> >::operator()(X)>(int)"
)
FILL = "void at::native::vectorized_elementwise_kernel<2, at::native::FillFunctor<long>, std::array<char*, 1ul> >(int)"
ONES = (
    "void at::native::_scatter_gather_elementwise_kernel<128, 8, "
    "at::native::_cuda_scatter_fill_internal_kernel<at::native::OpaqueType<8>, long>::operator()(X)>(int)"
)
IN_PARTS = ((FILL, 200_000), (FILL, 200_000), ONES, ONES, (UP, 300_000), (UP, 300_000))
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
FFT = "void regular_fft<512u, EPT<8u>, 8u, 2u, (padding_t)6, unsigned int, double>(kernel_arguments_t<double>)"
ODD_FFT = FFT.replace("regular_fft", "regular_bluestein_fft")
ALIGN1 = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(T1::Params)"
ALIGN8 = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align8>(T1::Params)"
SIMT = "cutlass_80_simt_sgemm_256x128_8x4_tn_align1"
FLOAT = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel"
FLOAT64 = "sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x32x16_stage4_tensor8x8x4"
SSS = "nvjet_sm90_sss_128x128_32x6_2x1_v_bz_NNN"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32_warpgroupsize2x1x1_execute_segment_k_off_kernel"
IMAGES = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_stage3_warpsize1x2x1_g1_ffma"
IMAGES_TF32 = "sm90_xmma_dgrad_implicit_gemm_indexed_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32"
COMPLEX_GEMM = "sm80_xmma_gemm_cf32cf32_cf32cf32_cf32_nt_n_tilesize32x64x8_stage3_warpsize1x2x1_ffma_aligna8_alignc8"
FFT2D = "void fft2d_r2c_32x32<float, (bool)0, (unsigned int)0, (bool)0>(float2 *, const T1 *, int)"
HALF = "maxwell_fp16_sgemm_fp16_128x32_nn"
VECTOR = "void gemv2T_kernel_val<int, int, __half, __half, __half, float>(X)"
THERE = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, (bool)0, (bool)1, (cudnnKernelDataType_t)0>(T3)"
BACK = "void cudnn::ops::nhwcToNchwKernel<__half, __half, float, (bool)1, (bool)0, (cudnnKernelDataType_t)0>(T3)"
ROUND = "void cudnn::engines_precompiled::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)2>(T3)"
WORK = "void at::native::f()"
FMHA = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80>)"
SOLVER = "void trsm_l_mul32<float, 8, false>(int)"
SOLVES = [(SOLVER, 50), (FLOAT, 30), (FLOAT, 20), (SOLVER, 50)]
OPTIMIZER = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(T)"
COMPILED = "triton_poi_fused_add_mul_0"
TOPK = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)"
BITONIC = "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long, at::native::LTOp<float, true>>(int)"
RADIX = "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<Policy1000>(int)"
SORTED = (RADIX, 4000, "aten::sort")
INDEX = "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)"
ONESWEEP = "void cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<Policy1000, float>(int)"
BY_KEY = "void cub::detail::DeviceCompactInitKernel<cub::ScanTileState>(int)"
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, 4> >(int)"


def line(*kernels, at=0, **keys):
    """Kernels (name, ns) one after the other; names alone take 10 ns."""
    events = []
    for one in kernels:
        name, ns = one if isinstance(one, tuple) else (one, 10)
        events.append(kernel(at, at + ns, name=name, **keys))
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
    return [*events, *([host("op", f"autograd::engine::evaluate_function: {node}", 0, at)] if node else [])]


def within(operator, *kernels, node=None):
    """Launches in one operator more, which begins first and ends last."""
    return [*launched(*kernels, node=node), host("op", operator, 0, sum(ns + 4 for _, ns, _ in kernels))]


def images(*operators):
    """Operators, one after the other, of which the first converts images."""
    return launched((THERE, 10, operators[0]), *((WORK, 10, operator) for operator in operators[1:]))


RULED = within(
    "aten::index_select_backward",
    *(("void at::native::indexing_backward_kernel<float, 1>(X)", 30_000, "aten::_index_put_impl_"), (MUL, 5_000, "f")),
)
BY_TRANSFORMS = within(
    "aten::convolution_backward", (IMAGES, 100, "aten::f"), (FFT2D, 100, "aten::f"), (COMPLEX_GEMM, 100, "aten::f")
)


def copied(*sizes):
    """Copies within the device, one after the other, that take as many ns as they have bytes."""
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    sides = zip(starts, sizes, strict=True)
    return [memcpy(at, at + size, direction="Device-to-Device", size_bytes=size) for at, size in sides]


def saved(found, made):
    """What is left out and how much shorter kernels get by a finding's remedy; None without one."""
    change = found.change(made)
    return change and (len(change.gone), change.shorter["saved_ns"].sum())


LOSS = [(GEMM, 50), (UP, 40), (LOG, 40), (MUL, 30), (MUL, 30), (ADD, 2), (LOG_BACK, 60), (DOWN, 20), (GEMM, 50)]
LOSS = [(name, 1000 * us) for name, us in LOSS]
SMALL_LOG, SMALL_LOG1P = (EXP.replace("exp", other) for other in ("log", "log1p"))
MISH = [EXP, SMALL_LOG1P, EXP.replace("exp", "tanh"), MUL]
HALVED = [(GEMM, 50), (UP, 40), *[(EXP, 40)] * 2, (SMALL_LOG, 2), *[(MUL, 30)] * 2, *[(EXP, 40)] * 2, (DOWN, 20)]
HALVED = [*HALVED, (GEMM, 50)]
HALVED = [(name, 1000 * us) for name, us in HALVED]
AUTOCAST = [
    *((GEMM, 50_000, "aten::mm"), (LOG, 40_000, "aten::cross_entropy_loss"), (UP, 40_000, "aten::cross_entropy_loss")),
    *((DOWN, 40_000, "aten::to"), (LOG_BACK, 60_000, "aten::_log_softmax_backward_data"), (GEMM, 50_000, "aten::mm")),
]
CHAIN = [(GEMM, 50, "aten::bmm"), (MUL, 40, "aten::mul"), (LOG, 40, "aten::softmax"), (MUL, 40, "aten::mul")]
CHAIN = [(name, 1000 * us, operator) for name, us, operator in CHAIN]
ROWS = [(STRIDED, 40_000, "aten::copy_"), (LOG, 40_000, "aten::log_softmax"), (LOG_BACK, 60_000, "aten::to")]
FIRST_FEW = [(ONESWEEP, 4000), ("first", 80), (ONESWEEP, 3800), ("measure", 4000)]
AGAIN = [(GEMM, 30, "aten::linear"), (MUL, 10, "aten::mul"), (MUL, 10, "aten::gelu"), (GEMM, 30, "aten::mm")]
OTHERS_OWN = (MUL, 10, "flash_attn::_flash_attn_forward")
FORMULA = [(POW, 10_000), (MUL, 15_000), (ADD, 15_000), (MUL, 15_000)]
OTHERS = [(MUL, 9_000), (ADD, 9_000), (CAT, 9_000)]
DOUBLES = line((GEMM64, 50_000), (TANH64, 30_000), (ADAM, 20_000))
COMPLEXES = line((FFT, 50_000), (ONE.format("CUDAFunctor_add<c10::complex<double>>"), 30_000), (TANH64, 20_000))
COPIED = [*within("aten::contiguous", (STRIDED, 40, "aten::copy_")), kernel(50, 110, name=GEMM)]
CAST = launched(AUTOCAST[0], (UP, 40_000, "aten::to"), AUTOCAST[1], *AUTOCAST[3:])
WRAP = [(MUL, 20, "aten::remainder"), (BY_VALUE, 30, "aten::gather")]
SORT = (RADIX, 10, "aten::argsort")
SUMS = line((GEMM, 20), (MUL, 10), (INDEX_ADD, 300), (GEMM, 5))
PUTS = launched((MUL, 10, "aten::mul"), (PUT, 300, "aten::put_"))
BY_XLOGY = line(*LOSS[:3], (XLOGY, 30_000), *LOSS[4:])
WITH_SUMS = line(*LOSS[:5], (INDEX_ADD, 1_000_000), *LOSS[5:])
COMPILED_LOG = line(*HALVED[:4], ("triton_poi_fused_log_mul_neg_0", 2_000), *HALVED[5:])
MEANS = line(*[(GATHER, 10), (SUM, 6)] * 8, (GEMM, 30))
GATHERS = line(*[(GATHER, 10), (ADD, 12)] * 8, (GEMM, 30))
WEIGHTS = launched((GATHER, 60, "aten::index"), (GEMM, 40, "aten::bmm"))
GROWS = line(*(one for at in range(40) for one in ((CAT, 3000 + 30 * at), (GEMM, 500))))
PIECES = [size for at in range(1, 30) for size in (100 * at, 100)][1:]  # the first array is a piece, too
REPEATED = launched((STRIDED, 40, "aten::repeat_interleave"), (GEMM, 60, "aten::mm"))
MOST = SUM.replace("MeanOps<float, float>", "func_wrapper_t<float, at::native::MaxNanFunctor<float> >")
REDUCE = SUM.replace("MeanOps<float, float>", "func_wrapper_t<float, at::native::sum_functor<float, float, float> >")
ATTENTION = line(*[SUM, DOWN, GEMM, ADD, SOFTMAX, DOWN, GEMM, DOWN, SUM] * 2)
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x128x32_warpgroupsize1x1x1_execute_kernel__5x_cublas"
IN_TF32 = line(*[(TF32, 100), (MUL, 50), (SOFTMAX, 50), (TF32, 100)] * 2)
NVJET = line(*[(SSS, 100), (MUL, 50), (SOFTMAX, 50), (SSS, 100)] * 2)  # whose cores are not told
KEPT = sum(2 * (8_000 + 30_000 - 30_000 * 300 // rows) for rows in range(3060, 3300, 60))
CHOSEN = "void at::native::reduce_kernel<512, 1, ReduceOp<float, ArgMaxOps<float>>>(X)"
NORM = "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(X)"
CASTS = "32 casts between types, most {} ({}): 320 ns, 24.2 % of kernel time; the GPU"
COUNTING = [(INDEX_ADD, 300, "aten::scatter_add"), (BY_VALUE, 20, "aten::gather"), (MUL, 10, "aten::div")]
FREE = [(INDEX_ADD, 60, "aten::scatter_add"), *[(BY_VALUE, 40, "aten::gather")] * 6]
COUNTING = [*line((MUL, 10), at=400), *launched(*COUNTING, node="ScatterReduceBackward0")]
BINS = line(("cupy_multiply__float_float_float", 10), ("cupy_bincount_with_weight_kernel", 300))
OF_DOWN = CASTS.format("to bfloat16 from float32", DOWN)
TRANSFORMS = line((FFT, 20), (ODD_FFT, 40), (FFT, 20), (WORK, 20), (FFT, 40))
SDPA = "F.scaled_dot_product_attention(q, k, v)"
SOFTMAXES = f"2 softmax passes over scores (most {SOFTMAX}) in chains of 7 kernels, 140 ns, 77.8 % of kernel time."
HALVES = DOWN.replace("bfloat16", "float16")
UNCOMPILED = "keep weights in bfloat16, or torch.compile(model)"


def casts(name, *more, many=32, rest=1000):
    return line(*[name] * many, ("k", rest), *more)


def along(*before, many=8):
    """Gathers by take_along_dim, each of which launches two kernels, after what comes `before`."""
    events, start = launched(*[*before, *WRAP, (GEMM, 50, "aten::mm")] * many), sum(ns + 4 for _, ns, _ in before)
    each = start + sum(ns + 4 for _, ns, _ in WRAP) + 54
    return events + [
        host("op", "aten::take_along_dim", start + at * each, start + at * each + 27) for at in range(many)
    ]


def texts(*lengths, ends=(), chosen="chosen"):
    """Passes of a model of two layers over so many rows: normalizations, products, and the choice of a word."""
    parts = [part for rows in lengths for part in [*[("norm", rows), ("gemm", rows)] * 2, *ends, (chosen, 1)]]
    names = {"norm": (NORM, 10_000), "gemm": (GEMM, 30_000), "chosen": (CHOSEN, 1000), "other": (ADD, 1000)}
    names |= {"trained": (OPTIMIZER, 1000)}
    return [
        one for at, (name, rows) in enumerate(parts) for one in line(names[name], at=at * 50_000, grid=(rows, 1, 1))
    ]


def sorts(operator, *names):
    return launched(*[(name, 1000, operator if name != GEMM else "aten::mm") for name in [*names] * 4])


def differentiated(node):
    """A sort, and a gradient that is scattered in a node of autograd."""
    events = launched(SORTED, (INDEX, 900, "aten::scatter_"), (GEMM, 100, "aten::mm"))
    return [*events, host("op", f"autograd::engine::evaluate_function: {node}", 4004, 4100)]


def coalesced(operator, many=4):
    """Sorts and sums of entries of sparse tensors, and products with them, within an operator."""
    own = ((RADIX, 1000, "aten::_coalesce"), ("sums", 1000, "aten::_coalesce"), ("product", 500, "aten::f"))
    return within(operator, *own * many)


@pytest.mark.parametrize(
    ("rule", "events", "stake", "change", "words"),
    [
        # products in TF32 at two thirds of 7.4 times the rate, and half of the bytes of others
        (float64, DOUBLES, 80_000, (0, 39_857 + 15_000), ["Tensors are of float64: 80.0 %"]),
        (float64, COMPLEXES, 100_000, (0, 50_000), ["Tensors are of float64: 100.0 %"]),
        # a cast right after is from float64, and gone
        (float64, line((TANH64, 50_000), (UP, 10_000)), 50_000, (1, 25_000), ["Tensors are of float64: 83.3 %"]),
        (layout_copies, COPIED, 40, (1, 0), ["transposed tensors: 40.0 %", "by .contiguous(): 40 ns", "has to copy"]),
        # one softmax forward and one backward are left, in the type of the logits
        (large_logits, line(*LOSS), 220_000, (4, 50_000), ["Large logits in float32, the loss by hand: 68.3 %"]),
        (large_logits, BY_XLOGY, 220_000, (4, 50_000), ["torch.compile of the loss"]),
        # sums into few rows take longer than a pass; a kernel of torch.compile has the logarithm
        (large_logits, WITH_SUMS, 220_000, (4, 50_000), ["Large logits in float32, the loss by hand: 16.6 %"]),
        (large_logits, COMPILED_LOG, 280_000, (4, 0), ["the loss by hand: 73.3 %"]),
        (large_logits, CAST, 180_000, (2, 50_000), ["Large logits in float32, the loss by hand: 64.3 %"]),
        # of tensors for which each operator launches two kernels; an exponential reads and writes as a softmax of half
        (large_logits, line(*HALVED), 280_000, (4, 0), ["Large logits in float32, the loss by hand: 73.3 %"]),
        (scatter_atomics, SUMS, 300, (0, 280), ["Atomics into few rows (sums): 89.6 %"]),
        (scatter_atomics, COUNTING, 330, (0, 318), ["Atomics into few rows (scatter_add): 97.1 %"]),  # of a mean
        (scatter_atomics, BINS, 300, (0, 290), ["Atomics into few rows (sums): 96.8 %"]),
        (scatter_atomics, PUTS, 300, (0, 290), ["Atomics into few rows (put_): 96.8 %"]),
        (scatter_atomics, RULED, 30_000, (0, 15_000), ["Deterministic algorithms sort what index_select_back"]),
        (gathers, GATHERS, 8 * 22, (15, 10 - 8 * 4), ["8 gathers of rows, one by one: 38.8 %"]),
        (gathers, line(*[GATHER] * 8, (GEMM, 30)), 80, (0, 8 * 6), ["8 gathers copy tensors by an index: 72.7 %"]),
        (gathers, along(), 400, (0, 8 * 30), ["8 gathers copy tensors by an index: 50.0 %"]),
        # one of eight sorts is left, with the gathers behind it
        (gathers, along(SORT), 480, (0, 8 * 51), ["sorted and gathered again and again: 54.5 %", "8 sorts order rows"]),
        (gathers, along(SORT, (MUL, 10, "aten::mul")), 400, (0, 8 * 30), ["8 gathers copy tensors by an index"]),
        (gathers, MEANS, 128, (15, 10 - 8 * 4), ["8 gathers of rows, one by one"]),
        (bags_by_hand, line((GATHER, 40), (MUL, 40), (SUM, 20), (GEMM, 50)), 100, (2, 24), ["then summed: 66.7 %"]),
        (bags_by_hand, line((GATHER, 40), (SUM, 20), (SUM, 20), (GEMM, 50)), 60, (1, 24), ['mode="sum"']),
        (one_hot_products, line(FILL, ONES, UP, GEMM, (GEMM, 50)), 40, (3, 0), ["are multiplied: 44.4 %"]),
        (one_hot_products, line(FILL, ONES, GEMM, (ADD, 50)), 30, (2, 0), ["are multiplied: 37.5 %"]),
        # of matrices that are too large for one kernel
        (one_hot_products, line(*IN_PARTS, (GEMM, 400_000), (GEMM, 100_000)), 1_400_020, (6, 0), ["plied: 93.3 %"]),
        (gathers, WEIGHTS, 60, (1, 0), ["Matrices are gathered for each product: 60.0 %"]),
        (recomputation, launched(*AGAIN, node="B0"), 50, (3, 0), ["again in backward: 62.5 %", "GPU has 80.00 GB."]),
        # with what is no operator of PyTorch's own
        (recomputation, launched(AGAIN[0], OTHERS_OWN, *AGAIN[2:], node="B0"), 50, (3, 0), ["in backward: 62.5 %"]),
        (by_hand, line(*FORMULA, (GEMM, 10**5)), 35_000, (3, -10_000), ["Formulas kernel by kernel (mul, add, pow)"]),
        # torch.compile fuses what else there is in a row, as one kernel of twice the shortest
        # also with a sum that takes longer than all of them
        (by_hand, line(*FORMULA, (SUM, 80_000), (GEMM, 10**5)), 55_000, (4, -70_000), ["Formulas kernel by kernel"]),
        (by_hand, line(*FORMULA, (GEMM, 10**5), *OTHERS), 35_000, (5, -19_000), ["Formulas kernel by kernel"]),
        (growing_concatenations, GROWS, 143_400, (0, 143_400 - 80_000), ["torch.cat copies a growing tensor for each"]),
        (growing_concatenations, REPEATED, 40, (0, 0), ["Tensors are repeated in memory (repeat_interleave): 40.0 %"]),
        (growing_copies, copied(*PIECES), 43_400, (28, 0), ["A growing array is copied whole for each piece: 9"]),
        # a fiftieth of rows for each norm, 2 µs at the least, and 300 of 3,000 and more for each product
        (no_kv_cache, texts(*range(3000, 3300, 60)), 8 * 40_000 + 4000, (0, KEPT), ["Each pass takes the rows of the"]),
        # a last norm of the last words alone, which is of the pass, and longer than 2 µs
        (
            *(no_kv_cache, texts(*range(3000, 3300, 60), ends=[("norm", 2)]), 4 * 91_000),
            *((0, KEPT + 4 * 8_000), ["Each pass takes the rows of the one before, and some"]),
        ),
        (repeated_coalescing, coalesced("aten::mm"), 8000, (8, 0), ["sorted by each aten::mm: 80.0 %"]),
        (full_sort, sorts("aten::sort", RADIX, GEMM), 4000, None, ["Whole rows are sorted: 50.0 %"]),
        (full_sort, sorts("aten::quantile", RADIX, GEMM), 4000, None, ["torch.kthvalue for one quantile"]),
        # of rows that fit on the chip a selection leaves 45 %
        (full_sort, sorts("aten::sort", BITONIC, GEMM), 4000, (0, 4 * 550), ["Whole rows are sorted: 50.0 %"]),
        # one word is gathered; what is left out is scattered back
        (full_sort, launched(SORTED, (INDEX, 9, "aten::gather")), 4000, None, ["Whole rows are sorted"]),
        (full_sort, launched(SORTED, (RADIX, 2000, "aten::unique_dim")), 4000, None, ["Whole rows are sorted: 66.7 %"]),
        (full_sort, launched(SORTED, (INDEX, 90, "aten::scatter")), 4000, None, ["Whole rows are sorted"]),
        (
            full_sort,
            differentiated("SortBackward0"),
            4900,
            None,
            ["sorted, with gradients: 98.0 % of", "1 kernel of these"],
        ),
        (full_sort, differentiated("GatherBackward0"), 4000, None, ["Whole rows are sorted: 80.0 %"]),
        # the second one is followed by what may read all, of the last one nothing is seen
        (full_sort, line(*FIRST_FEW, (ONESWEEP, 1900)), 4000, (0, 2800), ["Whole arrays are sorted: 29.0 %", "TopK"]),
        (unaligned_gemm, line((ALIGN1, 300), (GEMM, 700)), 300, (0, 225), ["1 matrix product by kernels for"]),
        (unaligned_gemm, line((ALIGN1, 300), (WORK, 700)), 300, (0, 120), []),  # perhaps of many small matrices
        (unaligned_gemm, line((ALIGN1, 100), (THERE, 99)), 100, (0, 40), ["torch.channels_last", "Keep images in"]),
        (no_tf32, line((FLOAT, 100), (TF32, 100)), 100, (0, 86), ["cublasSetMathMode"]),
        (no_tf32, line((FLOAT, 100), (WORK, 100)), 100, (0, 86), ['torch.set_float32_matmul_precision("high")']),
        (no_tf32, line((IMAGES, 100)), 100, (0, 86), ["torch.backends.cudnn.allow_tf32 = True"]),
        (no_tf32, launched((FLOAT, 100, "aten::conv2d")), 100, (0, 86), ["products without TF32"]),  # of cuBLAS
        # of a solver, whose type no option sets
        (no_tf32, line((FLOAT, 100), *SOLVES), 100, (0, 86), ["40.0 % of kernel time"]),
        (no_tf32, BY_TRANSFORMS, 300, (2, 40), ["convolutions without TF32"]),
        (no_tensor_cores, line((HALF, 100), (GEMM, 100)), 100, (0, 86), ["f16 products without tensor cores: 50.0 %"]),
        (half_precision, line((FMHA, 200), (TF32, 600), (WORK, 200)), 800, (0, 160 + 300), ["in float32: 80.0 %"]),
        (old_architecture_gemm, line((ALIGN8, 250), (GEMM, 750)), 125, (0, 125), ["made for Ampere are 25.0 %"]),
        (layout_conversions, line((THERE, 10), (BACK, 15), (WORK, 75)), 25, (2, 0), ["2 conversions of images"]),
        (layout_conversions, line(THERE), 10, (1, 0), ["tensors in NHWC"]),
        (layout_conversions, images("aten::conv3d", "aten::batch_norm"), 10, (1, 0), ["torch.channels_last_3d)"]),
        (layout_conversions, images("aten::conv1d", "aten::batch_norm"), 10, (1, 0), ["nn.Conv2d of height 1"]),
        (layout_conversions, images(*["aten::conv2d"] * 5, "aten::group_norm"), 10, (1, 0), ["torch.channels_last)"]),
        (recurring_casts, casts(DOWN), 320, (32, 0), ["casts between bfloat16 and float32", OF_DOWN, UNCOMPILED]),
        (recurring_casts, casts(UP), 320, (32, 0), ["32 casts from type to type", CASTS.format("to float32", UP)]),
        (recurring_casts, casts(DOWN, (COMPILED, 1)), 320, (32, 0), ["keep weights in bfloat16, or cast them once"]),
        (recurring_casts, casts(HALVES), 320, (32, 0), ["keep weights in half precision, or torch.compile(model)"]),
        (recurring_casts, casts(HALVES, (OPTIMIZER, 1)), 320, (32, 0), ["keep weights in bfloat16, or torch.compile("]),
        # with what runs before and behind it, and not with another transform
        (transform_length, TRANSFORMS, 80, (0, 16 + 32 + 16), ["a length with a large prime factor: 57.1 %"]),
        (unfused_attention, ATTENTION, 2 * 70, (12, 4 * 10 - 2 * 22), [SOFTMAXES, SDPA]),
        *((unfused_attention, of, 2 * 300, (6, 80), [f"{SDPA} in bfloat16"]) for of in (NVJET, IN_TF32)),
    ],
)
def test_what_is_told(rule, events, stake, change, words):
    made = report(events, limits=HOPPER | {"memory_bytes": 80_000_000_000})
    (found,) = rule(made)
    assert_told([found], [stake], *words)
    assert (saved(found, made), found.at_most) == (change, rule is no_tensor_cores or "TopK" in words)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("rule", "events", "capability"),
    [
        (float64, line((ADAM, 90), (GEMM, 10)), "9.0"),
        (float64, line((TANH64, 2), (ADAM, 98)), "9.0"),
        (float64, line((GEMM64, 100)), "9.0"),
        (layout_copies, launched((STRIDED, 40, "aten::copy_"), (GEMM, 60, "aten::mm")), "9.0"),  # into a slice
        (layout_copies, within("aten::reshape", (STRIDED, 40, "aten::copy_"), node="ViewBackward0"), "9.0"),
        (layout_copies, launched((STRIDED, 40, "aten::linear"), (GEMM, 60, "aten::mm")), "9.0"),  # a bias for each row
        (layout_copies, line((STRIDED, 9), (GEMM, 91)), "9.0"),
        (layout_copies, line((UP, 40), (GEMM, 60)), "9.0"),
        (large_logits, line(*(LOSS[at] for at in (0, 1, 2, 6, 7, 8))), "9.0"),  # of F.cross_entropy under autocast
        (large_logits, line((GEMM, 50_000), (MUL, 30_000), (MUL, 30_000), (ADD, 30_000), (GEMM, 50_000)), "9.0"),
        (large_logits, line(*LOSS, (GEMM, 3_000_000)), "9.0"),
        (large_logits, line(*(one for one in HALVED if one[0] != SMALL_LOG)), "9.0"),  # exponentials alone
        (large_logits, line((GEMM, 50_000), *((one, 40_000) for one in MISH), (GEMM, 50_000)), "9.0"),
        (large_logits, launched(*AUTOCAST), "9.0"),
        (large_logits, line(*((name, ns // 20) for name, ns in LOSS)), "9.0"),  # of small tensors, as a policy's
        (large_logits, launched((GEMM, 50_000, "aten::mm"), *ROWS, ROWS[0], (GEMM, 50_000, "aten::mm")), "9.0"),
        (large_logits, launched(*CHAIN, (GEMM, 50_000, "aten::bmm")), "9.0"),  # attention, which a copy may come into
        (large_logits, [*launched(*CHAIN, (GEMM, 50_000, "aten::bmm")), memcpy(50_005, 50_006, stream=7)], "9.0"),
        (scatter_atomics, line((GEMM, 20), (MUL, 101), (INDEX_ADD, 300)), "9.0"),
        (scatter_atomics, [*line((MUL, 30), at=400), *launched(*FREE, node="ScatterReduceBackward0")], "9.0"),
        (scatter_atomics, line((GEMM, 20), (INDEX_ADD, 100), (GEMM, 10_000)), "9.0"),
        (scatter_atomics, line((MUL, 10), (PUT.replace("int)#1", "int)#2"), 300)), "9.0"),  # which does not accumulate
        (gathers, line(*[(GATHER, 10), (ADD, 12)] * 7), "9.0"),
        (gathers, along(SORT, many=7), "9.0"),
        (gathers, launched(*[(BY_VALUE, 10, "aten::scatter")] * 8), "9.0"),
        (gathers, line(*[(GATHER, 6), (ADD, 30)] * 8), "9.0"),
        (bags_by_hand, line((GATHER, 40), (MUL, 40), (SUM, 9), (GEMM, 50)), "9.0"),  # of less than was gathered
        (bags_by_hand, line((GATHER, 40), (ADD, 40), (SUM, 40), (GEMM, 50)), "9.0"),
        (bags_by_hand, line((GATHER, 40), (NORM, 40), (GEMM, 50)), "9.0"),
        (one_hot_products, line(FILL, ONES, UP, MUL, GEMM), "9.0"),  # of a loss
        (one_hot_products, line(FILL, ADD, ONES, GEMM), "9.0"),
        (one_hot_products, line(FILL, ONES, UP, UP, GEMM), "9.0"),
        (one_hot_products, line(FILL, ONES, GEMM, (ADD, 500)), "9.0"),
        (bags_by_hand, line(*[(GATHER, 40), (SUM, 20)] * 8), "9.0"),  # many in a loop
        (gathers, line(*[(GATHER, 1), (ADD, 2)] * 8, (GEMM, 30)), "9.0"),
        (gathers, launched((GATHER, 60, "aten::index"), (GEMM, 40, "aten::mm")), "9.0"),
        # rows of a table, as of negative samples
        (gathers, launched((GATHER, 60, "aten::embedding"), (GEMM, 40, "aten::bmm")), "9.0"),
        (recomputation, launched(*AGAIN), "9.0"),
        (recomputation, launched((GEMM, 30, "aten::mm"), (MUL, 9, "aten::mul"), node="B0"), "9.0"),
        (by_hand, line((GEMM, 50_000), *FORMULA[2:] * 2, (GEMM, 50_000)), "9.0"),  # residuals and biases
        (by_hand, line(*FORMULA[:3] * 9, (GEMM, 5_000)), "9.0"),  # a loop over tensors
        (by_hand, line((GEMM, 900), *((name, ns // 10) for name, ns in FORMULA), (GEMM, 900)), "9.0"),  # small ones
        (by_hand, line(*FORMULA, (GEMM, 5_000_000)), "9.0"),
        (growing_concatenations, line(*[(CAT, 3000), (GEMM, 500), (CAT, 3100), (GEMM, 500)] * 20), "9.0"),
        *((growing_copies, copied(*sizes), "9.0") for sizes in ([300, 100] * 30, range(100, 6000, 100), PIECES[:20])),
        # longer texts, other ones, prompts in parts, and shorter ones
        *((no_kv_cache, texts(*rows), "9.0") for rows in ([64, 128, 256, 512, 1024], [3000, 3050, 3170, 3200, 3290])),
        *((no_kv_cache, texts(*rows), "9.0") for rows in ([3000] * 5, range(3300, 3000, -60), range(256, 2048, 256))),
        # batches that are sorted by length, to be trained on or not
        *((no_kv_cache, texts(*range(3000, 3300, 60), chosen=last), "9.0") for last in ("other", "trained")),
        (no_kv_cache, texts(*range(3000, 3300, 60), ends=[("trained", 1)]), "9.0"),
        *((full_sort, line((ONESWEEP, 4000), after), "9.0") for after in (("reorder", 81), BY_KEY)),  # all is used
        (full_sort, [*line((ONESWEEP, 4000)), memset(4000, 4010), *line(("bounds", 900), at=4010)], "9.0"),
        (full_sort, line((ONESWEEP, 4000), ("first", 80), ("simulate", 40_000)), "9.0"),
        (full_sort, line(*[(ONESWEEP, 100)] * 64, ("use", 30)), "9.0"),  # several arrays, of which one is read next
        (repeated_coalescing, coalesced("aten::coalesce"), "9.0"),
        (repeated_coalescing, coalesced("aten::addmm", 1), "9.0"),
        (full_sort, sorts("aten::topk", TOPK, BITONIC), "9.0"),  # what topk found is sorted
        # others are put in that order: a loss of ranks, edges of a graph, tokens by expert
        (full_sort, launched(SORTED, (ADD, 90, "aten::sub"), (INDEX, 90, "aten::index")), "9.0"),
        (full_sort, sorts("aten::index_put_", RADIX, GEMM), "9.0"),  # indices are sorted for another operator
        *((unaligned_gemm, line((name, 100)), "9.0") for name in (ALIGN8, GEMM, FLOAT, SIMT)),
        *((old_architecture_gemm, line((ALIGN8, 100)), one) for one in ("8.0", "8.9", "12.0")),
        *((old_architecture_gemm, line((name, 100)), "9.0") for name in (GEMM, FLOAT, FLOAT64)),
        (old_architecture_gemm, line((ALIGN8, 249), (GEMM, 751)), "9.0"),  # a part that is not sizable
        *((no_tf32, line((FLOAT, 100)), one) for one in ("7.5", None, "gfx942")),
        (no_tf32, line((IMAGES, 100), IMAGES_TF32), "9.0"),
        (no_tf32, line(*SOLVES), "9.0"),
        (half_precision, line((FMHA, 90), (TF32, 600), (WORK, 310)), "9.0"),
        (half_precision, line((FMHA.replace("f32", "bf16"), 200), (TF32, 600), (WORK, 200)), "9.0"),
        *((no_tensor_cores, line((name, 100)), "9.0") for name in (GEMM, FLOAT, VECTOR)),
        (no_tensor_cores, line((HALF, 100)), "6.1"),
        # others are told from a hundredth of the time on
        *((rule, line((name, 9), (GEMM, 1000)), "9.0") for rule, name in ((unaligned_gemm, ALIGN1), (no_tf32, FLOAT))),
        (layout_conversions, line((THERE, 9), ("k", 991)), "9.0"),
        (layout_conversions, line((ROUND, 100)), "9.0"),
        (layout_conversions, images("aten::conv3d", "aten::instance_norm"), "9.0"),  # which takes NCHW alone
        (layout_conversions, images("aten::conv2d", "aten::group_norm"), "9.0"),
        *((recurring_casts, events, "9.0") for events in (casts(STRIDED), casts(UP, many=31), casts(UP, rest=20_000))),
        (recurring_casts, casts(UP, (OPTIMIZER, 1), rest=2000), "9.0"),  # of any training under autocast
        (transform_length, line((FFT, 90), (WORK, 10)), "9.0"),
        (transform_length, line((ODD_FFT, 9), (WORK, 991)), "9.0"),
        (unfused_attention, line(*[GEMM, SOFTMAX, GEMM] * 2), "9.0"),  # a network that ends with it, called again
        (unfused_attention, line(*[GEMM, ADD, LOG_SOFTMAX, GEMM] * 2), "9.0"),
        (unfused_attention, line(GEMM, ADD, SOFTMAX, GEMM), "9.0"),  # one is not enough
    ],
)
def test_what_is_not_told(rule, events, capability):
    assert rule(report(events, limits={"compute_capability": capability})) == []


IN_CODE = {"name": "sums", "source": "triton", "hash": "1", "atomics": "sums.py:7, sums.py:9", "atomic_bytes": 64}


@pytest.mark.parametrize(
    ("row", "name", "dur_ns", "found"),
    [
        ({}, "sums", 50_000, True),  # 3,200 threads add 64 bytes each: 8.192 GB/s of 100
        ({}, "sums", 10_000, False),  # 40.96 GB/s
        ({"atomic_bytes": 8}, "sums", 4_000, False),  # it hardly takes longer than to start
        ({}, "others", 50_000, False),
        ({}, "void sums<4>(float *)", 50_000, False),  # another kernel of that name, in C++
        ({"atomics": None}, "sums", 50_000, False),
        ({"source": "inductor"}, "sums", 50_000, False),
    ],
)
def test_atomics_that_the_code_of_a_kernel_shows(row, name, dur_ns, found):
    events = [kernel(0, dur_ns, name=name, grid=(100, 1, 1), block=(32, 1, 1)), kernel(dur_ns, 2 * dur_ns, name=GEMM)]
    limits = HOPPER | {"memory_bandwidth_bytes_per_s": 100_000_000_000}
    events.append(kernel(2 * dur_ns, 2 * dur_ns + dur_ns // 2, name="more_sums"))  # which is told of no more than once
    codes = [IN_CODE | row, IN_CODE | row | {"name": "more_sums", "atomic_bytes": 1}]
    told = atomics_in_code(report(events, limits=limits, compiled_kernels=codes))
    told = [(one.rule, one.at_stake_ns, one.at_most, one.where) for one in told if one.names == (name,)]
    assert told == [("scatter-atomics", dur_ns, True, "sums.py:7")] * found


SUMMED = {"float32_products": None, "summed_products": "net.py:41"}


@pytest.mark.parametrize(
    ("column", "name", "row", "capability", "saved_ns"),
    [
        ("float32_products", "no-tf32", {}, "9.0", int(50_000 * (1 - 66.9 / 494.7 * 1.5))),
        ("float32_products", "no-tensor-cores", SUMMED, "9.0", int(50_000 * (1 - 66.9 / 494.7 * 1.5))),
        ("float32_products", None, {}, "12.0", None),  # of which nobody measured what TF32 leaves
        ("float32_products", None, {"source": "inductor"}, "9.0", None),
        ("float32_products", None, {"float32_products": None}, "9.0", None),
        ("widened_products", "widened-products", {}, "9.0", 25_000),  # of 16 bits, that it multiplies in TF32
        ("widened_products", None, {"widened_products": None}, "9.0", None),
    ],
)
def test_products_in_too_long_types_that_the_code_of_a_kernel_shows(column, name, row, capability, saved_ns):
    events = [kernel(0, 50_000, name="layer"), kernel(50_000, 60_000, name=GEMM)]
    codes = [{"name": "layer", "source": "triton", "hash": "1", column: "net.py:41"} | row]
    of = report(events, limits=HOPPER | {"compute_capability": capability}, compiled_kernels=codes)
    told = list(products_in_code(of))
    assert [(one.rule, one.where, one.at_stake_ns) for one in told] == [(name, "net.py:41", 50_000)] * bool(name)
    assert [one.change(of).shorter.get_column("saved_ns").to_list() for one in told] == [[saved_ns]] * bool(name)


def test_weights_that_are_normalized_anew():
    norm = "void at::native::(anonymous namespace)::weight_norm_fwd_first_dim_kernel<float, float>(float*)"
    (told,) = weight_norm(report(line((norm, 30), (GEMM, 50), (norm, 20))))
    assert (told.rule, told.at_stake_ns) == ("weight-norm", 50)
    assert saved(told, report(line((norm, 30), (GEMM, 50), (norm, 20)))) == (2, 0)
    trained = report(line((norm, 30), (GEMM, 50), (norm.replace("fwd", "bwd"), 50)))
    assert not list(weight_norm(trained.narrow(window=Window(0, 80))))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({}, True),
        ({"source": "inductor"}, True),
        ({"float64_share": 0.4}, False),  # powers that an optimizer computes
        ({"float64_share": None}, False),
        ({"name": "others"}, False),
    ],
)
def test_float64_that_the_code_of_a_kernel_shows(row, told):
    events = [kernel(0, 50_000, name="layer"), kernel(50_000, 60_000, name=GEMM)]
    codes = [{"name": "layer", "source": "triton", "hash": "1", "float64_share": 0.8} | row]
    found = float64_in_code(report(events, limits=HOPPER, compiled_kernels=codes))
    assert [(one.rule, one.at_stake_ns, one.names) for one in found] == [("float64", 50_000, ("layer",))] * told


@pytest.mark.parametrize(
    ("rows", "values", "width", "took_ns", "told"),
    [
        (60, 122_880, 128, 170_000, True),  # 63 MB: 18.8 µs at the bandwidth, twice that where nothing waits
        (20_000, 20_000, 16, 4_000, False),  # as short as kernels are
        (8_000_000, 2_000_000, 128, 1_880_000, False),  # where no two meet, the table is read and written, too
    ],
)
def test_sums_are_held_against_their_bytes_where_shapes_tell_these(rows, values, width, took_ns, told):
    shapes, types = [[rows, width], [], [values], [values, width]], ["float", "Scalar", "long int", "float"]
    events = [
        shaped("aten::index_add_", 0, 9_000, json.dumps(shapes), input_types=json.dumps(types)),
        *called(10, 20, kernel(30_000, 30_000 + took_ns, name=INDEX_ADD, correlation=1, parent=0), parent=0),
        kernel(30_000 + took_ns, 30_000 + took_ns + took_ns * 5 // 9, name=MUL),
    ]
    limits = HOPPER | {"name": "NVIDIA H100 80GB HBM3", "memory_bandwidth_bytes_per_s": int(3.35e12)}
    of = report(events, kinds=(*DEVICE_KINDS, "api", "op"), limits=limits)
    least_ns = 2 * (1 + 2 * rows / values) * (8 * values + 4 * values * width) / 3.35e12 * 1e9
    saved_ns = [one.change(of).shorter.get_column("saved_ns").to_list() for one in scatter_atomics(of)]
    assert saved_ns == [[pytest.approx(took_ns - least_ns, abs=2)]] * told
    events[0] = replace(events[0], side={})
    assert scatter_atomics(report(events, kinds=(*DEVICE_KINDS, "api", "op"), limits=limits)) == []


def test_formulas_that_others_tell_of_are_left_out():
    (found,) = by_hand(report(line((GEMM, 50_000), *FORMULA, (GEMM, 50_000))))
    assert found.rule == "fusion"
    assert found.retold(found.claims.head(3)) is None
    assert found.retold(found.claims).at_stake_ns == 35_000


def product(at, start, end, name, operator="aten::mm", *, shapes=None, **launch):  # noqa: PLR0913 - an operator has as many
    """An operator, its launch and its kernel; `at` is the place of the operator in the list of events."""
    return (
        shaped(operator, start, start + 2, shapes),
        *called(start, start + 1, kernel(start + 2, end, name=name, correlation=at, parent=at, **launch), parent=at),
    )


def test_with_shapes_the_odd_dimension_is_named_and_what_aligned_ones_take_is_no_loss():
    """The aligned product does 64 × 64 × 64 in 128 ns; the unaligned one 64 × 64 × 65 in 1298 ns."""
    aligned = product(0, 0, 130, GEMM, shapes="[[64, 64], [64, 64]]")
    odd = product(3, 200, 1500, ALIGN1, shapes="[[64, 64], [64, 65]]")
    (found,) = unaligned_gemm(report([*aligned, *odd], limits=HOPPER))
    assert found.at_stake_ns == 1298 - 130
    assert "Most for [64, 64] × [64, 65]: 65 is no multiple of 8. At the best rate of the aligned" in found.text
    assert found.action == "Pad 65 to a multiple of 64"
    # one that memory limits is no example
    aligned = product(0, 0, 10_000, GEMM, shapes="[[4096, 512], [512, 1]]")
    odd = product(3, 20_000, 90_000, ALIGN1, shapes="[[4096, 515], [515, 512]]")
    limits = HOPPER | {"memory_bandwidth_bytes_per_s": 4_800_000_000_000}
    (found,) = unaligned_gemm(report([*aligned, *odd], limits=limits))
    assert "As near to their roof as aligned products come" in found.text


@pytest.mark.parametrize(
    ("shapes", "side"),
    [
        ("[[227, 768], [768, 50257]]", 50257),
        ("[[1024, 50257], [50257, 768]]", 50257),
        ("[[50257, 1024], [1024, 768]]", 50257),  # of weights, backward
        ("[[8], [65, 64], [64, 64]]", 65),
        ("[[2, 65, 64], [2, 64, 64]]", 65),
        *((text, None) for text in ("", "[", "[[]]", "[[1, 2]]", "[[1, 2], [3, 4]]", "[[true, 2], [2, 1]]", "7")),
    ],
)
def test_the_dimension_that_is_padded_is_the_one_that_rows_begin_at(shapes, side):
    operator = "aten::addmm" if shapes.count("],") == 2 else "aten::bmm"
    (found,) = unaligned_gemm(report(product(0, 0, 1_000_000, ALIGN1, operator, shapes=shapes), limits=HOPPER))
    assert found.action == (f"Pad {side} to a multiple of 64" if side else "Pad dimensions to multiples of 64")


@pytest.mark.parametrize("shapes", ["[[20, 2000], [], []]", "[[20,2000],[],[]]", "[[ 20 , 2000 ], []]"])
@pytest.mark.parametrize(("blocks", "times", "told"), [(40, 1, True), (79, 1, False), (4, 20, False), (4, 19, True)])
def test_what_writes_fewer_values_than_were_sorted_puts_none_in_order(blocks, times, told, shapes):
    """Rows of 20 nearest neighbours are gathered, for longer than what was sorted would take; 512 values a block."""
    gathers = "void at::native::index_elementwise_kernel<128, 4, gpu_index_kernel<index_kernel_impl<float>(X)>>(int)"
    events = product(0, 0, 4000, RADIX, "aten::sort", shapes=shapes)
    for at in range(times):
        start = 5000 + 600 * at
        events += product(3 + 3 * at, start, start + 500, gathers, "aten::index", grid=(blocks, 1, 1))
    assert bool(full_sort(report(events, limits=HOPPER))) == told


def in_head():
    pairs = [called(at, at + 1, kernel(100 * at + 5, 100 * at + 65, name=ALIGN1)) for at in range(4)]
    return report([nvtx("head", 0, 10), *(event for pair in pairs for event in pair)], limits=HOPPER)


def blocks(number):
    events = [kernel(0, 250, name=ALIGN8, grid=(number, 1, 1), block=(128, 1, 1)), kernel(250, 1000, name=GEMM)]
    return report(events, limits=HOPPER | {"sm_count": 132})


def in_steps(of, end, count):
    return of.narrow(window=Window(0, end, count=count, each="step"))


IN_NODE = [
    host("op", "autograd::engine::evaluate_function: ToCopyBackward0", 0, 100),
    host("op", "aten::to", 5, 90),
    *called(10, 20, kernel(30, 1000, name=UP, correlation=1, parent=1), parent=1),
    *line(*[(UP, 1)] * 31, at=1000),
]


@pytest.mark.parametrize(
    ("rule", "of", "stakes", "words"),
    [
        (unaligned_gemm, in_steps(in_head(), 400, 4), [240], ("1 matrix product a step", "60 ns a step", "[head]")),
        # casts rarer than steps do not recur
        (recurring_casts, in_steps(report(casts(UP)), 1320, 33), [], ()),
        (recurring_casts, in_steps(report(casts(UP)), 1320, 16), [320], ("2 casts a step between types, most",)),
        (recurring_casts, report(IN_NODE), [1001], ("most in ToCopyBackward0; the GPU",)),
        # small products gain nothing by newer kernels
        (old_architecture_gemm, blocks(132), [125], ()),
        (old_architecture_gemm, blocks(131), [], ()),
        (old_architecture_gemm, report(line((GEMM, 100)), limits={"compute_capability": "10.0"}), [50], ()),
        (no_tensor_cores, report(line((HALF, 100)), limits={"compute_capability": "7.0"}), [100], ()),
        (large_logits, report(launched(*CHAIN, (GEMM, 50_000, "aten::mm"))), [120_000], ()),
    ],
)
def test_what_is_told_of_steps_and_shapes(rule, of, stakes, words):
    assert_told(rule(of), stakes, *words)


@pytest.mark.parametrize(
    ("capability", "saved_ns"), [("7.0", 12_738), ("8.0", 40_625), ("10.0", 47_477), ("8.6", 47_656)]
)
def test_products_in_float64_are_as_much_slower_as_the_gpu_makes_them(capability, saved_ns):
    """And a kernel of 100 ns is no shorter than one can be."""
    made = report(line((GEMM64, 50_000), (TANH64, 100)), limits={"compute_capability": capability})
    (found,) = float64(made)
    assert saved(found, made) == (0, saved_ns)


def test_what_the_gpu_waited_for_casts_is_theirs_but_no_more_than_in_the_median():
    """Each begins 14 after the end of the one before, which itself ends after the launch before; one is late."""
    times = [20 * number + (1000 if number > 16 else 0) for number in range(32)]
    (found,) = recurring_casts(report(again(times, *called(0, 4, kernel(4, 10, name=UP)))))
    assert found.at_stake_ns == 32 * 6 + 31 * 14
    assert "the GPU idled 434 ns until they were launched" in found.text


@pytest.mark.slow
def test_casts_of_attention_are_left_to_the_finding_about_it():
    alone = [event for at in range(0, 3200, 100) for event in line(GEMM, ADD, UP, SOFTMAX, DOWN, GEMM, at=at)]
    assert [one.rule for one in ranked(report(alone)) if one.table == "kernels --by operation"] == []
    beside = [event for number in range(40) for event in line((DOWN, 7), at=10_000 + 10 * number)]
    every = ranked(report([*alone, kernel(9_000, 9_200, name=WORK), *beside]))
    (found,) = (one for one in every if one.rule == "recurring-casts")
    assert found.at_stake_ns == 40 * 7
    assert found.text.endswith("their share. Other findings tell of 69.6 % of that.")


def of_operators(product):
    """Softmaxes between products by one operator."""
    parts = [(name, 10, product if name == GEMM else "aten::softmax") for name in [GEMM, SOFTMAX, GEMM, SUM] * 2]
    return launched(*parts)


def in_parts(*softmax, first="[[4, 64, 8], [4, 8, 64]]", last="[[4, 64, 64], [4, 64, 8]]", product="aten::bmm"):
    """Two softmaxes of several kernels between products of these shapes by one operator."""
    own = [one if isinstance(one, tuple) else (one, 10, "aten::exp") for one in (*softmax, ADD)]
    parts, shapes = [(GEMM, 10, product), *own[:-1], (GEMM, 10, product), own[-1]], iter([first, last] * 2)
    events = launched(*parts * 2)
    of_products = ({"input_shapes": text, "input_types": '["float", "float"]'} for text in shapes)
    return report([replace(one, side=next(of_products)) if one.name == product else one for one in events])


BETWEEN = [memset(20, 30), memcpy(30, 40, direction="Device-to-Device")]
AFTER = [*line(GEMM, ADD, at=100), memset(120, 130), *line(SOFTMAX, GEMM, at=130)]
SCALED = [GEMM, ADD, SOFTMAX, GEMM]
BACKWARD_AGAIN = [GEMM, GEMM, MUL, BACKWARD, GEMM, MUL, GEMM, MUL, SUM, GEMM]
BACK_AND_FORTH = [*line(SUM, GEMM), memset(20, 30), *line(GEMM, BACKWARD, GEMM, MUL, GEMM, SUM, *BACKWARD_AGAIN, at=30)]


@pytest.mark.parametrize(
    ("events", "stake"),
    [
        # memsets and copies on the device may stand between, and other streams are other chains
        ([*line(GEMM, ADD), *BETWEEN, *line(SOFTMAX, GEMM, at=40), *AFTER], [60 + 50]),
        ([*line(*SCALED), *line(*SCALED, at=100, stream=8)], [80]),
        ([*line(GEMM, ADD, SOFTMAX), *line(GEMM, at=30, stream=8), *line(GEMM, ADD, SOFTMAX, at=50)], []),
        # up to eight kernels may stand between
        (line(*[GEMM, *[ADD] * 8, SOFTMAX, GEMM] * 2), [10 * 22]),
        (line(*[GEMM, *[ADD] * 9, SOFTMAX, GEMM] * 2), []),
        # where operators are known products are batched ones
        (of_operators("aten::bmm"), [2 * 30]),
        (of_operators("aten::addmm"), []),
        # backward two products are on either side, with a memset or a scale between
        (BACK_AND_FORTH, [10 * 14]),
    ],
)
def test_chains_of_attention(events, stake):
    assert_told(unfused_attention(report(events)), stake)


@pytest.mark.parametrize(
    ("made", "stake"),
    [
        (in_parts(REDUCE, ADD, EXP, REDUCE, MUL), [2 * 70]),
        (in_parts(EXP, REDUCE, MUL, product="aten::mm"), []),
        (in_parts(REDUCE, EXP, MUL), []),  # nothing adds up what stands behind
        (in_parts(EXP, MOST, MUL), []),
        (in_parts(EXP, REDUCE, MUL, last="[[4, 64, 8], [4, 8, 64]]"), []),  # other matrices are multiplied
        (in_parts(EXP, REDUCE, MUL, first="[[4, 1, 64], [4, 64, 64]]", last="[[4, 1, 64], [4, 64, 64]]"), []),  # states
        (report(line(*[GEMM, ADD, EXP, REDUCE, MUL, GEMM] * 2)), []),
        # a softmax of scores may have anything beside it, one of other matrices may not
        (in_parts(*[ADD] * 9, SOFTMAX, REDUCE), [2 * 130]),
        (in_parts(*[ADD] * 9, SOFTMAX, REDUCE, last="[[4, 64, 8], [4, 8, 64]]"), []),
    ],
)
def test_an_exponential_between_products_of_scores_is_a_softmax_by_hand(made, stake):
    assert_told(unfused_attention(made), stake)


def test_flex_attention_that_is_not_compiled_is_told_apart_by_what_only_it_calls():
    sums, softmax = (REDUCE, 10, "aten::logsumexp"), (SOFTMAX, 10, "aten::_safe_softmax")
    assert_told(unfused_attention(in_parts(sums, softmax)), [2 * 40], "flex_attention is not compiled: 80.0 %")
    assert_told(unfused_attention(in_parts(softmax)), [2 * 30], "Attention is not fused")  # as of exported programs


def test_chains_that_touch_each_other_are_one_kernel_each():
    made = report([*line(*SCALED * 2), *line(*SCALED, at=100, stream=8)])
    (told,) = unfused_attention(made)
    assert saved(told, made) == (9, 3 * (10 - 12))


BIASED, PLAIN = '["float", "float", "float", "ScalarList"]', '["float", "float", "", "ScalarList"]'


def network(*after, types=BIASED, backward=True):
    """A convolution whose bias takes 10 ns forward and 20 backward, and the operators `after` it."""
    numbered = {"sequence_number": 7}
    events = [
        host("op", "aten::conv2d", 0, 100, side=numbered | {"input_types": types}),
        host("op", "aten::add_", 50, 90),
        *in_operator(20, kernel(100, 200, name="conv", correlation=1, parent=0)),
        *in_operator(60, kernel(200, 210, name="add", correlation=2, parent=1)),
        *(host("op", name, 100 + 10 * at, 110 + 10 * at) for at, name in enumerate(after)),
    ]
    if backward:
        linked = numbered | {"forward_thread_id": 1, "forward_id": 0}
        events.append(host("op", "ConvolutionBackward0", 500, 600, thread=2, side=linked))
        summed = kernel(700, 720, name="sum", correlation=3, parent=len(events))
        events += [host("op", "aten::sum", 500, 600, thread=2), *in_operator(520, summed, thread=2)]
    return report(events)


def in_operator(at, made, **keys):
    """A launch by the operator that launched the kernel."""
    return [call("cudaLaunchKernel", at, at + 2, correlation=made.correlation, parent=made.parent, **keys), made]


NORM = "aten::batch_norm"


@pytest.mark.parametrize(
    ("of", "stakes"),
    [
        (network(NORM), [30]),
        (network("aten::add_", NORM, "aten::relu"), [30]),
        (network(NORM, backward=False), [10]),
        *((network(NORM, types=types), []) for types in (PLAIN, "[", "{}")),
        *((network(*after), []) for after in (("aten::relu", NORM), ("aten::relu",), ())),
    ],
)
def test_kernels_that_add_the_bias_and_sum_its_gradient_are_at_stake(of, stakes):
    words = ("add biases of convolutions, or sum their gradients",) if stakes else ()
    assert_told(bias_before_batchnorm(of), stakes, *words)


def test_who_compiles_already_is_told_to_compile_chains_too():
    events = launched((ADD, 90_000, "aten::add"), (ADD, 90_000, "aten::mul"))
    events = [one if one.kind == "op" else replace(one, parent=3 * one.correlation + 2) for one in events]
    for more, them in (([], ""), ([kernel(200_000, 200_001, name=COMPILED)], " them, too")):
        (found,) = fusible(report([*events, *more], kinds=("kernel", "memcpy", "memset", "api", "op", "range")))
        assert found.action == f"torch.compile{them}, or one kernel in Triton or CUDA"
        assert ("not compiled, as other kernels are" in found.remedy) == bool(them)


@pytest.mark.slow
def test_without_layers_that_run_again_the_host_is_spared_what_it_does_between_their_launches():
    (one,) = recomputation(report(launched(*AGAIN, node="B0")))
    assert one.mending.host.select("start", "end").rows() == [(1, 50)]  # not the last product, which is of backward


ACROSS = STRIDED.replace("direct_copy_kernel_cuda", "CUDAFunctor_add")


@pytest.mark.parametrize(
    ("layers", "others", "words"),
    [
        (4, ((ACROSS, 10_000, "aten::add"),), "Layers keep a transposed layout"),
        (3, ((ACROSS, 10_000, "aten::add"),), "Copies of transposed"),
        (4, (), "Copies of transposed"),  # which nothing hands on
        (4, ((ACROSS, 10_000, "aten::add"), (GEMM, 10_000, "aten::conv2d")), "Copies of transposed"),  # each anew
    ],
)
def test_a_layout_that_layers_hand_on_is_made_contiguous_once(layers, others, words):
    """Sums, whose memory traffic no shape tells here, spare nothing."""
    norm = within("aten::layer_norm", (STRIDED, 40_000, "aten::copy_"), (GEMM, 60_000, "aten::native_layer_norm"))
    layer = [*norm, *again([200_000], *launched(*others))]
    step = again(range(0, 1_000_000 * layers, 1_000_000), *layer)
    of = in_steps(report(again((0, 10_000_000), *step)), 20_000_000, 2)
    assert_told(layout_copies(of), [2 * 40_000 * layers], words)


@pytest.mark.parametrize(("share", "told"), [(50, 1), (49, 0)])
def test_sums_by_an_index_are_told_of_jax_where_they_take_much(share, told):
    of = report(line(("input_scatter_fusion_1", share), ("loop_add_fusion", 100 - share)))
    assert len(list(scatters_of_jax(of))) == told


def test_what_autocast_does_before_an_operator_goes_with_its_casts():
    cast = [host("op", "aten::to", 10, 30), *called(20, 25, kernel(30, 40, name=DOWN, correlation=1))]
    linear = [host("op", "aten::linear", 40, 58), *called(45, 50, kernel(50, 80, name=GEMM, correlation=2))]
    other = [host("op", "aten::sum", 62, 90), host("op", "aten::sum", 80, 88)]
    of = report(again(range(0, 3200, 100), host("op", "aten::linear", 0, 60), *cast, *linear, *other))
    (found,) = recurring_casts(of)
    change = found.change(of)
    assert (len(change.gone), (change.host["end"] - change.host["start"]).sum()) == (32, 32 * 40)
