"""Kernels of LLM engines without a namespace: SGLang, vLLM, TensorRT-LLM, DeepGEMM, Triton's, FLA.

A name is looked up by the words in it, unless another word says that the kernel only prepares, checks or counts what
the first one names. Sources: public code and traces of these engines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder.elements import TENSOR_TYPES, type_of
from kanalyze.decoder.functors import snake

if TYPE_CHECKING:
    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

_TRTLLM_TYPE: Final = r"(?:Mx)?(?:Bfloat16|Fp16|Fp32|E4m3|E2m1|E5m2|Int8)"
#: ``bmm_Bfloat16_E4m3E4m3_Fp32_t128x16x128u2_s6_et64x16_m64x16x32_c1x1x1_…_sm100f``: output, A and B, accumulator,
#: tile, stages. Source: the generator of TensorRT-LLM's batched products, whose options are in the name.
_TRTLLM_GEN: Final = (
    rf"^(?:bmm|gemm(?:GatedAct)?(?:Kernel)?)_(?P<output>{_TRTLLM_TYPE})_(?P<inputs>(?:{_TRTLLM_TYPE}){{1,2}})_Fp32_"
    r"(?:\w*?_)?t(?P<tile>\d{1,6}x\d{1,6}x\d{1,6})(?:u\d{1,3})?_s(?P<stages>\d{1,3})_"
)
_TRTLLM_TYPES: Final = {"Bfloat16": "bf16", "Fp16": "f16", "Fp32": "f32", "Int8": "i8"}
_DIRECTIONS: Final = (("backward", r"(?:^|_)(?:bwd|backward)(?=_|$)"), ("forward", r"(?:^|_)(?:fwd|forward)(?=_|$)"))

#: Words of kernels that only prepare or inspect what the other words name.
_ABOUT: Final = (
    r"(?:^|_)(?:metadata|meta|mask|masks|prepare|plan|init|setup|check|verify|test|ref|reference|workspace|offsets?"
    r"|pointers?|ptrs|strides?|sizes|counts?|zero|reset|clear|clean|generate|get|print|num|lengths?)(?=_|$)"
)

#: By words of the function in snake case, first match wins. Library (None: used by several), family,
#: operation.
_FUNCTIONS: Final = (
    (r"^_?p?_?matmul_ogs(?=_|$)", "triton_kernels", "gemm", "moe"),
    (r"^_finalize_(?:matmul|scatter)|^_?reduce_grouped(?=_|$)", "triton_kernels", "reduce", "moe"),
    (
        r"^_(?:topk_(?:forward|backward)|combined_routing|routing_|sum_bitmatrix|expt_data|bitmatrix)",
        "triton_kernels",
        "index",
        "moe",
    ),
    (r"^(?:aiter_)?_?(?:batched_)?fused_moe_kernel|^fused_moe_triton|^_fused_moe", None, "gemm", "moe"),
    (
        r"^moe_(?:w[48]a\d+_)?(?:wna16_)?(?:marlin_)?gemm|^(?:gemm[12]|stage[12])_a\d+w\d+|^gemv_moe",
        None,
        "gemm",
        "moe",
    ),
    (
        r"^moe_align|^moe_sort|^moe_sum|^moe_permute|^moe_unpermute|^(?:un)?permute_(?:and|topk)|^ep_(?:scatter|gather)|^_row_id_map|^(?:padded|binned)_(?:gather|scatter)",
        None,
        "index",
        "moe",
    ),
    (
        r"^count_and_sort_expert|^compute_(?:arg_sorts|identity|problem|expert_)|^shuffle_rows|^(?:pre|post)_reorder",
        None,
        "index",
        "moe",
    ),
    (
        r"^expand_input_rows|^finalize_moe|^(?:fused_)?build_expert_maps|^block_expert_prefix|^routing_indices",
        None,
        "index",
        "moe",
    ),
    (r"^expand_to_fused|^get_fused_mapping|^clean_and_count_expert", None, "index", "moe"),
    (
        r"^topk_gating|^(?:biased_)?grouped_topk|^moe_fused_gate|^deepseek_v3_topk|^topk_(?:transform|main|softmax)",
        None,
        "sort",
        "topk",
    ),
    (
        r"^paged_attention_ll4mi_reduce|^merge_attn_states|^mla_reduce|combine_(?:attn|lse|mla)",
        None,
        "attention",
        "combine",
    ),
    (
        r"^paged_attention|^_?fwd_(?:grouped_)?kernel_stage\d|^_?unified_attention|^kernel_unified_attention",
        None,
        "attention",
        "attention",
    ),
    (
        r"^_?attn_(?:fwd|bwd|res)(?=_|$)|^_bwd_(?:kernel_)?(?:dk|dq|preprocess)|^sage_(?:fwd|attn)|^qk_int_?\d?\w*_attn",
        None,
        "attention",
        "attention",
    ),
    (r"^sage_quant|^quant_per_(?:block|warp)_int8", None, "copy", "quantize"),
    (
        r"(?:^|_)(?:flash_)?mla(?:_|$)|^sparse_attn|^_?(?:paged_)?mqa_logits|_mqa_logits(?=_|$)",
        None,
        "attention",
        "attention",
    ),
    (
        r"^chunk_(?:gated_|scaled_|kda|delta|gla|fwd|bwd|simple|retention|rwkv|transform)|^fused_recurrent_|^recompute_w_u",
        "fla",
        "attention",
        "linear_attention",
    ),
    (
        r"^fused_(?:sigmoid_gating_)?(?:gated_)?delta_rule|^fused_gdn|^chunk_local_cumsum|^solve_tril|^merge_\d+x\d+_to_",
        "fla",
        "attention",
        "linear_attention",
    ),
    (
        r"^_?(?:chunk_(?:scan|state|cumsum)|state_passing|bmm_chunk|selective_(?:scan|state))",
        "mamba",
        "scan",
        "selective_scan",
    ),
    (r"^_?causal_conv1d", "mamba", "conv", "fprop"),
    (r"(?:^|_)(?:rms_?norm|gemma_rmsnorm)(?=_|\d|$)", None, "normalization", "rms_norm"),
    (r"(?:^|_)(?:layer_?norm|ln_(?:fwd|bwd))(?=_|\d|$)", None, "normalization", "layer_norm"),
    (r"(?:^|_)(?:group_?norm|batch_?norm|l2_?norm|qk_?norm)(?=_|\d|$)", None, "normalization", None),
    (r"(?:^|_)(?:rotary(?:_embedding)?|m?rope)(?=_|\d|$)", None, "elementwise", "rotary_embedding"),
    (
        r"(?:^|_)(?:swiglu|silu|gelu|situ|relu)_?(?:and_)?(?:mul|forward|backward)|(?:^|_)act_and_mul|^do_activation|(?:^|_)sigmoid_mul|(?:^|_)swiglu_",
        None,
        "elementwise",
        "activation",
    ),
    (
        r"^(?:per_(?:token|channel|group|tensor|block)\w*_(?:cast|quant)|_?per_token|dynamic_\w*quant|static_scaled)",
        None,
        "copy",
        "quantize",
    ),
    (
        r"^(?:scaled_fp[48]_quant|quantize_with_block|cvt_fp\d+_to_fp\d|_?fp8_quantize|cast_back|_?mx?fp[48]_quant)",
        None,
        "copy",
        "quantize",
    ),
    (r"(?:^|_)per_token_(?:group_)?(?:cast|quant)", None, "copy", "quantize"),
    (
        r"^(?:reshape_and_cache|store_kv_?cache|set_(?:mla_)?kv_|concat_and_cache|concat_mla|write_req_to|set_k_and_s)|(?:^|_)kv_cache(?=_kernel|$)",
        None,
        "copy",
        "cache",
    ),
    (
        r"^create_\w*kv_indices|^(?:assign|resolve|clamp)_\w*(?:token|position|req)|^(?:compute|update)_\w*(?:slot|position)",
        None,
        "index",
        None,
    ),
    (r"(?:^|_)(?:top_?k_?)?(?:top_?p_?|min_?p_?)?sampling(?=_|$)|^gumbel", None, "random", "sampling"),
    (
        r"^(?:wv_?split_?k|llgemm\d?|ll_gemm\d?|hgemm_(?:bf|fp|f)\d|(?:bf|fp|i|f)\d{1,2}gemm_|flatmm_)",
        None,
        "gemm",
        "gemm",
    ),
    (r"^(?:volta|ampere|hopper|turing)_[hs]\d*gemm", None, "gemm", "gemm"),
    (r"^(?:marlin|gptq_marlin|machete|awq_gemm|gptq_gemm|gemm_half_q_half|gemm_awq|exllama)", None, "gemm", "gemm"),
    (
        r"^_?(?:w\d+a\d+_)?(?:block_)?(?:scaled_mm|scaled_matmul|int8_matmul)|_(?:fp8|int8|int4)_matmul(?=_|$)",
        None,
        "gemm",
        "gemm",
    ),
    (
        r"^_?(?:batched_|grouped_|sgemm_|fused_a_|router_|dsv3_\w*|segment_)?gemm_?(?:a\d+_?w(?:fp)?\d+|kernel|afp\d|lora)",
        None,
        "gemm",
        "gemm",
    ),
    (r"^_?(?:bgmv|sgmv|lora_(?:shrink|expand)|sgemm_lora|qkv_lora|gate_up_lora)", None, "gemm", "lora"),
    (r"^(?:explicit_convolve|precomputed_convolve)", "cudnn", "conv", "conv"),
    (r"^fft1d_[rc]2[rc]|^pointwise_mult_and_sum_complex", "cudnn", "conv", "conv"),
    (
        r"^fused_qkv\w*_(?:split|cat)(?=_)|^_copy_tensor(?=_|$)|(?:^|_)transpose_and_|^(?:batched_)?transpose(?=_(?:impl|kernel)|$)",
        None,
        "copy",
        None,
    ),
    (r"^reduce_fused(?=_|$)", None, "reduce", "moe"),
    (r"^reduce_segments$", None, "reduce", None),
)
#: CuTe DSL kernels: module and class name joined, before ``_object_at_``.
_CUTE: Final = r"^kernel_cutlass_\w*?kernel_(?P<name>[A-Za-z0-9_]*?)(?:_object_at_|_tensor|$)"
_CUTE_PARTS: Final = (
    (r"FlashAttention|flash_?attn|FusedMultiHeadAttention|[Ff]mha|mla_|MLA|[Aa]ttention", "attention", "attention"),
    (r"(?i:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)", "communication", None),
    (r"[Gg]emm|GEMM|[Mm]atmul", "gemm", "gemm"),
    (r"(?i:rms_?norm)", "normalization", "rms_norm"),
    (r"(?i:layer_?norm)", "normalization", "layer_norm"),
    (r"(?i:softmax)", "softmax", "softmax"),
    (r"(?i:cross_?entropy)", "loss", "cross_entropy"),
    (r"(?i:topk|top_k)", "sort", "topk"),
    (r"(?i:quantize)", "copy", "quantize"),
    (r"(?i:rope|rotary)", "elementwise", "rotary_embedding"),
)
#: Namespaces whose kernels share a family, unless the kernel's own name says otherwise: family, operation.
_SCOPES: Final = (
    (r"^moe::dev::routing::", "tensorrt_llm", "index", "moe"),
    (r"^moe::dev::(?:finalize|permute)::", "tensorrt_llm", "index", "moe"),
    (r"^moe::dev::activation::", "tensorrt_llm", "elementwise", "activation"),
    (r"^moe::dev::convertsf::|^moe::dev::convert", "tensorrt_llm", "copy", "quantize"),
    (r"^sgl_hip::activation::|^sgl_hip::act", "sglang", "elementwise", "activation"),
)
#: Suffixes that Triton adds for a kernel's configuration.
_CONFIGURED: Final = r"_kernel_(?:block|group|num|split|cache|even|max)_\w*$"
_LONGEST: Final = 200


def trtllm_gen(name: Spelled) -> Fields | None:
    """Decodes TensorRT-LLM's generated batched GEMMs: ``bmm_…_sm100f``."""
    found = re.match(_TRTLLM_GEN, name.word[:_LONGEST]) if name.word.startswith(("bmm_", "gemm")) else None
    if not found:
        return None
    types = [_trtllm_type(kind) for kind in re.findall(_TRTLLM_TYPE, found["inputs"])]
    a, b = (*types, *types)[:2]
    arch = re.search(r"_(sm\d{2,3}[af]?)$", name.word)
    return {
        "family": "gemm",
        "operation": "gemm",
        "library": "tensorrt_llm",
        "arch": arch[1] if arch else None,
        "input_types": (a, b),
        "output_type": _trtllm_type(found["output"]),
        "accumulator_type": "f32",
        "tile": tuple(int(size) for size in found["tile"].split("x")),
        "stages": int(found["stages"]),
        "tensor_core": True if {a, b} & set(TENSOR_TYPES) else None,
        "fused": ("swiglu",) if "_swiGlu" in name.word else (),
    }


