"""Options of a collection, declared once for the command line and for Python, and the errors of collecting alone.

Shared errors are in :mod:`kanalyze.errors`; ``docs/errors.md`` explains every case.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from kanalyze.collectors.in_workload.torch_sessions import RECIPES
from kanalyze.errors import KanalyzeError, UnknownNameError, nearest
from kanalyze.tools import NAMES
from kanalyze.units import plural

if TYPE_CHECKING:
    from os import PathLike

#: The passes that `passes` chooses among, one by each tool; that of samples, by nsys, too, has options of its own.
CHOICES: Final = NAMES
NSYS, TORCH, NCU = CHOICES
SAMPLES: Final = "samples"

#: The pass without a profiler, which tells what the others cost.
BARE: Final = "bare"

#: All passes, in the order of execution.
PASSES: Final = (BARE, NSYS, SAMPLES, TORCH, NCU)

#: A GPU architecture, as nvcc or a user writes it.
_ARCH: Final = re.compile(r"(sm_|compute_)?(\d{2,3}|\d{1,2}\.\d)[af]?")

ClockControl = Literal["base", "none"]


@dataclass(frozen=True)
class Options:
    """Options of a collection.

    Attributes:
        passes: Which of :data:`CHOICES` to run; None selects those that suit the workload.
        bare: Whether the program first runs without a profiler, which tells what the others cost.
        lines: Whether a Python program's own lines are noted while nsys and torch record it.
        output: The capture folder; by default named after the workload and the time, in the current folder.
        samples: Whether a pass of its own samples the host: CPU, Python, scheduler, system calls.
        metrics: Whether that pass samples the GPU's counters.
        samples_for_s: The longest time that it records, in seconds; the program is stopped then.
        prepare: Whether the program first runs once without a profiler, to warm up build and compile caches.
        repeat: Number of runs of the passes that tell the time: bare, nsys and torch.
        timeout_s: Time limit of each pass, in seconds.
        arch: GPU architectures to compile for (``sm_90``, ``90a``); by default those of the GPUs present.
        nvcc_flags: Further flags of nvcc.
        nsys_flags: Further flags of ``nsys profile``.
        ncu_flags: Further flags of ncu.
        recipe: The recipe of torch.profiler.
        recipe_flags: Further flags of the torch pass's runner.
        kernels: Number of kernels that ncu profiles, the heaviest of the nsys pass.
        launches: Number of launches profiled per kernel.
        ncu_budget_s: Time budget of all ncu runs together, in seconds.
        clock_control: Whether ncu locks the GPU's clocks to their base frequency.
        range_name: Profile only inside NVTX ranges of this name.
        cuda_profiler_api: Profile only between cudaProfilerStart and cudaProfilerStop.
        delay_s: Delay before the nsys pass records, in seconds.
        duration_s: Duration of the recording in the nsys pass, in seconds.
        python: The Python for scripts; None searches for one.
        nvcc: The nvcc to use; None searches for one, as for `nsys` and `ncu`.
        nsys: The nsys to use.
        ncu: The ncu to use.
    """

    passes: tuple[str, ...] | None = None
    bare: bool = True
    lines: bool = True
    output: str | PathLike[str] | None = None
    samples: bool = False
    metrics: bool = False
    samples_for_s: float = 60.0
    prepare: bool = False
    repeat: int = 1
    timeout_s: float = 3600.0
    arch: tuple[str, ...] = ()
    nvcc_flags: tuple[str, ...] = ()
    nsys_flags: tuple[str, ...] = ()
    ncu_flags: tuple[str, ...] = ()
    recipe: str = "plain"
    recipe_flags: tuple[str, ...] = ()
    kernels: int = 5
    launches: int = 1
    ncu_budget_s: float = 600.0
    clock_control: ClockControl = "base"
    range_name: str | None = None
    cuda_profiler_api: bool = False
    delay_s: float | None = None
    duration_s: float | None = None
    python: str | PathLike[str] | None = None
    nvcc: str | PathLike[str] | None = None
    nsys: str | PathLike[str] | None = None
    ncu: str | PathLike[str] | None = None

    @property
    def partial(self) -> bool:
        """Whether the nsys pass records only a part of the run, so that its launches are not all of the program's."""
        recorded_in_part = (self.range_name, self.delay_s, self.duration_s)
        return self.cuda_profiler_api or any(value is not None for value in recorded_in_part)


class Keywords(TypedDict, total=False):
    """The attributes of :class:`Options` as keyword arguments."""

    passes: tuple[str, ...] | None
    bare: bool
    lines: bool
    output: str | PathLike[str] | None
    samples: bool
    metrics: bool
    samples_for_s: float
    prepare: bool
    repeat: int
    timeout_s: float
    arch: tuple[str, ...]
    nvcc_flags: tuple[str, ...]
    nsys_flags: tuple[str, ...]
    ncu_flags: tuple[str, ...]
    recipe: str
    recipe_flags: tuple[str, ...]
    kernels: int
    launches: int
    ncu_budget_s: float
    clock_control: ClockControl
    range_name: str | None
    cuda_profiler_api: bool
    delay_s: float | None
    duration_s: float | None
    python: str | PathLike[str] | None
    nvcc: str | PathLike[str] | None
    nsys: str | PathLike[str] | None
    ncu: str | PathLike[str] | None


