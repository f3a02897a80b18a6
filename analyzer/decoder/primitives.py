"""Kernels of CUB, Thrust and cuFFT, and some of cuSPARSE and cuSOLVER."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder.elements import type_of

if TYPE_CHECKING:
    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

#: By substring of a CUB kernel's or Thrust agent's name; first match wins.
_PARTS: Final = (
    (r"RadixSort|MergeSort|SegmentedSort|merge_sort", "sort", "sort"),
    (r"DeviceMerge|__merge\b|MergeAgent", "sort", "merge"),
    (r"ReduceByKey|reduce_by_key", "reduce", "reduce_by_key"),
    (r"DeviceReduce|DeviceSegmentedReduce|SegmentedReduce|ReduceAgent|__reduce\b", "reduce", "reduce"),
    (r"Histogram", "reduce", "histogram"),
    (r"ArgMin|ArgMax|__extrema", "reduce", "extrema"),
    (r"ScanByKey|scan_by_key", "scan", "scan_by_key"),
    (r"DeviceScan|ScanAgent|__scan\b", "scan", "scan"),
    (r"Select|Partition|CompactInit|Unique|__copy_if|CopyIfAgent|__unique|__partition", "index", "select"),
    (r"RunLength|Rle", "scan", "run_length_encode"),
    (r"AdjacentDifference|adjacent_difference", "elementwise", "adjacent_difference"),
    (r"BatchMemcpy|BatchedMemcpy|BatchedCopy", "copy", "copy"),
    (r"fill_functor|__uninitialized_fill|__fill\b", "fill", "fill"),
    (r"SetOpAgent|__set_operations", "sort", "set_operation"),
    (r"transform_kernel|__transform\b|unary_transform_f|binary_transform_f", "elementwise", "transform"),
    (r"for_each|ParallelFor|parallel_for", "elementwise", "for_each"),
)
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
    fields: Fields = {"library": library}
    for part, family, operation in _PARTS:
        if re.search(part, text):
            return fields | {"family": family, "operation": operation}
    return fields


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


DECODERS: Final = (cub, fft, sparse)
