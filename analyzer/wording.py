"""Texts in the words of the programming interface that a program used: CUDA's are the ones that they are written in."""

from __future__ import annotations

import re
from typing import Final

#: The interfaces. RUNTIME is one that is neither, such as that of MTIA.
CUDA: Final = "CUDA"
HIP: Final = "HIP"
RUNTIME: Final = "runtime"

#: What HIP calls the things that rules name in CUDA's words. Whole phrases: a program's own names stay as they are.
_IN_HIP: Final = (
    (r"\bcudaMemcpyBatchAsync, cudaMemcpy2D\b", "hipMemcpy2D"),
    (r"\bcudaHostAlloc\b", "hipHostMalloc"),
    (r"\bcuda(?=(?:MemAdvise|MemPrefetchAsync|StreamNonBlocking|FuncSetAttribute)\b)", "hip"),
    (r"\bCUDA_MODULE_LOADING=EAGER\b", "HIP_ENABLE_DEFERRED_LOADING=0"),
    (r"\b([0-9,]+|the|per|than|an|empty) SM(s?)\b", r"\1 CU\2"),
    (r"\ban CU\b", "a CU"),
)
_PHRASES: Final = r"\bCUDA(?= (?:calls?|CALLS|graphs?|GRAPHS|contexts?|kernel|activity|API|events?)\b)"
_OUTSIDE: Final = {HIP: "outside HIP", RUNTIME: "outside the runtime"}

#: AMD's names for the processors of GPUs, by a part of what their drivers call them.
#: Source: the tables of AMD's GPUs in the documentation of ROCm.
_AMD_TARGETS: Final = {
    r"MI(?:50|60)\b": "gfx906",
    r"MI100\b": "gfx908",
    r"MI2(?:10|50X?)\b": "gfx90a",
    r"MI3(?:00[AX]|08X|25X)\b": "gfx942",
    r"MI35[05]X\b": "gfx950",
}
_AMD_VERSIONS: Final = {(9, 4): "gfx942", (9, 5): "gfx950"}
_AMD: Final = re.compile(r"AMD\b|.*\b(?:Instinct|Radeon)\b|gfx[0-9]")

#: How many threads AMD's GPUs for computing run in step; all others have fewer.
_AMD_WAVEFRONT: Final = 64


def worded(text: str, interface: str) -> str:
    """`text`, which is in CUDA's words, in those of `interface`."""
    if interface == CUDA:
        return text
    for pattern, word in _IN_HIP if interface == HIP else ():
        text = re.sub(pattern, word, text)
    phrases = re.sub(_PHRASES, lambda _: interface, text.replace("outside CUDA", _OUTSIDE[interface]))
    return phrases.upper() if text.isupper() else phrases


def is_amd(name: str | None, threads_per_warp: int | None = None) -> bool:
    """Whether a GPU is AMD's, by what its driver calls it, or else by how many threads it runs in step."""
    return bool(name and _AMD.match(name)) or (not name and threads_per_warp == _AMD_WAVEFRONT)


def amd_target(name: str | None, major: int | None, minor: int | None) -> str | None:
    """What AMD calls the processor of its GPU, such as gfx90a; None where name and version do not tell."""
    known = next((target for part, target in _AMD_TARGETS.items() if re.search(part, name or "")), None)
    return known or _AMD_VERSIONS.get((major or 0, minor or 0))


def processor(name: str | None, capability: str | None, count: int | None) -> str:
    """What a GPU is for compilers, and how many processors it has: ``sm_90, 132 SMs`` or ``gfx90a, 104 CUs``."""
    amd = is_amd(name) or (capability or "").startswith("gfx")
    kind = capability if amd or not capability else f"sm_{capability.replace('.', '')}"
    return ", ".join(part for part in (kind, f"{count} {'CUs' if amd else 'SMs'}" if count else "") if part)
