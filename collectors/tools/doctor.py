"""Examines the machine: what a full capture needs, whether it is available, and how to get it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kanalyze.collectors.base import files, nvcc
from kanalyze.collectors.base.options import Options
from kanalyze.collectors.tools import nsys, permissions
from kanalyze.collectors.tools.found import NO_GPU, Tools, find_tools
from kanalyze.units import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.collectors.base.programs import Program
    from kanalyze.collectors.tools.permissions import Permission


@dataclass(frozen=True)
class Examined:
    """A prerequisite of a capture.

    Attributes:
        name: The prerequisite.
        ok: Whether it is usable.
        found: What was found, or why it is not usable.
        means: What it is needed for.
        remedy: How to get it; empty if usable.
        optional: Whether a capture is complete without it: only CPU samples or GPU metrics need it.
    """

    name: str
    ok: bool
    found: str
    means: str
    remedy: str = ""
    optional: bool = False


def doctor(options: Options | None = None, folder: Path | None = None) -> list[Examined]:
    """Examines all prerequisites of a capture into `folder` (default: the current one)."""
    chosen = options or Options()
    return examine(find_tools(chosen), folder or Path())


def examine(tools: Tools, folder: Path) -> list[Examined]:
    """Examines `tools` and the disk of `folder`."""
    return [*_gpus(tools), *_nvcc(tools), *_profilers(tools), *_samples(tools), _torch(tools), _disk(folder)]


def _gpus(tools: Tools) -> list[Examined]:
    gpus = tools.gpus
    names = ", ".join(f"{row['name']} (compute capability {row['compute_capability']})" for row in gpus.rows)
    means = "programs run on it; without one only the CPU side of Python workloads can be recorded"
    if gpus.rows:
        driver = Examined("driver", ok=True, found=str(gpus.driver_version), means="talks to the GPU")
        return [Examined("GPU", ok=True, found=names, means=means), driver]
    if gpus.present:
        why = f"there is one, but nvidia-smi does not tell which ({gpus.smi.problem or 'it fails'})"
        remedy = "check the driver's installation; --arch says what to compile for"
        return [Examined("GPU", ok=False, found=why, means=means, remedy=remedy)]
    why = f"none (nvidia-smi: {gpus.smi.problem})" if gpus.smi.problem else "none that nvidia-smi shows"
    return [Examined("GPU", ok=False, found=why, means=means, remedy=NO_GPU)]


def _nvcc(tools: Tools) -> list[Examined]:
    means = "compiles .cu files"
    if not tools.nvcc.usable:
        return [_tool(tools.nvcc, means)]
    lines = [_tool(tools.nvcc, means)]
    wanted, known = tools.gpus.compute_capabilities, nvcc.supported(tools.nvcc)
    unknown = [text for text in wanted if known and text.replace(".", "") not in known]
    means = "compiled programs run on this GPU"
    if unknown:
        why = f"nvcc {tools.nvcc.version} does not compile for {', '.join(unknown)}"
        remedy = "install a CUDA toolkit that knows this GPU"
        lines.append(Examined("architecture", ok=False, found=why, means=means, remedy=remedy))
    elif wanted:
        found = ", ".join(f"sm_{text.replace('.', '')}" for text in wanted)
        lines.append(Examined("architecture", ok=True, found=found, means=means))
    return lines


def _profilers(tools: Tools) -> list[Examined]:
    lines = [
        _tool(tools.nsys, "records a run: kernels, copies, CUDA calls, NVTX ranges"),
        _tool(tools.ncu, "reads the counters of single kernels"),
    ]
    if tools.gpus.present:
        lines.append(_permission("counters", permissions.counters(), "ncu needs them, and GPU metrics"))
    return lines


def _samples(tools: Tools) -> list[Examined]:
    """Checks of what CPU samples and GPU metrics need; a capture without these is complete."""
    cpu = permissions.cpu_samples()
    lines = [_permission("CPU samples", cpu, "tell what the host does while the GPU waits", optional=True)]
    names = permissions.kernel_names() if cpu.ok else None
    if names is not None:
        lines.append(_permission("OS symbols", names, "tell system calls in CPU samples apart", optional=True))
    if not tools.nsys.usable:
        return lines
    means = "tell which line of Python the host is in"
    if nsys.has_option(nsys.options_of(tools.nsys), "--python-sampling"):
        found = "nsys takes them inside the process, without CPU samples too"
        lines.append(Examined("Python samples", ok=True, found=found, means=means))
    else:
        why = f"nsys {tools.nsys.version or 'of unknown version'} does not take them"
        remedy = "install a newer Nsight Systems"
        lines.append(Examined("Python samples", ok=False, found=why, means=means, remedy=remedy, optional=True))
    return [*lines, *_metrics(tools)]


def _metrics(tools: Tools) -> list[Examined]:
    """Whether nsys samples the GPU's counters here, as it says itself."""
    if not tools.gpus.present:
        return []
    found, why = nsys.metrics_of(tools.nsys)
    means = "tell how busy the SMs, tensor cores and DRAM are over time"
    if found:
        return [Examined("GPU metrics", ok=True, found=found, means=means)]
    remedy = "it takes a GPU from Turing on, its counters (above), and no other profiler that holds them"
    return [Examined("GPU metrics", ok=False, found=why, means=means, remedy=remedy, optional=True)]


def _permission(name: str, told: Permission, means: str, *, optional: bool = False) -> Examined:
    return Examined(name, told.ok is not False, told.found, means, told.remedy, optional)


def _tool(program: Program, means: str) -> Examined:
    if program.usable:
        return Examined(program.name, ok=True, found=_described(program), means=means)
    return Examined(program.name, ok=False, found=program.problem, means=means, remedy=program.remedy)


def _described(program: Program) -> str:
    return f"{program.version or 'of unknown version'} ({program.path})"


def _torch(tools: Tools) -> Examined:
    means = "records operators of Python workloads"
    if not tools.torch.usable:
        return _tool(tools.torch, means)
    sees = "sees a GPU" if tools.torch_facts.get("gpu") else "sees no GPU"
    return Examined("torch", ok=True, found=f"{tools.torch.version} of {tools.python}, {sees}", means=means)


def _disk(folder: Path) -> Examined:
    means = "captures take space"
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        why = f"{folder}: {error.strerror or error}"
        return Examined("disk", ok=False, found=why, means=means, remedy="choose a folder that exists with -o")
    found = f"{size(free)} free"
    if free < files.ENOUGH_BYTES:
        remedy = f"free some, or write elsewhere with -o; a longer program takes {size(files.ENOUGH_BYTES)}"
        return Examined("disk", ok=False, found=found, means=means, remedy=remedy)
    return Examined("disk", ok=True, found=found, means=means)


def complete(lines: Sequence[Examined]) -> bool:
    """Whether all prerequisites are met, but for optional ones."""
    return all(line.ok or line.optional for line in lines)
