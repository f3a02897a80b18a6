"""Finds the Python script behind a launcher: python, torchrun, accelerate, mpirun, env and the like.

The torch pass puts its own runner in the script's place, so that it runs in each process that a launcher starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)*)?")

#: torchrun options without a value, also spelled with underscores; all others take one.
_TORCHRUN_FLAGS: Final = frozenset({"--standalone", "--no-python", "--run-path", "--help", "-h"})

#: Python interpreter options with a value.
_PYTHON_VALUES: Final = frozenset({"-X", "-W", "--check-hash-based-pycs"})

#: Launcher modules, as in ``python -m``.
_LAUNCHER_MODULES: Final = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}

#: Launchers that are Python scripts themselves.
LAUNCHERS: Final = frozenset({"torchrun", "accelerate", "deepspeed"})

#: Wrappers that run the command in their arguments, on this machine.
WRAPPERS: Final = frozenset(
    (
        *("env", "nice", "ionice", "nohup", "setsid", "stdbuf", "time", "timeout", "numactl", "taskset", "chrt"),
        *("conda", "mamba", "micromamba", "pixi", "poetry", "pipenv", "hatch", "pdm", "uv", "xvfb-run"),
    )
)

#: Launchers that run the command in their arguments several times, possibly on other machines.
SPREADERS: Final = frozenset({"mpirun", "mpiexec", "orterun", "srun"})

#: Shells, whose arguments are a script and its own.
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash"})

#: A Python, or a launcher of one, in a shell script.
_STARTS_PYTHON: Final = re.compile(rb"(^|[\s/;&|])(python[\d.]*|torchrun|accelerate|deepspeed)\s")


@dataclass(frozen=True)
class Behind:
    """A script, or ``-m MODULE``, its arguments, and the words of the command before it, the launcher program first."""

    launcher: tuple[str, ...]
    target: tuple[str, ...]
    args: tuple[str, ...]


def is_python(word: str) -> bool:
    """Whether the program `word` is a Python interpreter, by its name."""
    return _PYTHON.fullmatch(Path(word).name) is not None


def behind(program: str, args: Sequence[str]) -> Behind | None:
    """The script started by ``program args…``; None if it cannot be determined."""
    name, given = Path(program).name, list(args)
    if is_python(program):
        return _behind_python(program, given)
    if name == "torchrun":
        return _behind_torchrun((program,), given)
    if name == "accelerate" and given[:1] == ["launch"]:
        return _first_script((program, "launch"), given[1:])
    if name == "deepspeed":
        return _first_script((program,), given)
    if name in WRAPPERS or name in SPREADERS:
        return _wrapped(program, given)
    return None


def starts_python(program: str, args: Sequence[str], head: bytes) -> bool:
    """Whether ``program args…``, a file that begins with `head`, seems to start Python."""
    name = Path(program).name
    if name in LAUNCHERS:
        return True
    if name in WRAPPERS | SPREADERS:
        return any(is_python(word) or word.endswith((".py", ".sh")) for word in args)
    if name in _SHELLS:
        return any(_reads_as_python_script(Path(word)) for word in args if not word.startswith("-"))
    return head.startswith(b"#!") and _reads_as_python_script(Path(program))


def starts_another(name: str) -> bool:
    """Whether the program called `name` runs another one, which its arguments name."""
    return is_python(name) or name in LAUNCHERS | WRAPPERS | SPREADERS | _SHELLS


def _reads_as_python_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return any(_STARTS_PYTHON.search(line) for line in file.read(1 << 16).splitlines() if line[:1] != b"#")
    except OSError:
        return False


def _behind_python(program: str, args: list[str]) -> Behind | None:
    """Parses a Python command line; None for ``-c`` and standard input."""
    at = 0
    while at < len(args):
        word = args[at]
        if word == "-m":
            return _module((program, *args[:at]), args[at + 1 :])
        if word in ("-c", "-"):
            return None
        if not word.startswith("-"):
            return Behind((program, *args[:at]), (word,), tuple(args[at + 1 :]))
        at += 2 if word in _PYTHON_VALUES else 1
    return None


def _module(before: tuple[str, ...], rest: list[str]) -> Behind | None:
    if not rest:
        return None
    kind = _LAUNCHER_MODULES.get(rest[0])
    launcher = (*before, "-m", rest[0])
    if kind == "torchrun":
        return _behind_torchrun(launcher, rest[1:])
    if kind == "accelerate":
        return _first_script(launcher, rest[1:])
    return Behind(before, ("-m", rest[0]), tuple(rest[1:]))


def _behind_torchrun(launcher: tuple[str, ...], args: list[str]) -> Behind | None:
    """Parses a torchrun command line; None if it does not start Python."""
    at, ours, module = 0, list[str](), False
    while at < len(args):
        word = args[at].replace("_", "-") if args[at].startswith("--") else args[at]
        if word == "--no-python":
            return None
        if not word.startswith("-"):
            target = ("-m", args[at]) if module else (args[at],)
            return Behind((*launcher, *ours), target, tuple(args[at + 1 :]))
        module = module or word in ("-m", "--module")
        width = 1 if word in (*_TORCHRUN_FLAGS, "-m", "--module") or "=" in word else 2
        ours += () if word in ("-m", "--module") else args[at : at + width]
        at += width
    return None


def _first_script(launcher: tuple[str, ...], args: list[str]) -> Behind | None:
    """The first argument that is a script, since only the launcher knows which of its options take a value."""
    for at, word in enumerate(args):
        if word in ("-m", "--module", "--no_python", "--no-python"):
            return None
        if word.endswith(".py") and Path(word).is_file():
            return Behind((*launcher, *args[:at]), (word,), tuple(args[at + 1 :]))
    return None


def _wrapped(program: str, args: list[str]) -> Behind | None:
    """The script of a wrapped command, which starts at the first argument that is Python, a launcher or a wrapper."""
    for at, word in enumerate(args):
        if is_python(word) or Path(word).name in LAUNCHERS | WRAPPERS:
            found = behind(word, args[at + 1 :])
            return replace(found, launcher=(program, *args[:at], *found.launcher)) if found else None
    return None
