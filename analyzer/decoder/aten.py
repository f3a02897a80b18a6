"""Kernels of ATen, PyTorch's own library: elementwise, reductions, and kernels with names of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.decoder.fields import by_name, exact
from kanalyze.decoder.spelling import snake, taken_apart, type_of, types_of

if TYPE_CHECKING:
    from kanalyze.decoder.fields import Fields
    from kanalyze.decoder.spelling import Spelled

#: Wrappers, with the index of the template argument that is the functor; the arguments before it are types.
_WRAPPERS: Final = {
    "gpu_kernel_impl": 0,
    "gpu_kernel_impl_nocast": 0,
    "gpu_kernel": 0,
    "gpu_index_kernel": 0,
    "jitted_gpu_kernel_impl": 0,
    "func_wrapper_t": 1,
    "ReduceOp": 1,
    "BinaryFunctor": 3,
    "AUnaryFunctor": 3,
    "BUnaryFunctor": 3,
    "multi_outputs_kernel": 0,
}
_DEEPEST: Final = 6

_NOISE: Final = (
    r"^(?:CUDAFunctor(?:OnSelf)?_|launch_|opmath_)|(?:_kernel(?:_impl)?(?:_cuda)?(?:_impl)?|_cuda(?:_(?:out|kernel))?"
    r"(?:_impl)?|_functor|_out_kernel|_kernel_out|(?:CUDA)?Kernel(?:Impl(?:Internal)?)?|CUDAKernelImpl|Functor|Ops?)$"
)
_NAMES: Final = by_name("""
pow: pow_tensor_scalar pow_tensor_tensor pow_scalar_tensor reverse_power power
clamp: clamp_scalar
lerp: lerp_scalar lerp_tensor
compare: compare_scalar compare_eq
div: div_true
copy: direct_copy bfloat16_copy float16_copy float8_copy
norm: norm_two norm_one norm_zero lp_norm
abs_max: abs_max
max: max_nan
min: min_nan
argmax: arg_max
argmin: arg_min
nansum: nan_sum
all: and
any: or
scatter_gather: cuda_scatter_gather_internal
scatter_fill: cuda_scatter_fill_internal
take_put: cuda_take_put
bernoulli: bernoulli_tensor
neg: negate
non_finite_check_and_unscale: amp_foreach_non_finite_check_and_unscale_cuda
""")
#: Operations of elementwise kernels with a family of their own.
_FAMILIES: Final = by_name("""
fill: fill arange linspace logspace range eye
copy: copy flip conj
index: index index_put index_copy index_fill take put
normalization: group_norm batch_norm batch_norm_elementwise batch_norm_elementwise_backward_train
normalization: batch_norm_elementwise_backward_eval batch_norm_calc_invstd batch_norm_update_stats
random: dropout masked_scale bernoulli
""")


class Functor(NamedTuple):
    """A decoded functor: its name, operation and family, and its input and output types."""

    name: str
    operation: str
    family: str
    takes: tuple[str, ...]
    gives: str | None

    @property
    def direction(self) -> str | None:
        """``backward`` if the operation's name says so."""
        return "backward" if "backward" in self.operation.split("_") else None


def operation_of(word: str) -> str:
    """The operation in the name of a function or functor."""
    bare, before = word, ""
    while bare and bare != before:
        before, bare = bare, re.sub(_NOISE, "", bare)
    name = snake(bare or before or word).strip("_")
    return _NAMES.get(name, name)


def functor(text: str) -> Functor | None:
    """Decodes the functor in a template argument; None if it is not one."""
    given: tuple[str, ...] = ()
    inner = taken_apart(text)
    for _ in range(_DEEPEST):
        at = _WRAPPERS.get(inner.word)
        if at is None or at >= len(inner.args):
            break
        given = given or _given(inner, at)
        inner = taken_apart(inner.args[at])
    if not inner.word or type_of(inner.word) or not re.match(r"[A-Za-z_]", inner.word):
        return None
    operation = operation_of(inner.word)
    family = _FAMILIES.get(operation.removesuffix("_backward"), "elementwise")
    *takes, gives = given or (None,)
    own = types_of(inner.args[:1])
    return Functor(inner.word, operation, family, tuple(takes) or _lambda(inner) or own, gives)


