"""Communication kernels: NCCL and RCCL, NVSHMEM, symmetric memory, collectives of serving engines.

They decide in which bucket a ledger counts time, so a word such as allreduce is not sufficient: block-level sums use
it, too. It counts only with the name of a library that reduces across GPUs, or with a word for the algorithm.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kanalyze.decoder.fields import exact, in_groups, listed, looked_up
from kanalyze.decoder.spelling import snake, type_of

if TYPE_CHECKING:
    from kanalyze.decoder.fields import Fields
    from kanalyze.decoder.spelling import Spelled

#: Quick check: every communication kernel contains one of these words, in any case.
HINTS: Final = listed("hints of communication")
_ALGORITHMS: Final = ("ring", "tree", "collnet", "nvls", "pat")
_PROTOCOLS: Final = ("ll", "ll128", "simple")
_REDUCTIONS: Final = ("sum", "prod", "max", "min", "premulsum", "sumpostdiv", "minmax")
_OLD: Final = (
    r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)(Ring|Tree|CollNet)?(LL128|LL|Simple)?Kernel"
)
_SYMMETRIC: Final = (
    r"^(?:one_shot|two_shot|multimem(?:_one_shot)?)_(all_reduce|reduce_scatter|all_gather|all_to_all)\w*$"
)
#: Namespaces of expert-parallel dispatch and combine (DeepEP and its copies), and their kernels that communicate.
_EXPERTS: Final = r"^(deep_ep|uccl)::|(?:^|::)ep::(?:internode(?:_ll)?|intranode)::"
_TRANSFERS: Final = r"(?:^|_)(dispatch|combine|notify|barrier)(?:_|$)"
_NO_TRANSFER: Final = r"^get_|^clean|^query|^mask|layout|metadata|workspace"
_COLLECTIVE: Final = r"(?:^|_)(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce)(?=_|$)"
#: Libraries of all-reduce kernels, and words for their algorithms: one-shot, two-shot, LL protocol, peer memory.
_ENGINES: Final = (
    r"(?:^|::)(?P<library>vllm|flashinfer|tensorrt_llm|sglang|aiter|mscclpp|transformer_engine|hybrid_ep)::"
)
_BETWEEN: Final = (
    r"one_?shot|two_?shot|[12]_?stage|lamport|cross_device|mnnvl|nvls|multimem|lamport|symm|peer|ipc|p2p"
    r"|all_?reduce_(?:fusion_)?kernel"
)
#: Block-level sums that are also called all-reduce, and kernels that only prepare a collective.
_WITHIN: Final = r"(?:^|_)(?:block|warp|thread|wave|wavefront|group|subgroup|cta|cluster|local|init|prepare|get)(?=_)"


def communication(name: Spelled) -> Fields | None:
    """Decodes a kernel of any library that moves data between GPUs."""
    lowered = name.text.lower()
    return (_nccl(name) or _others(name)) if any(hint in lowered for hint in HINTS) else None


def _nccl(name: Spelled) -> Fields | None:
    """Decodes NCCL and RCCL: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``, and older and newer forms."""
    word = name.word
    start = re.match(r"nccl|rccl", name.text.removeprefix("void "))
    if not start and "ncclDevKernel" not in name.text and "ncclKernel" not in name.text:
        return None
    fields: Fields = {"family": "communication", "library": start[0] if start else "nccl"}
    if old := re.match(_OLD, word):
        words = [*(part or "" for part in old.groups()), *word[old.end() :].split("_")]
    else:
        words = re.sub(r"^(?:nccl|rccl)(?:Sym[a-z]*)?(?:Dev)?Kernel_", "", word).split("_")
    lowered, collectives = [part.lower() for part in words], exact("collectives")
    fields["operation"] = next((collectives[part][0] for part in lowered if part in collectives), None)
    fields["functor"] = next((part for part in lowered if part in _REDUCTIONS), None)
    fields["protocol"] = next((part for part in lowered if part in _PROTOCOLS), None)
    at = next((at for at, part in enumerate(lowered) if part in _ALGORITHMS), None)
    if at is not None:
        more = lowered[at + 1 : at + 2]
        fields["algorithm"] = "_".join([lowered[at], *(part for part in more if part in {"tree", "direct", "chain"})])
    types = [short for part in lowered if (short := type_of(part))]
    return fields | {"input_types": tuple(types[:1]), "output_type": types[0] if types else None}


def _others(name: Spelled) -> Fields | None:
    """Decodes NVSHMEM, PyTorch's symmetric memory, DeepEP, and the collectives of vLLM, TensorRT-LLM and FlashInfer."""
    text, word = name.text, name.word
    fields: Fields = {"family": "communication"}
    if of_library := looked_up("libraries of communication", text):
        return of_library
    if found := re.search(_EXPERTS, name.function):
        move = None if re.search(_NO_TRANSFER, word) else re.search(_TRANSFERS, word)
        return {"library": found[1] or "deep_ep"} | ({**fields, "operation": move[1]} if move else {})
    if of_experts := looked_up("experts", word):
        return of_experts | in_groups(re.search(_ENGINES, name.function))
    in_dcp = name.function.startswith("vllm::direct_dcp::") or word.startswith("direct_dcp_")
    if in_dcp and re.search(r"gather|scatter|combine|exchange|reduce", word):
        return fields | {"library": "vllm"}
    if "symm_mem" in text or "symmetric_memory::" in text or re.match(_SYMMETRIC, word):
        found = re.match(_SYMMETRIC, word)
        operation = {"all_reduce": "allreduce", "all_gather": "allgather"}.get(found[1], found[1]) if found else None
        return fields | {"library": "symmetric_memory", "operation": operation}
    return _collective(name)


def _collective(name: Spelled) -> Fields | None:
    """Decodes engines' own collectives, such as ``vllm::cross_device_reduce_1stage``."""
    said = snake(name.word)
    found = re.search(_COLLECTIVE, said)
    engine = re.search(_ENGINES, name.function)
    if not found or re.search(_WITHIN, said[: found.end()]) or not (engine or re.search(_BETWEEN, said)):
        return None
    (operation,) = exact("collectives").get(found[1].replace("_", ""), ("allreduce",))
    return {"family": "communication", "operation": operation, **in_groups(engine)}
