"""Cache of compiled workloads.

The key consists of the source (path and text), the command, the nvcc version and the environment variables that affect
nvcc and the host compiler. An entry lists all headers with digests, and is valid only while all are unchanged. It is
written under a temporary name and moved when complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base import nvcc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.collectors.base.programs import Program

_HEADERS: Final = "headers.json"


@dataclass(frozen=True)
class Build:
    """A compiled workload: its binary, the key in the cache, whether it was there, the compile command and its time."""

    binary: Path
    key: str
    cached: bool
    command: tuple[str, ...]
    seconds: float = 0.0


def folder() -> Path:
    """The cache folder: ``$XDG_CACHE_HOME/kanalyze/builds``, or ``~/.cache/kanalyze/builds``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "kanalyze" / "builds"


def planned(compiler: Program, source: Path, arch: Sequence[str], flags: Sequence[str]) -> Build:
    """The build of `source`, cached or yet to be compiled."""
    key = _key(compiler, source, arch, flags)
    binary = folder() / key / source.stem
    command = nvcc.command(compiler.command, source, binary, arch, flags)
    return Build(binary, key, _serves(binary), command)


def build(
    compiler: Program,
    source: Path,
    arch: Sequence[str],
    flags: Sequence[str],
    compile_with: Callable[[Sequence[str]], float],
) -> Build:
    """The build of `source`, cached or compiled by `compile_with` (runs a command, returns its seconds).

    Raises:
        OSError: The cache cannot be written.
    """
    plan = planned(compiler, source, arch, flags)
    if plan.cached:
        return plan
    for place in (folder().parent, folder()):  # intermediate parents would get another mode
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=folder()))
    try:
        binary, depends = scratch / plan.binary.name, scratch / "depends"
        seconds = compile_with(nvcc.command(compiler.command, source, binary, arch, flags, depends))
        listed = nvcc.dependencies(depends.read_text(encoding="utf-8", errors="replace"))
        (scratch / _HEADERS).write_text(json.dumps({file: _digest_of(Path(file)) for file in listed}), encoding="utf-8")
        _keep(scratch, plan.binary.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Build(plan.binary, plan.key, cached=False, command=plan.command, seconds=seconds)


def _keep(scratch: Path, place: Path) -> None:
    """Move a new entry to its place, replacing an outdated one."""
    with suppress(FileNotFoundError):
        place.rename(scratch.with_name(f"{scratch.name}-old"))
    try:
        scratch.rename(place)
    except OSError:
        if not place.is_dir():  # another process was faster
            raise
    finally:
        shutil.rmtree(scratch.with_name(f"{scratch.name}-old"), ignore_errors=True)


def _key(compiler: Program, source: Path, arch: Sequence[str], flags: Sequence[str]) -> str:
    around = {name: os.environ.get(name) for name in nvcc.ENVIRONMENT}
    told = [str(compiler.path), compiler.version, str(source), _digest_of(source), list(arch), list(flags), around]
    return hashlib.blake2b(json.dumps([*told, os.getcwd()]).encode(), digest_size=12).hexdigest()  # noqa: PTH109 - for -I


def _serves(binary: Path) -> bool:
    """Whether `binary` exists and all its inputs are unchanged."""
    try:
        headers = json.loads((binary.parent / _HEADERS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return binary.is_file() and all(_digest_of(Path(file)) == digest for file, digest in headers.items())


def _digest_of(file: Path) -> str:
    """Digest of a file's content; empty if it cannot be read."""
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=12)).hexdigest()
    except OSError:
        return ""
