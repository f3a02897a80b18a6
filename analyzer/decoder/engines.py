"""Kernels of engines and of libraries around a framework: vLLM, SGLang, TensorRT-LLM, Transformer Engine, Apex, Mamba.

A name is looked up by library, then as a single known term such as matmul_kernel, then by the words in it, unless
another word says that the kernel only prepares, checks or counts what the first one names. Sources: public code and
traces of these engines, and of Liger, bitsandbytes, DeepGEMM, FLA and Triton's own kernels.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kanalyze.decoder.fields import exact, looked_up, patterns
from kanalyze.decoder.spelling import TENSOR_TYPES, snake, type_of

if TYPE_CHECKING:
    from kanalyze.decoder.fields import Fields
    from kanalyze.decoder.spelling import Spelled

_SCOPED_LIBRARIES: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "transformer_engine": "transformer_engine",
    "tensorrt_llm": "tensorrt_llm",
    "layer_norm": "apex",
    "deepspeed": "deepspeed",
    "bitsandbytes": "bitsandbytes",
}
#: Function names unique to one library.
_OWN: Final = exact(r"""
softmax softmax apex: scaled_upper_triang_masked_softmax_warp_forward scaled_upper_triang_masked_softmax_warp_backward
softmax softmax apex: scaled_masked_softmax_warp_forward scaled_masked_softmax_warp_backward
normalization layer_norm apex: cuApplyLayerNorm
normalization rms_norm apex: cuApplyRMSNorm
scan selective_scan mamba: selective_scan_fwd_kernel selective_scan_bwd_kernel
conv fprop mamba: causal_conv1d_fwd_kernel
conv dgrad mamba: causal_conv1d_bwd_kernel
conv fprop mamba: causal_conv1d_update_kernel
copy quantize bitsandbytes: kQuantizeBlockwise
copy dequantize bitsandbytes: kDequantizeBlockwise
loss cross_entropy liger: liger_cross_entropy_kernel
elementwise swiglu liger: _swiglu_forward_kernel _swiglu_backward_kernel
elementwise - tensorrt: generatedNativePointwise
""")
#: Operations by substring of a known library's function name; first match wins.
_PARTS: Final = patterns(r"""
normalization rms_norm: rms_?norm
normalization layer_norm: layer_?norm (?:^|_)ln_(?:fwd|bwd)
softmax softmax: softmax
attention attention: paged_attention
elementwise rotary_embedding: rotary rope
elementwise activation: act_and_mul activation_kernel (?:ge|si|re)lu gated_act
copy cache: reshape_and_cache copy_blocks swap_blocks concat_and_cache gather_cache
copy transpose: cast_transpose transpose
copy quantize: scaled_fp8_quant per_token\w*quant quantize (?:^|_)cast
copy dequantize: dequant
sort topk: topk_?gating topk
index moe: moe_align permute moe_sum
embedding embedding: embedding
""")
#: Terms that imply a family: family, operation.
_TERMS: Final = exact(r"""
gemm gemm: matmul mat_mul matrix_multiply gemm sgemm hgemm dgemm bgemm
gemm gemv: gemv
gemm gemm: batched_gemm
gemm grouped_gemm: grouped_gemm
softmax softmax: softmax
softmax log_softmax: log_softmax
normalization layer_norm: layer_norm layernorm
normalization rms_norm: rms_norm rmsnorm
normalization group_norm: group_norm
normalization batch_norm: batch_norm
attention attention: attention attn flash_attention flash_attn
conv conv: conv2d convolution
loss cross_entropy: cross_entropy
sort sort: radix_sort bitonic_sort
reduce histogram: histogram
""")
_PLAIN: Final = {
    *("kernel", "cuda", "triton", "gpu", "device", "impl", "naive", "tiled", "fused", "persistent", "vectorized"),
    *("fwd", "bwd", "forward", "backward", "batched", "tma", "v1", "v2", "v3", "fp16", "fp32", "bf16", "f32"),
}
_LONGEST_TERM: Final = 64


def engine(name: Spelled) -> Fields | None:
    """Decodes a kernel of a known engine, by namespace or by its function name."""
    scope = re.match(r"\w+(?=::)", name.function)
    library = _SCOPED_LIBRARIES.get(scope[0]) if scope else None
    if known := _OWN.get(name.word):
        family, operation, own = known
        way = _direction(name.word)
        return {"library": library or own, "family": family, "operation": operation, "direction": way}
    if library is None:
        return None
    found = looked_up(_PARTS, snake(name.word))
    short = type_of(name.arg(0)) if found else None
    types = (short,) if short in {"f32", "f16", "bf16", "f64"} else ()
    return {"library": library, "direction": _direction(name.word), "input_types": types, **found}


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
_FUNCTIONS: Final = patterns(r"""
gemm moe triton_kernels: ^_?p?_?matmul_ogs(?=_|$)
reduce moe triton_kernels: ^_finalize_(?:matmul|scatter) ^_?reduce_grouped(?=_|$)
index moe triton_kernels: ^_(?:topk_(?:forward|backward)|combined_routing|routing_|sum_bitmatrix|expt_data|bitmatrix)
gemm moe -: ^(?:aiter_)?_?(?:batched_)?fused_moe_kernel ^fused_moe_triton ^_fused_moe
gemm moe -: ^moe_(?:w[48]a\d+_)?(?:wna16_)?(?:marlin_)?gemm ^(?:gemm[12]|stage[12])_a\d+w\d+ ^gemv_moe
index moe -: ^moe_align ^moe_sort ^moe_sum ^moe_permute ^moe_unpermute ^(?:un)?permute_(?:and|topk)
index moe -: ^ep_(?:scatter|gather) ^_row_id_map ^(?:padded|binned)_(?:gather|scatter) ^count_and_sort_expert
index moe -: ^compute_(?:arg_sorts|identity|problem|expert_) ^shuffle_rows ^(?:pre|post)_reorder ^expand_input_rows
index moe -: ^finalize_moe ^(?:fused_)?build_expert_maps ^block_expert_prefix ^routing_indices ^expand_to_fused
index moe -: ^get_fused_mapping ^clean_and_count_expert
sort topk -: ^topk_gating ^(?:biased_)?grouped_topk ^moe_fused_gate ^deepseek_v3_topk ^topk_(?:transform|main|softmax)
attention combine -: ^paged_attention_ll4mi_reduce ^merge_attn_states ^mla_reduce combine_(?:attn|lse|mla)
attention attention -: ^paged_attention ^_?fwd_(?:grouped_)?kernel_stage\d ^_?unified_attention
attention attention -: ^kernel_unified_attention ^_?attn_(?:fwd|bwd|res)(?=_|$) ^_bwd_(?:kernel_)?(?:dk|dq|preprocess)
attention attention -: ^sage_(?:fwd|attn) ^qk_int_?\d?\w*_attn
copy quantize -: ^sage_quant ^quant_per_(?:block|warp)_int8
attention attention -: (?:^|_)(?:flash_)?mla(?:_|$) ^sparse_attn ^_?(?:paged_)?mqa_logits _mqa_logits(?=_|$)
attention linear_attention fla: ^chunk_(?:gated_|scaled_|kda|delta|gla|fwd|bwd|simple|retention|rwkv|transform)
attention linear_attention fla: ^fused_recurrent_ ^recompute_w_u ^fused_(?:sigmoid_gating_)?(?:gated_)?delta_rule
attention linear_attention fla: ^fused_gdn ^chunk_local_cumsum ^solve_tril ^merge_\d+x\d+_to_
scan selective_scan mamba: ^_?(?:chunk_(?:scan|state|cumsum)|state_passing|bmm_chunk|selective_(?:scan|state))
conv fprop mamba: ^_?causal_conv1d
normalization rms_norm -: (?:^|_)(?:rms_?norm|gemma_rmsnorm)(?=_|\d|$)
normalization layer_norm -: (?:^|_)(?:layer_?norm|ln_(?:fwd|bwd))(?=_|\d|$)
normalization - -: (?:^|_)(?:group_?norm|batch_?norm|l2_?norm|qk_?norm)(?=_|\d|$)
elementwise rotary_embedding -: (?:^|_)(?:rotary(?:_embedding)?|m?rope)(?=_|\d|$)
elementwise activation -: (?:^|_)(?:swiglu|silu|gelu|situ|relu)_?(?:and_)?(?:mul|forward|backward) (?:^|_)act_and_mul
elementwise activation -: ^do_activation (?:^|_)sigmoid_mul (?:^|_)swiglu_
copy quantize -: ^per_(?:token|channel|group|tensor|block)\w*_(?:cast|quant) ^_?per_token ^dynamic_\w*quant
copy quantize -: ^static_scaled
copy quantize -: ^scaled_fp[48]_quant ^quantize_with_block ^cvt_fp\d+_to_fp\d ^_?fp8_quantize ^cast_back
copy quantize -: ^_?mx?fp[48]_quant
copy quantize -: (?:^|_)per_token_(?:group_)?(?:cast|quant)
copy cache -: ^reshape_and_cache ^store_kv_?cache ^set_(?:mla_)?kv_ ^concat_and_cache ^concat_mla ^write_req_to
copy cache -: ^set_k_and_s
copy cache -: (?:^|_)kv_cache(?=_kernel|$)
index - -: ^create_\w*kv_indices ^(?:assign|resolve|clamp)_\w*(?:token|position|req)
index - -: ^(?:compute|update)_\w*(?:slot|position)
random sampling -: (?:^|_)(?:top_?k_?)?(?:top_?p_?|min_?p_?)?sampling(?=_|$) ^gumbel
gemm gemm -: ^(?:wv_?split_?k|llgemm\d?|ll_gemm\d?|hgemm_(?:bf|fp|f)\d|(?:bf|fp|i|f)\d{1,2}gemm_|flatmm_)
gemm gemm -: ^(?:volta|ampere|hopper|turing)_[hs]\d*gemm
gemm gemm -: ^(?:marlin|gptq_marlin|machete|awq_gemm|gptq_gemm|gemm_half_q_half|gemm_awq|exllama)
gemm gemm -: ^_?(?:w\d+a\d+_)?(?:block_)?(?:scaled_mm|scaled_matmul|int8_matmul) _(?:fp8|int8|int4)_matmul(?=_|$)
gemm gemm -: ^_?(?:batched_|grouped_|sgemm_|fused_a_|router_|segment_)?gemm_?(?:a\d+_?w(?:fp)?\d+|kernel|afp\d|lora)
gemm gemm -: ^_?dsv3_\w*gemm_?(?:a\d+_?w(?:fp)?\d+|kernel|afp\d|lora)
gemm lora -: ^_?(?:bgmv|sgmv|lora_(?:shrink|expand)|sgemm_lora|qkv_lora|gate_up_lora)
conv conv cudnn: ^(?:explicit_convolve|precomputed_convolve) ^fft1d_[rc]2[rc] ^pointwise_mult_and_sum_complex
copy - -: ^fused_qkv\w*_(?:split|cat)(?=_) ^_copy_tensor(?=_|$) (?:^|_)transpose_and_
copy - -: ^(?:batched_)?transpose(?=_(?:impl|kernel)|$)
reduce moe -: ^reduce_fused(?=_|$)
reduce - -: ^reduce_segments$
""")
#: CuTe DSL kernels: module and class name joined, before ``_object_at_``.
_CUTE: Final = r"^kernel_cutlass_\w*?kernel_(?P<name>[A-Za-z0-9_]*?)(?:_object_at_|_tensor|$)"
_CUTE_PARTS: Final = patterns(r"""
attention attention: FlashAttention flash_?attn FusedMultiHeadAttention [Ff]mha mla_ MLA [Aa]ttention
communication -: (?i:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)
gemm gemm: [Gg]emm GEMM [Mm]atmul
normalization rms_norm: (?i:rms_?norm)
normalization layer_norm: (?i:layer_?norm)
softmax softmax: (?i:softmax)
loss cross_entropy: (?i:cross_?entropy)
sort topk: (?i:topk|top_k)
copy quantize: (?i:quantize)
elementwise rotary_embedding: (?i:rope|rotary)
""")
#: Namespaces whose kernels share a family, unless the kernel's own name says otherwise: family, operation.
_SCOPES: Final = patterns(r"""
index moe tensorrt_llm: ^moe::dev::routing:: ^moe::dev::(?:finalize|permute)::
elementwise activation tensorrt_llm: ^moe::dev::activation::
copy quantize tensorrt_llm: ^moe::dev::convertsf:: ^moe::dev::convert
elementwise activation sglang: ^sgl_hip::activation:: ^sgl_hip::act
""")
#: Suffixes that Triton adds for a kernel's configuration.
_CONFIGURED: Final = r"_kernel_(?:block|group|num|split|cache|even|max)_\w*$"
_LONGEST_FUNCTION: Final = 200


def trtllm_gen(name: Spelled) -> Fields | None:
    """Decodes TensorRT-LLM's generated batched GEMMs: ``bmm_…_sm100f``."""
    found = re.match(_TRTLLM_GEN, name.word[:_LONGEST_FUNCTION]) if name.word.startswith(("bmm_", "gemm")) else None
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
    own = found["name"] or name.word
    fields: Fields = {"library": "cute_dsl", **looked_up(_CUTE_PARTS, own)}
    if arch := re.search(r"(?i)sm_?(\d{2,3})", own):
        fields["arch"] = f"sm{arch[1]}"
    return fields


def scoped(name: Spelled) -> Fields | None:
    """Decodes DeepGEMM, Marlin and TensorRT-LLM's MoE kernels by namespace."""
    return looked_up(_SCOPES, name.function, "library") or None


def words(name: Spelled) -> Fields | None:
    """Decodes functions of an engine by the words of their names."""
    function = re.sub(_CONFIGURED, "_kernel", snake(name.word)[:_LONGEST_FUNCTION])
    if "_" not in function.strip("_") or re.search(_ABOUT, function):
        return None
    fields = looked_up(_FUNCTIONS, function, "library")
    if not fields:
        return None
    fields["direction"] = next((way for way, pattern in _DIRECTIONS if re.search(pattern, function)), None)
    short = type_of(name.arg(0)) if fields["family"] == "normalization" else None
    return fields | {"input_types": (short,) if short in {"f32", "f16", "bf16"} else ()}


DECODERS: Final = (engine, jiterator, driver, term, trtllm_gen, cute, scoped, words)
