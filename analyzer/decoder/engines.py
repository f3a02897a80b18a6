"""Kernels of engines and of libraries around a framework: vLLM, SGLang, TensorRT-LLM, Transformer Engine, Apex, Mamba.

A name is looked up by library, then as a single known term such as matmul_kernel, then by the words in it, unless
another word says that the kernel only prepares, checks or counts what the first one names. Sources: public code and
traces of these engines, and of Liger, bitsandbytes, DeepGEMM, FLA and Triton's own kernels.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kanalyze.decoder.fields import by_name, by_table, direction, exact, headed, in_groups, looked_up
from kanalyze.decoder.spelling import TENSOR_TYPES, snake, type_of

if TYPE_CHECKING:
    from kanalyze.decoder.fields import Fields
    from kanalyze.decoder.spelling import Spelled

_PLAIN: Final = {
    *("kernel", "cuda", "triton", "gpu", "device", "impl", "naive", "tiled", "fused", "persistent", "vectorized"),
    *("fwd", "bwd", "forward", "backward", "batched", "tma", "v1", "v2", "v3", "fp16", "fp32", "bf16", "f32"),
}
_LONGEST_TERM: Final = 64


def engine(name: Spelled) -> Fields | None:
    """Decodes a kernel of a known engine, by namespace or by its function name."""
    scope = re.match(r"\w+(?=::)", name.function)
    library = by_name("libraries by namespace").get(scope[0]) if scope else None
    known = exact("functions of engines").get(name.word)
    if library is None and known is None:
        return None
    way = direction(name.word.lower())
    if known:
        return {**headed(known), **({"library": library} if library else {}), "direction": way}
    found = looked_up("parts of names in engines", snake(name.word))
    short = type_of(name.arg(0)) if found else None
    types = (short,) if short in {"f32", "f16", "bf16", "f64"} else ()
    return {"library": library, "direction": way, "input_types": types, **found}


def term(name: Spelled) -> Fields | None:
    """Decodes a name that consists of one known term and filler words, such as matmul_kernel; no library."""
    if not name.word or len(name.word) > _LONGEST_TERM:
        return None
    words = [word for word in re.split(r"_+", snake(name.word)) if word]
    known = exact("terms").get("_".join(word for word in words if word not in _PLAIN))
    return {**headed(known), "direction": direction(name.word)} if known else None


_TRTLLM_TYPE: Final = r"(?:Mx)?(?:Bfloat16|Fp16|Fp32|E4m3|E2m1|E5m2|Int8)"
#: ``bmm_Bfloat16_E4m3E4m3_Fp32_t128x16x128u2_s6_et64x16_m64x16x32_c1x1x1_…_sm100f``: output, A and B, accumulator,
#: tile, stages. Source: the generator of TensorRT-LLM's batched products, whose options are in the name.
_TRTLLM_GEN: Final = (
    rf"^(?:bmm|gemm(?:GatedAct)?(?:Kernel)?)_(?P<output>{_TRTLLM_TYPE})_(?P<inputs>(?:{_TRTLLM_TYPE}){{1,2}})_Fp32_"
    r"(?:\w*?_)?t(?P<tile>\d{1,6}x\d{1,6}x\d{1,6})(?:u\d{1,3})?_s(?P<stages>\d{1,3})_"
)
#: Words of kernels that only prepare or inspect what the other words name.
_ABOUT: Final = (
    r"(?:^|_)(?:metadata|meta|mask|masks|prepare|plan|init|setup|check|verify|test|ref|reference|workspace|offsets?"
    r"|pointers?|ptrs|strides?|sizes|counts?|zero|reset|clear|clean|generate|get|print|num|lengths?)(?=_|$)"
)

#: CuTe DSL kernels: module and class name joined, before ``_object_at_``.
_CUTE: Final = r"^kernel_cutlass_\w*?kernel_(?P<name>[A-Za-z0-9_]*?)(?:_object_at_|_tensor|$)"
#: Suffixes that Triton adds for a kernel's configuration.
_CONFIGURED: Final = r"_kernel_(?:block|group|num|split|cache|even|max)_\w*$"
_LONGEST_FUNCTION: Final = 200


def trtllm_gen(name: Spelled) -> Fields | None:
    """Decodes TensorRT-LLM's generated batched GEMMs: ``bmm_…_sm100f``."""
    found = re.match(_TRTLLM_GEN, name.word[:_LONGEST_FUNCTION]) if name.word.startswith(("bmm_", "gemm")) else None
    if not found:
        return None
    types = [type_of(kind.removeprefix("Mx")) for kind in re.findall(_TRTLLM_TYPE, found["inputs"])]
    return {
        "family": "gemm",
        "operation": "gemm",
        "library": "tensorrt_llm",
        "input_types": (types[0], types[-1]),
        "output_type": type_of(found["output"].removeprefix("Mx")),
        "accumulator_type": "f32",
        "tensor_core": True if {*types} & {*TENSOR_TYPES} else None,
        "fused": ("swiglu",) if "_swiGlu" in name.word else (),
        **in_groups(re.search(r"_(?P<arch>sm\d{2,3}[af]?)$", name.word)),
        **{field: value for field, value in in_groups(found).items() if field in {"tile", "stages"}},
    }