def _given(wrapper: Spelled, at: int) -> tuple[str, ...]:
    """The types in a wrapper's arguments, result last, without that of a scalar operand."""
    types = types_of(wrapper.args[:at]) if at > 1 else ()
    memory = {"AUnaryFunctor": types[1:], "BUnaryFunctor": (*types[:1], *types[2:])}
    return memory.get(wrapper.word, types)


def _lambda(inner: Spelled) -> tuple[str, ...]:
    """The parameter types of the innermost lambda: ``{lambda(float)#1}`` or ``[lambda(float) (instance 1)]``."""
    at = inner.text.rfind("lambda(")
    if at < 0:
        return ()
    takes = inner.text[at + len("lambda(") :].partition(")")[0]
    return types_of(part.strip() for part in takes.split(",")) if takes else ()


def named_functor(words: tuple[str, ...]) -> Functor | None:
    """Finds the functor among the words of a mangled name, which contain no types."""
    for word in words:
        if word in _WRAPPERS or not re.search(r"Functor|_kernel|Kernel|Ops$|functor|^launch_", word):
            continue
        if word.startswith(("gpu_kernel", "TensorIterator")) or word == "Functor":
            continue
        operation = operation_of(word)
        return Functor(word, operation, _FAMILIES.get(operation.removesuffix("_backward"), "elementwise"), (), None)
    return None


#: Elementwise kernels: template argument index of the functor, and of the vector width.
_ELEMENTWISE: Final = {
    "vectorized_elementwise_kernel": (1, 0),
    "vectorized_templated_elementwise_kernel": (1, 0),
    "unrolled_elementwise_kernel": (0, None),
    "unrolled_elementwise_kernel_for_multi_outputs": (1, None),
    "elementwise_kernel": (2, None),
    "_elementwise_kernel": (2, None),
    "kernelPointwiseApply1": (0, None),
    "kernelPointwiseApply2": (0, None),
    "kernelPointwiseApply3": (0, None),
    "legacy_elementwise_kernel": (2, None),
    "elementwise_kernel_manual_unroll": (2, None),
    "elementwise_kernel_with_index": (1, None),
    "index_elementwise_kernel": (2, None),
    "_scatter_gather_elementwise_kernel": (2, None),
}
_TYPED: Final = (
    "vectorized_elementwise_kernel",
    "vectorized_templated_elementwise_kernel",
    "unrolled_elementwise_kernel",
    "unrolled_elementwise_kernel_for_multi_outputs",
)
_OPTIMIZERS: Final = r"Fused(Adam|Sgd|Adagrad)|(LAMB|Lamb|Novograd|Adagrad|Adam|SGD)\w*Functor"
_ATEN_FUNCTORS: Final = r"Fused\w+MathFunctor|(?:Binary|Unary|Pointwise|Ternary)Op|LpNorm|ZeroFunctor|CopyFunctor"
_TOPK: Final = ("sort", "topk", None)
_FOREACH: Final = {"multiplies": "mul", "divides": "div", "plus": "add", "minus": "sub", "norm_two": "norm"}
#: Layer norm kernels shared with RMS norm: index of the template argument that distinguishes them.
_RMS_NORM: Final = {
    "vectorized_layer_norm_kernel": 2,
    "layer_norm_grad_input_kernel": 2,
    "layer_norm_grad_input_kernel_vectorized": 2,
    "GammaBetaBackwardCUDAKernelTemplate": 7,
}
_RANDOM: Final = (
    r"\b(normal|uniform|exponential|bernoulli|bernoulli_tensor|random_from_to|random_full_64_bits_range|random"
    r"|cauchy|geometric|log_normal|poisson|dropout)_(?:cuda_)?(?:tensor_)?kernel"
)


def aten(name: Spelled) -> Fields | None:
    """Decodes kernels of ATen by function name, with or without namespace."""
    word, inside = name.word, name.function.startswith("at::")
    if word in _ELEMENTWISE:
        return _elementwise(name)
    if word == "reduce_kernel" and (inside or name.arg(2).partition("<")[0].endswith("ReduceOp")):
        return _reduce(name)
    if word == "multi_tensor_apply_kernel":
        return _multi_tensor(name)
    if word.startswith("distribution_"):
        found = re.search(_RANDOM, name.text) or next(
            (hit for part in name.args if name.mangled and (hit := re.match(_RANDOM, part))), None
        )
        short = type_of(name.arg(0))
        return {
            "family": "random",
            "operation": found[1] if found else None,
            "library": "aten",
            "vector": name.number(1),
            "accumulator_type": short,
        }
    return _own(name, inside=inside)


