"""The tools of this machine: which were found, which passes cannot run without them, what else a capture needs."""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from kanalyze import machinery, units
from kanalyze.collectors import process
from kanalyze.collectors.in_workload.torch_sessions import RANGES, RECIPES
from kanalyze.collectors.options import BARE, NAMING, NCU, NSYS, PASSES, SAMPLES, TORCH, Options
from kanalyze.collectors.process import Program, answer, find, runnable, version_of
from kanalyze.collectors.tools import machine, ncu, nsys, nvcc
from kanalyze.collectors.workload import LAUNCHERS, SPREADERS, Workload, is_python
from kanalyze.tools import NCU_FOLDERS, NSYS_FOLDERS

with machinery.late():  # imports polars
    from kanalyze import device_limits

#: Remedy for a missing GPU.
NO_GPU: Final = (
    "run on a machine with an NVIDIA GPU and its driver; in a container start it with --gpus all; "
    "`kanalyze collect --dry-run` prints the commands for another machine"
)

#: What Python is asked.
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
        find("nsys", "--nsys", options.nsys, NSYS_FOLDERS, nsys.REMEDY),
        find("ncu", "--ncu", options.ncu, NCU_FOLDERS, ncu.REMEDY),
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
    facts, status, last = _printed(r"^kanalyze:(.*)$", *command, "-c", _ASKED)
    if facts:
        return Program("torch", python, str(facts["version"])), facts
    problem = f"{python} does not run" if status is None else f"{python} cannot import it ({last or 'no output'})"
    remedy = f"install it for that Python (`{python} -m pip install torch`), or name another one with --python"
    return Program("torch", problem=problem, remedy=remedy), {}


def _printed(pattern: str, *command: str | Path) -> tuple[dict[str, Any], int | None, str]:
    """The JSON object in the line of that pattern of what a program of Python prints; its status, and its last line."""
    status, text = answer(*command, patience_s=180)  # importing torch, at worst from a cold disk
    line = re.search(pattern, text, re.MULTILINE) if status == 0 else None
    last = next(reversed(text.strip().splitlines()), "")
    return json.loads(line[1]) if line else {}, status, last.strip()[:200]


def makes_ranges(workload: Workload, options: Options) -> bool:
    """Whether the recipe emits NVTX ranges, so that the script runs under nsys and torch at once."""
    return workload.kind == "python" and options.recipe in RECIPES and RECIPES[options.recipe].makes == RANGES


def wants_torch(workload: Workload, options: Options) -> bool:
    """Whether the run uses torch: in its own pass, or for ranges in the nsys pass."""
    has_pass = not {TORCH, NAMING}.isdisjoint(wanted_passes(workload, options))
    return workload.kind == "python" and (has_pass or makes_ranges(workload, options))


def wanted_passes(workload: Workload, options: Options) -> tuple[str, ...]:
    """The requested passes, in order; by default those that suit the workload.

    Without a profiler nothing ends a program of which nsys records a given time, so that such a run is not made.
    """
    usual = {NSYS, NCU} | ({TORCH} if workload.kind == "python" or workload.starts_python else set())
    names = usual if options.passes is None else {*options.passes}
    names |= {SAMPLES} if options.samples or options.metrics else set()
    names |= {NAMING} if options.names else set()
    names |= {BARE} if options.bare and options.duration_s is None else set()
    return tuple(name for name in PASSES if name in names)


def obstacles(workload: Workload, options: Options, tools: Tools) -> dict[str, tuple[str, str]]:
    """The obstacles of requested passes that cannot run, each with its remedy."""

    def missing(program: Program) -> tuple[str, str] | None:
        return None if program.usable else (program.problem, program.remedy)

    no_gpu = None if tools.gpus.present else ("this machine has no GPU that can be used", NO_GPU)
    counters, ranges = machine.counters(), makes_ranges(workload, options)
    denied = ("this user may not read the GPU's counters", counters.remedy) if counters.ok is False else None
    not_torch = None
    if workload.starts_python:
        why = "the script that this program starts cannot be told, and torch.profiler runs in the script's own process"
        started = "`kanalyze collect torchrun --nproc-per-node=2 train.py`, `kanalyze collect python train.py`"
        not_torch = (why, f"give the command that starts it: {started}")
    elif workload.kind != "python":
        remedy = "give the script, or leave torch out of --with"
        not_torch = ("torch.profiler records Python workloads only", remedy)
    no_names = not_torch and ("only a Python script of torch has operators to name", "give the script")
    if ranges:
        remedy = "choose another recipe for a trace of torch's own"
        not_torch = ("the recipe nvtx is a part of the nsys pass", remedy)
    of_passes = {
        NSYS: no_gpu or missing(tools.nsys) or (missing(tools.torch) if ranges else None),
        SAMPLES: no_gpu or missing(tools.nsys) or (None if options.samples else denied),
        NAMING: no_gpu or missing(tools.nsys) or no_names or missing(tools.torch),
        TORCH: not_torch or missing(tools.torch),
        NCU: no_gpu or missing(tools.ncu) or denied,
    }
    passes = wanted_passes(workload, options)
    return {name: obstacle for name, obstacle in of_passes.items() if obstacle is not None and name in passes}


