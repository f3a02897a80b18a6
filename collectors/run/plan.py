"""Builds the commands of a run as data; starts nothing, inspects nothing.

The dry run prints them, and the runner takes its steps from the same functions.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base.step import Step
from kanalyze.collectors.tools import ncu, nsys, torch_pass
from kanalyze.collectors.tools.ncu_launches import Selection, filter_flags, unselected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.collectors.base.options import Options
    from kanalyze.collectors.base.workload import Workload
    from kanalyze.collectors.tools.found import Tools

#: The script that runs in the workload's Python.
RUNNER: Final = Path(__file__).parents[1] / "in_workload" / "torch_runner.py"

#: A Python that has kanalyze, as it is called where the lines of a dry run are pasted.
OWN_PYTHON: Final = "python3"

#: Placeholder for what is only known after the nsys pass.
_CHOSEN: Final = "CHOSEN_LAUNCHES"


@dataclass(frozen=True)
class Plan:
    """Inputs from which the commands of a run are built.

    Attributes:
        workload: The program to profile.
        options: The collection's options.
        tools: The tools found.
        folder: The capture folder.
        binary: The compiled workload, where it is a CUDA source.
        runner: The script that runs in the workload's Python.
    """

    workload: Workload
    options: Options
    tools: Tools
    folder: Path
    binary: Path | None = None
    runner: Path = RUNNER

    @property
    def command(self) -> tuple[str, ...]:
        """The workload's own command line."""
        work = self.workload
        if work.kind == "python":
            return (*(work.launcher or (str(self.tools.python),)), *work.target, *work.args)
        return (str(self.binary or work.path), *work.args)

    @property
    def makes_ranges(self) -> bool:
        """Whether each operator emits an NVTX range in the nsys pass."""
        return self.workload.kind == "python" and torch_pass.under_nsys(self.options)

    @property
    def recorded(self) -> tuple[str, ...]:
        """The command that nsys records: the workload, possibly with NVTX ranges for operators."""
        return self._under_runner if self.makes_ranges else self.command

    @property
    def _under_runner(self) -> tuple[str, ...]:
        return torch_pass.command(str(self.tools.python), self.runner, self.folder, self.options, self.workload)

    def log(self, name: str) -> Path:
        """The log file of the step `name`."""
        return self.folder / "logs" / f"{name}.log"

    def prepare(self) -> Step:
        """The step that runs the program without a profiler."""
        return Step("prepare", self.command, self.log("prepare"), runs_workload=True)

    def nsys(self, number: int) -> list[Step]:
        """The steps of the nsys pass; `number` is the repetition, from 1."""
        name = "nsys" if number == 1 else f"nsys-{number}"
        report, tool = self.folder / name, self.tools.nsys.command
        recorded, exported = report.with_name(f"{name}.nsys-rep"), report.with_name(f"{name}.sqlite")
        profile = nsys.profile(tool, report, self.options, self.recorded)
        return [
            Step(
                name,
                profile,
                self.log(name),
                outputs=(recorded,),
                runs_workload=True,
                has_runner=self.makes_ranges,
            ),
            Step(f"{name}-export", nsys.export(tool, report), self.log(f"{name}-export"), outputs=(exported,)),
        ]

    def launches(self) -> Step:
        """The step that lists the kernel launches of the first nsys run."""
        listing = self.folder / "logs" / "launches.csv"
        command = nsys.launches(self.tools.nsys.command, self.folder / "nsys")
        return Step("nsys-launches", command, self.log("nsys-launches"), outputs=(listing,), stdout=listing)

    def torch(self) -> list[Step]:
        """The step of the torch pass."""
        return [Step("torch", self._under_runner, self.log("torch"), runs_workload=True, has_runner=True)]

    def ncu(self, number: int, selection: Selection) -> list[Step]:
        """The steps of one ncu run; `number` is the group of launches, from 1."""
        name = "ncu" if number == 1 else f"ncu-{number}"
        report, tool = self.folder / name, self.tools.ncu.command
        recorded = report.with_name(f"{name}.ncu-rep")
        profile = ncu.profile(tool, report, self.options, selection, self.command)
        first = Step(name, profile, self.log(name), outputs=(recorded,), runs_workload=True)
        return [first, *(self._page(name, page) for page in ncu.PAGES)]

    def _page(self, name: str, page: str) -> Step:
        written, step = self.folder / f"{name}.{page}.csv", f"{name}-{page}"
        command = ncu.page(self.tools.ncu.command, self.folder / name, page)
        return Step(step, command, self.log(step), outputs=(written,), stdout=written)


def script(plan: Plan, passes: Sequence[str], compiled: tuple[str, ...] | None) -> list[str]:
    """All commands of a run as shell lines; `compiled` is the compile command.

    The launches for ncu are only known after the nsys pass: its command selects them from the listing.
    """
    lines = [f"mkdir -p {shlex.quote(str(plan.folder / 'logs'))}"]
    if compiled is not None:
        binary = Path(compiled[compiled.index("-o") + 1])
        lines += ["# compile", f"mkdir -p {shlex.quote(str(binary.parent))}", shlex.join(compiled)]
    if plan.options.prepare:
        lines += ["# without a profiler", plan.prepare().shell]
    if "nsys" in passes:
        for number in range(1, plan.options.repeat + 1):
            again = f", {number} of {plan.options.repeat}" if plan.options.repeat > 1 else ""
            lines += [f"# nsys{again}", *(step.shell for step in plan.nsys(number))]
    if "torch" in passes:
        lines += ["# torch.profiler", *(step.shell for step in plan.torch())]
    if "ncu" in passes:
        lines += ["# ncu", *_ncu_lines(plan, chosen="nsys" in passes)]
    return lines


def _ncu_lines(plan: Plan, *, chosen: bool) -> list[str]:
    if not chosen:
        return [step.shell for step in plan.ncu(1, unselected(plan.options))]
    listing, options = plan.launches(), plan.options
    wanted = ["--kernels", str(options.kernels), "--launches", str(options.launches)]
    wanted += ["--part"] if options.partial else []
    choose = shlex.join([OWN_PYTHON, "-m", "kanalyze.collectors.tools.choose", str(listing.stdout), *wanted])
    first, *pages = plan.ncu(1, Selection((), filter_flags(_CHOSEN, options.kernels, options)))
    command = first.shell.replace(shlex.quote(_CHOSEN), f'"$({choose})"')
    return [listing.shell, command, *(step.shell for step in pages)]