def _trtllm_type(word: str) -> str:
    word = word.removeprefix("Mx")
    return _TRTLLM_TYPES.get(word, word.lower())


def cute(name: Spelled) -> Fields | None:
    """Decodes CuTe DSL (CUTLASS 4) kernels: ``kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttention…``."""
    found = re.match(_CUTE, name.word) if name.word.startswith("kernel_cutlass_") else None
    if not found:
        return None
    fields: Fields = {"library": "cute_dsl"}
    own = found["name"] or name.word
    known = next((row for row in _CUTE_PARTS if re.search(row[0], own)), None)
    if arch := re.search(r"(?i)sm_?(\d{2,3})", own):
        fields["arch"] = f"sm{arch[1]}"
    return fields | ({"family": known[1], "operation": known[2]} if known else {})


def scoped(name: Spelled) -> Fields | None:
    """Decodes DeepGEMM, Marlin and TensorRT-LLM's MoE kernels by namespace."""
    found = next((row for row in _SCOPES if re.match(row[0], name.function)), None)
    if found is None:
        return None
    _, library, family, operation = found
    return {"library": library, "family": family, "operation": operation}


def words(name: Spelled) -> Fields | None:
    """Decodes functions of an engine by the words of their names."""
    said = re.sub(_CONFIGURED, "_kernel", snake(name.word)[:_LONGEST])
    if "_" not in said.strip("_") or re.search(_ABOUT, said):
        return None
    for pattern, library, family, operation in _FUNCTIONS:
        if re.search(pattern, said):
            way = next((way for way, told in _DIRECTIONS if re.search(told, said)), None)
            types = tuple(filter(None, [type_of(name.arg(0))])) if family == "normalization" else ()
            return {
                "library": library,
                "family": family,
                "operation": operation,
                "direction": way,
                "input_types": types if types and types[0] in {"f32", "f16", "bf16"} else (),
            }
    return None


DECODERS: Final = (trtllm_gen, cute, scoped, words)