def _elementwise(name: Spelled) -> Fields:
    at, width = _ELEMENTWISE[name.word]
    text = name.arg(at)
    what = named_functor(name.args) if name.mangled else functor(text) if text else None
    indexed = name.word in {"index_elementwise_kernel", "_scatter_gather_elementwise_kernel"}
    fields: Fields = {"library": "aten", "family": "index" if indexed else "elementwise"}
    if width is not None:
        fields["vector"] = name.number(width)
    if what is None:
        return fields
    fields |= {"functor": what.name, "operation": what.operation, "direction": what.direction}
    fields["family"] = "index" if indexed and what.family != "copy" else what.family
    if name.word not in _TYPED and "gpu_kernel_impl" not in text:  # the functor takes an element index
        return fields
    if what.operation == "copy":
        return fields | _copied(name, what)
    if re.search(r"WithCast\b|gpu_kernel_impl<", name.text):  # operands are cast at run time, from any type
        return fields | {"accumulator_type": what.takes[0] if what.takes else None}
    inputs = _operands(name.text)
    takes = what.takes
    if inputs is not None and len(takes) == 1:
        takes = takes * inputs
    if what.family == "fill":
        return fields | {"output_type": takes[0] if takes else what.takes[0] if what.takes else None}
    same = what.name.startswith("CUDAFunctor") and takes
    return fields | {"input_types": takes, "output_type": what.gives or (takes[0] if same else None)}


def _operands(text: str) -> int | None:
    """The number of inputs of an elementwise kernel with one output, from the length of its pointer array."""
    found = re.search(r"rray<char ?\*, (\d{1,6})(?:ul)?>", text)
    return int(found[1]) - 1 if found else None


def _copied(name: Spelled, what: Functor) -> Fields:
    """The types of a copy: those of the lambda; for copies to float8, the output type."""
    takes = what.takes[0] if what.takes else None
    if to := re.match(r"(bfloat16|float16|float8)_copy", what.name):  # float8 is one of several types
        return {"input_types": (takes,) if takes else (), "output_type": type_of(to[1])}
    if re.search(r"WithCast\b|gpu_kernel_impl<", name.text):
        return {"output_type": takes}
    return {"input_types": (takes,) if takes else (), "output_type": takes}


def _reduce(name: Spelled) -> Fields:
    fields: Fields = {"library": "aten", "family": "reduce"}
    if name.mangled:
        word = next((word for word in name.args if re.search(r"Ops$|_functor$|Functor$|_kernel_cuda$", word)), None)
        return fields | ({"functor": word, "operation": operation_of(word)} if word else {})
    text = name.arg(2)
    if what := functor(text) if text else None:
        fields |= {"functor": what.name, "operation": what.operation}
    if found := re.match(r"(?:\w+::)*ReduceOp<([\w:]+(?:<[\w:]+>)?),", text):
        short = type_of(found[1])
        fields["input_types"] = (short,) if short else ()
    return fields


def _multi_tensor(name: Spelled) -> Fields:
    """Decodes multi-tensor kernels: optimizers, torch._foreach, Apex."""
    fields: Fields = {"family": "optimizer"}
    applied = next((part for part in name.args[1:] if "Functor" in part), "")
    if name.mangled:
        applied = next((part for part in name.args if part.endswith("Functor")), "")
    inner = re.match(r"[\w:]*", applied)[0].rpartition("::")[2]  # type: ignore[index]
    if name.function.startswith("at::") or re.match(_ATEN_FUNCTORS, inner):
        fields["library"] = "aten"
    elif inner:
        fields["library"] = "apex"
    fields["functor"] = inner or None
    if fused := re.search(_OPTIMIZERS, inner):
        fields["operation"] = (fused[1] or fused[2]).lower()
    elif inner:
        behind = name.args[name.args.index(applied) + 1 :]
        operator = operation_of(re.match(r"[\w:]*", behind[0])[0].rpartition("::")[2]) if behind else ""  # type: ignore[index]
        plain = operator and not type_of(operator)
        fields["operation"] = _FOREACH.get(operator, operator) if plain else operation_of(inner)
    types = types_of(re.findall(r"<([\w:]+)", applied)[:1])
    return fields | {"input_types": types}


