"""Builds the commands of a run as data; starts nothing, inspects nothing.

The dry run prints them, and the passes take their steps from the same functions.
"""

import json
import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from kanalyze.collectors.options import BARE, NAMING, NCU, NSYS, PASSES, SAMPLES, TORCH, Options
from kanalyze.collectors.process import Program, Step
from kanalyze.collectors.tools import found, ncu, nsys, nvcc
from kanalyze.collectors.workload import Workload, references
from kanalyze.tools import tool_of

T = TypeVar("T")

#: The script that runs in the workload's Python.
RUNNER: Final = Path(__file__).parents[1] / "in_workload" / "torch_runner.py"

#: A Python that has kanalyze, as it is called where the lines of a dry run are pasted.
OWN_PYTHON: Final = "python3"

#: Titles of passes that are not called after their tool.
_TITLES: Final = {BARE: "without a profiler", SAMPLES: "samples, by nsys", NAMING: "names of operators, by nsys"}

#: Placeholder for what is only known after the nsys pass.
_CHOSEN: Final = "CHOSEN_LAUNCHES"

#: Words that stand for a variable of the shell, in place of a path that only another machine knows.
_RUNNER: Final = "KANALYZE_RUNNER"
_WORKLOADS: Final = {"KANALYZE_WORKLOAD": "workload", "KANALYZE_OTHER": "other"}


