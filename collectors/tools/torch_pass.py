"""The torch.profiler pass: finds the workload's Python, builds the command of the profiled script."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base.launchers import LAUNCHERS, SPREADERS, is_python
from kanalyze.collectors.base.programs import Program, runnable, said
from kanalyze.collectors.in_workload import recipes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.collectors.base.options import Options
    from kanalyze.collectors.base.workload import Workload

#: Seconds to wait for importing torch, at worst from a cold disk.
_PATIENCE_S: Final = 180

_ASKED: Final = (
    "import json, platform, torch\n"
    "from importlib.util import find_spec\n"
    "triton = __import__('triton').__version__ if find_spec('triton') else None\n"
    "print('kanalyze:' + json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda, "
    "'gpu': torch.cuda.is_available(), 'triton': triton, 'python': platform.python_version()}))"
)

#: Prefixes of the runner's compiler cache folders.
OWN_CACHES: Final = ".caches"

#: Exit status of the runner for failures of profiling, not of the workload.
RUNNER_FAILED: Final = 120


def find_python(options: Options) -> Path:
    """Finds the Python for scripts: the user's choice, else ours if it has torch, else on PATH."""
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


def python_of(workload: Workload, options: Options) -> tuple[str, ...]:
    """The command that starts the workload's Python: its path, or several words if behind a wrapper.

    A wrapper may set the environment in which a Python is found (env, conda), so it stands before that here, too.
    """
    if options.python is None and workload.launcher:
        words = workload.launcher
        at = next((at for at, word in enumerate(words) if is_python(word)), None)
        spread = Path(words[0]).name in SPREADERS
        if at is not None:
            return (shutil.which(words[at]) or words[at],) if spread else words[: at + 1]
        started = next((shutil.which(word) for word in words if Path(word).name in LAUNCHERS), None)
        beside = Path(started or words[0]).parent / "python"
        if os.access(beside, os.X_OK):
            return (str(beside),)
    return (str(find_python(options)),)


def find_torch(command: Sequence[str]) -> tuple[Program, dict[str, object]]:
    """Queries torch in the Python that `command` starts: version, CUDA, whether it sees a GPU."""
    python = Path(command[-1])
    remedy = f"install it for that Python (`{python} -m pip install torch`), or name another one with --python"
    ran = said(*command, "-c", _ASKED, patience_s=_PATIENCE_S)
    told = re.search(r"^kanalyze:(.*)$", ran[1], re.MULTILINE) if ran else None
    if ran is None:
        return Program("torch", problem=f"{python} does not run", remedy=remedy), {}
    if ran[0] or told is None:
        last = (ran[1].strip().splitlines() or ["no output"])[-1]
        return Program("torch", problem=f"{python} cannot import it ({last.strip()[:200]})", remedy=remedy), {}
    facts: dict[str, object] = json.loads(told[1])
    return Program("torch", python, str(facts["version"])), facts


def under_nsys(options: Options) -> bool:
    """Whether the recipe emits NVTX ranges, so that the script runs under nsys and torch at once."""
    return options.recipe in recipes.RECIPES and recipes.RECIPES[options.recipe].makes == recipes.RANGES


def command(python: str, runner: Path, folder: Path, options: Options, workload: Workload) -> tuple[str, ...]:
    """The command that runs the workload under torch.profiler and writes into `folder`."""
    launcher: Sequence[str] = workload.launcher or (python,)
    # under nsys, fresh compiler caches would dominate the recording
    caches = ("--caches", "user") if under_nsys(options) else ()
    flags = ("--out", str(folder), "--recipe", options.recipe, *caches, *options.recipe_flags)
    return (*launcher, str(runner), *flags, "--", *workload.target, *workload.args)
