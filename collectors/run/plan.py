"""Builds the commands of a run as data; starts nothing, inspects nothing.

The dry run prints them, and the runner takes its steps from the same functions.
"""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from kanalyze.collectors.base import nvcc
from kanalyze.collectors.base.options import BARE, NCU, NSYS, PASSES, SAMPLES, TORCH
from kanalyze.collectors.base.step import Step
from kanalyze.collectors.base.workloads import references
from kanalyze.collectors.tools import ncu, nsys, torch_pass
from kanalyze.collectors.tools.found import wanted_passes
from kanalyze.collectors.tools.ncu_launches import Selection, filter_flags, unselected
from kanalyze.collectors.tools.nsys import Sampled
from kanalyze.tools import tool_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.collectors.base.options import Options
    from kanalyze.collectors.base.programs import Program
    from kanalyze.collectors.base.workload import Workload
    from kanalyze.collectors.tools.found import Tools

T = TypeVar("T")

#: The script that runs in the workload's Python.
RUNNER: Final = Path(__file__).parents[1] / "in_workload" / "torch_runner.py"

#: A Python that has kanalyze, as it is called where the lines of a dry run are pasted.
OWN_PYTHON: Final = "python3"

#: The oldest Python in which the marks of a run without a profiler are noted.
_OLDEST_PYTHON: Final = (3, 9)

#: Placeholder for what is only known after the nsys pass.
_CHOSEN: Final = "CHOSEN_LAUNCHES"