def _own(name: Spelled, *, inside: bool) -> Fields | None:
    """Decodes a kernel with a name of its own; an unknown one gets library and operation only."""
    known = _TOPK if "::mbtopk::" in name.function else _FUNCTIONS.get(name.word)
    if known is None:
        if not inside and not re.match(r"(?:c10d?|at_cuda_detail)::(?!cub|thrust)", name.function):
            return None
        told = operation_of(name.word)
        way = next((way for way in ("forward", "backward") if way in told.split("_")), None)
        return {"library": "aten", "operation": told or None, "direction": way}
    family, operation, direction = known
    fields: Fields = {"library": "aten", "family": family, "operation": operation, "direction": direction}
    if family in {"softmax", "normalization", "loss", "pooling", "resample", "conv", "scan"}:
        fields["input_types"] = types_of(name.args[:1]) if not name.mangled else ()
    if operation == "layer_norm" and name.flag(_RMS_NORM.get(name.word, len(name.args))):
        fields["operation"] = "rms_norm"
    elif name.word.startswith("softmax_warp_"):
        fields["operation"] = "log_softmax" if name.flag(4) else "softmax"
        fields["output_type"] = type_of(name.arg(1))
        fields["accumulator_type"] = type_of(name.arg(2))
    elif "SoftMax" in name.word:
        softmax = "log_softmax" if "LogSoftMax" in name.text else "softmax"
        first = 1 if name.number(0) is not None else 0
        types = types_of(name.args[first : first + 3]) if not name.mangled else ()
        fields |= {"operation": softmax, "input_types": types[:1]}
        if len(types) == len(("input", "accumulator", "output")):
            fields |= {"accumulator_type": types[1], "output_type": types[2]}
    return fields


DECODERS: Final = (aten,)


# ATen kernels with names of their own: family, operation, direction.

