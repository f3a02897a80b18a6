"""Attention kernels: FlashAttention 1 to 4, memory-efficient attention, FlashInfer, TensorRT-LLM, vLLM."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kanalyze.decoder.fields import in_groups, looked_up

if TYPE_CHECKING:
    from kanalyze.decoder.fields import Fields
    from kanalyze.decoder.spelling import Spelled

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
    fields["direction"] = _direction(word)
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


def _direction(word: str) -> str | None:
    if re.search(r"_fwd|fprop|Fwd|Forward", word):
        return "forward"
    return "backward" if re.search(r"_bwd|dgrad|Bwd|Backward", word) else None


def _flash3(text: str) -> Fields:
    """Decodes FlashAttention 3: ``cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<…>>>``."""
    own = re.search(r"FlashAtt(?:n|ention)(\w+?)(?:Sm(?P<arch>\d{1,6}))?(?![A-Za-z0-9])", text)
    fields: Fields = {"family": "attention", "operation": "attention", "library": "flash_attention", **in_groups(own)}
    fields["direction"] = _direction(f"_{own[1]}" if own else "")
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


DECODERS: Final = (flash, efficient, others)
