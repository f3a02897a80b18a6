"""Finds all tools that a run needs, and which passes cannot run without them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base.nvcc import find_nvcc
from kanalyze.collectors.base.options import BARE, NCU, NSYS, PASSES, SAMPLES, TORCH
from kanalyze.collectors.base.programs import Program, version_of
from kanalyze.collectors.tools import ncu, permissions, torch_pass
from kanalyze.collectors.tools.machine import Gpus, gpus
from kanalyze.collectors.tools.nsys import find_nsys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kanalyze.collectors.base.options import Options
    from kanalyze.collectors.base.workload import Workload

#: Remedy for a missing GPU.
NO_GPU: Final = (
    "run on a machine with an NVIDIA GPU and its driver; in a container start it with --gpus all; "
    "`kanalyze collect --dry-run` prints the commands for another machine"
)


@dataclass(frozen=True)
class Tools:
    """The GPUs and tools of this machine, each found or with a reason why not.

    The torch is that of `python`, which runs scripts; it is looked for only if a pass needs it, as are `torch_facts`
    (CUDA version, GPU found) and the version of that Python.
    """

    gpus: Gpus
    nvcc: Program
    nsys: Program
    ncu: Program
    python: Path
    torch: Program = field(default_factory=lambda: Program("torch", problem="not looked for"))
    torch_facts: Mapping[str, object] = field(default_factory=dict)
    python_version: str | None = None


def find_tools(options: Options, workload: Workload | None = None, *, torch: bool = True) -> Tools:
    """Finds the tools of this machine; `torch` takes as long as importing it."""
    command = torch_pass.python_of(workload, options) if workload else (str(torch_pass.find_python(options)),)
    found, facts = torch_pass.find_torch(command) if torch else (Program("torch", problem="not looked for"), {})
    profilers = (find_nvcc(options), find_nsys(options), ncu.find_ncu(options))
    version = version_of(*command) if workload and workload.kind == "python" else None
    return Tools(gpus(), *profilers, Path(command[-1]), found, facts, version)


def wants_torch(workload: Workload, options: Options) -> bool:
    """Whether the run uses torch: in its own pass, or for ranges in the nsys pass."""
    wanted = TORCH in wanted_passes(workload, options) or torch_pass.under_nsys(options)
    return workload.kind == "python" and wanted


def wanted_passes(workload: Workload, options: Options) -> tuple[str, ...]:
    """The requested passes, in order; by default those that suit the workload.

    Without a profiler nothing ends a program of which nsys records a given time, so that such a run is not made.
    """
    more = {SAMPLES} if options.samples or options.metrics else set()
    more |= {BARE} if options.bare and options.duration_s is None else set()
    if options.passes is not None:
        return tuple(name for name in PASSES if name in {*options.passes, *more})
    usual = {NSYS, NCU} | ({TORCH} if workload.kind == "python" or workload.starts_python else set())
    return tuple(name for name in PASSES if name in usual | more)


@dataclass(frozen=True)
class Obstacle:
    """Obstacle to a pass, with its remedy."""

    why: str
    remedy: str


def obstacles(workload: Workload, options: Options, tools: Tools) -> dict[str, Obstacle]:
    """The obstacles of requested passes that cannot run."""
    no_gpu = None if tools.gpus.present else Obstacle("this machine has no GPU that can be used", NO_GPU)
    ranges = workload.kind == "python" and torch_pass.under_nsys(options)  # which torch emits in the nsys pass
    found = {
        "nsys": no_gpu or _missing(tools.nsys) or (_missing(tools.torch) if ranges else None),
        "samples": no_gpu or _missing(tools.nsys) or (None if options.samples else _unpermitted()),
        "torch": _torch_obstacle(workload, options) or _missing(tools.torch),
        "ncu": no_gpu or _missing(tools.ncu) or _unpermitted(),
    }
    wanted = wanted_passes(workload, options)
    return {name: obstacle for name, obstacle in found.items() if obstacle is not None and name in wanted}


def _missing(program: Program) -> Obstacle | None:
    return None if program.usable else Obstacle(program.problem, program.remedy)


def _torch_obstacle(workload: Workload, options: Options) -> Obstacle | None:
    if workload.starts_python:
        return Obstacle(
            "the script that this program starts cannot be told, and torch.profiler runs in the script's own process",
            "give the command that starts it: `kanalyze collect torchrun --nproc-per-node=2 train.py`, "
            "`kanalyze collect python train.py`",
        )
    if workload.kind != "python":
        return Obstacle("torch.profiler records Python workloads only", "give the script, or leave torch out of --with")
    if torch_pass.under_nsys(options):
        return Obstacle(
            "the recipe nvtx is a part of the nsys pass", "choose another recipe for a trace of torch's own"
        )
    return None


def _unpermitted() -> Obstacle | None:
    counters = permissions.counters()
    return None if counters.ok is not False else Obstacle("this user may not read the GPU's counters", counters.remedy)
