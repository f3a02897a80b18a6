"""Options of a collection, declared once for the command line and for Python, and the errors of collecting alone.

Shared errors are in :mod:`kanalyze.errors`; ``docs/errors.md`` explains every case.
"""

# ruff: noqa: RUF009 - what makes an attribute an option is a field

import math
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from kanalyze.collectors.in_workload.torch_sessions import RECIPES
from kanalyze.errors import Case, KanalyzeError, refuse_unknown
from kanalyze.tools import NAMES
from kanalyze.units import plural

#: The passes that `passes` chooses among, one by each tool; those of samples and names, by nsys, too, have own options.
CHOICES: Final = NAMES
NSYS, TORCH, NCU = CHOICES
SAMPLES, NAMING = "samples", "names"

#: The pass without a profiler, which tells what the others cost.
BARE: Final = "bare"

#: All passes, in the order of execution.
PASSES: Final = (BARE, NSYS, SAMPLES, NAMING, TORCH, NCU)

#: What a value has to be, in words, and how that is told.
_COUNT, _TIME, _DELAY = "a whole number from 1", "a time above 0", "a time from 0"
_GPU, _RANGE = "a GPU architecture such as sm_90", "the name of a range"
_HOLDS: Final[dict[str, Any]] = {
    _COUNT: lambda number: number >= 1,
    _TIME: lambda time: 0 < time < math.inf,
    _DELAY: lambda time: 0 <= time < math.inf,
    _GPU: re.compile(r"(sm_|compute_)?(\d{2,3}|\d{1,2}\.\d)[af]?").fullmatch,
    _RANGE: bool,
}


def _option(names: str, text: str, metavar: str = "", wanted: str = "", *, default: object = None) -> Any:  # noqa: ANN401 - of a field
    """An attribute of options: its names on the command line, what it is, of which kind, and what holds of it."""
    return field(default=default, metadata={"names": names, "text": text, "metavar": metavar or None, "wanted": wanted})


_flag, _several = partial(_option, default=False), partial(_option, default=())


@dataclass(frozen=True)
class Options:
    """Options of a collection: those of `kanalyze collect`, which says what each is; times are in seconds.

    `passes` are some of :data:`CHOICES`, None for those that suit the workload.
    """

    passes: tuple[str, ...] | None = _option(
        "--with", "Which of nsys, torch and ncu, with commas between them.", "PASSES"
    )
    bare: bool = _option("--bare/--no-bare", "Run it without a profiler first, for its true times; on.", default=True)
    lines: bool = _option("--lines/--no-lines", "Note the lines that a Python program is in; on.", default=True)
    output: str | os.PathLike[str] | None = _option("-o --output", "The folder to write; it must not exist yet.", "DIR")
    samples: bool = _flag("--samples", "Also sample the host, in a run of its own: functions, Python, waits.")
    metrics: bool = _flag("--metrics", "In that run, sample the GPU's counters: SMs, tensor cores, DRAM, PCIe.")
    samples_for_s: float = _option(
        "--samples-for",
        "That run records so long at most, and is ended then; 60 unless told.",
        "SECONDS",
        _TIME,
        default=60.0,
    )
    names: bool = _flag("--names", "Also record operators with shapes, in a run of its own: names inside CUDA graphs.")
    measure: bool = _option(
        "--measure/--no-measure", "Time large products and a copy first: roofs that the GPU reaches; on.", default=True
    )
    repeat: int = _option("--repeat", "Run it bare, under nsys and under torch K times each.", "K", _COUNT, default=1)
    timeout_s: float = _option("--timeout", "Longest time of a pass.", "SECONDS", _TIME, default=3600.0)
    arch: tuple[str, ...] = _several(
        "--arch", "Compile for sm_90 or the like; several make a fat binary.", "ARCH", _GPU
    )
    nvcc_flags: tuple[str, ...] = _several("--nvcc", "Further flags of nvcc, one or several in quotes.", "FLAG")
    nsys_flags: tuple[str, ...] = _several("--nsys-flag", "A further flag of nsys profile.", "FLAG")
    ncu_flags: tuple[str, ...] = _several("--ncu-flag", "A further flag of ncu.", "FLAG")
    recipe: str = _option("--recipe", "Recipe of torch.profiler: plain, schedule, toggle…", "NAME", default="plain")
    recipe_flags: tuple[str, ...] = _several("--recipe-flag", "A further flag of the torch pass, as --wait=2.", "FLAG")
    kernels: int = _option("--kernels", "So many kernels go to ncu; 5 unless told.", "N", _COUNT, default=5)
    launches: int = _option("--launches", "So many launches of each; 1 unless told.", "N", _COUNT, default=1)
    ncu_budget_s: float = _option("--ncu-budget", "Longest time of ncu.", "SECONDS", _TIME, default=600.0)
    clock_control: Literal["base", "none"] = _option("--clock-control", "The GPU's clocks under ncu.", default="base")
    range_name: str | None = _option("--range", "Only the NVTX range NAME.", "NAME", _RANGE)
    cuda_profiler_api: bool = _flag("--cuda-profiler-api", "Only from cudaProfilerStart to cudaProfilerStop.")
    delay_s: float | None = _option("--delay", "nsys begins so much later.", "SECONDS", _DELAY)
    duration_s: float | None = _option("--duration", "nsys records so long, and ends the run.", "SECONDS", _TIME)
    python: str | os.PathLike[str] | None = _option("--python", "The Python that runs a script.", "FILE")
    nvcc: str | os.PathLike[str] | None = _option("--nvcc-path", "The nvcc to use.", "FILE")
    nsys: str | os.PathLike[str] | None = _option("--nsys", "The nsys to use.", "FILE")
    ncu: str | os.PathLike[str] | None = _option("--ncu", "The ncu to use.", "FILE")

    @property
    def partial(self) -> bool:
        """Whether the nsys pass records only a part of the run, so that its launches are not all of the program's."""
        recorded_in_part = (self.range_name, self.delay_s, self.duration_s)
        return self.cuda_profiler_api or any(value is not None for value in recorded_in_part)

    @property
    def of_all(self) -> "Options":
        """The same with all of the run recorded: graphs are captured before the part that was asked for."""
        end_s = None if self.duration_s is None else self.duration_s + (self.delay_s or 0)
        return replace(self, range_name=None, cuda_profiler_api=False, delay_s=None, duration_s=end_s)


