"""Finds all tools that a run needs, the Python of its workload, and which passes cannot run without them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from kanalyze.collectors.base.options import BARE, NCU, NSYS, PASSES, SAMPLES, TORCH, Options
from kanalyze.collectors.base.programs import Program, answer, find, runnable, version_of
from kanalyze.collectors.base.workload import LAUNCHERS, SPREADERS, Workload, is_python
from kanalyze.collectors.in_workload.recipes import RANGES, RECIPES
from kanalyze.collectors.tools import machine, ncu, nvcc
from kanalyze.collectors.tools.nsys import find_nsys

#: Remedy for a missing GPU.
NO_GPU: Final = (
    "run on a machine with an NVIDIA GPU and its driver; in a container start it with --gpus all; "
    "`kanalyze collect --dry-run` prints the commands for another machine"
)

#: Seconds to wait for importing torch, at worst from a cold disk; what Python is asked then.
_PATIENCE_S: Final = 180
_ASKED: Final = (
    "import json, platform, torch\n"
    "from importlib.util import find_spec\n"
    "triton = __import__('triton').__version__ if find_spec('triton') else None\n"
    "print('kanalyze:' + json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda, "
    "'gpu': torch.cuda.is_available(), 'triton': triton, 'python': platform.python_version()}))"
)

_NOT_ASKED: Final = Program("torch", problem="not looked for")


class Tools(NamedTuple):
    """The GPUs and tools of this machine, each found or with a reason why not.

    The torch is that of `python`, which runs scripts; it is looked for only if a pass needs it, as are `torch_facts`
    (CUDA version, GPU found) and the version of that Python.
    """

    gpus: machine.Gpus
    nvcc: Program
    nsys: Program
    ncu: Program
    python: Path
    torch: Program = _NOT_ASKED
    torch_facts: Mapping[str, object] = {}
    python_version: str | None = None


def find_tools(options: Options, workload: Workload | None = None, *, torch: bool = True) -> Tools:
    """Finds the tools of this machine; `torch` takes as long as importing it."""
    command = python_of(workload, options)
    program, facts = _find_torch(command) if torch else (_NOT_ASKED, {})
    profilers = (
        find("nvcc", "--nvcc-path", options.nvcc, nvcc.FOLDERS, nvcc.REMEDY),
        find_nsys(options),
        find("ncu", "--ncu", options.ncu, ncu.FOLDERS, ncu.REMEDY),
    )
    version = version_of(*command) if workload and workload.kind == "python" else None
    return Tools(machine.gpus(), *profilers, Path(command[-1]), program, facts, version)


def python_of(workload: Workload | None, options: Options) -> tuple[str, ...]:
    """The command that starts the workload's Python: its path, or several words if behind a wrapper.

    A wrapper may set the environment in which a Python is found (env, conda), so it stands before that here, too.
    Without a launcher it is the Python for scripts: the user's choice, else ours if it has torch, else on PATH.
    """
    if options.python is not None:
        return (str(runnable("--python", options.python)),)
    if workload is not None and workload.launcher:
        words = workload.launcher
        at = next((at for at, word in enumerate(words) if is_python(word)), None)
        if at is not None:
            spread = Path(words[0]).name in SPREADERS
            return (shutil.which(words[at]) or words[at],) if spread else words[: at + 1]
        started = next((shutil.which(word) for word in words if Path(word).name in LAUNCHERS), None)
        beside = Path(started or words[0]).parent / "python"
        if os.access(beside, os.X_OK):
            return (str(beside),)
    if find_spec("torch") is not None and sys.executable:
        return (sys.executable,)
    inside = Path(os.environ.get("VIRTUAL_ENV") or os.devnull) / "bin" / "python"
    on_path = str(inside) if os.access(inside, os.X_OK) else shutil.which("python3") or shutil.which("python")
    return (on_path or sys.executable,)


def _find_torch(command: Sequence[str]) -> tuple[Program, dict[str, object]]:
    """Queries torch in the Python that `command` starts: version, CUDA, whether it sees a GPU."""
    python = Path(command[-1])
    ran = answer(*command, "-c", _ASKED, patience_s=_PATIENCE_S)
    line = re.search(r"^kanalyze:(.*)$", ran[1], re.MULTILINE) if ran and not ran[0] else None
    if line is not None:
        facts: dict[str, object] = json.loads(line[1])
        return Program("torch", python, str(facts["version"])), facts
    last = (ran[1].strip().splitlines() or ["no output"])[-1].strip()[:200] if ran else ""
    problem = f"{python} cannot import it ({last})" if ran else f"{python} does not run"
    remedy = f"install it for that Python (`{python} -m pip install torch`), or name another one with --python"
    return Program("torch", problem=problem, remedy=remedy), {}


def makes_ranges(workload: Workload, options: Options) -> bool:
    """Whether the recipe emits NVTX ranges, so that the script runs under nsys and torch at once."""
    return workload.kind == "python" and options.recipe in RECIPES and RECIPES[options.recipe].makes == RANGES


def wants_torch(workload: Workload, options: Options) -> bool:
    """Whether the run uses torch: in its own pass, or for ranges in the nsys pass."""
    wanted = TORCH in wanted_passes(workload, options)
    return workload.kind == "python" and (wanted or makes_ranges(workload, options))


def wanted_passes(workload: Workload, options: Options) -> tuple[str, ...]:
    """The requested passes, in order; by default those that suit the workload.

    Without a profiler nothing ends a program of which nsys records a given time, so that such a run is not made.
    """
    usual = {NSYS, NCU} | ({TORCH} if workload.kind == "python" or workload.starts_python else set())
    wanted = usual if options.passes is None else {*options.passes}
    wanted |= {SAMPLES} if options.samples or options.metrics else set()
    wanted |= {BARE} if options.bare and options.duration_s is None else set()
    return tuple(name for name in PASSES if name in wanted)


class Obstacle(NamedTuple):
    """Obstacle to a pass, with its remedy."""

    why: str
    remedy: str


def obstacles(workload: Workload, options: Options, tools: Tools) -> dict[str, Obstacle]:
    """The obstacles of requested passes that cannot run."""
    no_gpu = None if tools.gpus.present else Obstacle("this machine has no GPU that can be used", NO_GPU)
    counters = machine.counters()
    denied = Obstacle("this user may not read the GPU's counters", counters.remedy) if counters.ok is False else None
    of_passes = {
        "nsys": no_gpu or _missing(tools.nsys) or (_missing(tools.torch) if makes_ranges(workload, options) else None),
        "samples": no_gpu or _missing(tools.nsys) or (None if options.samples else denied),
        "torch": _torch_obstacle(workload, options) or _missing(tools.torch),
        "ncu": no_gpu or _missing(tools.ncu) or denied,
    }
    wanted = wanted_passes(workload, options)
    return {name: obstacle for name, obstacle in of_passes.items() if obstacle is not None and name in wanted}


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
    if makes_ranges(workload, options):
        remedy = "choose another recipe for a trace of torch's own"
        return Obstacle("the recipe nvtx is a part of the nsys pass", remedy)
    return None
