"""Decodes a kernel name: tries each library's decoder in turn; the first match wins.

Here are the decoders of collectives, of vendors' libraries and of engines; :mod:`kanalyze.decoder.products` and
:mod:`kanalyze.decoder.pytorch` have others. Sources: public code, the names of these libraries' kernels, and traces.
"""

import re
from functools import lru_cache
from typing import Final

from kanalyze.decoder import fields as tables, products, pytorch
from kanalyze.decoder.fields import (
    OTHER,
    Decoder,
    Fields,
    Spelled,
    direction,
    exact,
    first,
    looked_up,
    snake,
    type_of,
)

# Communication: NCCL and RCCL, NVSHMEM, symmetric memory, collectives of serving engines.
#
# They decide in which bucket a ledger counts time, so a word such as allreduce is not sufficient: block-level sums use
# it, too. It counts only with the name of a library that reduces across GPUs, or with a word for the algorithm.

#: Quick check: every communication kernel contains one of these words, in any case.
HINTS: Final = frozenset(exact("hints of communication"))
_OLD: Final = (
    r"^nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)(Ring|Tree|CollNet)?(LL128|LL|Simple)?Kernel"
)
_COLLECTIVE: Final = r"(?:^|_)(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce)(?=_|$)"


def communication(name: Spelled) -> Fields | None:
    """Decodes a kernel of any library that moves data between GPUs: of NCCL and RCCL, of libraries, and of engines."""
    lowered = name.text.lower()
    return first(_COMMUNICATION, name) if any(hint in lowered for hint in HINTS) else None


def _nccl(name: Spelled) -> Fields | None:
    """Decodes NCCL and RCCL: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``, and older and newer forms."""
    start = re.match(r"nccl|rccl", name.text.removeprefix("void "))
    if not start and "ncclDevKernel" not in name.text and "ncclKernel" not in name.text:
        return None
    word = re.sub(r"^(?:nccl|rccl)(?:Sym[a-z]*)?(?:Dev)?Kernel_", "", re.sub(_OLD, r"\1_\2_\3", name.word)).lower()
    words, collectives = word.split("_"), exact("collectives")
    short = next((short for part in words if (short := type_of(part))), None)
    return {
        **looked_up("nccl", name, f"_{word}_"),
        "library": start[0] if start else "nccl",
        "operation": next((collectives[part][0] for part in words if part in collectives), None),
        "input_types": (short,) if short else (),
        "output_type": short,
    }


def _collective(name: Spelled) -> Fields | None:
    """Decodes engines' own collectives, such as ``vllm::cross_device_reduce_1stage``."""
    match = re.search(_COLLECTIVE, name.snake)
    between = looked_up("engines with collectives", name) or looked_up("words between devices", name)
    if not (match and between) or looked_up("words within a device", name, name.snake[: match.end()]):
        return None
    (operation,) = exact("collectives").get(match[1].replace("_", ""), ("allreduce",))
    return {**between, "operation": operation}


_COMMUNICATION: Final[tuple[Decoder, ...]] = (
    *(_nccl, "libraries of communication", "libraries of expert parallelism", "experts", "parallel decoding"),
    *("shots", "symmetric memory", _collective),
)

# Vendors' libraries: cuDNN, CUB, Thrust, cuFFT, cuSPARSE, cuSOLVER, FBGEMM, AMD's, XLA and CuPy.


def ck(name: Spelled) -> Fields | None:
    """Decodes CK kernels: ``ck::tensor_operation::device::kernel_grouped_conv_fwd_…``, ``ck_tile::kentry<…>``."""
    match = re.match(r"(ck(?:_tile)?)::", name.function)
    if not match:
        return None
    word = name.word if match[1] == "ck" and name.word.startswith("kernel_") else ""
    return {"library": match[1], **(looked_up("ck", name, word) or looked_up("ck", name))}