@dataclass(frozen=True)
class Plan:
    """A program's run: inputs from which its commands are built."""

    workload: Workload
    options: Options
    tools: found.Tools
    folder: Path  # of the capture
    runner: Path = RUNNER  # the script that runs in the workload's Python
    side: str = ""  # ``base`` or ``new`` where two programs are recorded in turns

    def with_side(self, text: str) -> str:
        """A message, with the side that it is about."""
        return f"{self.side}: {text}" if self.side else text

    @property
    def binary(self) -> Path | None:
        """The program itself: of a CUDA source what is compiled, into the capture; None of a Python module."""
        work = self.workload
        return self.folder / "build" / work.name if work.kind == "cuda" else work.path

    def compile(self) -> list[Step]:
        """The step that compiles a CUDA source, for the GPUs that are here unless told; none of any other workload."""
        source, binary, options = self.workload.path, self.binary, self.options
        if self.workload.kind != "cuda" or not source or not binary:
            return []
        arch = options.arch or self.tools.gpus.compute_capabilities
        command = nvcc.command(self.tools.nvcc.command, source, binary, arch, options.nvcc_flags)
        return [self.step("compile", command, str(binary.relative_to(self.folder)))]

    @property
    def command(self) -> tuple[str, ...]:
        """The workload's own command line."""
        return self._script() if self.workload.kind == "python" else (str(self.binary), *self.workload.args)

    def _script(self, *runner: str) -> tuple[str, ...]:
        """The command line of a script, behind what starts it and the runner."""
        work = self.workload
        return (*(work.launcher or (str(self.tools.python),)), *runner, *work.target, *work.args)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The passes that are wanted, in order."""
        return found.wanted_passes(self.workload, self.options)

    @property
    def makes_ranges(self) -> bool:
        """Whether each operator emits an NVTX range in the nsys pass."""
        return found.makes_ranges(self.workload, self.options)

    def _hooked(self, option: str, file: str) -> tuple[str, ...]:
        """The command of a Python workload in the runner, which writes a file; any other workload as it is."""
        numbers = (self.tools.python_version or "3.99").split(".")[:2]  # the hooks work where its version is not known
        is_old = all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) < (3, 9)  # without what they need
        if self.workload.kind != "python" or is_old:
            return self.command
        return self._script(str(self.runner), option, str(self.folder / file), "--")

    def _under_torch(self, out: Path, *, naming: bool = False) -> tuple[str, ...]:
        """The command that runs the workload under torch.profiler, or `naming` operators, and writes into `out`."""
        options = self.options
        recipe, more = ("nvtx", ("--record-shapes",)) if naming else (options.recipe, options.recipe_flags)
        # under nsys, fresh compiler caches would dominate the recording
        caches = ("--caches", "user") if naming or self.makes_ranges else ()
        lines = () if options.lines else ("--no-lines",)
        return self._script(str(self.runner), "--out", str(out), "--recipe", recipe, *caches, *more, *lines, "--")

    def repetitions(self, name: str) -> int:
        """How often the pass `name` runs the program: those that say when things ran are repeated."""
        return self.options.repeat if name == BARE or tool_of(name).timed else 1

    def step(
        self, name: str, argv: Iterable[str], output: str = "", *, stdout: bool = False, program: bool = False
    ) -> Step:
        """A step with the `output` that it writes itself or prints; whether it runs the `program`."""
        file, log, of = self.folder / output, self.folder / "logs" / f"{name}.log", name.partition("-")[0]
        runner = program and (of in (TORCH, NAMING) or (of == NSYS and self.makes_ranges))
        outputs, result = (file,) if output else (), file if stdout else None
        return Step(name, tuple(argv), log, {}, outputs, result, runs_workload=program, has_runner=runner)

    def runs(self, name: str, number: int) -> list[Step]:
        """The steps of the pass `name`, any but that of ncu; `number` is the repetition, from 1."""
        run = numbered(name, number)
        if name == BARE:
            return [self.step(run, self._hooked("--bare", f"{run}.json"), program=True)]
        if name == TORCH:
            return [self.step(run, self._under_torch(self.torch_folder(number)), program=True)]
        if name == SAMPLES:
            return self.samples()[1]
        if name == NAMING:
            return self._recorded(run, self._under_torch(self.folder / NAMING, naming=True))
        if self.makes_ranges:
            return self._recorded(run, self._under_torch(self.folder))
        command = self._hooked("--lines", f"lines-{run}.json.gz") if self.options.lines else self.command
        return self._recorded(run, command)

    def samples(self, known: str = "", *, cpu: bool = True, metrics: bool = True) -> tuple[list[str], list[Step]]:
        """Options that nsys lacks for what was asked for and is permitted, and the steps of the pass of samples."""
        python = self.workload.kind == "python" or self.workload.starts_python
        flags, lacking = nsys.sampling(self.options, cpu=cpu, metrics=metrics, python=python, known=known)
        return lacking, self._recorded(SAMPLES, self.command, flags)

    def _recorded(self, run: str, command: Sequence[str], samples: Sequence[str] = ()) -> list[Step]:
        """The steps of a run of nsys: recording and export."""
        tool, report = self.tools.nsys.command, self.folder / run
        options = self.options.of_all if run == NAMING else self.options
        return [
            self.step(run, nsys.profile(tool, report, options, command, samples), f"{run}.nsys-rep", program=True),
            self.step(f"{run}-export", nsys.export(tool, report), f"{run}.sqlite"),
        ]

    def launches(self) -> Step:
        """The step that lists the kernel launches of the first nsys run."""
        command = nsys.launches(self.tools.nsys.command, self.folder / "nsys")
        return self.step("nsys-launches", command, "logs/launches.csv", stdout=True)

    def torch_folder(self, number: int) -> Path:
        """Folder of the torch pass; a repetition has its own, as its files are called the same."""
        return self.folder if number == 1 else self.folder / numbered(TORCH, number)

    def ncu(self, number: int, selection: ncu.Selection) -> list[Step]:
        """The steps of one ncu run: recording, and its pages; `number` is the group of launches, from 1."""
        run, tool = numbered(NCU, number), self.tools.ncu.command
        report = self.folder / run
        profile = ncu.profile(tool, report, self.options, selection, self.command)
        return [
            self.step(run, profile, f"{run}.ncu-rep", program=True),
            *(
                self.step(f"{run}-{page}", ncu.page(tool, report, page), f"{run}.{page}.csv", stdout=True)
                for page in ncu.PAGES
            ),
        ]


def numbered(name: str, number: int) -> str:
    """The name of the `number`-th run, from 1; the first has none."""
    return name if number == 1 else f"{name}-{number}"


def in_order(sides: Sequence[T], number: int) -> Sequence[T]:
    """The sides in the order of their `number`-th runs, from 1: A B, B A, A B, and so on."""
    return sides if number % 2 else sides[::-1]


def _titled(plan: Plan, title: str, lines: Sequence[str]) -> list[str]:
    """The `lines` below a comment."""
    return [f"# {title}: {plan.side}" if plan.side else f"# {title}", *lines]


def _ncu_lines(plan: Plan) -> list[str]:
    if NSYS not in plan.wanted:
        return [step.shell for step in plan.ncu(1, ncu.unselected(plan.options))]
    listing, options = plan.launches(), plan.options
    arguments = f"{json.dumps(str(listing.stdout))}, {options.kernels}, {options.launches}, part={options.partial}"
    program = f"from kanalyze.collectors.tools.ncu import first_filter; print(first_filter({arguments}))"
    choose = shlex.join([OWN_PYTHON, "-c", program])
    first, *pages = plan.ncu(1, ncu.Selection((), ncu.filter_flags(_CHOSEN, options.kernels, options)))
    command = first.shell.replace(shlex.quote(_CHOSEN), f'"$({choose})"')
    return [listing.shell, command, *(step.shell for step in pages)]


def portable_script(plans: Sequence[Plan]) -> list[str]:
    """All commands of a run as shell lines for any machine, those of two programs in turns.

    Names stand in place of what lies elsewhere there; variables of the shell that stand in the lines are defined first.
    The launches for ncu are only known after the nsys pass: its command selects them from the listing.
    """
    named, lines = [_portable(plan, plans[:at]) for at, plan in enumerate(plans)], list[str]()
    for plan in named:
        lines.append(f"mkdir -p {shlex.quote(str(plan.folder / 'logs'))}")
        for step in plan.compile():
            lines += _titled(plan, step.name, [f"mkdir -p {shlex.quote(str(step.outputs[0].parent))}", step.shell])
    for name in PASSES:
        taking_part = [one for one in named if name in one.wanted and (name != TORCH or one.workload.kind == "python")]
        count = max((plan.repetitions(name) for plan in taking_part), default=0)
        for number in range(1, count + 1):
            again = f", {number} of {count}" if count > 1 else ""
            for plan in in_order(taking_part, number):
                commands = _ncu_lines(plan) if name == NCU else [step.shell for step in plan.runs(name, number)]
                lines += _titled(plan, f"{_TITLES.get(name) or tool_of(name).name}{again}", commands)
    runner = [OWN_PYTHON, "-c", "from kanalyze.collectors.run.plan import RUNNER; print(RUNNER)"]
    values = {_RUNNER: ("runner", shlex.join(runner))}
    for (word, variable), plan in zip(_WORKLOADS.items(), plans, strict=False):
        shipped = next((reference.name for reference in references() if reference.path == plan.workload.path), "")
        values[word] = variable, f"{shlex.join([OWN_PYTHON, '-m', 'kanalyze', 'workloads', shipped])} | head -n 1"
    used = {word: value for word, value in values.items() if any(word in line for line in lines)}
    for word, (name, _) in used.items():
        lines = [line.replace(word, f'"${name}"') for line in lines]
    lines = [*(f"{name}=$({command})" for name, command in used.values()), *lines]
    ours = any(OWN_PYTHON in line for line in lines)
    return [f"# {OWN_PYTHON} is one that has kanalyze, and what the program needs"] * ours + lines


def _portable(plan: Plan, others: Sequence[Plan]) -> Plan:
    """The same plan with names of programs and relative paths; `others` are those of programs that come before it.

    A program that was given by its whole path, or that is not on PATH, stays. The Python is the one called python3.
    """
    options, tools, work = plan.options, plan.tools, plan.workload
    tools = tools._replace(
        nvcc=_named(tools.nvcc, options.nvcc),
        nsys=_named(tools.nsys, options.nsys),
        ncu=_named(tools.ncu, options.ncu),
        python=tools.python if options.python is not None else Path(OWN_PYTHON),
    )
    paths = [other.workload.path for other in others]
    variable = [*_WORKLOADS][paths.index(work.path) if work.path in paths else len(paths)]
    shipped = {str(reference.path) for reference in references()}

    def named(word: str) -> str:
        return word if word == work.given else variable if word in shipped else _relative(word)

    target, launcher = tuple(map(named, work.target)), tuple(map(named, work.launcher))
    work = replace(work, path=work.path and Path(named(str(work.path))), target=target, launcher=launcher)
    return replace(plan, tools=tools, workload=work, runner=Path(_RUNNER))


def _named(program: Program, option: object) -> Program:
    on_path = option is None and program.path is not None and shutil.which(program.name) == str(program.path)
    return program._replace(path=Path(program.name)) if on_path else program


def _relative(word: str) -> str:
    """A path below the current folder as it is from there, a program on PATH by its name; else the word itself."""
    if not os.path.isabs(word):  # noqa: PTH117 - it may be any word
        return word
    path = Path(word)
    if path.is_relative_to(Path.cwd()):
        inside = str(path.relative_to(Path.cwd()))
        return inside if os.sep in inside or path.suffix == ".py" else f".{os.sep}{inside}"
    return path.name if shutil.which(path.name) == word else word