#: Functions in aten/src/ATen/native/cuda: family, operation, direction.
_FUNCTIONS: Final = exact("""
softmax softmax forward: cunn_SoftMaxForward cunn_SoftMaxForwardSmem cunn_SoftMaxForwardReg cunn_SoftMaxForwardGmem
softmax softmax forward: cunn_SpatialSoftMaxForward softmax_warp_forward
softmax softmax backward: cunn_SoftMaxBackward cunn_SoftMaxBackwardSmem cunn_SpatialSoftMaxBackward
softmax softmax backward: softmax_warp_backward
normalization layer_norm forward: vectorized_layer_norm_kernel LayerNormForwardCUDAKernel
normalization layer_norm backward: layer_norm_grad_input_kernel layer_norm_grad_input_kernel_vectorized
normalization layer_norm backward: GammaBetaBackwardCUDAKernel GammaBetaBackwardCUDAKernel_32x32
normalization layer_norm backward: GammaBetaBackwardSimpleCUDAKernel GammaBetaBackwardCUDAKernelTemplate
normalization layer_norm backward: cuComputePartGradGammaBeta
normalization layer_norm backward: cuComputeGradGammaBeta cuComputeGradInput
normalization batch_norm forward: batch_norm_collect_statistics_kernel batch_norm_transform_input_kernel
normalization batch_norm forward: batch_norm_collect_statistics_channels_last_kernel
normalization batch_norm forward: batch_norm_transform_input_channels_last_kernel batch_norm_reduce_statistics_kernel
normalization batch_norm forward: batch_norm_collect_grad_statistics_kernel
normalization batch_norm backward: batch_norm_backward_kernel batch_norm_backward_reduce_kernel
normalization batch_norm backward: batch_norm_backward_elemt_kernel batch_norm_backward_reduce_channels_last_kernel
normalization batch_norm backward: batch_norm_backward_elemt_channels_last_kernel
normalization group_norm forward: ComputeFusedParamsCUDAKernel
normalization - forward: RowwiseMomentsCUDAKernel
normalization - backward: ComputeInternalGradientsCUDAKernel
normalization group_norm backward: GammaBetaBackwardCUDAKernel1 GammaBetaBackwardCUDAKernel2
normalization group_norm backward: ComputeBackwardFusedParamsCUDAKernel GammaBeta1dBackwardCUDAKernel
normalization group_norm backward: Compute1dBackwardFusedParamsCUDAKernel GammaBeta1dBackwardCUDAKernel1
normalization group_norm backward: GammaBeta1dBackwardCUDAKernel2
normalization weight_norm forward: weight_norm_fwd_first_dim_kernel weight_norm_fwd_last_dim_kernel
normalization weight_norm backward: weight_norm_bwd_first_dim_kernel weight_norm_bwd_last_dim_kernel
copy cat -: CatArrayBatchedCopy CatArrayBatchedCopy_contig CatArrayBatchedCopy_aligned16_contig
copy cat -: CatArrayBatchedCopy_alignedK_contig CatArrayBatchedCopy_vectorized chunk_cat_cuda_kernel
copy split -: split_with_sizes_copy_out_contiguous_no_cast_kernel
copy flip -: flip_cuda_kernel kernel_pointwise_flip_apply2
copy roll -: roll_cuda_kernel
copy triu_tril -: triu_tril_kernel
copy im2col -: im2col_kernel vol2col_kernel im2col_batched_kernel
copy col2im -: col2im_kernel col2im_batched_kernel vol2im_kernel
copy pad forward: reflection_pad1d_out_kernel reflection_pad2d_out_kernel reflection_pad3d_out_kernel
copy pad forward: reflection_pad1d_flat replication_pad_forward_kernel1d replication_pad_forward_kernel2d
copy pad forward: replication_pad_forward_kernel3d
copy pad backward: reflection_pad1d_backward_out_kernel reflection_pad2d_backward_out_kernel
copy pad backward: replication_pad_backward_kernel replication_pad_backward_kernel2d
copy channel_shuffle -: channel_shuffle_kernel
index index_select -: indexSelectLargeIndex indexSelectSmallIndex vectorized_gather_kernel
index index_add -: indexFuncLargeIndex indexFuncSmallIndex
index index_put -: indexing_backward_kernel indexing_backward_kernel_stride_1 indexing_backward_kernel_small_stride
index index_put -: indexing_backward_kernel_many_indices indexing_backward_kernel_rocm
index index_put -: indexing_backward_kernel_quantized
index nonzero -: write_indices flag_kernel
index masked_scatter -: masked_scatter_size_check
index repeat_interleave -: compute_cuda_kernel
index searchsorted -: searchsorted_cuda_kernel
embedding embedding backward: embedding_backward_feature_kernel embedding_backward_kernel compute_grad_weight
embedding embedding backward: compute_grad_weight_bags sum_and_scatter krn_partials_per_segment
embedding embedding backward: krn_partial_segment_offset compute_num_of_partial_segments
embedding embedding backward: write_num_of_segments_for_legacy_thrust_path
embedding embedding_bag forward: EmbeddingBag_updateOutputKernel_sum_mean EmbeddingBag_updateOutputKernel_max
embedding embedding_bag backward: EmbeddingBag_accGradParametersKernel_max
embedding embedding_bag backward: _embedding_bag_per_sample_weights_backward_kernel
sort sort -: bitonicSortKVInPlace radixSortKVInPlace warpMergeSortKVInPlace sort_postprocess_kernel
sort sort -: fill_index_and_segment_kernel fill_reverse_indices_kernel
sort topk -: gatherTopK radixFindKthValues computeBlockwiseWithinKCounts computeDigitCumSum computeBlockwiseKthCounts
sort topk -: computeBlockDigitCounts
sort median -: gatherMedian
sort kthvalue -: gatherKthValue
sort mode -: compute_mode
scan scan -: tensor_kernel_scan_innermost_dim tensor_kernel_scan_outer_dim
scan scan -: tensor_kernel_scan_innermost_dim_with_indices tensor_kernel_scan_outer_dim_with_indices
random dropout forward: fused_dropout_kernel fused_dropout_kernel_vec
random multinomial -: sampleMultinomialOnce sampleMultinomialWithReplacement renormRowsL1
random randperm -: randperm_handle_duplicate_keys_kernel
optimizer amp_update_scale -: amp_update_scale_cuda_kernel
optimizer norm -: lpnorm_cleanup
gemm grouped_gemm -: prepare_grouped_gemm_data
loss nll_loss forward: nll_loss_forward_reduce_cuda_kernel_1d nll_loss_forward_reduce_cuda_kernel_2d
loss nll_loss forward: nll_loss_forward_no_reduce_cuda_kernel nll_loss2d_forward_no_reduce_kernel
loss nll_loss forward: nll_loss2d_forward_kernel nll_loss2d_forward_size_average_kernel
loss nll_loss backward: nll_loss_backward_reduce_cuda_kernel_1d nll_loss_backward_reduce_cuda_kernel_2d
loss nll_loss backward: nll_loss_backward_no_reduce_cuda_kernel nll_loss2d_backward_no_reduce_kernel
loss nll_loss backward: nll_loss2d_backward_kernel
loss ctc_loss forward: ctc_loss_log_alpha_gpu_kernel
loss ctc_loss backward: ctc_loss_backward_log_beta_gpu_kernel ctc_loss_backward_collect_gpu_kernel
loss ctc_loss backward: ctc_loss_backward_collect_nonblank_gpu_kernel ctc_loss_zero_padded_gradients
loss multi_margin_loss forward: MultiMarginLoss_forward_kernel multilabel_margin_loss_forward_kernel
loss multi_margin_loss backward: MultiMarginLoss_backward_kernel multilabel_margin_loss_backward_kernel
pooling max_pool forward: max_pool_forward_nchw max_pool_forward_nhwc max_pool3d_with_indices_single_out_frame
pooling max_pool forward: fractional_max_pool2d_out_cuda_frame adaptivemaxpool adaptive_max_pool
pooling max_pool backward: max_pool_backward_nchw max_pool_backward_nhwc adaptivemaxgradinput
pooling max_pool backward: atomicadaptivemaxgradinput max_pool3d_with_indices_backward_single_out_frame
pooling avg_pool forward: avg_pool2d_out_cuda_frame avg_pool2d_out_cuda_frame_nhwc adaptive_average_pool
pooling avg_pool forward: adaptive_average_pool_nhwc avg_pool3d_cuda_update_output adaptiveaveragepool
pooling avg_pool backward: avg_pool2d_backward_out_cuda_frame avg_pool2d_backward_out_cuda_frame_nhwc
pooling avg_pool backward: adaptive_average_gradinput atomic_adaptive_average_gradinput
pooling avg_pool backward: adaptive_average_gradinput_nhwc avg_pool3d_cuda_update_grad_input
pooling avg_pool backward: avg_pool3d_single_backward_out_frame_stride1 adaptiveaveragegradinput
pooling avg_pool backward: atomicadaptiveaveragegradinput
resample upsample forward: upsample_bilinear2d_out_frame upsample_bilinear2d_nhwc_out_frame
resample upsample forward: upsample_nearest2d_out_frame upsample_nearest2d_nhwc_out_frame upsample_nearest1d_out_frame
resample upsample forward: upsample_nearest3d_out_frame upsample_bicubic2d_out_frame upsample_linear1d_out_frame
resample upsample forward: upsample_trilinear3d_out_frame upsample_gen2d_aa_out_frame upsample_gen2d_out_frame
resample upsample backward: upsample_bilinear2d_backward_out_frame upsample_bilinear2d_backward_nhwc_out_frame
resample upsample backward: upsample_nearest2d_backward_out_frame upsample_nearest2d_backward_nhwc_out_frame
resample upsample backward: upsample_nearest1d_backward_out_frame upsample_nearest3d_backward_out_frame
resample upsample backward: upsample_bicubic2d_backward_out_frame upsample_linear1d_out_frame_backward
resample upsample backward: upsample_trilinear3d_backward_out_frame
resample grid_sampler forward: grid_sampler_2d_kernel grid_sampler_3d_kernel
resample grid_sampler backward: grid_sampler_2d_backward_kernel grid_sampler_3d_backward_kernel
conv fprop forward: conv_depthwise2d_forward_kernel conv_depthwise2d_forward_kernel_generic
conv fprop forward: conv_depthwise3d_cuda_kernel
conv dgrad backward: conv_depthwise2d_backward_kernel conv_depthwise2d_backward_kernel_generic
conv dgrad backward: conv_depthwise3d_cuda_backward_input_kernel
conv wgrad backward: conv_depthwise2d_grad_weight_kernel conv_depthwise2d_grad_weight_kernel_generic
conv wgrad backward: conv_depthwise3d_cuda_backward_weight_kernel
rnn lstm_cell forward: lstm_cell_forward
rnn lstm_cell backward: lstm_cell_backward
rnn gru_cell forward: gru_cell_forward
rnn gru_cell backward: gru_cell_backward
linalg cdist forward: cdist_kernel_cuda_impl
linalg cdist backward: cdist_backward_kernel_cuda_impl
linalg pdist forward: pdist_kernel_cuda_impl
fft fft -: _fft_conjugate_copy_kernel
reduce histogram -: kernelHistogram1D
reduce segment_reduce forward: segment_reduce_forward_kernel
elementwise cross -: cross_kernel
""")
