"""A command of a run as data, for the dry run to print and the runner to execute."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

#: Short forms of flags used here.
_LONG: Final = {"-t": "--trace", "-s": "--sample", "-o": "--output", "-p": "--nvtx-capture", "-c": "--capture-range"}


@dataclass(frozen=True)
class Step:
    """A command with its environment, log and expected outputs.

    Attributes:
        name: What it is called in progress, in the manifest, and as the name of its log.
        argv: The program and its arguments, each as it arrives there.
        log: The file that takes what it prints.
        env: What is added to the environment.
        outputs: The files that it must leave, whole and not empty.
        stdout: The file that takes its standard output, where that is a result; `log` has the rest.
        runs_workload: Whether the workload runs in it, so that its exit status and check line are the workload's.
        has_runner: Whether the runner of torch's pass stands in the script's place.
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

    Tools take no flag twice.
    """
    replaced = {_LONG.get(word, word) for word in (flag.partition("=")[0] for flag in theirs)}
    kept = (flag for flag in ours if flag[0].partition("=")[0] not in replaced)
    return [*(word for flag in kept for word in flag), *theirs]
