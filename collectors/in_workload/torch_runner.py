"""Runs a Python workload under torch.profiler, in the workload's own Python.

Usage::

    python torch_runner.py --out FOLDER [--recipe NAME] [options] -- SCRIPT [ARGS…]
    torchrun [torchrun's options] torch_runner.py --out FOLDER [options] -- -m MODULE [ARGS…]
    python torch_runner.py --bare FILE -- SCRIPT [ARGS…]
    python torch_runner.py --lines FILE -- SCRIPT [ARGS…]

The last two run the workload without a profiler of torch, with or without torch; notes.py says what FILE has.
Everything after ``--`` is the workload and its arguments, as they are. docs/recipes.md has the options, and the files
that are written into FOLDER, which is made where it does not exist: each under a temporary name, then renamed; `-rankN`
stands before the ending where RANK is set, as in torch-rank0.json.gz. `--no-key-averages` leaves torch's table out,
which takes long for traces of millions of events, and `--no-lines` the lines of the program.

torch-run.json is there from the start, with "ended": "unknown" until the end, so that it also tells of a workload that
was killed or left by os._exit. SIGTERM ends the workload as sys.exit would, so that what was recorded is kept.
Processes that the workload starts by torch.multiprocessing.spawn are profiled too, as ranks by their number.

The exit status is the workload's own (1 and its traceback where it raised). 120 means that the workload ended well and
the runner could not profile it or write its files; torch-run.json or the error output says why. What was recorded until
an exception or exit is kept: torch-run.json says so in `workload`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = Path(__file__).resolve().parent
_PACKAGE = "_kanalyze_runner"


def _sibling(name: str) -> Any:  # noqa: ANN401 - a module that has no name of its own here
    """Loads a file of this folder in a private package, so that no module of the workload is shadowed."""
    if _PACKAGE not in sys.modules:
        package = ModuleType(_PACKAGE)
        package.__path__ = [str(_HERE)]
        package.__spec__ = ModuleSpec(_PACKAGE, None, is_package=True)
        sys.modules[_PACKAGE] = package
    return import_module(f"{_PACKAGE}.{name}")


def child(function: Any, arguments: list[str]) -> Any:  # noqa: ANN401 - see torch_run.py
    """Entry point of a spawned process: `function`, profiled as the runner's `arguments` say."""
    torch_run = _sibling("torch_run")
    return torch_run.Child(function, torch_run.parse(arguments, {}))


def main() -> None:
    """Run the command line."""
    if sys.path and sys.path[0] and Path(sys.path[0]).resolve() == _HERE:
        del sys.path[0]
    script = _sibling("torch_script")
    script.hide_runner()
    if sys.argv[1:2] in (["--bare"], ["--lines"]):
        file, _, *workload = sys.argv[2:]
        notes = _sibling("notes")
        noted = notes.parts_noted if sys.argv[1] == "--bare" else notes.lines_noted
        with noted(script.of_rank(Path(file)), workload[0]):
            script.run(workload, {})
        return
    torch_run = _sibling("torch_run")
    torch_run.Run(torch_run.parse(sys.argv[1:])).run()


if __name__ == "__main__":
    main()
