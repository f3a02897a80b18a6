"""The workload to profile: CUDA source, Python script or executable, with its arguments.

Of a command that starts a script by a launcher (python, torchrun, accelerate, mpirun, env and the like) the script is
found, since the torch pass puts its own runner in its place, in each process that a launcher starts.
"""

import ast
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from kanalyze.collectors.options import BadOptionError, WorkloadError
from kanalyze.errors import nearest

#: What stands before a module's name, on Python's command line as on ours.
MODULE: Final = "-m"
_MODULES: Final = frozenset((MODULE, "--module"))

#: The name of a module.
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][\w.]*")

#: Launchers that are Python scripts themselves, and their modules, as in ``python -m``.
LAUNCHERS: Final = frozenset(("torchrun", "accelerate", "deepspeed"))
_LAUNCHER_MODULES: Final = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}

#: Wrappers that run the command in their arguments, on this machine.
_WRAPPERS: Final = frozenset(
    (
        *("env", "nice", "ionice", "nohup", "setsid", "stdbuf", "time", "timeout", "numactl", "taskset", "chrt"),
        *("conda", "mamba", "micromamba", "pixi", "poetry", "pipenv", "hatch", "pdm", "uv", "xvfb-run"),
    )
)

#: Launchers that run the command in their arguments several times, possibly on other machines.
SPREADERS: Final = frozenset(("mpirun", "mpiexec", "orterun", "srun"))

#: Shells, whose arguments are a script and its own.
_SHELLS: Final = frozenset(("sh", "bash", "zsh", "dash"))

#: A Python, or a launcher of one, in a shell script.
_STARTS_PYTHON: Final = re.compile(rb"(^|[\s/;&|])(python[\d.]*|torchrun|accelerate|deepspeed)\s")

#: Where the reference workloads lie: beside the collectors, in a checkout and when installed.
_SHIPPED: Final = Path(__file__).parent.with_name("kernels")

#: The leading comment of a CUDA source: ``/* … */`` or lines of ``//``; the margin of its lines.
_COMMENT: Final = re.compile(r"\s*(?:/\*+(?P<block>.*?)\*/|(?P<lines>(?:[ \t]*//[^\n]*\n?)+))", re.DOTALL)
_MARGIN: Final = re.compile(r"^[ \t]*(?://+!?|\*+)?[ \t]?", re.MULTILINE)


@dataclass(frozen=True)
class Reference:
    """A reference workload, shipped as ``kanalyze.kernels``; each describes itself in its first comment.

    Attributes:
        name: What it is called.
        path: Its file.
        teaches: What its profile demonstrates, one sentence.
        variants: Values of its ``--variant``; empty if it has none.
        doc: The whole text of its first comment.
    """

    name: str
    path: Path
    teaches: str
    variants: tuple[str, ...]
    doc: str


def references() -> list[Reference]:
    """All reference workloads by name, without helpers, whose names begin with an underscore."""
    files = sorted(_SHIPPED.iterdir()) if _SHIPPED.is_dir() else []
    return [_described(file) for file in files if file.suffix in (".cu", ".py") and not file.name.startswith("_")]


def _described(file: Path) -> Reference:
    source, doc = file.read_text(encoding="utf-8", errors="replace"), ""
    if file.suffix == ".py":
        with suppress(SyntaxError):
            doc = ast.get_docstring(ast.parse(source)) or ""
    elif comment := _COMMENT.match(source):
        doc = _MARGIN.sub("", comment["block"] or comment["lines"]).strip()
    listed = re.search(r"^Variants: (.+)$", doc, re.MULTILINE)
    variants = tuple(word.strip() for word in listed[1].rstrip(".").split(",")) if listed else ()
    return Reference(file.stem, file, " ".join(doc.partition("\n\n")[0].split()), variants, doc)


def reference(text: str) -> Reference | None:
    """The reference workload `text`, with or without file suffix; None if there is none."""
    return next((workload for workload in references() if text in (workload.name, workload.path.name)), None)


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
    kind: Literal["cuda", "python", "executable"]
    path: Path | None
    args: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    starts_python: bool = False
    given: str = field(default="", compare=False)


def resolve(text: str, args: Sequence[str] = ()) -> Workload:
    """Resolves `text` to a workload: a file, a reference workload, a program on PATH; ``-m``: the module in `args`."""
    path = Path(text)
    if text == MODULE and args and not path.is_file():
        return replace(_of_script((), (MODULE, args[0]), tuple(args[1:])), given=text)
    if not path.is_file():
        shipped = reference(text)
        on_path = shutil.which(text) if os.sep not in text else None
        if shipped is None and on_path is None:
            _refuse(path)
        path = shipped.path if shipped else Path(on_path or text)
    return replace(_of_file(path, tuple(args)), given=text)


