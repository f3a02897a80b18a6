"""What sentences of findings share: figures per iteration, PyTorch or CUDA, and calls in the user's words.

A finding on a window of iterations (:class:`kanalyze.window.Window`) tells its times and counts as an average per
iteration, as a user counts them: "1,184 kernels a step". In any other window it tells totals.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.findings.rules import literal
from kanalyze.analyses.host._call_kinds import bucket_of, cuda_name, is_launch_name
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.units import mean, plural, plural_of, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: What an iteration may be called that is no name of the program, and takes an article.
_WORDS: Final = ("step", "repetition", "iteration", "round", "request")

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


class PerIteration(NamedTuple):
    """Times and counts of a window in words: per iteration, or in all where it is no window of iterations.

    Attributes:
        iterations: Their number; None in any other window.
        each: What one is called, such as ``step``, escaped for a sentence; empty where there are none.
    """

    iterations: int | None
    each: str

    def time(self, ns: float) -> str:
        """A time: ``10.93 ms a step``, or ``655.9 ms``."""
        return time(ns) if self.iterations is None else f"{time(ns / self.iterations)} {self._a}"

    def time_of(self, ns: float) -> str:
        """A time as a part: ``10.93 ms of a step``, or ``655.9 ms``."""
        return time(ns) if self.iterations is None else f"{time(ns / self.iterations)} {self._of}"

    def plural(self, number: int, noun: str, more: str = "") -> str:
        """A count: ``1,184 kernels a step``, ``2.5 kernels a step``, ``3 kernels in 60 steps``, or ``71,040 kernels``.

        A mean below one is told as a count of all, since nobody sees 0.05 kernels in a step. `more` follows the noun:
        ``2 copies of pinned memory a step``.
        """
        more = f" {more}" if more else ""
        if self.iterations is None:
            return f"{plural(number, noun)}{more}"
        if number < self.iterations:
            return f"{plural(number, noun)}{more} in {self.all}"
        if number == self.iterations:
            return f"1 {noun}{more} {self._a}"
        return f"{mean(number, self.iterations)} {plural_of(noun)}{more} {self._a}"

    def mean_time(self, ns: float) -> str:
        """A time where the sentence says elsewhere that it is per iteration: ``10.93 ms``."""
        return time(ns / (self.iterations or 1))

    @property
    def all(self) -> str:
        """The iterations: ``60 steps``, ``1 step``, ``60 × train_step``; empty where it is no window of any."""
        if self.iterations is None:
            return ""
        return plural(self.iterations, self.each) if self.each in _WORDS else f"{self.iterations:,} × {self.each}"

    @property
    def _a(self) -> str:
        article = "an" if self.each[:1] in "aeiou" else "a"
        return f"{article} {self.each}" if self.each in _WORDS else f"per {self.each}"

    @property
    def _of(self) -> str:
        return f"of {self._a}" if self.each in _WORDS else f"of each {self.each}"


def per_iteration(report: Report) -> PerIteration:
    """How times and counts of the report's window are told."""
    window = report.scope.window
    if window is None or not window.count:
        return PerIteration(None, "")
    each = window.each or "iteration"
    return PerIteration(window.count, literal(each if len(each) <= _LONGEST else f"{each[: _LONGEST - 1]}…"))


@once_per_process
def in_pytorch(report: Report) -> bool:
    """Whether the program used PyTorch, by the names of its kernels and operators: its user writes Python, not CUDA."""
    return any(
        report.kind(kind).get_column("name").unique().cast(pl.String).str.contains(part, literal=True).any()
        for kind, part in (("op", _OPERATORS_OF_TORCH), ("kernel", _KERNELS_OF_TORCH))
        if kind in report.kinds
    )


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
