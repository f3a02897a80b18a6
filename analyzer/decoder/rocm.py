"""Kernels of AMD libraries: MIOpen, Composable Kernel (CK, ck_tile), AITER, rocPRIM, HIP runtime.

Sources: the names of these libraries' kernels in their public code and in public traces of MI210 to MI355X. rocBLAS'
and hipBLASLt's (Cijk_…) are among the matrix products, RCCL's among the collectives.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder.elements import type_of
from kanalyze.decoder.functors import snake

if TYPE_CHECKING:
    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

_TYPES: Final = "fp32|fp16|bf16|int8|half"

#: MIOpen's assembly convolutions: direction, architecture generation, layout, type, tile.
_IGEMM: Final = (
    rf"^igemm_(fwd|bwd|bwd_data|wrw|upd)_gtc[a-z]*\d?_(n[a-z]{{3,4}})_({_TYPES})_"
    r"\w*?bt(\d{1,6})x(\d{1,6})x(\d{1,6})"
)
_WAYS: Final = {"fwd": ("fprop", "forward"), "bwd": ("dgrad", "backward"), "bwd_data": ("dgrad", "backward")}
_WGRAD: Final = ("wgrad", "backward")

#: MIOpen's other kernels by prefix: family, operation.
_MIOPEN: Final = (
    (r"MIOpenBatchNorm|(?i:miopenBatchNorm)", "normalization", "batch_norm"),
    (r"MIOpen(?:Layer|Group)Norm|Layernorm(?:Fwd|Bwd)|LayerNorm(?:Fwd|Bwd)", "normalization", "layer_norm"),
    (r"MIOpenSoftmax|SoftmaxForward|SoftmaxBackward", "softmax", "softmax"),
    (r"(?:mlo)?Pooling[A-Z]|MIOpenPooling", "pooling", "pooling"),
    (r"MIOpenNeuron|MIOpenActi(?:v|ve)|Op[1-5]dTensor|OpTensor|MIOpenConvBiasActiv", "elementwise", None),
    (r"batched_transpose_\d|transpose_[NC]\w*2[NC]\w*", "copy", "layout"),
    (r"SubTensorOpWith(?:CastTensor|TransferTensor)\dd|CastTensor", "copy", "cast"),
    (r"SubTensorOpWith(?:Scalar|SubTensor)\dd|ScaleTensor", "elementwise", None),
    (r"Im[23]d2Col|Col2Im[23]d", "conv", "conv"),
    (
        r"(?i:miopenSp3AsmConv|miopenGcnAsm(?:Conv|Winograd)|miopenConv|MIOpenConv|mlopen_?conv|gcnAsmConv)",
        "conv",
        "conv",
    ),
    (r"naive_conv_\w+", "conv", "conv"),
)
_CONV_WAYS: Final = (
    (r"wrw|bwd_weight|BwdWrW|BwdWeight|WrW", ("wgrad", "backward")),
    (r"bwd|Bwd|BwdData", ("dgrad", "backward")),
    (r"fwd|Fwd|Forward", ("fprop", "forward")),
)

#: CK and ck_tile by word anywhere in the name, since all kernels are templates of one function; first match wins.
_CK: Final = (
    (
        r"[Gg]rouped_?[Cc]onv|[Cc]onv(?:olution)?_?(?:[Ff]wd|[Bb]wd|[A-Z]\w*Kernel)|bwd_weight|bwd_data|contraction_conv",
        "conv",
        "conv",
    ),
    (r"[Ff]mha|FlashAttn|flash_attn|[Aa]ttention|Unified_?Attn", "attention", "attention"),
    (r"MoeSorting|moe_sorting", "index", "moe"),
    (r"[Rr]ms_?norm|Rmsnorm2d", "normalization", "rms_norm"),
    (r"[Ll]ayer_?norm|Layernorm2d", "normalization", "layer_norm"),
    (r"[Gg]roup_?norm|[Bb]atch_?norm|[Nn]ormalization", "normalization", None),
    (r"[Tt]op[kK]_?[Ss]oftmax|[Tt]op[kK]", "sort", "topk"),
    (r"[Ss]moothquant|MoeSmoothquant|[Qq]uant(?:ize)?(?![A-Za-z]*[Gg]emm)", "copy", "quantize"),
    (r"[Ff]lat_?mm|[Gg]emm|GEMM|[Mm]oe_?(?:Flatmm|gemm)|[Cc]ontraction", "gemm", "gemm"),
    (r"[Ss]oftmax", "softmax", "softmax"),
    (r"[Rr]educe", "reduce", None),
    (r"[Ii]mage_?to_?[Cc]olumn|[Pp]ermute|[Tt]ranspose", "copy", None),
    (r"[Ee]lementwise", "elementwise", None),
)
#: AITER kernels by substring of the function name in snake case.
_AITER: Final = (
    (r"^mfma_moe\d", "gemm", "moe"),
    (r"(?:^|_)(?:rms_?norm|rmsnorm\w*)", "normalization", "rms_norm"),
    (r"layer_?norm", "normalization", "layer_norm"),
    (r"group_?norm", "normalization", "group_norm"),
    (r"moe_sort|moe_align|mx_quant_moe|sort_quant|moe_sorting", "index", "moe"),
    (r"topk|grouped_topk|moe_fused_gate|radix", "sort", "topk"),
    (r"(?:^|_)(?:fmoe|f?moe_stage|moe_ck|ck_moe|fused_moe|moe_gemm|mxfp4_moe|opus_moe)", "gemm", "moe"),
    (r"(?:^|_)fmha|paged_?attention|(?:^|_)pa_|(?:^|_)mla_|attn|attention|(?:^|_)mha", "attention", "attention"),
    (r"gemm|flatmm|wv_?split_?k|ll_?gemm|mm_(?:tn|nt)", "gemm", "gemm"),
    (r"rope|rotary|mrope", "elementwise", "rotary_embedding"),
    (
        r"act_and_mul|silu|gelu|swiglu|activation|(?:^|_)(?:binary|unary)_operator|elementwise|add_kernel",
        "elementwise",
        None,
    ),
    (r"reshape_and_cache|kv_?cache|concat_and_cache", "copy", "cache"),
    (r"quant|(?:^|_)cast(?:_|$)", "copy", "quantize"),
    (r"transpose|permute|shuffle|(?:^|_)copy", "copy", None),
    (r"moe_sum|moe_permute|gather|scatter|index", "index", None),
    (r"sampl", "random", "sampling"),
    (r"softmax", "softmax", "softmax"),
    (r"causal_conv1d", "conv", "fprop"),
    (r"(?:^|_)reduce", "reduce", None),
)
#: Operations of rocPRIM and hipCUB by template argument, since all kernels are one function.
_PRIM: Final = (
    (r"radix_sort|merge_sort|block_sort|segmented_sort|onesweep", "sort", "sort"),
    (r"histogram", "reduce", "histogram"),
    (r"reduce_by_key", "reduce", "reduce_by_key"),
    (r"scan|lookback", "scan", "scan"),
    (r"partition|select|unique", "index", "select"),
    (r"reduce", "reduce", "reduce"),
    (r"transform|for_each", "elementwise", "transform"),
)
_DIRECTION: Final = (("backward", r"[Bb]wd|[Bb]ackward"), ("forward", r"[Ff]wd|[Ff]orward"))


def _by_part(table: tuple[tuple[str, str, str | None], ...], text: str) -> Fields:
    """Family and operation of the first pattern found in `text`; empty if none is."""
    found = next((row for row in table if re.search(row[0], text)), None)
    return {} if found is None else {"family": found[1], "operation": found[2]}


def _direction(text: str) -> str | None:
    return next((way for way, pattern in _DIRECTION if re.search(pattern, text)), None)


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
    found_family = next((row for row in _MIOPEN if re.match(row[0], name.word)), None)
    if found_family is None:
        return None
    _, family, what = found_family
    if family == "conv":
        known = next((told for pattern, told in _CONV_WAYS if re.search(pattern, name.word)), ("conv", None))
        return {"library": "miopen", "family": family, "operation": known[0], "direction": known[1]}
    return {"library": "miopen", "family": family, "operation": what, "direction": _direction(name.word)}


def ck(name: Spelled) -> Fields | None:
    """Decodes CK kernels: ``ck::tensor_operation::device::kernel_grouped_conv_fwd_…``, ``ck_tile::kentry<…>``."""
    if not re.match(r"ck(?:_tile)?::", name.function):
        return None
    library = "ck_tile" if name.function.startswith("ck_tile") else "ck"
    word = name.word if library == "ck" and name.word.startswith("kernel_") else ""
    fields = (_by_part(_CK, word) if word else {}) or _by_part(_CK, name.text)
    if fields.get("family") == "conv":
        known = next((told for pattern, told in _CONV_WAYS if re.search(pattern, name.text)), ("conv", None))
        fields |= {"operation": known[0], "direction": known[1]}
    elif fields.get("family") in {"attention", "normalization"}:
        fields["direction"] = _direction(name.text)
    return {"library": library, **fields}


def of_aiter(name: Spelled) -> Fields | None:
    """Decodes AITER kernels: ``aiter::add_rmsnorm_quant_kernel<…>``, and its assembly kernels of one word."""
    function = name.function
    if not re.match(r"aiter(?:::|_)|opus_moe::|kn_mla_|ck_moe_stage\d|mfma_moe\d", function):
        return None
    scopes = re.split(r"::", function)
    fields = _by_part(_AITER, snake(scopes[-1])) or _by_part(_AITER, snake("_".join(scopes[1:])))
    if "metadata" in function:
        fields = {}
    if fields.get("family") in {"attention", "normalization"}:
        fields["direction"] = _direction(name.word)
    return {"library": "aiter", **fields}


def rocprim(name: Spelled) -> Fields | None:
    """Decodes rocPRIM (hipCUB, rocThrust) kernels: ``rocprim::…::trampoline_kernel<…wrapped_scan_config…>``."""
    if not re.match(r"(?:rocprim|hipcub)::", name.function):
        return None
    return {"library": "rocprim", **_by_part(_PRIM, name.text)}


def runtime(name: Spelled) -> Fields | None:
    """Decodes HIP runtime kernels for copies and memsets: ``__amd_rocclr_copyBuffer``."""
    found = re.match(r"__amd_rocclr_(copy|fill|batchMemOp|stream)?", name.text)
    if not found:
        return None
    family = {"copy": "copy", "fill": "fill"}.get(found[1] or "")
    return {"library": "hip"} | ({"family": family, "operation": family} if family else {})


DECODERS: Final = (miopen, ck, of_aiter, rocprim, runtime)