def checked(options: Options) -> Options:
    """Validates `options` and returns them; raises BadOptionError or UnknownNameError."""
    named = [("pass", name, CHOICES) for name in options.passes or ()] + [("recipe", options.recipe, tuple(RECIPES))]
    for what, name, names in named:
        refuse_unknown(what, name, names)
    for option in fields(options):
        value, condition = getattr(options, option.name), option.metadata["wanted"]
        for item in (value if isinstance(value, tuple) else (value,)) if condition else ():
            if item is not None and not _HOLDS[condition](item):
                raise BadOptionError.of(option.metadata["names"], str(item), condition)
    if options.range_name is not None and options.cuda_profiler_api:
        raise BadOptionError("--range and --cuda-profiler-api exclude each other.", "Give one of them.")
    return options


# Errors


class WorkloadError(KanalyzeError, slug="bad-workload"):
    """The workload does not exist or cannot be profiled."""

    missing = Case(
        "{path}: no such file, program on PATH or reference workload.",
        "Give a .cu file, a Python script, an executable, or a name that `kanalyze collect --list` lists.",
    )

    @classmethod
    def not_runnable(cls, path: Path) -> "WorkloadError":
        """Error: `path` is a file that can neither be compiled nor run."""
        return cls(
            f"{path}: neither a .cu file nor a Python script, and not executable.",
            f"If it is a program, make it executable: `chmod +x {shlex.quote(str(path))}`.",
        )


class BadOptionError(KanalyzeError, slug="bad-option"):
    """An option has a value, a text, that is not the wanted one, a noun phrase."""

    of = Case("{option} {value!r}: not {wanted}.", "`kanalyze collect --help` says what {option} takes.")


class CompileError(KanalyzeError, slug="compile-failed"):
    """Compiling a CUDA source failed."""

    @classmethod
    def of(cls, path: Path, errors: Iterable[str], log: Iterable[str]) -> "CompileError":
        """Error: compiling `path` failed; the first of `errors` leads the message, nvcc's output is in `log`."""
        lines, printed = list(errors), list(log)
        first = next(iter((*lines, *(line.strip() for line in printed[-1:]))), "nvcc said nothing")
        more = f" {plural(len(lines) - 1, 'error')} more came after it." if len(lines) > 1 else ""
        remedy = f"Correct the source, or give nvcc what it needs after --nvcc.{more}"
        return cls(f"{path}: does not compile: {first}", remedy, printed)


class IncompleteError(KanalyzeError, slug="capture-incomplete"):
    """A capture was saved, but is incomplete."""

    exit_status = 1

    @classmethod
    def because(cls, folder: Path, reasons: Iterable[str], sides: Iterable[str] = ("",)) -> "IncompleteError":
        """Error: the capture in `folder`, or the captures of two `sides` there, are incomplete for these `reasons`."""
        logs = [str(folder / side / "logs") for side in sides]
        have = f"{' and '.join(logs)} {'has' if len(logs) == 1 else 'have'}"
        return cls(f"{folder}: {'; '.join(reasons)}.", f"What was recorded is kept; {have} what the tools said.")


class InterruptedCaptureError(KanalyzeError, slug="interrupted"):
    """The user interrupted a run."""

    exit_status = 130

    during = Case("stopped during {name}.", "Nothing was finished, and nothing was kept.")
