"""The workload to profile: CUDA source, Python script or executable, with its arguments."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from kanalyze.collectors.base.errors import BadOptionError, WorkloadError
from kanalyze.collectors.base.launchers import LAUNCHERS, behind, starts_another, starts_python
from kanalyze.collectors.base.workloads import reference, references

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.collectors.base.launchers import Behind

#: What stands before a module's name, on Python's command line as on ours.
MODULE: Final = "-m"

Kind = Literal["cuda", "python", "executable"]


@dataclass(frozen=True)
class Workload:
    """A program to profile.

    Attributes:
        name: The name of the capture.
        kind: Decides how it is started, and which passes suit it.
        path: The source, script or executable; None for ``python -m MODULE``.
        args: The program's arguments.
        launcher: For Python: the command before the script (``torchrun --nproc-per-node=2``); if empty, a Python is
            searched for.
        target: For Python: the script, or ``-m MODULE``.
        starts_python: For an executable: whether it seems to start Python with a script that cannot be determined.
        given: The program as the user gave it.
    """

    name: str
    kind: Kind
    path: Path | None
    args: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    starts_python: bool = False
    given: str = field(default="", compare=False)


def resolve(text: str, args: Sequence[str] = ()) -> Workload:
    """Resolves `text` to a workload: a file, a reference workload, a program on PATH; ``-m``: the module in `args`.

    Raises:
        WorkloadError: There is no such thing, or it can neither be compiled nor run.
    """
    path = Path(text)
    if text == MODULE and args and not path.is_file():
        name = _name(args[0].rpartition(".")[2])
        return Workload(name, "python", None, tuple(args[1:]), target=(MODULE, args[0]), given=text)
    if not path.is_file():
        known = reference(text)
        on_path = shutil.which(text) if os.sep not in text else None
        if known is not None:
            path = known.path
        elif on_path is not None:
            path = Path(on_path)
        else:
            _refuse(path)
    return replace(_of_file(path, tuple(args)), given=text)


def resolve_other(text: str, first: Workload) -> Workload:
    """Resolves what is compared with the program `first`: a command in one text, or arguments for that program.

    The arguments of `first` are given to both, and the other one's own come behind them, so that they count where a
    program takes the last of two. A script or module alone is started as `first` is.

    Raises:
        BadOptionError: It is empty, or a quote in it is not closed.
        WorkloadError: There is no such program.
    """
    try:
        words = [text] if Path(text).is_file() else shlex.split(text)
    except ValueError as error:
        raise BadOptionError.of("--against", text, "a command with closed quotes") from error
    if not words:
        raise BadOptionError.of("--against", text, "a program, or arguments of the first one")
    if words[0].startswith("-") and words[0] != MODULE:
        return replace(first, args=(*first.args, *words))
    text = words[0]
    known = text == MODULE or Path(text).is_file() or reference(text) is not None or shutil.which(text) is not None
    if first.target[:1] == (MODULE,) and (text == first.target[1] or not known):
        words = [MODULE, *words]
    found = resolve(words[0], words[1:])
    if found.kind == "python" and not found.launcher:
        found = replace(found, launcher=first.launcher)
    # of a command behind a launcher that hides it, nobody knows which words are arguments of the program
    hidden = first.kind == "executable" and first.path is not None and starts_another(first.path.name)
    return replace(found, args=(*(() if hidden else first.args), *found.args))


def _refuse(path: Path) -> None:
    if path.is_dir():
        raise WorkloadError.folder(path)
    if path.exists():
        raise WorkloadError.not_runnable(path)
    beside = [entry.name for entry in path.parent.iterdir() if entry.is_file()] if path.parent.is_dir() else []
    raise WorkloadError.missing(path, beside, [known.name for known in references()])


def _of_file(path: Path, args: tuple[str, ...]) -> Workload:
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow the links of virtual environments
    try:
        with absolute.open("rb") as file:
            head = file.read(128)
    except OSError as error:
        raise WorkloadError.unreadable(path, error.strerror or str(error)) from error
    if absolute.suffix == ".cu":
        return Workload(_name(absolute.stem), "cuda", absolute, args)
    if absolute.suffix == ".py":
        return Workload(_name(absolute.stem), "python", absolute, args, (), (str(absolute),))
    if not os.access(absolute, os.X_OK):
        raise WorkloadError.not_runnable(path)
    found = behind(str(absolute), args)
    if found is not None:
        return _behind_launcher(found)
    of_python = head.startswith(b"#!") and re.search(rb"python[\d.]*\s*$", head.splitlines()[0])
    if of_python and absolute.name not in LAUNCHERS:
        interpreter = head.splitlines()[0][2:].decode(errors="replace").split()[-1]  # for env, the one on PATH
        launcher = (shutil.which(interpreter) or interpreter,)
        return Workload(_name(absolute.stem), "python", absolute, args, launcher, (str(absolute),))
    hidden = starts_python(str(absolute), args, head)
    return Workload(_name(absolute.name), "executable", absolute, args, starts_python=hidden)


def _behind_launcher(found: Behind) -> Workload:
    if found.target[0] == "-m":
        name = _name(found.target[1].rpartition(".")[2])
        return Workload(name, "python", None, found.args, found.launcher, found.target)
    script = Path(os.path.abspath(found.target[0]))  # noqa: PTH100 - as above
    if not script.is_file():
        _refuse(Path(found.target[0]))
    return Workload(_name(script.stem), "python", script, found.args, found.launcher, (str(script),))


def _name(text: str) -> str:
    """`text` made safe for file names on every system."""
    return re.sub(r"[^\w.+-]+", "_", text).strip("-._") or "workload"
