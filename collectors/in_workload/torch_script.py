"""Runs a script or module as ``__main__``, like Python itself, within a running program.

Files about it are whole or not there: written under another name beside their own, and renamed when complete.
"""

from __future__ import annotations

import ast
import builtins
import gzip
import io
import json
import os
import runpy
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any


def run(target: list[str], wrappers: Mapping[str, Callable[[Any], Any]]) -> None:
    """Run ``SCRIPT ARGS…`` or ``-m MODULE ARGS…``; exceptions propagate.

    Functions of the script itself are wrapped in `wrappers`, by name (Class.method for a method).
    """
    if target[0] == "-m":
        sys.argv = target[1:]
        _set_path(str(Path.cwd()))
        runpy.run_module(target[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(target)
    script = Path(target[0])
    # Folders and zip files with a __main__, and scripts with other suffixes: all that runpy accepts.
    if script.is_dir() or (script.suffix != ".py" and (not script.is_file() or zipfile.is_zipfile(script))):
        runpy.run_path(str(script), run_name="__main__")
    else:
        _run_file(script, wrappers)


def _set_path(folder: str) -> None:
    """Set sys.path[0] as Python does; under -P or -I, leave it out."""
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path.insert(0, folder)


def _run_file(script: Path, wrappers: Mapping[str, Callable[[Any], Any]]) -> None:
    path = str(script.absolute())
    with io.open_code(path) as file:
        code: Any = file.read()
    _set_path(str(script.resolve().parent))
    module = ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    module.__spec__ = None
    module.__dict__.update(__builtins__=builtins, __cached__=None, __package__=None, __annotations__={})
    # Kept after the script's end, for exit handlers and pickle.
    sys.modules["__main__"] = module
    if wrappers:
        code = ast.parse(code, path)
        names = {name: f"__kanalyze_{number}__" for number, name in enumerate(wrappers)}
        _decorate(code, names)
        module.__dict__.update({names[name]: wrapper for name, wrapper in wrappers.items()})
    exec(compile(code, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - running it is the purpose


def _decorate(node: ast.AST, names: Mapping[str, str], within: str = "") -> None:
    """Adds an outermost decorator to functions by their names; line numbers are unchanged."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorator = names.get(f"{within}{inner.name}")
            if decorator is not None:
                inner.decorator_list.insert(0, ast.copy_location(ast.Name(decorator, ast.Load()), inner))
        elif isinstance(inner, ast.ClassDef):
            _decorate(inner, names, f"{within}{inner.name}.")
        else:
            _decorate(inner, names, within)


#: Environment variables of launchers for rank and world size.
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def rank(environ: Mapping[str, str]) -> int | None:
    """The rank set by a launcher (torchrun, mpirun, srun); None without a launcher."""
    for name, count in _RANKS:
        number, size = environ.get(name, ""), environ.get(count, "")
        if number.isdecimal() and size.isdecimal():
            return int(number) if name == "RANK" or int(size) > 1 else None
    return None


def of_rank(file: Path) -> Path:
    """The name of a file of this process: with -rankN before its ending where a launcher has set its rank."""
    name, dot, ending = file.name.partition(".")
    own = rank(os.environ)
    return file if own is None else file.with_name(f"{name}-rank{own}{dot}{ending}")


def hide_runner() -> None:
    """Shows an error of the workload without the frames of the runner."""
    hook, here = sys.excepthook, Path(__file__).resolve().parent

    def shown(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if file not in (runpy.__file__, "<frozen runpy>") and Path(file).resolve().parent != here:
                break
            traceback = traceback.tb_next
        hook(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = shown


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The name under which to write `path`, which it gets at the end; nothing is left of it after an error."""
    part = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> Path:
    """Write `path` atomically."""
    with whole(path) as part:
        part.write_bytes(content)
    return path


def write_json(path: Path, document: object) -> Path:
    """Write `path` as JSON, atomically."""
    return write_bytes(path, (json.dumps(document, indent=1) + "\n").encode())


def packed_copy(source: Path, target: Path) -> None:
    """Copy a file, packed with gzip if it is not; several times faster than by default on traces of gigabytes."""
    with whole(target) as part, source.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        with part.open("wb") if is_packed else gzip.open(part, "wb", 6) as out:
            shutil.copyfileobj(file, out, 1 << 20)