@dataclass(frozen=True)
class Plan:
    """A program's run: inputs from which its commands are built.

    Attributes:
        folder: That of the capture.
        binary: The compiled workload, where it is a CUDA source.
        runner: The script that runs in the workload's Python.
        side: ``base`` or ``new`` where two programs are recorded in turns, else empty.
    """

    workload: Workload
    options: Options
    tools: Tools
    folder: Path
    binary: Path | None = None
    runner: Path = RUNNER
    side: str = ""

    @property
    def label(self) -> str:
        """The program's name in messages."""
        return f"{self.side} ({self.workload.name})" if self.side else self.workload.name

    def said(self, text: str) -> str:
        """A message, with the side that it is about."""
        return f"{self.side}: {text}" if self.side else text

    @property
    def arch(self) -> tuple[str, ...]:
        """The architectures to compile for."""
        return self.options.arch or self.tools.gpus.compute_capabilities

    @property
    def _launcher(self) -> tuple[str, ...]:
        """The words before a script: what starts it on the command line, else its Python."""
        return self.workload.launcher or (str(self.tools.python),)

    @property
    def command(self) -> tuple[str, ...]:
        """The workload's own command line."""
        work = self.workload
        if work.kind == "python":
            return (*self._launcher, *work.target, *work.args)
        return (str(self.binary or work.path), *work.args)

    @property
    def makes_ranges(self) -> bool:
        """Whether each operator emits an NVTX range in the nsys pass."""
        return self.workload.kind == "python" and torch_pass.under_nsys(self.options)

    def recorded(self, name: str) -> tuple[str, ...]:
        """The command that a run of nsys records: the workload, with NVTX ranges for operators, or noting its lines."""
        if self.makes_ranges:
            return self._under_runner(self.folder)
        return self._hooked("--lines", f"lines-{name}.json.gz") if self.options.lines else self.command

    def _hooked(self, option: str, file: str) -> tuple[str, ...]:
        """The command of a Python workload in the runner, which writes a file; any other workload as it is."""
        if self.workload.kind != "python" or not self._bears_hooks:
            return self.command
        runner = (str(self.runner), option, str(self.folder / file), "--")
        return (*self._launcher, *runner, *self.workload.target, *self.workload.args)

    def _under_runner(self, out: Path) -> tuple[str, ...]:
        options = self.options
        if not options.lines:
            options = replace(options, recipe_flags=(*options.recipe_flags, "--no-lines"))
        return torch_pass.command(str(self.tools.python), self.runner, out, options, self.workload)

    def repetitions(self, name: str) -> int:
        """How often the pass `name` runs the program: those that say when things ran are repeated."""
        return self.options.repeat if name == BARE or tool_of(name).timed else 1

    def log(self, name: str) -> Path:
        """The log file of the step `name`."""
        return self.folder / "logs" / f"{name}.log"

    def prepare(self) -> Step:
        """The step that runs the program without a profiler."""
        return Step("prepare", self.command, self.log("prepare"), runs_workload=True)

    def bare(self, number: int) -> list[Step]:
        """The step of the run without a profiler; `number` is the repetition, from 1."""
        name = numbered(BARE, number)
        command = self._hooked("--bare", f"{name}.json")
        return [Step(name, command, self.log(name), runs_workload=True)]

    @property
    def _bears_hooks(self) -> bool:
        """Whether the workload's Python is new enough for the hooks; also where its version is not known."""
        numbers = (self.tools.python_version or "3.99").split(".")[:2]
        return not all(map(str.isdecimal, numbers)) or tuple(map(int, numbers)) >= _OLDEST_PYTHON

    def nsys(self, number: int) -> list[Step]:
        """The steps of the nsys pass; `number` is the repetition, from 1."""
        name = numbered("nsys", number)
        report, tool = self.folder / name, self.tools.nsys.command
        recorded, exported = report.with_name(f"{name}.nsys-rep"), report.with_name(f"{name}.sqlite")
        profile = nsys.profile(tool, report, self.options, self.recorded(name))
        ran, log = self.makes_ranges, self.log(name)
        return [
            Step(name, profile, log, outputs=(recorded,), runs_workload=True, has_runner=ran),
            Step(f"{name}-export", nsys.export(tool, report), self.log(f"{name}-export"), outputs=(exported,)),
        ]

    def sampled(self, known: str = "", *, cpu: bool = True, metrics: bool = True) -> Sampled:
        """Records of the pass of samples, of those that were asked for.

        Args:
            known: The options of this nsys; empty for those of the newest known one.
            cpu: Whether the CPU can be sampled.
            metrics: Whether the GPU's counters can.
        """
        options, work = self.options, self.workload
        python = work.kind == "python" or work.starts_python
        return Sampled(options.samples and cpu, options.samples, options.metrics and metrics, python, known)

    def samples(self, what: Sampled) -> list[Step]:
        """The steps of the pass of samples."""
        tool, report, log = self.tools.nsys.command, self.folder / "samples", self.log("samples-export")
        profile = nsys.sampled(tool, report, self.options, what, self.command)
        recorded, exported = report.with_suffix(".nsys-rep"), report.with_suffix(".sqlite")
        return [
            Step("samples", profile, self.log("samples"), outputs=(recorded,), runs_workload=True),
            Step("samples-export", nsys.export(tool, report), log, outputs=(exported,)),
        ]

    def launches(self) -> Step:
        """The step that lists the kernel launches of the first nsys run."""
        listing = self.folder / "logs" / "launches.csv"
        command = nsys.launches(self.tools.nsys.command, self.folder / "nsys")
        return Step("nsys-launches", command, self.log("nsys-launches"), outputs=(listing,), stdout=listing)

    def torch_folder(self, number: int) -> Path:
        """Folder of the torch pass; a repetition has its own, as its files are called the same."""
        return self.folder if number == 1 else self.folder / numbered("torch", number)

    def torch(self, number: int) -> list[Step]:
        """The step of the torch pass; `number` is the repetition, from 1."""
        name, command = numbered("torch", number), self._under_runner(self.torch_folder(number))
        return [Step(name, command, self.log(name), runs_workload=True, has_runner=True)]

    def ncu(self, number: int, selection: Selection) -> list[Step]:
        """The steps of one ncu run; `number` is the group of launches, from 1."""
        name = numbered("ncu", number)
        report, tool = self.folder / name, self.tools.ncu.command
        recorded = report.with_name(f"{name}.ncu-rep")
        profile = ncu.profile(tool, report, self.options, selection, self.command)
        first = Step(name, profile, self.log(name), outputs=(recorded,), runs_workload=True)
        return [first, *(self._page(name, page) for page in ncu.PAGES)]

    def _page(self, name: str, page: str) -> Step:
        written, step = self.folder / f"{name}.{page}.csv", f"{name}-{page}"
        command = ncu.page(self.tools.ncu.command, self.folder / name, page)
        return Step(step, command, self.log(step), outputs=(written,), stdout=written)


