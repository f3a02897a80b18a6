"""The command line of :mod:`torch_runner`."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import recipes  # relative: the runner loads these files without their package
from .torch_parts import AUTO, OPTIMIZER, Part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Environment variables of launchers for rank and world size.
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


@dataclass(frozen=True)
class Settings:
    """Settings of the runner.

    Attributes:
        out: The capture's folder.
        recipe: How to profile, with the changes asked for.
        workload: ``SCRIPT ARGS…`` or ``-m MODULE ARGS…``.
        activities: 'cpu', 'cuda', or None for what this torch and machine can.
        step: What ends a step.
        left_out: The part that a toggle recipe leaves out.
        fresh: Whether compilers work in caches of the capture's own.
        key_averages: Whether torch's table is made.
        lines: Whether the lines are noted that the program's threads are in.
        rank: The number of this process among those of the program, or None.
        given: The options that say so on the command line.
    """

    out: Path
    recipe: recipes.Recipe
    workload: tuple[str, ...]
    activities: tuple[str, ...] | None = None
    step: Part = AUTO
    left_out: Part = OPTIMIZER
    fresh: bool = True
    key_averages: bool = True
    lines: bool = True
    rank: int | None = None
    given: tuple[str, ...] = field(default=(), compare=False)

    def arguments(self) -> list[str]:
        """The command line for these settings in any folder, without the rank."""
        return [*self.given, "--out", str(self.out.absolute()), "--", *self.workload]

    @property
    def lines_file(self) -> Path:
        """The file of the lines, by the name of the recording that they belong to."""
        tool = "nsys" if self.recipe.makes == recipes.RANGES else "torch"
        return self.out / f"lines-{tool}{self.suffix}.json.gz"

    @property
    def suffix(self) -> str:
        """Suffix of this process's files, such as -rank0."""
        return "" if self.rank is None else f"-rank{self.rank}"


def parse(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Parses a command line; on errors the program exits with status 2, as argparse does."""
    parser = _parser()
    options = list(argv)
    workload: list[str] = []
    if "--" in options:
        at = options.index("--")
        options, workload = options[:at], options[at + 1 :]
    given = parser.parse_args(options)
    if not workload or workload == ["-m"]:
        parser.error("no workload: give SCRIPT or -m MODULE after --")
    if workload[0] != "-m" and not Path(workload[0]).exists():
        parser.error(f"{workload[0]}: no such script")
    changed = {name: getattr(given, name) for name in (*recipes.SWITCH_FIELDS, *recipes.CYCLE_FIELDS)}
    try:
        recipe = recipes.RECIPES[given.recipe].with_changes({k: v for k, v in changed.items() if v is not None})
    except ValueError as error:
        parser.error(str(error))
    if recipe.leaves_out is None and (given.leave_out or given.leave_out_call):
        parser.error(f"recipe {recipe.name} leaves nothing out: choose a toggle recipe")
    return Settings(
        out=given.out,
        recipe=recipe,
        workload=tuple(workload),
        activities=given.activities,
        step=given.step_range or given.step_on or AUTO,
        left_out=given.leave_out or given.leave_out_call or OPTIMIZER,
        fresh=given.caches == "fresh",
        key_averages=given.key_averages,
        lines=given.lines,
        rank=rank(environ),
        given=tuple(options),
    )


def rank(environ: Mapping[str, str]) -> int | None:
    """The rank set by a launcher (torchrun, mpirun, srun); None without a launcher."""
    for name, count in _RANKS:
        number, size = environ.get(name, ""), environ.get(count, "")
        if number.isdecimal() and size.isdecimal():
            return int(number) if name == "RANK" or int(size) > 1 else None
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch_runner.py", usage="%(prog)s --out FOLDER [options] -- SCRIPT [ARGS…]", allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--recipe", choices=list(recipes.RECIPES), default="plain")
    parser.add_argument("--activities", type=_activities, metavar="LIST")
    for name in recipes.SWITCH_FIELDS:
        _add_switch(parser, name, None)
    for name in recipes.CYCLE_FIELDS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N")
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument("--step-range", type=_range, metavar="GLOB")
    steps.add_argument("--step-on", type=_part, metavar="WHAT")
    left_out = parser.add_mutually_exclusive_group()
    left_out.add_argument("--leave-out", type=_range, metavar="GLOB")
    left_out.add_argument("--leave-out-call", type=_part, metavar="MODULE:FUNCTION")
    parser.add_argument("--caches", choices=("fresh", "user"), default="fresh")
    _add_switch(parser, "key_averages", default=True)
    _add_switch(parser, "lines", default=True)
    return parser


def _add_switch(parser: argparse.ArgumentParser, name: str, default: bool | None) -> None:  # noqa: FBT001
    option = name.replace("_", "-")
    parser.add_argument(f"--{option}", dest=name, action="store_true", default=default)
    parser.add_argument(f"--no-{option}", dest=name, action="store_false", default=default)


def _activities(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(","))
    if not set(names) <= {"cpu", "cuda"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not cpu, cuda or both with a comma between")
    return tuple(name for name in ("cpu", "cuda") if name in names)


def _part(text: str) -> Part:
    try:
        return Part.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _range(text: str) -> Part:
    return Part("range", text)
