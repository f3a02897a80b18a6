"""Runs a Python workload under torch.profiler, in the workload's own Python.

Usage::

    python torch_runner.py --out FOLDER [--recipe NAME] [options] -- SCRIPT [ARGS…]
    python torch_runner.py --out FOLDER [--recipe NAME] [options] -- -m MODULE [ARGS…]
    torchrun [torchrun's options] torch_runner.py --out FOLDER [options] -- SCRIPT [ARGS…]
    python torch_runner.py --bare FILE -- SCRIPT [ARGS…]
    python torch_runner.py --lines FILE -- SCRIPT [ARGS…]

The last two run the workload without a profiler of torch, with or without torch; bare_run.py and source_lines.py say
what FILE has.

Everything after ``--`` is the workload and its arguments, as they are. Options:

    --recipe NAME           plain (default), schedule, toggle (= toggle-both-off), toggle-none, toggle-cpu-off,
                            toggle-cuda-off, toggle-both-off, events, nvtx, tensorboard, output-code, own
    --activities LIST       cpu,cuda (default: what this torch and machine can)
    --record-shapes, --profile-memory, --with-stack, --with-modules, --with-flops
                            each also as --no-…; default as the recipe has it
    --wait N --warmup N --active N --repeat N --skip-first N
                            cycle of the recipes that have steps
    --step-range GLOB       a step ends where a record_function or NVTX range of that name ends
    --step-on WHAT          optimizer, forward, or MODULE:FUNCTION (the script itself is __main__:FUNCTION);
                            default: the optimizer's step, or the top-level module's call where there is no optimizer
    --leave-out GLOB        toggle recipes: the range that is left out (default: the optimizer's step)
    --leave-out-call M:F    the same, by function
    --no-lines              do not note in which lines of the program its threads are
    --no-key-averages       leave torch's table out: it takes long for traces of millions of events
    --caches fresh|user     where Triton and inductor keep what they compile: fresh folders inside the capture
                            (default; every kernel is compiled and kept) or the user's own (hits are seen)

FOLDER is made where it does not exist. Outputs (all written under a temporary name, then renamed; `-rankN` stands
before the ending where RANK is set, as in torch-rank0.json.gz):

    torch-run.json          always: what was done, which stepping, which files, notes, the workload's end
    torch.json.gz           the trace (one cycle or none);  torch-cycle1.json.gz, torch-cycle2.json.gz… of several
    torch.key_averages.txt  the table that torch prints
    torch.times.json        recipe events only: the time of each step or of the whole
    tensorboard/…           recipe tensorboard only: what `tensorboard --logdir` reads (the trace lies here alone)
    lines-torch.json.gz     the lines that the program's threads were in, see source_lines.py
    torch-own1.json.gz…     traces that the workload exported from a torch.profiler of its own
    compiled.json           one row per Triton kernel, see compiled.py; absent where nothing was compiled; one
                            compiled-rankN.json per rank, of which compiled.merge_ranks(FOLDER) makes compiled.json
    triton/…, inductor/…    PTX per kernel; inductor/output_code.py: the code that inductor wrote

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


def child(function: Any, arguments: list[str]) -> Any:  # noqa: ANN401 - see torch_children.py
    """Entry point of a spawned process: `function`, profiled as the runner's `arguments` say."""
    settings = _sibling("torch_arguments").parse(arguments, {})
    return _sibling("torch_children").Child(function, settings)


def main() -> None:
    """Run the command line."""
    if sys.path and sys.path[0] and Path(sys.path[0]).resolve() == _HERE:
        del sys.path[0]
    if sys.argv[1:2] in (["--bare"], ["--lines"]):
        file, _, *workload = sys.argv[2:]
        _sibling("bare_run" if sys.argv[1] == "--bare" else "source_lines").run(Path(file), workload)
        return
    settings = _sibling("torch_arguments").parse(sys.argv[1:])
    _sibling("torch_run").Run(settings).run()


if __name__ == "__main__":
    main()