def numbered(name: str, number: int) -> str:
    """The name of the `number`-th run, from 1; the first has none."""
    return name if number == 1 else f"{name}-{number}"


def in_order(sides: Sequence[T], number: int) -> Sequence[T]:
    """The sides in the order of their `number`-th runs, from 1: A B, B A, A B, and so on."""
    return sides if number % 2 else sides[::-1]


def script(*plans: Plan) -> list[str]:
    """All commands of a run as shell lines, those of two programs in turns.

    The launches for ncu are only known after the nsys pass: its command selects them from the listing.
    """
    lines = [line for plan in plans for line in _made_ready(plan)]
    for plan in plans:
        lines += _titled(plan, "to build what it needs", [plan.prepare().shell]) if plan.options.prepare else []
    for name in PASSES:
        taking_part = [plan for plan in plans if name in _passes(plan)]
        for number in range(1, max((plan.repetitions(name) for plan in taking_part), default=0) + 1):
            lines += [line for plan in in_order(taking_part, number) for line in _run_lines(plan, name, number)]
    return lines


def _passes(plan: Plan) -> list[str]:
    wanted = wanted_passes(plan.workload, plan.options)
    return [name for name in wanted if name != TORCH or plan.workload.kind == "python"]


def _titled(plan: Plan, title: str, lines: Sequence[str]) -> list[str]:
    """The `lines` below a comment."""
    return [f"# {title}: {plan.side}" if plan.side else f"# {title}", *lines]


def _made_ready(plan: Plan) -> list[str]:
    lines = [f"mkdir -p {shlex.quote(str(plan.folder / 'logs'))}"]
    if plan.binary is not None and plan.workload.path is not None:
        compiler, flags = plan.tools.nvcc.command, plan.options.nvcc_flags
        compiled = nvcc.command(compiler, plan.workload.path, plan.binary, plan.arch, flags)
        folder = shlex.quote(str(plan.binary.parent))
        lines += _titled(plan, "compile", [f"mkdir -p {folder}", shlex.join(compiled)])
    return lines


def _run_lines(plan: Plan, name: str, number: int) -> list[str]:
    if name == NCU:
        return _titled(plan, name, _ncu_lines(plan))
    if name == SAMPLES:
        return _titled(plan, "samples, by nsys", [step.shell for step in plan.samples(plan.sampled())])
    title = "without a profiler" if name == BARE else tool_of(name).name
    steps = {BARE: plan.bare, NSYS: plan.nsys}.get(name, plan.torch)
    count = plan.repetitions(name)
    again = f", {number} of {count}" if count > 1 else ""
    return _titled(plan, f"{title}{again}", [step.shell for step in steps(number)])


def _ncu_lines(plan: Plan) -> list[str]:
    if NSYS not in _passes(plan):
        return [step.shell for step in plan.ncu(1, unselected(plan.options))]
    listing, options = plan.launches(), plan.options
    wanted = ["--kernels", str(options.kernels), "--launches", str(options.launches)]
    wanted += ["--part"] if options.partial else []
    choose = shlex.join([OWN_PYTHON, "-m", "kanalyze.collectors.tools.choose", str(listing.stdout), *wanted])
    first, *pages = plan.ncu(1, Selection((), filter_flags(_CHOSEN, options.kernels, options)))
    command = first.shell.replace(shlex.quote(_CHOSEN), f'"$({choose})"')
    return [listing.shell, command, *(step.shell for step in pages)]