def of_aiter(name: Spelled) -> Fields | None:
    """Decodes AITER kernels: ``aiter::add_rmsnorm_quant_kernel<…>``, and its assembly kernels of one word."""
    if not re.match(r"aiter(?:::|_)|opus_moe::|kn_mla_|ck_moe_stage\d|mfma_moe\d", name.function):
        return None
    if "metadata" in name.function:
        return {"library": "aiter"}
    scoped = snake("_".join(name.function.split("::")[1:]))
    return {"library": "aiter", **(looked_up("aiter", name) or looked_up("aiter", name, scoped))}


def cub(name: Spelled) -> Fields | None:
    """Decodes CUB and Thrust kernels, including vendored copies."""
    in_thrust = "cuda_cub::" in name.function
    if not in_thrust and (
        "cub::" in name.function or ("thrust::" not in name.function and looked_up("functions of cub", name))
    ):
        text = name.text if name.word in {"static_kernel", "_kernel_agent"} else name.word
        return {"library": "cub", **looked_up("cub", name, text)}
    return {"library": "thrust", **looked_up("cub", name)} if in_thrust or "thrust::" in name.function else None


def fft(name: Spelled) -> Fields | None:
    """Decodes cuFFT kernels."""
    fields = looked_up("fft", name) or looked_up("arguments of fft", name)
    types = (type_of(name.arg(at)) for at in range(len(name.args)))
    short = next((short for short in types if short in ("f32", "f64", "f16")), None)
    return {"accumulator_type": short, **fields} if fields else None


def xla(name: Spelled) -> Fields | None:
    """Decodes XLA's kernels (JAX, TensorFlow): ``loop_add_fusion_3``, ``wrapped_tanh``, ``gemm_fusion_dot_general_1``.

    They say what is computed in a loop, what a reduction or a scatter reads, or which operation is wrapped.
    """
    fields, families = looked_up("xla", name), tables.by_name("xla operations")
    if not fields or (name.word.startswith("wrapped_") and fields["operation"] not in families):
        return None
    return {"family": families.get(fields.get("operation", ""), "elementwise"), **fields}


def cupy(name: Spelled) -> Fields | None:
    """Decodes CuPy's own kernels: an operation, and the types that it is computed of: ``cupy_add__float64_float64``."""
    fields = looked_up("names of cupy", name)
    family = tables.by_name("cupy").get(fields.get("operation", ""))
    return {**fields, **({"family": family} if family else {})} or None


# Engines and libraries around a framework: vLLM, SGLang, TensorRT-LLM, Transformer Engine, Apex, Mamba, Liger, FLA.
#
# A name is looked up by library, then as a single known term such as matmul_kernel, then by the words in it, unless
# another word says that the kernel only prepares, checks or counts what the first one names.

_LONGEST_TERM: Final = 64


def engine(name: Spelled) -> Fields | None:
    """Decodes a kernel of a known engine by namespace."""
    library = looked_up("libraries by namespace", name)
    if not library:
        return None
    fields = looked_up("parts of names in engines", name)
    short = type_of(name.arg(0)) if fields else None
    types = (short,) if short in {"f32", "f16", "bf16", "f64"} else ()
    return {**library, "direction": direction(name.word.lower()), "input_types": types, **fields}


def term(name: Spelled) -> Fields | None:
    """Decodes a name that consists of one known term and filler words, such as matmul_kernel; no library."""
    if len(name.word) > _LONGEST_TERM:
        return None
    parts = (part for part in re.split(r"_+", name.snake) if part)
    head = exact("terms").get("_".join(part for part in parts if part not in exact("filler words")))
    return {**tables.headed(head, name, name.word), "direction": direction(name.word)} if head else None


#: Words of kernels that only prepare or inspect what the other words name.
_ABOUT: Final = (
    r"(?:^|_)(?:metadata|meta|mask|masks|prepare|plan|init|setup|check|verify|test|ref|reference|workspace|offsets?"
    r"|pointers?|ptrs|strides?|sizes|counts?|zero|reset|clear|clean|generate|get|print|num|lengths?)(?=_|$)"
)

#: CuTe DSL kernels: module and class name joined, before ``_object_at_``.
_CUTE: Final = r"^kernel_cutlass_\w*?kernel_(?P<name>[A-Za-z0-9_]*?)(?:_object_at_|_tensor|$)"


