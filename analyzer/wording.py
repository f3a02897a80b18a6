"""Translates texts from CUDA's terms to those of the programming interface used, such as HIP."""

from __future__ import annotations

import re
from typing import Final

#: Programming interfaces; RUNTIME is any other, such as MTIA's.
CUDA: Final = "CUDA"
HIP: Final = "HIP"
RUNTIME: Final = "runtime"

#: HIP's terms for CUDA's, as whole phrases, so that names of the user's program stay.
_IN_HIP: Final = (
    (r"\bcudaMemcpyBatchAsync, cudaMemcpy2D\b", "hipMemcpy2D"),
    (r"\bcudaHostAlloc\b", "hipHostMalloc"),
    (r"\bcuda(?=(?:MemAdvise|MemPrefetchAsync|MemcpyAsync|MallocAsync|FuncSetAttribute|GraphLaunch)\b)", "hip"),
    (r"\bcudaStream(?=(?:NonBlocking|CreateWithFlags|BeginCapture|WaitEvent)\b)", "hipStream"),
    (r"\bCUDA_MODULE_LOADING=EAGER\b", "HIP_ENABLE_DEFERRED_LOADING=0"),
    (r"\b([0-9,]+|the|per|than|an|empty) SM(s?)\b", r"\1 CU\2"),
    (r"\ban CU\b", "a CU"),
)
_PHRASES: Final = r"\bCUDA(?= (?:calls?|CALLS|graphs?|GRAPHS|contexts?|kernel|activity|API|events?)\b)"
_OUTSIDE: Final = {HIP: "outside HIP", RUNTIME: "outside the runtime"}

#: AMD processor names (gfx) by a substring of the driver's GPU name.
#: Source: the tables of AMD's GPUs in the ROCm documentation.
_AMD_TARGETS: Final = {
    r"MI(?:50|60)\b": "gfx906",
    r"MI100\b": "gfx908",
    r"MI2(?:10|50X?)\b": "gfx90a",
    r"MI3(?:00[AX]|08X|25X)\b": "gfx942",
    r"MI35[05]X\b": "gfx950",
}
_AMD_VERSIONS: Final = {(9, 4): "gfx942", (9, 5): "gfx950"}
_AMD: Final = r"AMD\b|.*\b(?:Instinct|Radeon)\b|gfx[0-9]"

#: Wavefront size of AMD's data-centre GPUs; all others have smaller warps.
_AMD_WAVEFRONT: Final = 64


def worded(text: str, interface: str) -> str:
    """Translates `text` from CUDA's terms to those of `interface`."""
    if interface == CUDA:
        return text
    for pattern, word in _IN_HIP if interface == HIP else ():
        text = re.sub(pattern, word, text)
    phrases = re.sub(_PHRASES, lambda _: interface, text.replace("outside CUDA", _OUTSIDE[interface]))
    return phrases.upper() if text.isupper() else phrases


def is_amd(name: str | None, threads_per_warp: int | None = None) -> bool:
    """Whether a GPU is AMD's, by its driver name, else by its wavefront size."""
    return bool(name and re.match(_AMD, name)) or (not name and threads_per_warp == _AMD_WAVEFRONT)


def amd_target(name: str | None, major: int | None, minor: int | None) -> str | None:
    """AMD's processor name of a GPU, such as gfx90a; None if unknown."""
    known = next((target for part, target in _AMD_TARGETS.items() if re.search(part, name or "")), None)
    return known or _AMD_VERSIONS.get((major or 0, minor or 0))


def processor(name: str | None, capability: str | None, count: int | None) -> str:
    """Processor name and count of a GPU: ``sm_90, 132 SMs`` or ``gfx90a, 104 CUs``."""
    amd = is_amd(name) or (capability or "").startswith("gfx")
    kind = capability if amd or not capability else f"sm_{capability.replace('.', '')}"
    return ", ".join(part for part in (kind, f"{count} {'CUs' if amd else 'SMs'}" if count else "") if part)
