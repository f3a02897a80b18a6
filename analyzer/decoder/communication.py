"""Kernels of communication: NCCL and RCCL, NVSHMEM, symmetric memory, and the collectives of serving engines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder.elements import type_of

if TYPE_CHECKING:
    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

#: No kernel without one of these words communicates, in whatever case.
HINTS: Final = (
    "nccl",
    "rccl",
    "msccl",
    "nvshmem",
    "_shot_",
    "multimem_",
    "symm_mem",
    "symmetric_memory",
    "allreduce",
    "all_reduce",
    "cross_device_reduce",
    "deep_ep::",
    "userbuffers_",
)
_COLLECTIVES: Final = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "generic": None,
}
_ALGORITHMS: Final = ("ring", "tree", "collnet", "nvls", "pat")
_PROTOCOLS: Final = ("ll", "ll128", "simple")
_REDUCTIONS: Final = ("sum", "prod", "max", "min", "premulsum", "sumpostdiv", "minmax")
_OLD: Final = (
    r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)(Ring|Tree|CollNet)?(LL128|LL|Simple)?Kernel"
)
#: Libraries by what their kernels are named for, wherever it stands.
_LIBRARIES: Final = {
    r"nvshmem": "nvshmem",
    r"msccl(?:pp)?(?:::|Kernel)": "msccl",
    r"\buserbuffers_": "transformer_engine",
}
_SYMMETRIC: Final = (
    r"^(?:one_shot|two_shot|multimem(?:_one_shot)?)_(all_reduce|reduce_scatter|all_gather|all_to_all)\w*$"
)


def communication(name: Spelled) -> Fields | None:
    """A kernel of any library that moves data between GPUs."""
    lowered = name.text.lower()
    return (_nccl(name) or _others(name)) if any(hint in lowered for hint in HINTS) else None


def _nccl(name: Spelled) -> Fields | None:
    """``ncclDevKernel_AllReduce_Sum_f32_RING_LL``, and the names before and after it; RCCL keeps them."""
    word = name.word
    start = re.match(r"nccl|rccl", name.text.removeprefix("void "))
    if not start and "ncclDevKernel" not in name.text and "ncclKernel" not in name.text:
        return None
    fields: Fields = {"family": "communication", "library": start[0] if start else "nccl"}
    if old := re.match(_OLD, word):
        words = [*(part or "" for part in old.groups()), *word[old.end() :].split("_")]
    else:
        words = re.sub(r"^(?:nccl|rccl)(?:Sym[a-z]*)?(?:Dev)?Kernel_", "", word).split("_")
    lowered = [part.lower() for part in words]
    fields["operation"] = next((_COLLECTIVES[part] for part in lowered if part in _COLLECTIVES), None)
    fields["functor"] = next((part for part in lowered if part in _REDUCTIONS), None)
    fields["protocol"] = next((part for part in lowered if part in _PROTOCOLS), None)
    at = next((at for at, part in enumerate(lowered) if part in _ALGORITHMS), None)
    if at is not None:
        more = lowered[at + 1 : at + 2]
        fields["algorithm"] = "_".join([lowered[at], *(part for part in more if part in {"tree", "direct", "chain"})])
    types = [short for part in lowered if (short := type_of(part))]
    return fields | {"input_types": tuple(types[:1]), "output_type": types[0] if types else None}


def _others(name: Spelled) -> Fields | None:
    """NVSHMEM, PyTorch's symmetric memory, DeepEP, and the collectives of vLLM, TensorRT-LLM and FlashInfer."""
    text, word = name.text, name.word
    fields: Fields = {"family": "communication"}
    for part, library in _LIBRARIES.items():
        if re.search(part, text):
            return fields | {"library": library}
    if name.function.startswith("deep_ep::"):
        is_transfer = re.search(r"dispatch|combine|notify|barrier", word)
        return {"library": "deep_ep"} | ({**fields, "operation": word.partition("_")[0]} if is_transfer else {})
    if "symm_mem" in text or "symmetric_memory::" in text or re.match(_SYMMETRIC, word):
        found = re.match(_SYMMETRIC, word)
        operation = {"all_reduce": "allreduce", "all_gather": "allgather"}.get(found[1], found[1]) if found else None
        return fields | {"library": "symmetric_memory", "operation": operation}
    if re.search(r"cross_device_reduce|all_?reduce_(?:fusion_)?kernel|one_shot_all_|two_shot_all_|multimem_", text):
        engine = re.match(r"(vllm|flashinfer|tensorrt_llm|sglang)::", name.function)
        return fields | {"library": engine[1] if engine else None, "operation": "allreduce"}
    return None


DECODERS: Final = (communication,)