# Everything that a full capture needs


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


#: What a full capture needs, in the order in which it is told, with what each is needed for; and what only CPU samples
#: and GPU metrics need.
_MEANS: Final = {
    "GPU": "programs run on it; without one only the CPU side of Python workloads can be recorded",
    "driver": "talks to the GPU",
    "nvcc": "compiles .cu files",
    "architecture": "compiled programs run on this GPU",
    "nsys": "records a run: kernels, copies, CUDA calls, NVTX ranges",
    "ncu": "reads the counters of single kernels",
    "counters": "ncu needs them, and GPU metrics",
    "CPU samples": "tell what the host does while the GPU waits",
    "OS symbols": "tell system calls in CPU samples apart",
    "Python samples": "tell which line of Python the host is in",
    "GPU metrics": "tell how busy the SMs, tensor cores and DRAM are over time",
    "torch": "records operators of Python workloads",
    "disk": "captures take space",
}
_OPTIONAL: Final = ("CPU samples", "OS symbols", "Python samples", "GPU metrics")

#: The extras: the distribution of each, and what it is for.
_EXTRAS: Final = {
    "ncu": ("ncu-report", "reads .ncu-rep files without the tool, and their source lines"),
    "plot": ("matplotlib", "draws what `kanalyze plot` asks for"),
    "pandas": ("pandas", "gives tables as pandas frames"),
    "mcp": ("mcp", "serves reports to assistants: `kanalyze mcp`"),
    "dask": ("distributed", "lets the workers of a cluster reduce reports: `kanalyze reduce --dask`"),
    "objects": ("fsspec", "reduces reports on object stores: `kanalyze reduce s3://…`"),
}


def doctor(options: Options | None = None, folder: Path | None = None) -> list[Examined]:
    """Examines all prerequisites of a capture into `folder` (default: the current one)."""
    tools, cpu = find_tools(options or Options()), machine.cpu_samples()
    gpus, gpu = tools.gpus, _gpu(tools.gpus)
    sees = "sees a GPU" if tools.torch_facts.get("gpu") else "sees no GPU"
    answers = {
        **{tool.name: _tool(tool, f"({tool.path})") for tool in (tools.nvcc, tools.nsys, tools.ncu)},
        "GPU": gpu,
        "driver": machine.Permission(ok=True, found=str(gpus.driver_version)) if gpu.ok else None,
        "architecture": _architecture(tools.nvcc, gpus.compute_capabilities),
        "counters": machine.counters() if gpus.present else None,
        "CPU samples": cpu,
        "OS symbols": machine.kernel_names() if cpu.ok else None,
        "Python samples": _python_samples(tools.nsys) if tools.nsys.usable else None,
        "GPU metrics": nsys.metrics_of(tools.nsys) if tools.nsys.usable and gpus.present else None,
        "torch": _tool(tools.torch, f"of {tools.python}, {sees}"),
        "disk": _disk(folder or Path()),
    }
    return [
        Examined(name, ok is not False, found, _MEANS[name], remedy if ok is False else "", name in _OPTIONAL)
        for name in _MEANS
        if (answer := answers[name])
        for ok, found, remedy in [answer]
    ]


def extras() -> list[Examined]:
    """Which extras of kanalyze are installed; no capture needs any."""
    lines = []
    for name, (distribution, means) in _EXTRAS.items():
        finding, remedy = f"no {distribution}", f"pip install 'kanalyze[{name}]', or all extras: 'kanalyze[all]'"
        with suppress(PackageNotFoundError):
            finding, remedy = f"{distribution} {version(distribution)}", ""
        lines.append(Examined(f"extra {name}", not remedy, finding, means, remedy, optional=True))
    return lines


