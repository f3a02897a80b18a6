"""Interface of profiling sessions: start, steps, stop, and files in a folder."""

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

#: Schema version of torch-run.json.
SCHEMA = 1

#: Note of a recipe with steps that saw none.
NO_STEP = "no trace, because no step was seen"


class ProfilerBusyError(Exception):
    """Another torch profiler is on in this process."""


@dataclass(frozen=True)
class Request:
    """Profile request: what to profile, and where to write.

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
    """Results of a session: `files` in order of writing, the `traces` among them, and `notes`."""

    activities: tuple[str, ...] = ()
    steps: int = 0
    cycles: int = 0
    files: list[Path] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def attempt(self, what: str, action: Callable[[], object]) -> None:
        """Run `action`; an exception is recorded in `failures` and not raised into the workload."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever torch or the disk does, the workload goes on
            self.failures.append(f"{what}: {type(error).__name__}: {error}".rstrip(": "))


def facts(request: Request, outcome: Outcome) -> dict[str, Any]:
    """The entry of a session in torch-run.json."""
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
    """A profiling session: `start` and `stop` once each; the other methods in between, from any one thread."""

    outcome: Outcome

    def start(self) -> None:
        """Start; raises :class:`ProfilerBusyError` if another profiler is active."""

    def step(self) -> None:
        """End a step and begin the next one."""

    def leave_out(self) -> None:
        """Begin a part that the recipe leaves out."""

    def take_up(self) -> None:
        """End the part that the recipe leaves out."""

    def stop(self) -> None:
        """Stop and write the results."""


def can_cuda() -> bool:
    """Whether torch has CUDA and finds a GPU."""
    torch: Any = import_module("torch")
    return bool(torch.cuda.is_available())


class QuietSession:
    """A session that only counts steps; base of the recording sessions."""

    def __init__(self, request: Request) -> None:
        """Prepare a session for `request`."""
        self.request = request
        self.outcome = Outcome()

    def start(self) -> None:
        """Do nothing."""

    def step(self) -> None:
        """Count a step."""
        self.outcome.steps += 1

    def leave_out(self) -> None:
        """Do nothing."""

    def take_up(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def activities(self) -> tuple[str, ...]:
        """The requested activities that this machine supports; notes the others."""
        asked = self.request.activities
        if can_cuda():
            return asked or ("cpu", "cuda")
        if asked != ("cpu",):
            self.outcome.notes.append("torch finds no GPU here: only CPU activities are recorded")
        return ("cpu",)

    def path(self, name: str, ending: str) -> Path:
        """The path of the output file `name` with suffix `ending`."""
        return self.request.folder / f"{name}{self.request.suffix}{ending}"

    def wrote(self, path: Path) -> Path:
        """Register a complete output file."""
        self.outcome.files.append(path)
        return path


def refuse_second() -> None:
    """Raise ProfilerBusyError if a profiler is active: torch would silently move its events to the new one."""
    autograd: Any = import_module("torch.autograd.profiler")
    native: Any = import_module("torch._C._autograd")
    on = getattr(native, "_profiler_enabled", bool)() or getattr(autograd, "_is_profiler_enabled", False)
    if on:
        raise ProfilerBusyError("another torch profiler is on in this process, and torch can have only one")


def write_text(path: Path, text: str) -> Path:
    """Write `path` atomically."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def write_json(path: Path, document: object) -> Path:
    """Write `path` as JSON, atomically."""
    return write_text(path, json.dumps(document, indent=1) + "\n")
