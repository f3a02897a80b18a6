"""Finds nvcc, builds compile commands, and parses nvcc's messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base.programs import Program, find, said

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kanalyze.collectors.base.options import Options

_FOLDERS: Final = ("/usr/local/cuda/bin", "/usr/local/cuda-*/bin", "/opt/cuda/bin", "/opt/nvidia/hpc_sdk/*/*/cuda/bin")

REMEDY: Final = (
    "install the CUDA toolkit (https://developer.nvidia.com/cuda-downloads) and put its nvcc on PATH, or say where it "
    "is with --nvcc-path"
)

#: Errors of nvcc, the host compiler or the linker.
_ERROR: Final = re.compile(
    r"^.*(?:\berror\b\s*(?:#\S+)?:|fatal error|undefined reference|: \*\*\* ).*$|^nvcc fatal.*$", re.MULTILINE
)

#: Environment variables that affect the result of nvcc and the host compiler.
ENVIRONMENT: Final = (
    *("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"),
    *("LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"),
)

#: nvcc flags for the architecture; with one of the user's, ours are omitted.
_ARCH_FLAGS: Final = ("-arch", "--gpu-architecture", "-gencode", "--generate-code")

#: nvcc flag for an unknown GPU: detect those of the machine it runs on.
NATIVE: Final = "-arch=native"


def find_nvcc(options: Options) -> Program:
    """Finds nvcc: the user's choice, else on PATH, else in a toolkit."""
    return find("nvcc", "--nvcc-path", options.nvcc, _FOLDERS, REMEDY)


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
    if not numbers:
        return (NATIVE,)
    if len(numbers) == 1:
        return (f"-arch=sm_{numbers[0]}",)
    newest = max(numbers, key=lambda number: int(number.rstrip("af")))
    code = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]
    return (*code, f"-gencode=arch=compute_{newest},code=compute_{newest}")


def known_arch(text: str) -> bool:
    """Whether :func:`arch_flags` accepts `text` as an architecture."""
    return re.fullmatch(r"(sm_|compute_)?(\d{2,3}|\d{1,2}\.\d)[af]?", text) is not None


def supported(nvcc: Program) -> tuple[str, ...]:
    """Architectures that this nvcc supports, such as ``90``; empty if unknown."""
    ran = said(nvcc.path, "--list-gpu-arch") if nvcc.path else None
    return tuple(re.findall(r"compute_(\d+)", ran[1])) if ran and not ran[0] else ()


def errors(said_lines: Iterable[str]) -> list[str]:
    """The error lines in nvcc's output, in order."""
    return [line.strip() for line in _ERROR.findall("\n".join(said_lines))]


def dependencies(text: str) -> list[str]:
    """The files listed in a dependency file (``-MF``), in order."""
    _, _, listed = text.replace("\\\n", " ").partition(": ")
    return [word.replace("\\ ", " ").replace("$$", "$") for word in re.findall(r"(?:\\ |[^\s])+", listed)]
