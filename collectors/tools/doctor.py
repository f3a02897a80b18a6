"""Examines the machine: what a full capture needs, whether it is available, and how to get it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kanalyze.collectors.base import files
from kanalyze.collectors.base.options import Options
from kanalyze.collectors.tools import machine, nsys, nvcc
from kanalyze.collectors.tools.found import NO_GPU, Tools, find_tools
from kanalyze.units import size

if TYPE_CHECKING:
    from kanalyze.collectors.base.programs import Program
    from kanalyze.collectors.tools.machine import Permission


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
    tools = find_tools(options or Options())
    lines = [
        *_gpus(tools),
        *_nvcc(tools),
        _tool(tools.nsys, "records a run: kernels, copies, CUDA calls, NVTX ranges"),
        _tool(tools.ncu, "reads the counters of single kernels"),
    ]
    if tools.gpus.present:
        lines.append(_permission("counters", machine.counters(), "ncu needs them, and GPU metrics"))
    means = "records operators of Python workloads"
    torch = _tool(tools.torch, means)
    if torch.ok:
        sees = "sees a GPU" if tools.torch_facts.get("gpu") else "sees no GPU"
        torch = _checked("torch", means, f"{tools.torch.version} of {tools.python}, {sees}")
    return [*lines, *_samples(tools), torch, _disk(folder or Path())]


def _gpus(tools: Tools) -> list[Examined]:
    gpus, why, remedy = tools.gpus, "", NO_GPU
    names = ", ".join(f"{row['name']} (compute capability {row['compute_capability']})" for row in gpus.rows)
    if gpus.present and not gpus.rows:
        why = f"there is one, but nvidia-smi does not tell which ({gpus.smi.problem or 'it fails'})"
        remedy = "check the driver's installation; --arch says what to compile for"
    elif not gpus.rows:
        why = f"none (nvidia-smi: {gpus.smi.problem})" if gpus.smi.problem else "none that nvidia-smi shows"
    means = "programs run on it; without one only the CPU side of Python workloads can be recorded"
    driver = [] if why else [_checked("driver", "talks to the GPU", str(gpus.driver_version))]
    return [_checked("GPU", means, names, why, remedy), *driver]


def _nvcc(tools: Tools) -> list[Examined]:
    lines, compiler = [_tool(tools.nvcc, "compiles .cu files")], tools.nvcc
    if wanted := tools.gpus.compute_capabilities if compiler.usable else ():
        known, numbers = nvcc.supported(compiler), [text.replace(".", "") for text in wanted]
        unknown = [text for text, number in zip(wanted, numbers, strict=True) if known and number not in known]
        why = f"nvcc {compiler.version} does not compile for {', '.join(unknown)}" if unknown else ""
        targets = ", ".join(f"sm_{number}" for number in numbers)
        remedy = "install a CUDA toolkit that knows this GPU"
        lines.append(_checked("architecture", "compiled programs run on this GPU", targets, why, remedy))
    return lines


def _samples(tools: Tools) -> list[Examined]:
    """Checks of what CPU samples and GPU metrics need; a capture without these is complete."""
    cpu = machine.cpu_samples()
    lines = [_permission("CPU samples", cpu, "tell what the host does while the GPU waits", optional=True)]
    names = machine.kernel_names() if cpu.ok else None
    if names is not None:
        lines.append(_permission("OS symbols", names, "tell system calls in CPU samples apart", optional=True))
    if not tools.nsys.usable:
        return lines
    has = nsys.has_option(nsys.options_of(tools.nsys), "--python-sampling")
    taken = "nsys takes them inside the process, without CPU samples too"
    why = "" if has else f"nsys {tools.nsys.version or 'of unknown version'} does not take them"
    means, remedy = "tell which line of Python the host is in", "install a newer Nsight Systems"
    lines.append(_checked("Python samples", means, taken, why, remedy, optional=True))
    if tools.gpus.present:  # whether nsys samples their counters, as it says itself
        means = "tell how busy the SMs, tensor cores and DRAM are over time"
        remedy = "it takes a GPU from Turing on, its counters (above), and no other profiler that holds them"
        lines.append(_checked("GPU metrics", means, *nsys.metrics_of(tools.nsys), remedy, optional=True))
    return lines


def _checked(  # noqa: PLR0913 - all that is told of one thing
    name: str, means: str, found: str, why: str = "", remedy: str = "", *, optional: bool = False
) -> Examined:
    """What was found, or where there is a reason why it is not usable that, and how to get it."""
    return Examined(name, not why, why or found, means, remedy if why else "", optional=bool(why) and optional)


def _permission(name: str, permission: Permission, means: str, *, optional: bool = False) -> Examined:
    return Examined(name, permission.ok is not False, permission.found, means, permission.remedy, optional)


def _tool(program: Program, means: str) -> Examined:
    found = f"{program.version or 'of unknown version'} ({program.path})"
    return _checked(program.name, means, found, "" if program.usable else program.problem, program.remedy)


def _disk(folder: Path) -> Examined:
    means, enough = "captures take space", size(files.ENOUGH_BYTES)
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        why = f"{folder}: {error.strerror or error}"
        return _checked("disk", means, "", why, "choose a folder that exists with -o")
    found = f"{size(free)} free"
    remedy = f"free some, or write elsewhere with -o; a longer program takes {enough}"
    return _checked("disk", means, found, found if free < files.ENOUGH_BYTES else "", remedy)


def complete(lines: Sequence[Examined]) -> bool:
    """Whether all prerequisites are met, but for optional ones."""
    return all(line.ok or line.optional for line in lines)
