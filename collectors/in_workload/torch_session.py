"""Profiles a program by a recipe: from start to stop, with steps between, into files of a folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from . import recipes  # relative: the runner loads these files without their package

#: The version of torch-run.json.
SCHEMA = 1

#: What is noted where a recipe with steps saw none.
NO_STEP = "no trace, because no step was seen"


class ProfilerBusyError(Exception):
    """Another torch profiler is on in this process."""


@dataclass(frozen=True)
class Request:
    """What is profiled, and where to.

    Attributes:
        recipe: How.
        folder: Where the files go; it exists.
        activities: 'cpu', 'cuda', or None for what this torch and machine can.
        suffix: Stands before each file's ending, such as '-rank0'.
        key_averages: Whether torch's table is made too, which takes long for traces of millions of events.
    """

    recipe: recipes.Recipe
    folder: Path
    activities: tuple[str, ...] | None = None
    suffix: str = ""
    key_averages: bool = True


@dataclass
class Outcome:
    """What a session left: `files` in the order written, of which `traces`, and `notes` in plain words."""

    activities: tuple[str, ...] = ()
    steps: int = 0
    cycles: int = 0
    files: list[Path] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def attempt(self, what: str, action: Callable[[], object]) -> None:
        """Do `action`; the workload does not suffer where it fails, but `failures` then says so."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever torch or the disk does, the workload goes on
            self.failures.append(f"{what}: {type(error).__name__}: {error}".rstrip(": "))


def facts(request: Request, outcome: Outcome) -> dict[str, Any]:
    """What torch-run.json says of a session."""
    torch: Any = import_module("torch")
    return {
        "recipe": request.recipe.name,
        "switches": asdict(request.recipe.switches),
        "cycle": asdict(request.recipe.cycle) if request.recipe.cycle else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "activities": list(outcome.activities),
        "steps": outcome.steps,
        "cycles": outcome.cycles,
        "files": [str(path.relative_to(request.folder)) for path in outcome.files],
        "traces": [str(path.relative_to(request.folder)) for path in outcome.traces],
        "notes": outcome.notes,
        "failures": outcome.failures,
    }


class Session(Protocol):
    """One run of a recipe. `start` and `stop` once each; the others in between, from any one thread."""

    outcome: Outcome

    def start(self) -> None:
        """Begin. Raises :class:`ProfilerBusyError` where another profiler is on."""

    def step(self) -> None:
        """A step ended, and the next one begins."""

    def leave_out(self) -> None:
        """A part begins that the recipe leaves out."""

    def take_up(self) -> None:
        """The part that the recipe leaves out ended."""

    def stop(self) -> None:
        """End, and write what was recorded."""


def can_cuda() -> bool:
    """Whether this torch has CUDA and finds a GPU."""
    torch: Any = import_module("torch")
    return bool(torch.cuda.is_available())


class QuietSession:
    """Records nothing; counts steps. The sessions that record build on it."""

    def __init__(self, request: Request) -> None:
        """Prepare to do as `request` says."""
        self.request = request
        self.outcome = Outcome()

    def start(self) -> None:
        """Begin."""

    def step(self) -> None:
        """Count."""
        self.outcome.steps += 1

    def leave_out(self) -> None:
        """Leave nothing out."""

    def take_up(self) -> None:
        """Take nothing up."""

    def stop(self) -> None:
        """End."""

    def activities(self) -> tuple[str, ...]:
        """The activities asked for, as far as this machine can record them; says what it cannot."""
        asked = self.request.activities
        if can_cuda():
            return asked or ("cpu", "cuda")
        if asked != ("cpu",):
            self.outcome.notes.append("torch finds no GPU here: only CPU activities are recorded")
        return ("cpu",)

    def path(self, name: str, ending: str) -> Path:
        """Where the file `name` with that `ending` goes."""
        return self.request.folder / f"{name}{self.request.suffix}{ending}"

    def wrote(self, path: Path) -> Path:
        """Remember a file that is whole."""
        self.outcome.files.append(path)
        return path


def refuse_second() -> None:
    """Stop where a profiler is on already: torch lets a second one take the first one's events without a word."""
    autograd: Any = import_module("torch.autograd.profiler")
    native: Any = import_module("torch._C._autograd")
    on = getattr(native, "_profiler_enabled", bool)() or getattr(autograd, "_is_profiler_enabled", False)
    if on:
        raise ProfilerBusyError("another torch profiler is on in this process, and torch can have only one")


def write_text(path: Path, text: str) -> Path:
    """Write `path` whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def write_json(path: Path, document: object) -> Path:
    """Write `path` as JSON, whole or not at all."""
    return write_text(path, json.dumps(document, indent=1) + "\n")