def checked(options: Options) -> Options:
    """Validates `options` and returns them; raises BadOptionError or UnknownNameError."""
    known = [("pass", name, CHOICES) for name in options.passes or ()] + [("recipe", options.recipe, tuple(RECIPES))]
    for what, name, names in known:
        if name not in names:
            raise UnknownNameError.of(what, name, names)
    counts = {"repeat": options.repeat, "kernels": options.kernels, "launches": options.launches}
    times = {
        "timeout": options.timeout_s,
        "ncu-budget": options.ncu_budget_s,
        "duration": options.duration_s,
        "samples-for": options.samples_for_s,
    }
    bounds = (
        *(("arch", text, _ARCH.fullmatch(text), "a GPU architecture such as sm_90") for text in options.arch),
        *((name, number, number >= 1, "a whole number from 1") for name, number in counts.items()),
        *((name, time, time is None or 0 < time < math.inf, "a time above 0") for name, time in times.items()),
        ("delay", options.delay_s, options.delay_s is None or 0 <= options.delay_s < math.inf, "a time from 0"),
        ("range", options.range_name, options.range_name != "", "the name of a range"),
    )
    for option, value, is_right, wanted in bounds:
        if not is_right:
            raise BadOptionError.of(f"--{option}", value, wanted)
    if options.range_name is not None and options.cuda_profiler_api:
        raise BadOptionError("--range and --cuda-profiler-api exclude each other.", "Give one of them.")
    return options


# Errors


class WorkloadError(KanalyzeError):
    """The workload does not exist or cannot be profiled."""

    slug = "bad-workload"

    @classmethod
    def missing(cls, path: Path, beside: Iterable[str], references: Iterable[str]) -> WorkloadError:
        """Error: `path` is not a file, nor a program on PATH or a reference workload."""
        near = nearest(path.name, beside)
        hint = str(path.parent / near) if near else nearest(path.name, references)
        usual = "Give a .cu file, a Python script, an executable, or a name that `kanalyze collect --list` lists."
        remedy = f"Did you mean {hint}?" if hint else usual
        return cls(f"{path}: no such file, program on PATH or reference workload.", remedy)

    @classmethod
    def not_runnable(cls, path: Path) -> WorkloadError:
        """Error: `path` is a file that can neither be compiled nor run."""
        return cls(
            f"{path}: neither a .cu file nor a Python script, and not executable.",
            f"If it is a program, make it executable: `chmod +x {shlex.quote(str(path))}`.",
        )


class BadOptionError(KanalyzeError):
    """An option has an invalid value."""

    slug = "bad-option"

    @classmethod
    def of(cls, option: str, value: object, wanted: str) -> BadOptionError:
        """Error: `option` has `value`, which is not the `wanted` one, a noun phrase."""
        return cls(f"{option} {str(value)!r}: not {wanted}.", f"`kanalyze collect --help` says what {option} takes.")


class CompileError(KanalyzeError):
    """Compiling a CUDA source failed."""

    slug = "compile-failed"

    @classmethod
    def of(cls, path: Path, errors: Iterable[str], log: Iterable[str]) -> CompileError:
        """Error: compiling `path` failed; the first of `errors` leads the message, nvcc's output is in `log`."""
        lines, printed = list(errors), list(log)
        first = next(iter((*lines, *(line.strip() for line in printed[-1:]))), "nvcc said nothing")
        more = f" {plural(len(lines) - 1, 'error')} more came after it." if len(lines) > 1 else ""
        remedy = f"Correct the source, or give nvcc what it needs after --nvcc.{more}"
        error = cls(f"{path}: does not compile: {first}", remedy)
        error.details = printed
        return error


class IncompleteError(KanalyzeError):
    """A capture was saved, but is incomplete."""

    slug = "capture-incomplete"
    exit_status = 1

    @classmethod
    def because(cls, folder: Path, reasons: Iterable[str], sides: Iterable[str] = ("",)) -> IncompleteError:
        """Error: the capture in `folder`, or the captures of two `sides` there, are incomplete for these `reasons`."""
        logs = [str(folder / side / "logs") for side in sides]
        have = f"{' and '.join(logs)} {'has' if len(logs) == 1 else 'have'}"
        return cls(f"{folder}: {'; '.join(reasons)}.", f"What was recorded is kept; {have} what the tools said.")


class InterruptedCaptureError(KanalyzeError):
    """The user interrupted a run."""

    slug = "interrupted"
    exit_status = 130

    @classmethod
    def during(cls, name: str, folder: Path | None) -> InterruptedCaptureError:
        """Error: interrupted in the pass `name`; `folder` holds the finished passes, None if there are none."""
        kept = f"What was finished before is in {folder}." if folder else "Nothing was finished, and nothing was kept."
        return cls(f"stopped during {name}.", kept)
