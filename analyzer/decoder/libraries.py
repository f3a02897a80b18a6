"""Kernels of vendors' libraries: cuDNN, CUB, Thrust, cuFFT, cuSPARSE, cuSOLVER, FBGEMM, AMD's, XLA and CuPy.

Sources: the names of these libraries' kernels in their public code and in public traces. Matrix products are in
:mod:`kanalyze.decoder.products`, collectives in :mod:`kanalyze.decoder.communication`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kanalyze.decoder.fields import OTHER, WAY, by_name, by_table, direction, in_groups, looked_up
from kanalyze.decoder.spelling import snake, type_of

if TYPE_CHECKING:
    from kanalyze.decoder.fields import Fields
    from kanalyze.decoder.spelling import Spelled


#: Families whose kernels go forward or backward.
_DIRECTED: Final = ("attention", "normalization")


def miopen(name: Spelled) -> Fields | None:
    """Decodes MIOpen kernels: ``igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x256x32_…``, ``MIOpenBatchNormBwdSpatial``."""
    alone = name.function == name.word or name.function.startswith("miopen")
    fields = looked_up("miopen", name.word) if alone else {}
    if not fields:
        return None
    way = looked_up("convolutions", name.word) if fields["family"] == "conv" else {"direction": direction(name.word)}
    return {"library": "miopen", **fields, **way, "input_types": fields.get("input_types", ()) * 2}


def ck(name: Spelled) -> Fields | None:
    """Decodes CK kernels: ``ck::tensor_operation::device::kernel_grouped_conv_fwd_…``, ``ck_tile::kentry<…>``."""
    found = re.match(r"(ck(?:_tile)?)::", name.function)
    if not found:
        return None
    library = found[1]
    word = name.word if library == "ck" and name.word.startswith("kernel_") else ""
    fields = looked_up("ck", word) or looked_up("ck", name.text)
    if fields.get("family") == "conv":
        fields |= looked_up("convolutions", name.text)
    elif fields.get("family") in _DIRECTED:
        fields["direction"] = direction(name.text)
    return {"library": library, **fields}


def of_aiter(name: Spelled) -> Fields | None:
    """Decodes AITER kernels: ``aiter::add_rmsnorm_quant_kernel<…>``, and its assembly kernels of one word."""
    function = name.function
    if not re.match(r"aiter(?:::|_)|opus_moe::|kn_mla_|ck_moe_stage\d|mfma_moe\d", function):
        return None
    fields: Fields = {}
    if "metadata" not in function:
        scopes = function.split("::")
        fields = looked_up("aiter", snake(scopes[-1])) or looked_up("aiter", snake("_".join(scopes[1:])))
    if fields.get("family") in _DIRECTED:
        fields["direction"] = direction(name.word)
    return {"library": "aiter", **fields}


def rocprim(name: Spelled) -> Fields | None:
    """Decodes rocPRIM (hipCUB, rocThrust) kernels: ``rocprim::…::trampoline_kernel<…wrapped_scan_config…>``."""
    if not name.function.startswith(("rocprim::", "hipcub::")):
        return None
    return {"library": "rocprim", **looked_up("rocprim", name.text)}


#: Functions of cuDNN in any namespace.
_CUDNN_OWN: Final = (
    r"implicit_convolve_[sdh]gemm$|wgrad_alg\d|dgrad\d?d?_alg\d|bn_(?:fw|bw)_\w*1C11|fft2d_[rc]2[rc]_"
    r"|elemWiseRNNcell$|RNN_blockPersist|persistRNN_|conv2d_grouped_direct|(?:LSTM|GRU|GENERIC)_elementWise_"
    r"|scalePackedTensor_kernel|flip_filter$|im2col4d_kernel$"
    r"|[dw]grad_engine$|nchwToNhwcKernel$|nhwcToNchwKernel$|dgrad2d|wgrad2d|[dw]grad_alg0_engine$"
)

#: What names of generated kernels tell, each in a part of its own.
_GENERATED: Final = (
    r"_(?P<arch>sm\d{1,6}[a-z]?)_",
    r"_(?P<tile>\d{1,6}x\d{1,6}x\d{1,6})_",
    r"_(?P<warps>\d{1,6}x\d{1,6}x\d{1,6})_kernel",
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
    fields: Fields = {"library": "cudnn", **looked_up("cudnn", name.word)}
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
    for pattern in _GENERATED:
        fields |= in_groups(re.search(pattern, text))
    if "_sdpa_" in text:
        fields |= {"family": "attention", "operation": "attention"}
    if way := re.search(r"_([fb])prop_", text):
        fields["direction"] = "forward" if way[1] == "f" else "backward"
    if re.search(r"_w?g?mma_|_umma_|_wmma_", text):
        fields["tensor_core"] = True
    return fields


_CUB_WORD: Final = (
    r"Device(?:Reduce(?:SingleTile)?|Scan(?:Init)?|ScanByKey(?:Init)?|RadixSort\w{2,30}|Select(?:Sweep)|CompactInit"
    r"|SegmentedReduce|SegmentedRadixSort|ReduceByKey|MergeSort\w{2,30}|Histogram\w{2,30}|UniqueByKey\w{2,30})Kernel$"
)
_FFT: Final = (
    r"^(?:[sdh]p(?:Radix|Vector|Real)\w*|(?:regular|vector|real|(?:multi|regular)_bluestein|bluestein|composite\w*|strided)_fft\w*"
    r"|fft_\d\w*|postprocess_(?:C2C|C2R|R2C)\w*|preprocess_(?:C2R|R2C)\w*|pre_\w*_fft\w*|dpRadix\w*)$"
)
_FFT_SCOPE: Final = r"^(?:[sdh]p(?:Radix|Vector|Real)\w*|cufft\w*)::"


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
    return {"library": library, **looked_up("cub", text)}


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
        return {"library": "cusparse", **looked_up("sparse products", name.function.lower())}
    return looked_up("solvers", name.word) or None


#: FBGEMM's in any namespace; others only in its own.
_FBGEMM_OWN: Final = (
    r"^(?:split|dense|ssd)_embedding\w*_codegen_|^bounds_check_indices|^linearize_(?:cache_)?ind|^lxu_cache_"
    r"|^permute_pooled_embs|^recat_copy_async"
)


def fbgemm(name: Spelled) -> Fields | None:
    """Decodes FBGEMM kernels: ``split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1``."""
    if not name.function.startswith("fbgemm_gpu::") and not re.match(_FBGEMM_OWN, name.word):
        return None
    return {"library": "fbgemm", **looked_up("fbgemm", name.word), **in_groups(re.search(WAY, name.word))}


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


def xla(name: Spelled) -> Fields | None:
    """Decodes XLA's kernels."""
    word = name.word
    if re.fullmatch(_PRODUCT, word):
        return {"library": "xla", "family": "gemm", "operation": "gemm"}
    if re.fullmatch(_TUNING, word):
        return {"library": "xla", "family": OTHER, "operation": "autotuning"}
    if (fusion := re.fullmatch(_FUSION, word)) is not None:
        return {"library": "xla", "family": by_name("xla").get(fusion[1], "elementwise"), "operation": fusion[1]}
    wrapped = re.fullmatch(_WRAPPED, word)
    if wrapped is None or wrapped[1] not in by_name("xla"):
        return None
    return {"library": "xla", "family": by_name("xla")[wrapped[1]], "operation": wrapped[1]}


def cupy(name: Spelled) -> Fields | None:
    """Decodes CuPy's own kernels."""
    found = re.fullmatch(_CUPY, name.word)
    if found is None:
        return None
    usual = "elementwise" if found[2] else OTHER
    return {"library": "cupy", "family": by_name("cupy").get(found[1], usual), "operation": found[1]}


#: Decoders that others of :mod:`kanalyze.decoder.decode` stand between.
AMD: Final = (miopen, ck, of_aiter, rocprim, by_table("hip runtime", "text"))
IMAGES: Final = (cudnn,)
PRIMITIVES: Final = (cub, fft, sparse, fbgemm)
ARRAYS: Final = (xla, cupy)
