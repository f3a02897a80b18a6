"""A command of a run as data, for the dry run to print and the runner to execute; and its progress, to be shown."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

#: Short forms of flags used here.
_LONG: Final = {"-t": "--trace", "-s": "--sample", "-o": "--output", "-p": "--nvtx-capture", "-c": "--capture-range"}


@dataclass(frozen=True)
class Step:
    """A command with its environment, log and expected outputs; its log, progress and manifest have its `name`.

    Attributes:
        outputs: Files that it must produce, complete and not empty.
        stdout: A separate file for standard output, if that is a result.
        runs_workload: Whether it runs the workload, so that exit status and check lines are the workload's.
        has_runner: Whether the torch runner replaces the script on the command line.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[Path, ...] = ()
    stdout: Path | None = None
    runs_workload: bool = False
    has_runner: bool = False

    @property
    def shell(self) -> str:
        """The command quoted for a shell, to copy and paste."""
        assigned = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        redirected = [f"> {shlex.quote(str(self.stdout))}"] if self.stdout else []
        return " ".join([*assigned, shlex.join(self.argv), *redirected])


def with_flags(ours: Iterable[tuple[str, ...]], theirs: Sequence[str]) -> list[str]:
    """Merges our flags with the user's, which override ours of the same name.

    Tools reject repeated flags.
    """
    replaced = {_LONG.get(word, word) for word in (flag.partition("=")[0] for flag in theirs)}
    kept = (flag for flag in ours if flag[0].partition("=")[0] not in replaced)
    return [*(word for flag in kept for word in flag), *theirs]


@dataclass(frozen=True)
class Event:
    """A progress event.

    Attributes:
        kind: Step started, step running, step ended, or a note.
        step: The step; of a note, the pass.
        text: The tool's last output, the step's result, or the note.
        elapsed_s: Seconds since the step began.
    """

    kind: Literal["begin", "tick", "end", "note"]
    step: str
    text: str = ""
    elapsed_s: float = 0.0


Progress = Callable[[Event], object]


def silent(event: Event) -> None:
    """Ignores progress."""
    del event
