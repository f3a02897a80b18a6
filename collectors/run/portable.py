"""Makes a plan's commands fit for another machine: names in place of what lies elsewhere there."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base.workloads import references
from kanalyze.collectors.run.plan import OWN_PYTHON, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.collectors.base.programs import Program

#: Words that stand for a variable of the shell, in place of a path that only the other machine knows.
_RUNNER: Final = "KANALYZE_RUNNER"
_WORKLOADS: Final = ("KANALYZE_WORKLOAD", "KANALYZE_OTHER")

_VARIABLES: Final = ("workload", "other")

_SAYS_RUNNER: Final = "from kanalyze.collectors.run.plan import RUNNER; print(RUNNER)"


def portable(plan: Plan, others: Sequence[Plan] = ()) -> Plan:
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
    work = replace(work, path=path, target=target, launcher=launcher)
    return replace(plan, tools=tools, workload=work, runner=Path(_RUNNER))


def defined(lines: list[str], plans: Sequence[Plan]) -> list[str]:
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
    """A program by its name where that finds it, or nothing was found."""
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