def cute(name: Spelled) -> Fields | None:
    """Decodes CuTe DSL (CUTLASS 4) kernels: ``kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttention…``."""
    found = re.match(_CUTE, name.word) if name.word.startswith("kernel_cutlass_") else None
    if not found:
        return None
    own = found["name"] or name.word
    arch = in_groups(re.search(r"(?i)sm_?(?P<arch>\d{2,3})", own))
    return {"library": "cute_dsl", **looked_up("cute dsl", own), **arch}


def words(name: Spelled) -> Fields | None:
    """Decodes functions of an engine by the words of their names."""
    function = re.sub(_CONFIGURED, "_kernel", snake(name.word)[:_LONGEST_FUNCTION])
    if "_" not in function.strip("_") or re.search(_ABOUT, function):
        return None
    fields = looked_up("words in engines", function)
    if not fields:
        return None
    short = type_of(name.arg(0)) if fields["family"] == "normalization" else None
    types = (short,) if short in {"f32", "f16", "bf16"} else ()
    return {**fields, "direction": direction(function), "input_types": types}


# Attention kernels: FlashAttention 1 to 4, memory-efficient attention, FlashInfer, TensorRT-LLM, vLLM.

_TRAITS: Final = (
    r"[Ff]lash_(?:fwd|bwd)_kernel_traits<(?P<head_dim>\d{1,6}), (?P<tile>\d{1,6}, \d{1,6}), (?P<warps>\d{1,6}),"
    r"(?: \w+,){1,8} (?P<input_types>[\w:]+_t)\b"
)
#: Sequence, head, step, warps of a row and a column.
_TRAITS1: Final = (
    r"FMHA_kernel_traits<\d{1,6}, (?P<head_dim>\d{1,6}), \d{1,6}, \d{1,6}, \d{1,6}(?:, \w+, (?P<input_types>\w+)>)?"
)
_MAINLOOP: Final = (
    r"CollectiveMainloop[FB]wd\w{0,40}<(?P<stages>\d{1,6}), "
    r"cute::tuple<(?P<cluster>cute::C<\d{1,6}>, cute::C<\d{1,6}>, cute::C<\d{1,6}>)\s?>, "
    r"cute::tuple<(?P<tile>cute::C<\d{1,6}>, cute::C<\d{1,6}>), cute::C<(?P<head_dim>\d{1,6})>\s?>, "
    r"(?:\d{1,6}, )?(?P<input_types>[\w:]+), float, cutlass::arch::Sm\d{1,6}(?:, (true|false))?"
)
_EFFICIENT: Final = (
    r"^fmha_cutlass[FB]_(?P<input_types>f16|bf16|f32)_(?:aligned|notaligned)(?:_(?P<tile>\d{1,6}x\d{1,6}))?\w*?"
    r"_sm(?P<arch>\d{1,6})(?![0-9])"
)
_FLASH1: Final = r"^fmha_(fwd|bwd|fprop|dgrad)_"
_VLLM: Final = (
    r"^(?:single_query_cached_kv_attention|paged_attention_v\d(?:_reduce)?|kernel_unified_attention_[23]d"
    r"|kernel_paged_attention_2d|masked_multihead_attention|merge_attn_states)_?(?:kernel)?$"
)
_HALVES: Final = ("f16", "bf16")


