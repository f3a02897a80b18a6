"""Wording that findings share: figures per iteration, PyTorch or CUDA, calls in the user's words, and what recurs.

A finding on a window of iterations (:class:`kanalyze.window.Window`) tells its times and counts as an average per
iteration, as a user counts them: "1,184 kernels a step". In any other window it tells totals.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.findings.rules import literal
from kanalyze.analyses.host._call_kinds import bucket_of, cuda_name, is_launch_name
from kanalyze.analyses.idle._attribution import idle_within
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.decoder.decode import decode
from kanalyze.units import percent, shortened
from kanalyze.window import PerIteration

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Maximum length of the name of an iteration in a sentence.
_LONGEST: Final = 40

#: How names of PyTorch's own kernels and operators are recognised.
_KERNELS_OF_TORCH: Final = "at::native::"
_OPERATORS_OF_TORCH: Final = "aten::"


#: Names of calls of CUDA and HIP.
_CALL: Final = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*")

#: The :func:`phase` before modules are loaded.
LOADS_NEXT: Final = "before loading of modules"

#: Calls that take CUDA down, as a program does at its end.
_ENDING: Final = re.compile(
    r"cu(?:Library|Module)Unload|cu(?:Ctx|DevicePrimaryCtx)(?:Destroy|Release|Reset)|cudaDeviceReset"
)

#: Calls right before a launch, about the kernel or the stream that is launched.
_PREPARING: Final = re.compile(
    r"cuKernel[GS]et|cu(?:da)?Func[GS]et|cudaGetFuncBySymbol|cu(?:da)?Occupancy|cuTensorMapEncode"
    r"|cuda(?:StreamIsCapturing|StreamGetCaptureInfo|PeekAtLastError|GetLastError)"
)

#: Kinds of calls in the user's words, the most telling first: the host waits behind or before these.
_COPY: Final = re.compile(r"(?:cuda|cu)Memcpy")
_KINDS: Final = {
    "sync": "waits for the GPU",
    "copy": "copies",
    "allocation": "allocations",
    "loading": "loading of modules",
    "launch": "launches",
}


def per_iteration(report: Report) -> PerIteration:
    """How times and counts of the report's window are told."""
    window = report.scope.window
    if window is None or not window.count:
        return PerIteration(None, "")
    each = window.each or "iteration"
    return PerIteration(window.count, literal(shortened(each, _LONGEST)))


#: Why mending what the host does may gain more than the idle time that is seen.
AHEAD: Final = "More may follow: the host could run ahead."

#: A few events between phases are normal; from so many on, or in this part of a window's iterations, they are a loop's.
_FEWEST: Final = 3
_OFTEN: Final = 0.5


def of_window(per: PerIteration, ns: int, share: float) -> str:
    """A part of the window, with its time per iteration."""
    return f"{per.time(ns)}, {percent(share)} of it" if per.iterations else f"{percent(share)} of the window"


def fewest_in(report: Report) -> float:
    """How often something has to occur in the report's window to be a loop's."""
    window = report.scope.window
    return max(_OFTEN * window.count, 1) if window is not None and window.count else _FEWEST


def idle_worth_saying(report: Report, within: pl.DataFrame, counts: pl.Expr | None = None) -> dict[int, pl.DataFrame]:
    """The :func:`idle_within` of each device, where what `counts` of it is enough for a finding."""
    least, found = least_worth_saying(report), {}
    for device, idle in idle_within(report, within).items():
        pieces = idle if counts is None else idle.filter(counts)
        if intervals.length(pieces) >= max(least[device], 1):
            found[device] = pieces
    return found


@once_per_process
def in_pytorch(report: Report) -> bool:
    """Whether the program used PyTorch, by the names of its kernels and operators: its user writes Python, not CUDA."""
    return any(
        report.kind(kind).get_column("name").unique().cast(pl.String).str.contains(part, literal=True).any()
        for kind, part in (("op", _OPERATORS_OF_TORCH), ("kernel", _KERNELS_OF_TORCH))
        if kind in report.kinds
    )


#: What a kernel is written with, as far as its name tells: whose user can change what of it.
LIBRARY: Final = "library"
COMPILED: Final = "torch.compile"
TRITON: Final = "Triton"
CUDA: Final = "CUDA"


def written_with(report: Report, name: str) -> str:
    """Origin of a kernel: a library, torch.compile, CUDA, or most likely Triton.

    In a program of PyTorch most names without a signature are those of Triton: CUDA C++ has them for ``extern "C"``.
    """
    said = decode(name)
    if said.library is not None:
        return COMPILED if said.library == "inductor" else LIBRARY
    return TRITON if in_pytorch(report) and re.fullmatch(r"\w+", name) else CUDA


def phase(culprit: str) -> str:
    """Host time between two calls of CUDA in the user's words: ``between launches``, ``after waits for the GPU``.

    `culprit` is that of the table `culprits`; any other stays as it is.
    """
    calls = re.fullmatch(r"(?:between (\S+) and|after (\S+)|before) ?(\S+)?", culprit)
    if calls is None:
        return culprit
    before, after = calls[1] or calls[2], calls[3]
    if not all(_CALL.fullmatch(name) for name in (before, after) if name):
        return culprit
    if after and _ENDING.match(cuda_name(after)):
        return "at the end, before CUDA is taken down"
    kinds = [_kind(name) for name in (before, after)]
    if kinds[0] == kinds[1] == "launch":
        return "between launches"
    for kind, words in _KINDS.items():
        if kind in kinds:
            return f"{'after' if kinds[0] == kind else 'before'} {words}"
    return culprit


def _kind(call: str | None) -> str:
    """The kind of a call, of :data:`_KINDS`; another word for any other."""
    name = cuda_name(call or "")
    if _COPY.match(name):
        return "copy"
    if _PREPARING.match(name):
        return "launch"
    if (bucket := bucket_of(name)) != "api":
        return bucket
    return "launch" if is_launch_name(name) else bucket


#: Equal parts of a stretch that is not of iterations, and the share of parts that is most.
PARTS: Final = 8
_MOST: Final = 0.75


def all_along(at: pl.Expr, low: pl.Expr | int, high: pl.Expr | int, number: int = PARTS) -> pl.Expr:
    """Whether the times `at` (nulls aside) lie in most of `number` equal parts of the time from `low` to `high`."""
    part = ((at - low) * number // pl.max_horizontal(high - low, 1)).clip(0, number - 1)
    return part.drop_nulls().n_unique() >= _MOST * number
