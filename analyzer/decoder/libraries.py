"""Kernels of vendors' libraries: cuDNN, CUB, Thrust, cuFFT, cuSPARSE, cuSOLVER, FBGEMM, AMD's, XLA and CuPy.

Sources: the names of these libraries' kernels in their public code and in public traces. Matrix products are in
:mod:`kanalyze.decoder.products`, collectives in :mod:`kanalyze.decoder.communication`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kanalyze.decoder.fields import OTHER, by_name, looked_up, patterns
from kanalyze.decoder.spelling import snake, type_of

if TYPE_CHECKING:
    from kanalyze.decoder.fields import Fields
    from kanalyze.decoder.spelling import Spelled

_TYPES: Final = "fp32|fp16|bf16|int8|half"

#: MIOpen's assembly convolutions: direction, architecture generation, layout, type, tile.
_IGEMM: Final = (
    rf"^igemm_(fwd|bwd|bwd_data|wrw|upd)_gtc[a-z]*\d?_(n[a-z]{{3,4}})_({_TYPES})_"
    r"\w*?bt(\d{1,6})x(\d{1,6})x(\d{1,6})"
)
_WAYS: Final = {"fwd": ("fprop", "forward"), "bwd": ("dgrad", "backward"), "bwd_data": ("dgrad", "backward")}
_WGRAD: Final = ("wgrad", "backward")

#: MIOpen's other kernels by prefix: family, operation.
_MIOPEN: Final = patterns(r"""
normalization batch_norm: ^MIOpenBatchNorm ^(?i:miopenBatchNorm)
normalization layer_norm: ^MIOpen(?:Layer|Group)Norm ^Layernorm(?:Fwd|Bwd) ^LayerNorm(?:Fwd|Bwd)
softmax softmax: ^MIOpenSoftmax ^SoftmaxForward ^SoftmaxBackward
pooling pooling: ^(?:mlo)?Pooling[A-Z] ^MIOpenPooling
elementwise -: ^MIOpenNeuron ^MIOpenActi(?:v|ve) ^Op[1-5]dTensor ^OpTensor ^MIOpenConvBiasActiv
copy layout: ^batched_transpose_\d ^transpose_[NC]\w*2[NC]\w*
copy cast: ^SubTensorOpWith(?:CastTensor|TransferTensor)\dd ^CastTensor
elementwise -: ^SubTensorOpWith(?:Scalar|SubTensor)\dd ^ScaleTensor
conv conv: ^Im[23]d2Col ^Col2Im[23]d
conv conv: ^(?i:miopenSp3AsmConv|miopenGcnAsm(?:Conv|Winograd)|miopenConv|MIOpenConv|mlopen_?conv|gcnAsmConv)
conv conv: ^naive_conv_\w+
""")
_CONV_WAYS: Final = (
    (r"wrw|bwd_weight|BwdWrW|BwdWeight|WrW", ("wgrad", "backward")),
    (r"bwd|Bwd|BwdData", ("dgrad", "backward")),
    (r"fwd|Fwd|Forward", ("fprop", "forward")),
)

#: CK and ck_tile by word anywhere in the name, since all kernels are templates of one function; first match wins.
_CK: Final = patterns(r"""
conv conv: [Gg]rouped_?[Cc]onv [Cc]onv(?:olution)?_?(?:[Ff]wd|[Bb]wd|[A-Z]\w*Kernel) bwd_weight bwd_data
conv conv: contraction_conv
attention attention: [Ff]mha FlashAttn flash_attn [Aa]ttention Unified_?Attn
index moe: MoeSorting moe_sorting
normalization rms_norm: [Rr]ms_?norm Rmsnorm2d
normalization layer_norm: [Ll]ayer_?norm Layernorm2d
normalization -: [Gg]roup_?norm [Bb]atch_?norm [Nn]ormalization
sort topk: [Tt]op[kK]_?[Ss]oftmax [Tt]op[kK]
copy quantize: [Ss]moothquant MoeSmoothquant [Qq]uant(?:ize)?(?![A-Za-z]*[Gg]emm)
gemm gemm: [Ff]lat_?mm [Gg]emm GEMM [Mm]oe_?(?:Flatmm|gemm) [Cc]ontraction
softmax softmax: [Ss]oftmax
reduce -: [Rr]educe
copy -: [Ii]mage_?to_?[Cc]olumn [Pp]ermute [Tt]ranspose
elementwise -: [Ee]lementwise
""")
#: AITER kernels by substring of the function name in snake case.
_AITER: Final = patterns(r"""
gemm moe: ^mfma_moe\d
normalization rms_norm: (?:^|_)(?:rms_?norm|rmsnorm\w*)
normalization layer_norm: layer_?norm
normalization group_norm: group_?norm
index moe: moe_sort moe_align mx_quant_moe sort_quant moe_sorting
sort topk: topk grouped_topk moe_fused_gate radix
gemm moe: (?:^|_)(?:fmoe|f?moe_stage|moe_ck|ck_moe|fused_moe|moe_gemm|mxfp4_moe|opus_moe)
attention attention: (?:^|_)fmha paged_?attention (?:^|_)pa_ (?:^|_)mla_ attn attention (?:^|_)mha
gemm gemm: gemm flatmm wv_?split_?k ll_?gemm mm_(?:tn|nt)
elementwise rotary_embedding: rope rotary mrope
elementwise -: act_and_mul silu gelu swiglu activation (?:^|_)(?:binary|unary)_operator elementwise add_kernel
copy cache: reshape_and_cache kv_?cache concat_and_cache
copy quantize: quant (?:^|_)cast(?:_|$)
copy -: transpose permute shuffle (?:^|_)copy
index -: moe_sum moe_permute gather scatter index
random sampling: sampl
softmax softmax: softmax
conv fprop: causal_conv1d
reduce -: (?:^|_)reduce
""")
#: Operations of rocPRIM and hipCUB by template argument, since all kernels are one function.
_PRIM: Final = patterns(r"""
sort sort: radix_sort merge_sort block_sort segmented_sort onesweep
reduce histogram: histogram
reduce reduce_by_key: reduce_by_key
scan scan: scan lookback
index select: partition select unique
reduce reduce: reduce
elementwise transform: transform for_each
""")
_DIRECTION: Final = (("backward", r"[Bb]wd|[Bb]ackward"), ("forward", r"[Ff]wd|[Ff]orward"))


def _direction(text: str) -> str | None:
    return next((way for way, pattern in _DIRECTION if re.search(pattern, text)), None)


def _conv_way(text: str) -> Fields:
    """Operation and direction of a convolution."""
    operation, direction = next((way for pattern, way in _CONV_WAYS if re.search(pattern, text)), ("conv", None))
    return {"operation": operation, "direction": direction}


def miopen(name: Spelled) -> Fields | None:
    """Decodes MIOpen kernels: ``igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x256x32_…``, ``MIOpenBatchNormBwdSpatial``."""
    if found := re.match(_IGEMM, name.word):
        way, layout, short, *tile = found.groups()
        operation, direction = _WAYS.get(way, _WGRAD)
        fields = {"family": "conv", "library": "miopen", "operation": operation, "direction": direction}
        kind = type_of(short)
        return fields | {"layout": layout, "tile": tuple(map(int, tile)), "input_types": (kind, kind) if kind else ()}
    if name.function != name.word and not name.function.startswith("miopen"):
        return None
    found_fields = looked_up(_MIOPEN, name.word)
    if not found_fields:
        return None
    way = _conv_way(name.word) if found_fields["family"] == "conv" else {"direction": _direction(name.word)}
    return {"library": "miopen", **found_fields, **way}


def ck(name: Spelled) -> Fields | None:
    """Decodes CK kernels: ``ck::tensor_operation::device::kernel_grouped_conv_fwd_…``, ``ck_tile::kentry<…>``."""
    if not re.match(r"ck(?:_tile)?::", name.function):
        return None
    library = "ck_tile" if name.function.startswith("ck_tile") else "ck"
    word = name.word if library == "ck" and name.word.startswith("kernel_") else ""
    fields = (looked_up(_CK, word) if word else {}) or looked_up(_CK, name.text)
    if fields.get("family") == "conv":
        fields |= _conv_way(name.text)
    elif fields.get("family") in {"attention", "normalization"}:
        fields["direction"] = _direction(name.text)
    return {"library": library, **fields}


def of_aiter(name: Spelled) -> Fields | None:
    """Decodes AITER kernels: ``aiter::add_rmsnorm_quant_kernel<…>``, and its assembly kernels of one word."""
    function = name.function
    if not re.match(r"aiter(?:::|_)|opus_moe::|kn_mla_|ck_moe_stage\d|mfma_moe\d", function):
        return None
    scopes = re.split(r"::", function)
    fields = looked_up(_AITER, snake(scopes[-1])) or looked_up(_AITER, snake("_".join(scopes[1:])))
    if "metadata" in function:
        fields = {}
    if fields.get("family") in {"attention", "normalization"}:
        fields["direction"] = _direction(name.word)
    return {"library": "aiter", **fields}


def rocprim(name: Spelled) -> Fields | None:
    """Decodes rocPRIM (hipCUB, rocThrust) kernels: ``rocprim::…::trampoline_kernel<…wrapped_scan_config…>``."""
    if not re.match(r"(?:rocprim|hipcub)::", name.function):
        return None
    return {"library": "rocprim", **looked_up(_PRIM, name.text)}


def runtime(name: Spelled) -> Fields | None:
    """Decodes HIP runtime kernels for copies and memsets: ``__amd_rocclr_copyBuffer``."""
    found = re.match(r"__amd_rocclr_(copy|fill|batchMemOp|stream)?", name.text)
    if not found:
        return None
    family = {"copy": "copy", "fill": "fill"}.get(found[1] or "")
    return {"library": "hip"} | ({"family": family, "operation": family} if family else {})


#: By substring of the function name, first match wins: family, operation, direction.
_CUDNN: Final = patterns(r"""
copy layout -: ^nchwToNhwc ^nhwcToNchw ^nchwToFold ^tensorTransform ^convertTensor
normalization batch_norm forward: ^bn_fw ^batchnorm_fw
normalization batch_norm backward: ^bn_bw ^batchnorm_bw
softmax softmax forward: ^softmax_fw
softmax softmax backward: ^softmax_bw
pooling pooling forward: ^pooling_fw
pooling pooling backward: ^pooling_bw
elementwise - -: ^(?:op_tensor|add_tensor|scalePackedTensor|activation_fw)
elementwise - backward: ^activation_bw
conv conv -: ^fft2d_ ^compute_gemm_pointers$ ^flip_filter ^im2col
conv fprop forward: ^winogradForward
conv wgrad backward: ^winogradWgrad
conv conv -: ^winograd ^generateWinogradTiles ^init_device_workspace
attention attention backward: ^compute_dot_do_o ^convert_dq_to
conv fprop forward: ^implicit_convolve ^precomputed_convolve ^convolve_ ^conv2d_grouped_direct
conv dgrad backward: ^dgrad ^conv2d_grouped_direct_dgrad
conv wgrad backward: ^wgrad ^reduce_wgrad
conv conv -: ^compute(?:Wgrad)?(?:B)?Offsets ^kern_precompute_indices ^explicit_convolve
rnn rnn -: ^elemWiseRNNcell ^LSTM_ ^GRU_ ^RNN_ ^GENERIC_elementWise_ ^persistRNN_
""")
#: Functions of cuDNN in any namespace.
_CUDNN_OWN: Final = (
    r"implicit_convolve_[sdh]gemm$|wgrad_alg\d|dgrad\d?d?_alg\d|bn_(?:fw|bw)_\w*1C11|fft2d_[rc]2[rc]_"
    r"|elemWiseRNNcell$|RNN_blockPersist|persistRNN_|conv2d_grouped_direct|(?:LSTM|GRU|GENERIC)_elementWise_"
    r"|scalePackedTensor_kernel|flip_filter$|im2col4d_kernel$"
    r"|[dw]grad_engine$|nchwToNhwcKernel$|nhwcToNchwKernel$|dgrad2d|wgrad2d|[dw]grad_alg0_engine$"
)


def cudnn(name: Spelled) -> Fields | None:
    """Decodes cuDNN kernels that are C++ templates or generated."""
    if name.text.startswith("cudnn_generated_"):
        return _cudnn_generated(name.text)
    if name.function.startswith("cutlass"):  # cuDNN's copy of CUTLASS is named like CUTLASS
        return None
    scoped = "cudnn" in name.function and re.search(r"(?:^|_)cudnn(?:_\w+)?::", name.function)
    if not scoped and (name.function.startswith("at::") or not re.match(_CUDNN_OWN, name.word)):
        return None
    fields: Fields = {"library": "cudnn", **looked_up(_CUDNN, name.word, "direction")}
    if "inograd" in name.word:
        fields["algorithm"] = "winograd"
    elif name.word.startswith("fft2d"):
        fields["algorithm"] = "fft"
    if fields.get("family") in {"conv", "normalization", "softmax", "pooling", "copy"} and (a := type_of(name.arg(0))):
        fields["input_types"] = (a,)
    if fields.get("operation") == "layout" and (layout := re.match(r"(nchw|nhwc)To(Nchw|Nhwc)", name.word)):
        fields |= {"layout": layout[1], "output_layout": layout[2].lower()}
    return fields


def _cudnn_generated(text: str) -> Fields:
    """Decodes generated cuDNN kernels: ``cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_…``.

    The f16 in such names stands for bf16, too, so that the type is unknown.
    """
    fields: Fields = {"library": "cudnn"}
    if arch := re.search(r"_(sm\d{1,6}[a-z]?)_", text):
        fields["arch"] = arch[1]
    if "_sdpa_" in text:
        fields |= {"family": "attention", "operation": "attention"}
    if way := re.search(r"_([fb])prop_", text):
        fields["direction"] = "forward" if way[1] == "f" else "backward"
    if re.search(r"_w?g?mma_|_umma_|_wmma_", text):
        fields["tensor_core"] = True
    if tile := re.search(r"_(\d{1,6})x(\d{1,6})x(\d{1,6})_", text):
        fields["tile"] = tuple(map(int, tile.groups()))
    if warps := re.search(r"_(\d{1,6})x(\d{1,6})x(\d{1,6})_kernel", text):
        fields["warps"] = tuple(map(int, warps.groups()))
    return fields


#: By substring of a CUB kernel's or Thrust agent's name; first match wins.
_CUB: Final = patterns(r"""
sort sort: RadixSort MergeSort SegmentedSort merge_sort
sort merge: DeviceMerge __merge\b MergeAgent
reduce reduce_by_key: ReduceByKey reduce_by_key
reduce reduce: DeviceReduce DeviceSegmentedReduce SegmentedReduce ReduceAgent __reduce\b
reduce histogram: Histogram
reduce extrema: ArgMin ArgMax __extrema
scan scan_by_key: ScanByKey scan_by_key
scan scan: DeviceScan ScanAgent __scan\b
index select: Select Partition CompactInit Unique __copy_if CopyIfAgent __unique __partition
scan run_length_encode: RunLength Rle
elementwise adjacent_difference: AdjacentDifference adjacent_difference
copy copy: BatchMemcpy BatchedMemcpy BatchedCopy
fill fill: fill_functor __uninitialized_fill __fill\b
sort set_operation: SetOpAgent __set_operations
elementwise transform: transform_kernel __transform\b unary_transform_f binary_transform_f
elementwise for_each: for_each ParallelFor parallel_for
""")
_CUB_WORD: Final = (
    r"Device(?:Reduce(?:SingleTile)?|Scan(?:Init)?|ScanByKey(?:Init)?|RadixSort\w{2,30}|Select(?:Sweep)|CompactInit"
    r"|SegmentedReduce|SegmentedRadixSort|ReduceByKey|MergeSort\w{2,30}|Histogram\w{2,30}|UniqueByKey\w{2,30})Kernel$"
)
_FFT: Final = (
    r"^(?:[sdh]p(?:Radix|Vector|Real)\w*|(?:regular|vector|real|(?:multi|regular)_bluestein|bluestein|composite\w*|strided)_fft\w*"
    r"|fft_\d\w*|postprocess_(?:C2C|C2R|R2C)\w*|preprocess_(?:C2R|R2C)\w*|pre_\w*_fft\w*|dpRadix\w*)$"
)
_FFT_SCOPE: Final = r"^(?:[sdh]p(?:Radix|Vector|Real)\w*|cufft\w*)::"
#: LAPACK routines, and steps of the SVD and eigenvalue solvers.
_LAPACK: Final = (
    r"(getrf|getrs|potrf|potrs|geqrf|geqr2|orgqr|ormtr|ormqr|sytrd|larft|larfb|laswp|lacpy|lascl|gesvdb?j|syevb?j|svd)"
    r"(?=_|Batch)"
)


def cub(name: Spelled) -> Fields | None:
    """Decodes CUB and Thrust kernels, including vendored copies."""
    function = name.function
    if "cub::" in function and "cuda_cub::" not in function:
        library, text = "cub", name.text if name.word in {"static_kernel", "_kernel_agent"} else name.word
    elif "thrust::" in function or "cuda_cub::" in function:
        library, text = "thrust", name.text
    elif re.match(_CUB_WORD, name.word):
        library, text = "cub", name.word
    else:
        return None
    return {"library": library, **looked_up(_CUB, text)}


def fft(name: Spelled) -> Fields | None:
    """Decodes cuFFT kernels."""
    own = re.match(_FFT, name.word) or re.match(_FFT_SCOPE, name.function)
    if own or re.search(r"\((?:real_complex_args_t|kernel_arguments_\w{0,12}|RealComplex_st)<", name.text):
        kinds = {"s": "f32", "d": "f64", "h": "f16"}
        short = kinds[name.function[0]] if re.match(r"[sdh]p[RV]", name.function) else None
        given = (type_of(name.arg(at)) for at in range(len(name.args)))
        short = short or next((kind for kind in given if kind in kinds.values()), None)
        return {"family": "fft", "operation": "fft", "library": "cufft", "accumulator_type": short}
    return None


def sparse(name: Spelled) -> Fields | None:
    """Decodes cuSPARSE and cuSOLVER kernels, and MAGMA GEMMs."""
    if "cusparse" in name.function:
        product = re.search(r"(spmm|spmv|csrmm|csrmv|spgemm|sddmm)", name.function.lower())
        fields: Fields = {"library": "cusparse", "operation": product[1] if product else None}
        return fields | ({"family": "gemm"} if product else {})
    if found := re.match(_LAPACK, name.word):
        return {"family": "linalg", "operation": found[1], "library": "cusolver"}
    if name.word.startswith(("magma", "magmablas")):
        is_gemm = "gemm" in name.word
        return {"library": "magma", "family": "gemm" if is_gemm else "other", "operation": "gemm" if is_gemm else None}
    return None


#: By function name: family, operation. Source: the names of FBGEMM's kernels and of its code generator.
_FBGEMM: Final = patterns(r"""
embedding embedding_bag: ^(?:split|dense|ssd|batch_index_select|gen)_embedding\w*(?:_codegen_\w+)
index indices: ^(?:bounds_check_indices|linearize_(?:cache_)?index|linearize_cache_indices)
embedding cache: ^lxu_cache_ ^lru_cache_ ^lfu_cache_ ^direct_mapped_
copy permute: ^permute_(?:pooled_embs|multi_embs)
index sparse: ^(?:permute_\w+|_?block_bucketize_\w+|_?expand_into_jagged_\w+|invert_permute|segment_sum_csr)
copy copy: ^recat_copy_async
copy quantize: ^_?(?:compute_|get_)?(?:FP8|fp8)\w*(?:quantize|qparam|rowwise)\w*
copy quantize: ^_?\w*(?:quantized|fused\w*bit\w*rowwise)_?\w*cuda_kernel
index jagged: ^jagged_\w+ ^dense_to_jagged ^_?jagged_dense_\w+
""")
#: FBGEMM's in any namespace; others only in its own.
_FBGEMM_OWN: Final = (
    r"^(?:split|dense|ssd)_embedding\w*_codegen_|^bounds_check_indices|^linearize_(?:cache_)?ind|^lxu_cache_"
    r"|^permute_pooled_embs|^recat_copy_async"
)


def fbgemm(name: Spelled) -> Fields | None:
    """Decodes FBGEMM kernels: ``split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1``."""
    if not name.function.startswith("fbgemm_gpu::") and not re.match(_FBGEMM_OWN, name.word):
        return None
    fields: Fields = {"library": "fbgemm", **looked_up(_FBGEMM, name.word)}
    if way := re.search(r"(?:^|_)(forward|backward)(?=_|$)", name.word):
        fields["direction"] = way[1]
    return fields


# Kernels that array libraries generate and call after their operations: XLA's (JAX, TensorFlow) and CuPy's.
#
# XLA wraps an operation or fuses several: ``wrapped_tanh``, ``loop_add_fusion_3``, ``input_reduce_fusion``; matrix
# products are ``gemm_fusion_dot_general_1``. CuPy adds the types: ``cupy_add__float64_float64``.

#: XLA: what a loop computes, or what a reduction, a scatter or the like reads; or the one operation that is wrapped.
_FUSION: Final = r"(?:loop|input)(?:_(\w+?))?_fusion(?:_\d{1,9})*"
_WRAPPED: Final = r"wrapped_(\w+?)(?:_\d{1,9})*"
_PRODUCT: Final = r"(?:triton_)?gemm_fusion(?:_\w+)?"

#: XLA: kernels with which it chooses among others.
_TUNING: Final = r"RedzoneAllocatorKernelImpl|RepeatBufferKernelImpl|DelayKernel|xla_fp_comparison"

#: CuPy: an operation, and types of its arguments where it is one for each element.
_CUPY: Final = r"cupy_([a-z0-9_]+?)(__\w+)?"

#: Families of XLA's operations (https://openxla.org/xla/operation_semantics) by name.
_XLA_FAMILIES: Final = by_name("""
reduce: reduce reduce_window argmax argmin
copy: copy transpose concatenate slice pad reverse broadcast bitcast dynamic_slice dynamic_update_slice
index: gather scatter
fill: iota constant
random: rng rng_bit_generator threefry2x32
sort: sort
scan: cumsum
elementwise: abs add and atan2 cbrt ceil clamp compare complex convert cosine divide erf exponential
elementwise: exponential_minus_one expm1 floor imag is_finite log log_plus_one logistic maximum minimum multiply
elementwise: negate not or popcnt power real remainder round_nearest_afz round_nearest_even rsqrt select shift_left
elementwise: shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor
""")

#: Families of CuPy's operations by name.
_CUPY_FAMILIES: Final = by_name("""
reduce: sum prod mean amax amin max min argmax argmin any all var std nansum nanprod nanmean nanmax nanmin nanargmax
reduce: nanargmin nanvar nanstd count_nonzero
copy: copy
index: take scatter_update scatter_add scatter_max scatter_min getitem_mask putmask choose boolean_array_indexing_nth
random: random_x_mod_1 random_interval
fill: fill arange linspace eye tri
""")


def xla(name: Spelled) -> Fields | None:
    """Decodes XLA's kernels."""
    word = name.word
    if re.fullmatch(_PRODUCT, word):
        return {"library": "xla", "family": "gemm", "operation": "gemm"}
    if re.fullmatch(_TUNING, word):
        return {"library": "xla", "family": OTHER, "operation": "autotuning"}
    if (fusion := re.fullmatch(_FUSION, word)) is not None:
        return {"library": "xla", "family": _XLA_FAMILIES.get(fusion[1], "elementwise"), "operation": fusion[1]}
    wrapped = re.fullmatch(_WRAPPED, word)
    if wrapped is None or wrapped[1] not in _XLA_FAMILIES:
        return None
    return {"library": "xla", "family": _XLA_FAMILIES[wrapped[1]], "operation": wrapped[1]}


def cupy(name: Spelled) -> Fields | None:
    """Decodes CuPy's own kernels."""
    found = re.fullmatch(_CUPY, name.word)
    if found is None:
        return None
    usual = "elementwise" if found[2] else OTHER
    return {"library": "cupy", "family": _CUPY_FAMILIES.get(found[1], usual), "operation": found[1]}


#: Decoders that others of :mod:`kanalyze.decoder.decode` stand between.
AMD: Final = (miopen, ck, of_aiter, rocprim, runtime)
IMAGES: Final = (cudnn,)
PRIMITIVES: Final = (cub, fft, sparse, fbgemm)
ARRAYS: Final = (xla, cupy)
