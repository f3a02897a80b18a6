"""Kernels of libraries around a framework: vLLM, Transformer Engine, Apex, Liger, bitsandbytes, Mamba.

The last decoder accepts names that consist of a single known term, such as matmul_kernel: operation known, library
unknown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder.elements import type_of
from kanalyze.decoder.functors import snake

if TYPE_CHECKING:
    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

_LIBRARIES: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "transformer_engine": "transformer_engine",
    "tensorrt_llm": "tensorrt_llm",
    "layer_norm": "apex",
    "deepspeed": "deepspeed",
    "bitsandbytes": "bitsandbytes",
}
#: Function names unique to one library.
_OWN: Final = {
    "scaled_upper_triang_masked_softmax_warp_forward": ("apex", "softmax", "softmax"),
    "scaled_upper_triang_masked_softmax_warp_backward": ("apex", "softmax", "softmax"),
    "scaled_masked_softmax_warp_forward": ("apex", "softmax", "softmax"),
    "scaled_masked_softmax_warp_backward": ("apex", "softmax", "softmax"),
    "cuApplyLayerNorm": ("apex", "normalization", "layer_norm"),
    "cuApplyRMSNorm": ("apex", "normalization", "rms_norm"),
    "selective_scan_fwd_kernel": ("mamba", "scan", "selective_scan"),
    "selective_scan_bwd_kernel": ("mamba", "scan", "selective_scan"),
    "causal_conv1d_fwd_kernel": ("mamba", "conv", "fprop"),
    "causal_conv1d_bwd_kernel": ("mamba", "conv", "dgrad"),
    "causal_conv1d_update_kernel": ("mamba", "conv", "fprop"),
    "kQuantizeBlockwise": ("bitsandbytes", "copy", "quantize"),
    "kDequantizeBlockwise": ("bitsandbytes", "copy", "dequantize"),
    "liger_cross_entropy_kernel": ("liger", "loss", "cross_entropy"),
    "_swiglu_forward_kernel": ("liger", "elementwise", "swiglu"),
    "_swiglu_backward_kernel": ("liger", "elementwise", "swiglu"),
    "generatedNativePointwise": ("tensorrt", "elementwise", None),
}
#: Operations by substring of a known library's function name; first match wins.
_PARTS: Final = (
    (r"rms_?norm", "normalization", "rms_norm"),
    (r"layer_?norm|(?:^|_)ln_(?:fwd|bwd)", "normalization", "layer_norm"),
    (r"softmax", "softmax", "softmax"),
    (r"paged_attention", "attention", "attention"),
    (r"rotary|rope", "elementwise", "rotary_embedding"),
    (r"act_and_mul|activation_kernel|(?:ge|si|re)lu|gated_act", "elementwise", "activation"),
    (r"reshape_and_cache|copy_blocks|swap_blocks|concat_and_cache|gather_cache", "copy", "cache"),
    (r"cast_transpose|transpose", "copy", "transpose"),
    (r"scaled_fp8_quant|per_token\w*quant|quantize|(?:^|_)cast", "copy", "quantize"),
    (r"dequant", "copy", "dequantize"),
    (r"topk_?gating|topk", "sort", "topk"),
    (r"moe_align|permute|moe_sum", "index", "moe"),
    (r"embedding", "embedding", "embedding"),
)
#: Terms that imply a family: family, operation.
_TERMS: Final = {
    "matmul": ("gemm", "gemm"),
    "mat_mul": ("gemm", "gemm"),
    "matrix_multiply": ("gemm", "gemm"),
    "gemm": ("gemm", "gemm"),
    "sgemm": ("gemm", "gemm"),
    "hgemm": ("gemm", "gemm"),
    "dgemm": ("gemm", "gemm"),
    "bgemm": ("gemm", "gemm"),
    "gemv": ("gemm", "gemv"),
    "batched_gemm": ("gemm", "gemm"),
    "grouped_gemm": ("gemm", "grouped_gemm"),
    "softmax": ("softmax", "softmax"),
    "log_softmax": ("softmax", "log_softmax"),
    "layer_norm": ("normalization", "layer_norm"),
    "layernorm": ("normalization", "layer_norm"),
    "rms_norm": ("normalization", "rms_norm"),
    "rmsnorm": ("normalization", "rms_norm"),
    "group_norm": ("normalization", "group_norm"),
    "batch_norm": ("normalization", "batch_norm"),
    "attention": ("attention", "attention"),
    "attn": ("attention", "attention"),
    "flash_attention": ("attention", "attention"),
    "flash_attn": ("attention", "attention"),
    "conv2d": ("conv", "conv"),
    "convolution": ("conv", "conv"),
    "cross_entropy": ("loss", "cross_entropy"),
    "radix_sort": ("sort", "sort"),
    "bitonic_sort": ("sort", "sort"),
    "histogram": ("reduce", "histogram"),
}
_PLAIN: Final = {
    *("kernel", "cuda", "triton", "gpu", "device", "impl", "naive", "tiled", "fused", "persistent", "vectorized"),
    *("fwd", "bwd", "forward", "backward", "batched", "tma", "v1", "v2", "v3", "fp16", "fp32", "bf16", "f32"),
}
_LONGEST_TERM: Final = 64


def engine(name: Spelled) -> Fields | None:
    """Decodes a kernel of a known engine, by namespace or by its function name."""
    scope = re.match(r"\w+(?=::)", name.function)
    library = _LIBRARIES.get(scope[0]) if scope else None
    if known := _OWN.get(name.word):
        own, family, operation = known
        way = _direction(name.word)
        return {"library": library or own, "family": family, "operation": operation, "direction": way}
    if library is None:
        return None
    fields: Fields = {"library": library, "direction": _direction(name.word)}
    word = snake(name.word)
    for part, family, operation in _PARTS:
        if re.search(part, word):
            short = type_of(name.arg(0))
            types = (short,) if short in {"f32", "f16", "bf16", "f64"} else ()
            return fields | {"family": family, "operation": operation, "input_types": types}
    return fields


def _direction(word: str) -> str | None:
    parts = word.lower().split("_")
    if "fwd" in parts or "forward" in parts:
        return "forward"
    return "backward" if "bwd" in parts or "backward" in parts else None


def jiterator(name: Spelled) -> Fields | None:
    """Decodes elementwise kernels that PyTorch compiles at run time: ``i0e_kernel_vectorized4_kernel``."""
    found = re.fullmatch(r"(\w+?)(?:_kernel)?_(?:vectorized(\d)|unrolled)_kernel", name.text)
    if name.text == "reduction_prod_kernel":
        return {"library": "aten", "family": "reduce", "operation": "prod"}
    if not found:
        return None
    vector = int(found[2]) if found[2] else None
    return {"library": "aten", "family": "elementwise", "operation": found[1], "vector": vector}


def term(name: Spelled) -> Fields | None:
    """Decodes a name that consists of one known term and filler words, such as matmul_kernel; no library."""
    if not name.word or len(name.word) > _LONGEST_TERM:
        return None
    words = [word for word in re.split(r"_+", snake(name.word)) if word]
    telling = "_".join(word for word in words if word not in _PLAIN)
    if telling not in _TERMS:
        return None
    family, operation = _TERMS[telling]
    return {"family": family, "operation": operation, "direction": _direction("_".join(words))}


def driver(name: Spelled) -> Fields | None:
    """Decodes kernels that the CUDA driver runs for copies and memsets in graphs: ``memcpy32_post``."""
    found = re.fullmatch(r"(memcpy|memset)(?:3d)?_?\d{0,3}(?:_aligned)?(?:_post)?", name.text)
    if not found or found[0] in {"memcpy", "memset"}:
        return None
    return {"library": "cuda", "family": "copy" if found[1] == "memcpy" else "fill", "operation": found[1]}


DECODERS: Final = (engine, jiterator, driver, term)