# Commands that fit another machine: names in place of what lies elsewhere there.

#: Words that stand for a variable of the shell, in place of a path that only the other machine knows.
_RUNNER: Final = "KANALYZE_RUNNER"
_WORKLOADS: Final = ("KANALYZE_WORKLOAD", "KANALYZE_OTHER")

_VARIABLES: Final = ("workload", "other")

_SAYS_RUNNER: Final = "from kanalyze.collectors.run.plan import RUNNER; print(RUNNER)"


def portable_script(plans: Sequence[Plan]) -> list[str]:
    """All commands of a run as shell lines for any machine."""
    return _defined(script(*(_portable(plan, plans[:at]) for at, plan in enumerate(plans))), plans)


def _portable(plan: Plan, others: Sequence[Plan]) -> Plan:
    """The same plan with names of programs and relative paths; `others` are those of programs that come before it.

    A program that was given by its whole path, or that is not on PATH, stays. The Python is the one called python3.
    """
    options, tools, work = plan.options, plan.tools, plan.workload
    python = tools.python if options.python is not None else Path(OWN_PYTHON)
    tools = replace(
        tools,
        nvcc=_named(tools.nvcc, options.nvcc),
        nsys=_named(tools.nsys, options.nsys),
        ncu=_named(tools.ncu, options.ncu),
        python=python,
    )

    paths = [other.workload.path for other in others]
    variable = _WORKLOADS[paths.index(work.path) if work.path in paths else len(paths)]

    shipped = {str(one.path) for one in references()}

    def named(word: str) -> str:
        return word if word == work.given else variable if word in shipped else _relative(word)

    path = work.path and Path(named(str(work.path)))
    target, launcher = tuple(map(named, work.target)), tuple(map(named, work.launcher))
    binary = plan.folder / "build" / work.path.stem if work.kind == "cuda" and work.path else None
    work = replace(work, path=path, target=target, launcher=launcher)
    return replace(plan, tools=tools, workload=work, binary=binary, runner=Path(_RUNNER))


def _defined(lines: list[str], plans: Sequence[Plan]) -> list[str]:
    """Shell lines of portable plans with the variables that stand in them, defined first; `plans` are the originals."""
    values = {_RUNNER: ("runner", shlex.join([OWN_PYTHON, "-c", _SAYS_RUNNER]))}
    for word, variable, plan in zip(_WORKLOADS, _VARIABLES, plans, strict=False):
        known = next((one.name for one in references() if one.path == plan.workload.path), "")
        values[word] = variable, f"{shlex.join([OWN_PYTHON, '-m', 'kanalyze', 'workloads', known])} | head -n 1"
    found = {word: value for word, value in values.items() if any(word in line for line in lines)}
    for word, (name, _) in found.items():
        lines = [line.replace(word, f'"${name}"') for line in lines]
    lines = [*(f"{name}=$({says})" for name, says in found.values()), *lines]
    ours = any(OWN_PYTHON in line for line in lines)
    return [f"# {OWN_PYTHON} is one that has kanalyze, and what the program needs"] * ours + lines


def _named(program: Program, asked: object) -> Program:
    if asked is None and program.path is not None and shutil.which(program.name) == str(program.path):
        return replace(program, path=Path(program.name))
    return program


def _relative(word: str) -> str:
    """A path below the current folder as it is from there, a program on PATH by its name; else the word itself."""
    if not os.path.isabs(word):  # noqa: PTH117 - it may be any word
        return word
    path = Path(word)
    if path.is_relative_to(Path.cwd()):
        inside = str(path.relative_to(Path.cwd()))
        return inside if os.sep in inside or path.suffix == ".py" else f".{os.sep}{inside}"
    return path.name if shutil.which(path.name) == word else word
