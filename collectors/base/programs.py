"""Finds external tools (user's choice, PATH, then the usual installation folders), and asks them short questions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.collectors.base.errors import BadOptionError

if TYPE_CHECKING:
    from os import PathLike

#: A version number in the output of ``--version``: ``2025.3.1.90-253135822v0``, ``release 13.0, V13.0.88``.
_VERSION: Final = re.compile(r"V?(\d+\.\d+(?:\.\d+)*)")


class Program(NamedTuple):
    """An external tool, found or not; one with a `problem` cannot be used, and `remedy` says how to get another."""

    name: str
    path: Path | None = None
    version: str | None = None
    problem: str = ""
    remedy: str = ""

    @property
    def usable(self) -> bool:
        """True if it was found without known problems."""
        return self.path is not None and not self.problem

    @property
    def command(self) -> str:
        """The command to call it; its bare name if not found, for commands to be run on another machine."""
        return str(self.path) if self.path else self.name


def find(name: str, option: str, asked: str | PathLike[str] | None, folders: Sequence[str], remedy: str) -> Program:
    """Finds the tool `name`.

    That is the one `asked` for with an option, else the one on PATH, else one in the usual installation `folders`:
    patterns below ``/``, best first, and among versions the newest first.

    Raises:
        BadOptionError: There is no program at the user's path.
    """
    on_path = shutil.which(name)
    if asked is not None:
        candidates = [runnable(option, asked)]
    else:
        candidates = [Path(on_path)] if on_path else installed(name, folders)
    if not candidates:
        return Program(name, problem="not found on PATH or where its installers put it", remedy=remedy)
    path = candidates[0]
    ran = answer(path, "--version")
    if ran is None:
        return Program(name, path, problem=f"{path} --version does not run", remedy=remedy)
    status, text = ran
    if status:
        why = f"{path} --version ended with status {status}: {' '.join(text.split())[:200]}"
        return Program(name, path, problem=why, remedy=remedy)
    version = _VERSION.search(" ".join(re.findall(r"V\d[\d.]+", text)) or text)
    return Program(name, path, version.group(1) if version else None, remedy=remedy)


def runnable(option: str, asked: str | PathLike[str]) -> Path:
    """Resolves the program given with `option`: a file, or a name on PATH.

    Raises:
        BadOptionError: There is no such program.
    """
    path = Path(asked)
    place = shutil.which(path.absolute() if path.parent != Path() or path.exists() else path)
    if place is None:
        raise BadOptionError.of(option, asked, "a program that can be run")
    return Path(place)


def installed(name: str, folders: Sequence[str]) -> list[Path]:
    """All programs `name` in `folders` (patterns below ``/``), in that order, newest version first."""

    def by_version(path: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]

    patterns = (Path("/").glob(pattern.lstrip("/")) for pattern in folders)
    places = (place / name for every in patterns for place in sorted(every, key=by_version, reverse=True))
    return [place for place in places if os.access(place, os.X_OK) and place.is_file()]


def version_of(*command: str) -> str | None:
    """The version printed by a command; None if it prints none."""
    ran = answer(*command, "--version")
    version = _VERSION.search(ran[1]) if ran and not ran[0] else None
    return version.group(1) if version else None


def answer(*command: str | Path, patience_s: float = 60) -> tuple[int, str] | None:
    """Exit status and output of a short command; None if it cannot be started or times out."""
    try:
        ended = subprocess.run(  # noqa: S603 - a list of arguments, no shell
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=patience_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.returncode, ended.stdout.decode(errors="replace")
