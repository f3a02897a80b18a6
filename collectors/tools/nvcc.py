"""nvcc: where it lies, its compile command and its messages."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from kanalyze.collectors.process import Program, answer

FOLDERS: Final = ("/usr/local/cuda/bin", "/usr/local/cuda-*/bin", "/opt/cuda/bin", "/opt/nvidia/hpc_sdk/*/*/cuda/bin")

REMEDY: Final = (
    "install the CUDA toolkit (https://developer.nvidia.com/cuda-downloads) and put its nvcc on PATH, or say where it "
    "is with --nvcc-path"
)

#: Errors of nvcc, the host compiler or the linker.
_ERROR: Final = re.compile(
    r"^.*(?:\berror\b\s*(?:#\S+)?:|fatal error|undefined reference|: \*\*\* ).*$|^nvcc fatal.*$", re.MULTILINE
)

#: nvcc flags for the architecture; with one of the user's, ours are omitted.
_ARCH_FLAGS: Final = ("-arch", "--gpu-architecture", "-gencode", "--generate-code")


def command(nvcc: str, source: Path, binary: Path, arch: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """The command to compile `source`."""
    chosen = () if any(flag.startswith(_ARCH_FLAGS) for flag in flags) else arch_flags(arch)
    return (nvcc, "-lineinfo", *chosen, *flags, "-o", str(binary), str(source))


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