def resolve_other(text: str, first: Workload) -> Workload:
    """Resolves what is compared with the program `first`: a command in one text, or arguments for that program.

    The arguments of `first` are given to both, and the other one's own come behind them, so that they count where a
    program takes the last of two. A script or module alone is started as `first` is.
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
    exists = text == MODULE or Path(text).is_file() or reference(text) is not None or shutil.which(text) is not None
    if first.target[:1] == (MODULE,) and (text == first.target[1] or not exists):
        words = [MODULE, *words]
    other = resolve(words[0], words[1:])
    if other.kind == "python" and not other.launcher:
        other = replace(other, launcher=first.launcher)
    # of a command behind a launcher that hides it, nobody knows which words are arguments of the program
    name = first.path.name if first.path else ""
    runs_another = is_python(name) or name in LAUNCHERS | _WRAPPERS | SPREADERS | _SHELLS
    return replace(other, args=other.args if first.kind == "executable" and runs_another else first.args + other.args)


def _refuse(path: Path) -> None:
    if path.is_dir():
        raise WorkloadError(
            f"{path}: a folder, not a program.", "Give the .cu file, Python script or executable in it."
        )
    if path.exists():
        raise WorkloadError.not_runnable(path)
    beside = [entry.name for entry in path.parent.iterdir() if entry.is_file()] if path.parent.is_dir() else []
    near = nearest(path.name, beside)
    hint = path.parent / near if near else nearest(path.name, [workload.name for workload in references()])
    raise WorkloadError.missing(path, remedy=f"Did you mean {hint}?" if hint else "")


def _of_file(path: Path, args: tuple[str, ...]) -> Workload:
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow the links of virtual environments
    try:
        with absolute.open("rb") as file:
            head = file.read(128)
    except OSError as error:
        why = f"{path}: cannot be read ({error.strerror or error})."
        raise WorkloadError(why, "Check the file's permissions.") from error
    if absolute.suffix == ".cu":
        return Workload(_name(absolute.stem), "cuda", absolute, args)
    if absolute.suffix == ".py":
        return _of_script((), (str(absolute),), args)
    if not os.access(absolute, os.X_OK):
        raise WorkloadError.not_runnable(path)
    script, first_line = behind(str(absolute), args), head.partition(b"\n")[0]
    if script is not None:
        return script
    if absolute.name not in LAUNCHERS and re.match(rb"#!.*python[\d.]*\s*$", first_line):
        interpreter = first_line[2:].decode(errors="replace").split()[-1]  # for env, the one on PATH
        return _of_script((shutil.which(interpreter) or interpreter,), (str(absolute),), args)
    hidden = starts_python(str(absolute), args, head)
    return Workload(_name(absolute.name), "executable", absolute, args, starts_python=hidden)


def _of_script(launcher: tuple[str, ...], target: tuple[str, ...], args: tuple[str, ...]) -> Workload:
    """The workload of a script, or ``-m MODULE``, of the words before it, the launcher first, and its arguments."""
    if target[0] == MODULE:
        return Workload(_name(target[1].rpartition(".")[2]), "python", None, args, launcher, target)
    script = Path(os.path.abspath(target[0]))  # noqa: PTH100 - as above
    if not script.is_file():
        _refuse(Path(target[0]))
    return Workload(_name(script.stem), "python", script, args, launcher, (str(script),))


def _name(text: str) -> str:
    """`text` made safe for file names on every system."""
    return re.sub(r"[^\w.+-]+", "_", text).strip("-._") or "workload"


def is_python(word: str) -> bool:
    """Whether the program `word` is a Python interpreter, by its name."""
    return re.fullmatch(r"python(\d+(\.\d+)*)?", Path(word).name) is not None


def behind(program: str, args: Sequence[str]) -> Workload | None:
    """The script started by ``program args…``; None if it cannot be determined."""
    name, words = Path(program).name, list(args)
    if name == "accelerate":
        return _started((program, *words[:1]), name, words[1:]) if words[:1] == ["launch"] else None
    if is_python(program) or name in LAUNCHERS:
        return _started((program,), name, words)
    if name in _WRAPPERS | SPREADERS:  # what they run starts at the first word that is Python, a launcher or a wrapper
        for at, word in enumerate(words):
            if is_python(word) or Path(word).name in LAUNCHERS | _WRAPPERS:
                inner = behind(word, words[at + 1 :])
                return inner and replace(inner, launcher=(program, *words[:at], *inner.launcher))
    return None


def _started(launcher: tuple[str, ...], name: str, words: list[str]) -> Workload | None:
    """The script or module that Python, or the launcher `name` of it, starts: only they know which options take values.

    A script is the first word that ends as one does; of Python and torchrun, whose options name no files, any file.
    """
    may_be_any = is_python(name) or name == "torchrun"
    for at, word in enumerate(words):
        option, rest = word.replace("_", "-"), words[at + 1 :]
        if option in ("-c", "-", "--no-python") or (option in _MODULES and not may_be_any):
            return None
        if option in _MODULES:
            number = next((number for number, one in enumerate(rest) if _IDENTIFIER.fullmatch(one)), len(rest))
            before, module, args = rest[:number], rest[number : number + 1], rest[number + 1 :]
            if is_python(name) and (inner := _LAUNCHER_MODULES.get("".join(module))):
                return _started((*launcher, *words[:at], word, *before, *module), inner, args)
            return _of_script((*launcher, *words[:at], *before), (MODULE, *module), tuple(args)) if module else None
        # Python runs a folder or an archive with __main__.py, too
        if word.endswith(".py") or (may_be_any and (Path(word).exists() if is_python(name) else Path(word).is_file())):
            return _of_script((*launcher, *words[:at]), (word,), tuple(rest))
    return None


def starts_python(program: str, args: Sequence[str], head: bytes) -> bool:
    """Whether ``program args…``, a file that begins with `head`, seems to start Python."""
    name = Path(program).name
    if name in LAUNCHERS:
        return True
    if name in _WRAPPERS | SPREADERS:
        return any(is_python(word) or word.endswith((".py", ".sh")) for word in args)
    if name in _SHELLS:
        return any(_reads_as_python_script(Path(word)) for word in args if not word.startswith("-"))
    return head.startswith(b"#!") and _reads_as_python_script(Path(program))


def _reads_as_python_script(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return any(_STARTS_PYTHON.search(line) for line in file.read(1 << 16).splitlines() if line[:1] != b"#")
    return False
