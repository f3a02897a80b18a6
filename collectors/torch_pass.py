"""The torch.profiler pass: the workload's own Python, and the command that runs a script under the profiler."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors import recipes
from kanalyze.collectors.programs import Program, runnable, said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.collectors.options import Options
    from kanalyze.collectors.workload import Workload

#: Importing torch from a cold disk takes this long at worst.
_PATIENCE_S: Final = 180

_ASKED: Final = (
    "import json, platform, torch\n"
    "from importlib.util import find_spec\n"
    "triton = __import__('triton').__version__ if find_spec('triton') else None\n"
    "print('kanalyze:' + json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda, "
    "'gpu': torch.cuda.is_available(), 'triton': triton, 'python': platform.python_version()}))"
)

#: What ends the runner with this status is the profiler's trouble, not the workload's.
RUNNER_FAILED: Final = 120


def find_python(options: Options) -> Path:
    """The Python that runs scripts: the one that is asked for, or ours if it has torch, or the one on PATH."""
    if options.python is not None:
        return runnable("--python", options.python)
    if find_spec("torch") is not None and sys.executable:
        return Path(sys.executable)
    environment = os.environ.get("VIRTUAL_ENV")
    inside = Path(environment) / "bin" / "python" if environment else None
    if inside is not None and os.access(inside, os.X_OK):
        return inside
    on_path = shutil.which("python3") or shutil.which("python")
    return Path(on_path or sys.executable)


def python_of(workload: Workload, options: Options) -> Path:
    """The Python that runs this workload; beside its launcher where that brings its own."""
    if options.python is None and workload.launcher:
        launcher = Path(workload.launcher[0])
        if re.fullmatch(r"python[\d.]*", launcher.name):
            return launcher
        beside = launcher.parent / "python"
        if os.access(beside, os.X_OK):
            return beside
    return find_python(options)


def find_torch(python: Path) -> tuple[Program, dict[str, object]]:
    """The torch of that Python, and what it says of itself (its CUDA, and whether it sees a GPU)."""
    remedy = f"install it for that Python (`{python} -m pip install torch`), or name another one with --python"
    ran = said(python, "-c", _ASKED, patience_s=_PATIENCE_S)
    told = re.search(r"^kanalyze:(.*)$", ran[1], re.MULTILINE) if ran else None
    if ran is None:
        return Program("torch", problem=f"{python} does not run", remedy=remedy), {}
    if ran[0] or told is None:
        last = (ran[1].strip().splitlines() or ["no output"])[-1]
        return Program("torch", problem=f"{python} cannot import it ({last.strip()[:200]})", remedy=remedy), {}
    facts: dict[str, object] = json.loads(told[1])
    return Program("torch", python, str(facts["version"])), facts


def under_nsys(options: Options) -> bool:
    """Whether the recipe makes ranges for nsys, so that the script runs under both at once."""
    return options.recipe in recipes.RECIPES and recipes.RECIPES[options.recipe].makes == recipes.RANGES


def command(python: str, runner: Path, folder: Path, options: Options, workload: Workload) -> tuple[str, ...]:
    """The command that runs the workload under torch.profiler, and writes into `folder`."""
    launcher: Sequence[str] = workload.launcher or (python,)
    flags = ("--out", str(folder), "--recipe", options.recipe, *options.recipe_flags)
    return (*launcher, str(runner), *flags, "--", *workload.target, *workload.args)
