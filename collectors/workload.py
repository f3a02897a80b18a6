"""What is to be profiled: a CUDA source, a Python script, or an executable, with its arguments as they were given."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from kanalyze.collectors.errors import WorkloadError
from kanalyze.collectors.workloads import reference, references

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["cuda", "python", "executable"]

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)*)?")

#: Options of torchrun that take no value; each may be spelled with underscores. Every other one takes one.
_TORCHRUN_FLAGS: Final = frozenset({"--standalone", "--no-python", "--run-path", "--help", "-h"})

#: Options of the Python interpreter that take a value of their own.
_PYTHON_VALUES: Final = frozenset({"-X", "-W", "--check-hash-based-pycs"})


@dataclass(frozen=True)
class Workload:
    """A program to profile.

    Attributes:
        name: What the capture is called after it.
        kind: How it is started, and which passes suit it.
        path: The source, script or executable; None for ``python -m MODULE``.
        args: Its own arguments.
        launcher: For Python: what stands before the script (``torchrun --nproc-per-node=2``); empty is a Python
            that is found.
        target: For Python: the script, or ``-m MODULE``.
    """

    name: str
    kind: Kind
    path: Path | None
    args: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    target: tuple[str, ...] = ()


def resolve(text: str, args: Sequence[str] = ()) -> Workload:
    """The workload that `text` names: a file, a reference workload, or a program on PATH.

    Raises:
        WorkloadError: There is no such thing, or it can neither be compiled nor run.
    """
    path = Path(text)
    if not path.is_file():
        known = reference(text)
        on_path = shutil.which(text) if os.sep not in text else None
        if known is not None:
            path = known.path
        elif on_path is not None:
            path = Path(on_path)
        else:
            _refuse(path)
    return _of_file(path, tuple(args))


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
    if _PYTHON.fullmatch(absolute.name) and args:
        return _under_launcher(absolute, args, _python_target(args))
    if absolute.name == "torchrun" and args:
        return _under_launcher(absolute, args, _torchrun_target(args))
    if head.startswith(b"#!") and re.search(rb"python[\d.]*\s*$", head.splitlines()[0]):
        return Workload(_name(absolute.stem), "python", absolute, args, (_interpreter(head),), (str(absolute),))
    return Workload(_name(absolute.name), "executable", absolute, args)


def _interpreter(head: bytes) -> str:
    """The Python that a script's first line names; with ``env``, the one on PATH."""
    words = head.splitlines()[0][2:].decode(errors="replace").split()
    return shutil.which(words[-1]) or words[-1]


def _under_launcher(launcher: Path, args: tuple[str, ...], at: int | None) -> Workload:
    """A script that a launcher starts; `at` is where among `args` it stands, None where there is none."""
    if at is None:
        return Workload(_name(launcher.name), "executable", launcher, args)
    before = (str(launcher), *args[:at])
    if args[at] == "-m":
        module, rest = args[at + 1], args[at + 2 :]
        return Workload(_name(module.rpartition(".")[2]), "python", None, rest, before, ("-m", module))
    script = Path(os.path.abspath(args[at]))  # noqa: PTH100 - as above
    if not script.is_file():
        _refuse(Path(args[at]))
    return Workload(_name(script.stem), "python", script, args[at + 1 :], before, (str(script),))


def _python_target(args: Sequence[str]) -> int | None:
    """Where the script or ``-m`` stands among Python's own arguments; None for ``-c`` and standard input."""
    at = 0
    while at < len(args):
        word = args[at]
        if word == "-m":
            return at if at + 1 < len(args) else None
        if word in ("-c", "-"):
            return None
        if not word.startswith("-"):
            return at
        at += 2 if word in _PYTHON_VALUES else 1
    return None


def _torchrun_target(args: Sequence[str]) -> int | None:
    """Where the script or ``-m`` stands among torchrun's own arguments; None where it starts no Python."""
    at = 0
    while at < len(args):
        word = args[at].replace("_", "-") if args[at].startswith("--") else args[at]
        if word == "--no-python":
            return None
        if word in ("-m", "--module"):
            return at if word == "-m" and at + 1 < len(args) else None
        if not word.startswith("-"):
            return at
        at += 1 if word in _TORCHRUN_FLAGS or "=" in word else 2
    return None


def _name(text: str) -> str:
    """A name that is good in a file's name on every system."""
    return re.sub(r"[^\w.+-]+", "_", text).strip("-._") or "workload"
