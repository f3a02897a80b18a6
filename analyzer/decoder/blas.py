"""GEMM kernels of cuBLAS, CUTLASS and others whose names are C++ templates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder.elements import type_of, types_of

if TYPE_CHECKING:
    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

_C3: Final = r"cute::tuple<cute::C<(\d{1,6})>, cute::C<(\d{1,6})>, cute::C<(\d{1,6})>\s?>"
_MAINLOOP: Final = rf"MainloopSm(\d{{1,6}})\w{{0,60}}<(\d{{1,6}}), {_C3}"
_FACTOR: Final = "TF32|BF16|F16|E4M3|E5M2|S8|U8|F64"
_ATOM: Final = (
    rf"\bSM(\d{{1,6}})(?:::GMMA::MMA)?_(\d{{1,6}}x\d{{1,6}}x\d{{1,6}})_(F32|F16|S32|F64)({_FACTOR})({_FACTOR})"
)
_DIRECTIONS: Final = {"fprop": "forward", "dgrad": "backward", "wgrad": "backward"}
_GEMM_SHAPE: Final = r"GemmShape<(\d{1,6}), (\d{1,6}), (\d{1,6})>"

#: cuBLAS kernels by name prefix: operation, and index of the types of A, B, C and the accumulator.
_CUBLAS: Final = (
    ("gemv2T_kernel", "gemv", 2),
    ("gemv2N_kernel", "gemv", 2),
    ("gemvNSP_kernel", "gemv", 0),
    ("gemmSN_", "gemm", 0),
    ("gemmk1_kernel", "gemm", 1),
)
_OLD_GEMM: Final = r"(?:gemm_kernel2x2|([sdcz])gemm_(?:largek|32x32x32|sm\d\d|kernel))"
_WITH_CUBLAS: Final = {
    "dot_kernel": ("reduce", "dot"),
    "reduce_1Block_kernel": ("reduce", "dot"),
    "scal_kernel": ("elementwise", "scal"),
    "scal_kernel_val": ("elementwise", "scal"),
    "axpy_kernel_val": ("elementwise", "axpy"),
    "copy_kernel": ("copy", "copy"),
    "swap_kernel": ("copy", "swap"),
    "asum_kernel": ("reduce", "asum"),
    "nrm2_kernel": ("reduce", "nrm2"),
    "iamax_kernel": ("reduce", "iamax"),
    "iamin_kernel": ("reduce", "iamin"),
    "transpose_readWrite_alignment_kernel": ("copy", "transpose"),
}

#: Quantised and grouped GEMM kernels by function name: library.
_OTHERS: Final = {
    "marlin::Marlin": "marlin",
    "marlin_moe_wna16::Marlin": "marlin",
    "gptq_marlin::Marlin": "marlin",
    "gptq_marlin_24::Marlin_24": "marlin",
    "marlin_24::Marlin_24": "marlin",
    "marlin_dense::Marlin": "marlin",
    "machete::device_kernel": "machete",
    "exllama::gemm_half_q_half_kernel": "exllama",
    "vllm::gptq::gemm_half_q_half_gptq_4bit_kernel": "vllm",
    "tinygemm_m16n8k16_chunk_kernel": "aten",
    "kgemm_4bit_inference_naive": "bitsandbytes",
    "kgemm_4bit_inference": "bitsandbytes",
    "fused_moe_kernel": None,
    "fused_moe_kernel_gptq_awq": None,
}


def cublas(name: Spelled) -> Fields | None:
    """Decodes cuBLAS kernels that are C++ templates, and the few others without an architecture in the name."""
    if name.function.endswith("gemvx::kernel"):
        return _cublas_gemm(name, "gemv", 2)
    for start, operation, at in _CUBLAS:
        if name.word.startswith(start):
            return _cublas_gemm(name, operation, at)
    if name.word in _WITH_CUBLAS and "cublas" in name.text:
        family, operation = _WITH_CUBLAS[name.word]
        short = type_of(name.arg(0))
        return {"family": family, "operation": operation, "library": "cublas", "input_types": (short,) if short else ()}
    return _old_blas(name.word) or _cublas_lt(name)


def _old_blas(word: str) -> Fields | None:
    """Decodes old cuBLAS names: ``sgemm_largek_lds64``, ``gemm_kernel2x2_core``, ``trsm_left_kernel``."""
    found = re.match(_OLD_GEMM, word) if "gemm_" in word else None
    if found:
        short = {"s": "f32", "d": "f64", "c": "c64", "z": "c128"}.get(found[1] or "")
        types = {"input_types": (short, short), "output_type": short} if short else {}
        return {"family": "gemm", "operation": "gemm", "library": "cublas", **types}
    if found := re.match(r"(?:kernel_)?(trsm|trmm|trsv)_", word):
        return {"family": "linalg", "operation": found[1], "library": "cublas"}
    return None


def _cublas_lt(name: Spelled) -> Fields | None:
    """Decodes what cuBLASLt runs after a GEMM: split-K reductions and epilogues."""
    if name.word == "splitKreduce_kernel":
        return {"family": "gemm", "operation": "split_k_reduce", "library": "cublas", "split_k": True}
    if not name.function.startswith(("cublasLt::", "epilogue::impl::")):
        return None
    return {"library": "cublas"} | (
        {"family": "gemm", "operation": "epilogue"} if re.search(r"(?:^|::)epilogue::", name.function) else {}
    )


def _cublas_gemm(name: Spelled, operation: str, at: int) -> Fields:
    """Decodes the types A, B, C and accumulator; in small GEMMs one type stands for A, B and C."""
    fields: Fields = {"family": "gemm", "operation": operation, "library": "cublas"}
    types = types_of(name.args[at : at + 4]) if not name.mangled else ()
    if len(types) == len(("A", "B", "C", "sum")):
        a, b, c, accumulator = types
        fields |= {"input_types": (a, b), "output_type": c, "accumulator_type": accumulator}
    elif only := type_of(name.arg(at)):
        fields |= {"input_types": (only, only)}
    if layout := re.search(r"_([NT]{2})_kernel", name.word):
        fields["layout"] = layout[1].lower()
    return fields


def cutlass(name: Spelled) -> Fields | None:
    """Decodes CUTLASS kernels: ``cutlass::device_kernel<…GemmUniversal…>``, ``cutlass::Kernel<…>`` and similar."""
    if not name.function.startswith("cutlass") or "flash::" in name.text or "Attention" in name.text:
        return None
    text, library = name.text, "cudnn" if "cudnn" in name.function else "cutlass"
    if "ReduceSplitK" in text:
        family = "gemm" if library == "cutlass" else "reduce"
        return {"family": family, "operation": "split_k_reduce", "library": library, "split_k": True}
    if "ImplicitGemm" in text:
        way = re.search(r"Conv[23]d(Fprop|Dgrad|Wgrad)", text)
        operation = way[1].lower() if way else "conv"
        work: Fields = {"family": "conv", "operation": operation, "direction": _DIRECTIONS.get(operation)}
    elif "Gemm" in text:
        work = {"family": "gemm", "operation": "grouped_gemm" if "Group" in text else "gemm"}
    else:
        return {"library": library}
    return {**work, "library": library, **_cutlass3(text), **_cutlass2(text)}


def _cutlass3(text: str) -> Fields:
    """Decodes CUTLASS 3: arch, stages and cluster of the main loop; tile and type after it; instruction."""
    fields: Fields = {}
    if found := re.search(_MAINLOOP, text):
        fields |= {"arch": f"sm{found[1]}", "stages": int(found[2]), "cluster": tuple(map(int, found.groups()[2:]))}
        if tile := re.compile(rf"{_C3}, ([\w:]+)").search(text, found.end()):
            fields["tile"] = tuple(map(int, tile.groups()[:3]))
            if a := type_of(tile[4]):
                fields["input_types"] = (a, a)
    if atom := re.search(_ATOM, text):
        accumulator, a, b = (type_of(short) for short in atom.groups()[2:])
        fields |= {
            "arch": fields.get("arch", f"sm{atom[1]}"),
            "instruction": tuple(map(int, atom[2].split("x"))),
            "accumulator_type": accumulator,
            "input_types": (a, b),
            "tensor_core": True,
        }
    elif re.search(r"\bSM1\d\d_MMA_", text):
        fields["tensor_core"] = True
    return fields


def _cutlass2(text: str) -> Fields:
    """Decodes CUTLASS 2: the first shape is the thread block's tile, the last one the instruction's."""
    shapes = [tuple(map(int, found)) for found in re.findall(_GEMM_SHAPE, text)]
    fields: Fields = {"tile": shapes[0]} if shapes else {}
    if arch := re.search(r"cutlass::arch::Sm(\d{1,6})", text):
        fields["arch"] = f"sm{arch[1]}"
    if unit := re.search(r"OpClass(\w*TensorOp|Simt)", text):
        fields["tensor_core"] = unit[1] != "Simt"
    return fields


def quantised(name: Spelled) -> Fields | None:
    """Decodes quantised GEMMs: Marlin, AWQ, DeepGEMM, Machete, bitsandbytes, Triton's MoE kernel."""
    function = name.function
    known = next((key for key in (function, name.word) if key in _OTHERS), None)
    if known:
        fields: Fields = {"family": "gemm", "operation": "gemm", "library": _OTHERS[known]}
        if "moe" in known:
            fields["operation"] = "grouped_gemm"
        if "arlin" in known or "m16n8k16" in known:
            fields |= {"tensor_core": True, "instruction": (16, 8, 16)}
        return fields
    if name.word.startswith("gemm_forward_4bit_cuda_m"):
        tile = tuple(int(size) for size in re.findall(r"[mnk](\d{1,6})(?![0-9])", name.word)[-3:])
        return {"family": "gemm", "operation": "gemm", "library": "awq", "tile": tile}
    if function.startswith("deep_gemm::"):
        arch = re.match(r"(sm\d{1,6})_", name.word)
        is_gemm = "gemm" in name.word
        return {
            "family": "gemm" if is_gemm else "other",
            "operation": "gemm" if is_gemm else None,
            "library": "deep_gemm",
            "arch": arch[1] if arch else None,
        }
    return None


DECODERS: Final = (cublas, cutlass, quantised)