def _tool(program: Program, where: str) -> machine.Permission:
    return machine.Permission(program.usable, program.problem or f"{_version(program)} {where}", program.remedy)


def _version(program: Program) -> str:
    return program.version or "of unknown version"


def _python_samples(profiler: Program) -> machine.Permission:
    has = nsys.has_option(nsys.options_of(profiler), "--python-sampling")
    support = "nsys takes them inside the process, without CPU samples too"
    finding = support if has else f"nsys {_version(profiler)} does not take them"
    return machine.Permission(has, finding, "install a newer Nsight Systems")


def _gpu(gpus: machine.Gpus) -> machine.Permission:
    if gpus.present and not gpus.rows:
        why = f"there is one, but nvidia-smi does not tell which ({gpus.smi.problem or 'it fails'})"
        return machine.Permission(
            ok=False, found=why, remedy="check the driver's installation; --arch says what to compile for"
        )
    none = f"none (nvidia-smi: {gpus.smi.problem})" if gpus.smi.problem else "none that nvidia-smi shows"
    names = ", ".join(f"{row['name']} (compute capability {row['compute_capability']})" for row in gpus.rows)
    return machine.Permission(bool(gpus.rows), names or none, NO_GPU)


def _architecture(compiler: Program, capabilities: Sequence[str]) -> machine.Permission | None:
    if not compiler.usable or not capabilities:
        return None
    supported, numbers = nvcc.supported(compiler), {text: text.replace(".", "") for text in capabilities}
    unknown = [text for text, number in numbers.items() if supported and number not in supported]
    finding = ", ".join(f"sm_{number}" for number in numbers.values())
    if unknown:
        finding = f"nvcc {compiler.version} does not compile for {', '.join(unknown)}"
    return machine.Permission(not unknown, finding, "install a CUDA toolkit that knows this GPU")


def _disk(folder: Path) -> machine.Permission:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return machine.Permission(False, f"{folder}: {error.strerror or error}", "choose a folder that exists with -o")  # noqa: FBT003
    remedy = f"free some, or write elsewhere with -o; a longer program takes {units.size(process.ENOUGH_BYTES)}"
    return machine.Permission(free >= process.ENOUGH_BYTES, f"{units.size(free)} free", remedy)


def complete(lines: Sequence[Examined]) -> bool:
    """Whether all prerequisites are met, but for optional ones."""
    return all(line.ok or line.optional for line in lines)


#: What is timed, by the name that the program gives it; its unit.
_MEASURED: Final = {
    **dict.fromkeys(("bf16", "tf32", "fp32", "fp64", "fp8"), (1e12, "TFLOP/s", "products of large matrices")),
    "copy": (1e12, "TB/s", "copies within the GPU, read and written"),
}


def rates(options: Options, workload: Workload | None = None) -> tuple[dict[str, Any], str]:
    """What this machine's first GPU reaches in one large product per type and one large copy, by in_workload's program.

    Takes some seconds of the GPU, and a Python that has torch for CUDA: its name and rates, else why there are none.
    """
    program = Path(__file__).parents[1] / "in_workload" / "measured_peaks.py"
    gpu, _, last = _printed(r'^(\{"name": .*\})$', *python_of(workload, options), program)
    return gpu, "" if gpu else last or "no answer"


def measured(options: Options | None = None) -> list[Examined]:
    """The :func:`rates` of this machine's first GPU, beside those of its datasheet; one line where there are none."""
    gpu, why = rates(options or Options())
    if why:
        remedy = "name a Python that has torch for CUDA: --python"
        return [Examined("roofs", ok=False, found=why, means="what the GPU reaches", remedy=remedy, optional=True)]
    peaks = device_limits.peaks_of(gpu["name"])
    bandwidth = device_limits.memory_bandwidth_bytes_per_s(gpu["name"])
    lines = []
    for name, (scale, unit, means) in _MEASURED.items():
        if name in gpu["rates"]:
            rate = gpu["rates"][name] / scale
            stated = (bandwidth or 0) / scale if name == "copy" else getattr(peaks, name, 0)
            share = f", {rate / stated:.0%} of {stated:.4g} by the datasheet" if stated else ""
            lines.append(Examined(f"{name} roof", True, f"{rate:.4g} {unit}{share}", means, "", optional=True))  # noqa: FBT003
    return lines