def flash(name: Spelled) -> Fields | None:
    """Decodes FlashAttention kernels, including those built into PyTorch."""
    text, word = name.text, name.word
    if "FlashAtt" in text or "flash_attncute" in text:
        return _flash3(text)
    own = word.startswith(("flash_fwd_", "flash_bwd_")) or (word.startswith("fmha_") and re.match(_FLASH1, word))
    own = own or (word == "compute_attn_ws" or name.function.startswith(("flash::", "pytorch_flash::")))
    if not own:
        return None
    fields: Fields = {"family": "attention", "operation": "attention", "library": "flash_attention"}
    fields["direction"] = _way(word)
    fields |= _for_all_inputs(re.search(_TRAITS, text) or re.search(_TRAITS1, text))
    if fields.get("warps") and fields.get("input_types"):
        fields["tensor_core"] = fields["input_types"][0] in _HALVES or None
    causal = {"flash_fwd_kernel": 2, "flash_bwd_dq_dk_dv_loop_kernel": 2, "flash_fwd_splitkv_kernel": 1}
    causal |= {"flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": 2}
    if word in causal:
        fields["causal"] = name.flag(causal[word])
    if "combine" in word:
        fields["operation"] = "combine"
    return fields


def _way(word: str) -> str | None:
    if re.search(r"_fwd|fprop|Fwd|Forward", word):
        return "forward"
    return "backward" if re.search(r"_bwd|dgrad|Bwd|Backward", word) else None


def _flash3(text: str) -> Fields:
    """Decodes FlashAttention 3: ``cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<…>>>``."""
    own = re.search(r"FlashAtt(?:n|ention)(\w+?)(?:Sm(?P<arch>\d{1,6}))?(?![A-Za-z0-9])", text)
    fields: Fields = {"family": "attention", "operation": "attention", "library": "flash_attention", **in_groups(own)}
    fields["direction"] = _way(f"_{own[1]}" if own else "")
    if own and "Combine" in own[1]:
        fields["operation"] = "combine"
    if found := re.search(_MAINLOOP, text):
        fields |= {**_for_all_inputs(found), "accumulator_type": "f32", "tensor_core": True}
        if "Fwd" in found[0] and (causal := found[found.re.groups]):
            fields["causal"] = causal == "true"
    return fields


def _for_all_inputs(found: re.Match[str] | None) -> Fields:
    """The fields in a match, with one type for Q, K and V."""
    fields = in_groups(found)
    return {**fields, "input_types": fields.get("input_types", ()) * 3}


def efficient(name: Spelled) -> Fields | None:
    """Decodes xformers' memory-efficient attention, as in PyTorch: ``fmha_cutlassF_f16_aligned_64x64_rf_sm80``."""
    fields: Fields = {"family": "attention", "operation": "attention", "library": "mem_efficient_attention"}
    found = re.search(_EFFICIENT, name.word) if name.word.startswith("fmha_cutlass") else None
    if not found:
        return fields if name.word in {"attention_kernel_batched", "attention_kernel_backward_batched"} else None
    fields |= {**_for_all_inputs(found), "direction": "forward" if found[0].startswith("fmha_cutlassF") else "backward"}
    # xformers' GEMMs: halves on tensor cores from sm70 on, f32 (as three products of tf32) from sm80 on
    fields["tensor_core"] = int(found["arch"]) >= (80 if found["input_types"] == "f32" else 70)
    return fields


def others(name: Spelled) -> Fields | None:
    """Decodes attention kernels of FlashInfer, TensorRT-LLM and vLLM."""
    word, function = name.word, name.function
    if function.startswith("flashinfer::"):
        return {"library": "flashinfer", **looked_up("flashinfer", name.word)}
    if not any(part in word for part in ("fmha", "attention", "attn")):
        return None
    fields: Fields = {"family": "attention", "operation": "attention"}
    if found := re.match(r"fmha(?:_v2|Sm(\d{1,6})\w*?Kernel)_?(?=[A-Z_]|flash)", word):
        return fields | {"library": "tensorrt_llm", "arch": f"sm{found[1]}" if found[1] else None}
    if re.match(_VLLM, word):
        library = "vllm" if function.startswith("vllm::") or word.startswith("kernel_") else None
        return fields | {"library": library, "operation": "combine" if "reduce" in word else "attention"}
    return None


#: Decoders that others of :mod:`kanalyze.decoder.decode` stand between.
ATTENTION: Final = (flash, efficient, others)
ENGINES: Final = (
    engine,
    by_table("jiterator", "text"),
    by_table("cuda driver", "text"),
    term,
    trtllm_gen,
    cute,
    by_table("namespaces", "function"),
    words,
)
