"""nvcc: where it lies, its compile commands and messages, and the cache of what it compiled.

The key of a cached workload consists of the source (path and text), the command, the nvcc version and the environment
variables that affect nvcc and the host compiler. An entry lists all headers with digests, and is valid only while all
are unchanged. It is written under a temporary name and moved when complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from kanalyze.collectors.process import Program, answer
from kanalyze.files import cache_folder

FOLDERS: Final = ("/usr/local/cuda/bin", "/usr/local/cuda-*/bin", "/opt/cuda/bin", "/opt/nvidia/hpc_sdk/*/*/cuda/bin")

REMEDY: Final = (
    "install the CUDA toolkit (https://developer.nvidia.com/cuda-downloads) and put its nvcc on PATH, or say where it "
    "is with --nvcc-path"
)

#: Errors of nvcc, the host compiler or the linker.
_ERROR: Final = re.compile(
    r"^.*(?:\berror\b\s*(?:#\S+)?:|fatal error|undefined reference|: \*\*\* ).*$|^nvcc fatal.*$", re.MULTILINE
)

#: Environment variables that affect the result of nvcc and the host compiler.
_ENVIRONMENT: Final = (
    *("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"),
    *("LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"),
)

#: nvcc flags for the architecture; with one of the user's, ours are omitted.
_ARCH_FLAGS: Final = ("-arch", "--gpu-architecture", "-gencode", "--generate-code")

_HEADERS: Final = "headers.json"


def command(  # noqa: PLR0913 - all that goes into it
    nvcc: str, source: Path, binary: Path, arch: Sequence[str], flags: Sequence[str], depends: Path | None = None
) -> tuple[str, ...]:
    """The command to compile `source`; `depends` is the dependency file to write (headers included)."""
    listed = ("-MD", "-MF", str(depends)) if depends else ()
    chosen = () if any(flag.startswith(_ARCH_FLAGS) for flag in flags) else arch_flags(arch)
    return (nvcc, "-lineinfo", *chosen, *flags, *listed, "-o", str(binary), str(source))


def arch_flags(arch: Sequence[str]) -> tuple[str, ...]:
    """The flags of nvcc for a fat binary for `arch` (``sm_90``, ``90``, ``9.0``, ``90a``).

    PTX of the newest goes in too, so that GPUs to come can run it. Without any, the GPUs of the machine are asked.
    """
    numbers = list(dict.fromkeys(re.sub(r"^(sm_|compute_)|\.", "", text) for text in arch))
    if len(numbers) <= 1:
        return (f"-arch=sm_{numbers[0]}" if numbers else "-arch=native",)
    newest = max(numbers, key=lambda number: int(number.rstrip("af")))
    code = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]
    return (*code, f"-gencode=arch=compute_{newest},code=compute_{newest}")


def supported(nvcc: Program) -> tuple[str, ...]:
    """Architectures that this nvcc supports, such as ``90``; empty if unknown."""
    status, text = answer(nvcc.path, "--list-gpu-arch") if nvcc.path else (None, "")
    return tuple(re.findall(r"compute_(\d+)", text)) if status == 0 else ()


def errors(printed: Iterable[str]) -> list[str]:
    """The error lines in nvcc's output, in order."""
    return [line.strip() for line in _ERROR.findall("\n".join(printed))]


def dependencies(text: str) -> list[str]:
    """The files listed in a dependency file (``-MF``), in order."""
    _, _, listed = text.replace("\\\n", " ").partition(": ")
    return [word.replace("\\ ", " ").replace("$$", "$") for word in re.findall(r"(?:\\ |[^\s])+", listed)]


def folder() -> Path:
    """The folder of compiled workloads in the user's cache."""
    return cache_folder() / "builds"


def build(
    compiler: Program,
    source: Path,
    arch: Sequence[str],
    flags: Sequence[str],
    compile_with: Callable[[Sequence[str]], int],
) -> tuple[Path, dict[str, object]]:
    """The binary of `source`, cached or compiled by `compile_with` (runs a command, returns its ns).

    Also gives what the manifest says of it; docs/collect.md describes every key.
    """
    around = {name: os.environ.get(name) for name in _ENVIRONMENT}
    inputs = [str(compiler.path), compiler.version, str(source), _digest_of(source), list(arch), list(flags), around]
    text = json.dumps([*inputs, os.getcwd()])  # noqa: PTH109 - for -I
    key = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    binary = folder() / key / source.stem
    words, is_cached = command(compiler.command, source, binary, arch, flags), _serves(binary)
    record = {"command": [*words], "binary": str(binary), "key": key, "cached": is_cached, "duration_ns": 0}
    if is_cached:
        return binary, record
    for place in (folder().parent, folder()):  # intermediate parents would get another mode
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder()) as made_in:
        scratch = Path(made_in, "entry")
        scratch.mkdir(mode=0o700)
        depends = scratch / "depends"
        spent_ns = compile_with(command(compiler.command, source, scratch / binary.name, arch, flags, depends))
        listed = dependencies(depends.read_text(encoding="utf-8", errors="replace"))
        (scratch / _HEADERS).write_text(json.dumps({file: _digest_of(Path(file)) for file in listed}), encoding="utf-8")
        _keep(scratch, binary.parent)
    return binary, record | {"duration_ns": spent_ns}


def _keep(scratch: Path, place: Path) -> None:
    """Move a new entry to its place, replacing an outdated one."""
    shutil.rmtree(place, ignore_errors=True)
    try:
        scratch.rename(place)
    except OSError:
        if not place.is_dir():  # another process was faster
            raise


def _serves(binary: Path) -> bool:
    """Whether `binary` exists and all its inputs are unchanged."""
    with suppress(OSError, ValueError):
        headers = json.loads((binary.parent / _HEADERS).read_text(encoding="utf-8"))
        return binary.is_file() and all(_digest_of(Path(file)) == digest for file, digest in headers.items())
    return False


def _digest_of(file: Path) -> str:
    """Digest of a file's content; empty if it cannot be read."""
    with suppress(OSError), file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=12)).hexdigest()
    return ""