def trtllm_gen(name: Spelled) -> Fields | None:
    """Decodes TensorRT-LLM's generated batched GEMMs: ``bmm_…_sm100f``."""
    fields = looked_up("generated by tensorrt_llm", name) if name.word.startswith(("bmm_", "gemm")) else {}
    on_tensor_cores = bool({*fields.get("input_types", ())} & {*tables.TENSOR_TYPES})
    return {**fields, "tensor_core": on_tensor_cores or None} if fields else None


def cute(name: Spelled) -> Fields | None:
    """Decodes CuTe DSL (CUTLASS 4) kernels: ``kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttention…``."""
    match = re.match(_CUTE, name.word)
    if not match:
        return None
    text = match["name"] or name.word
    return {
        "library": "cute_dsl",
        **looked_up("cute dsl", name, text),
        **looked_up("architectures of cute dsl", name, text),
    }


def words(name: Spelled) -> Fields | None:
    """Decodes functions of an engine by the words of their names."""
    # without what Triton adds for a kernel's configuration
    configured = r"_kernel_(?:block|group|num|split|cache|even|max)_\w*$"
    function = re.sub(configured, "_kernel", name.snake[:200])
    if "_" not in function.strip("_") or re.search(_ABOUT, function):
        return None
    fields = looked_up("words in engines", name, function)
    if not fields:
        return None
    short = type_of(name.arg(0)) if fields["family"] == "normalization" else None
    types = (short,) if short in {"f32", "f16", "bf16"} else ()
    return {**fields, "direction": direction(function), "input_types": types}


# Attention: FlashAttention 1 to 4, memory-efficient attention, FlashInfer, TensorRT-LLM, vLLM.

_FLASH: Final = r"(?:pytorch_)?flash::|(?:.*::)?(?:flash_[fb]wd_|fmha_(?:[fb]wd|fprop|dgrad)_|compute_attn_ws$)[^:]*$"


def flash(name: Spelled) -> Fields | None:
    """Decodes FlashAttention kernels, including those built into PyTorch."""
    if "FlashAtt" in name.text or "flash_attncute" in name.text:
        return looked_up("flash attention 3", name)
    return looked_up("flash attention", name) if re.match(_FLASH, name.function) else None


#: Most specific first: NCCL's pattern occurs in no other name; a cuDNN name may contain one of CUTLASS.
_DECODERS: Final[tuple[Decoder, ...]] = (
    *(communication, pytorch.inductor, "functions of miopen", ck, of_aiter, "rocm"),
    *(flash, "memory-efficient attention", "functions of flashinfer", "attention of engines"),
    *("printed names", products.cutlass2, products.nvjet, products.named, "namespaces of cudnn"),
    *(products.cublas, products.cutlass, "quantised products", pytorch.aten, "functions of cudnn", cub, fft),
    *("functions of cusparse", "solvers", "functions of fbgemm", xla, cupy, "functions of engines", engine),
    *("jiterator", "cuda driver", term, trtllm_gen, cute, "namespaces", words),
)

#: Libraries whose functions are all listed; an unlisted one is not guessed by the words in its name.
_EXACT: Final = ("aten", "inductor", "deep_ep", "cudnn", "cub", "thrust", "xla", "cupy")


@lru_cache(maxsize=1 << 16)  # rules ask for all names of a report one after the other: fewer would keep none of them
def decode(name: str) -> tables.KernelName:
    """Decodes a kernel name, see :class:`kanalyze.decoder.fields.KernelName`.

    Accepts any text, in nsys', torch's or ncu's spelling or mangled; unrecognised names have the family ``other``.
    """
    apart = tables.spelled(name)
    decoded = first(_DECODERS, apart)
    vague = bool(decoded) and decoded.get("family", OTHER) == OTHER and decoded.get("library") not in _EXACT
    if vague and (more := words(apart)):
        decoded = {**more, **{field: value for field, value in decoded.items() if field != "family" and value}}
    return tables.KernelName(function=apart.function, **{"family": OTHER, **decoded})
