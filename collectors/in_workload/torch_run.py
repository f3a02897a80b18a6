"""Runs a workload under a recipe: the implementation of :mod:`torch_runner`, and its command line.

torch lets a second profiler take the first one's events without a word. So where the program starts its own, ours ends
first and keeps what it has; and the traces that the program exports itself are copied into the capture.
"""

from __future__ import annotations

import argparse
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from . import hooks, torch_script, torch_sessions as recipes  # relative: the runner loads these without their package
from .compiled import Caches
from .notes import lines_noted

#: The steps that a recording has at the least, however long they take.
_FEWEST_STEPS = 16

_RUNNER = str(Path(__file__).with_name("torch_runner.py"))


def parse(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> recipes.Settings:
    """Parses a command line; on errors the program exits with status 2, as argparse does."""
    parser = _parser()
    words = [*argv]
    at = words.index("--") if "--" in words else len(words)
    options, workload = words[:at], words[at + 1 :]
    arguments = parser.parse_args(options)
    if not workload or workload == ["-m"]:
        parser.error("no workload: give SCRIPT or -m MODULE after --")
    if workload[0] != "-m" and not Path(workload[0]).exists():
        parser.error(f"{workload[0]}: no such script")
    names = (*recipes.SWITCHES, *recipes.CYCLE)
    changes = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    try:
        recipe = recipes.RECIPES[arguments.recipe].with_changes(changes)
    except ValueError as error:
        parser.error(str(error))
    if arguments.longest < 0:
        parser.error("--longest is 0 or more")
    if recipe.leaves_out is None and arguments.left_out:
        parser.error(f"recipe {recipe.name} leaves nothing out: choose a toggle recipe")
    return recipes.Settings(
        out=arguments.out,
        recipe=recipe,
        workload=tuple(workload),
        activities=arguments.activities,
        step=arguments.step or hooks.AUTO,
        left_out=arguments.left_out or hooks.OPTIMIZER,
        fresh=arguments.caches == "fresh",
        key_averages=arguments.key_averages,
        lines=arguments.lines,
        longest_s=arguments.longest,
        rank=torch_script.rank(environ),
        given=tuple(options),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch_runner.py", usage="%(prog)s --out FOLDER [options] -- SCRIPT [ARGS…]", allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--recipe", choices=list(recipes.RECIPES), default="plain")
    parser.add_argument("--activities", type=_activities, metavar="LIST")
    for name in recipes.CYCLE:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N")
    for name, default in {**dict.fromkeys((*recipes.SWITCHES, "key_averages")), "lines": True}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action=argparse.BooleanOptionalAction, default=default)
    for part, by_range, by_call, metavar in (
        ("step", "--step-range", "--step-on", "WHAT"),
        ("left_out", "--leave-out", "--leave-out-call", "MODULE:FUNCTION"),
    ):
        either = parser.add_mutually_exclusive_group()
        either.add_argument(by_range, dest=part, type=partial(hooks.Part, "range"), metavar="GLOB")
        either.add_argument(by_call, dest=part, type=hooks.Part.parse, metavar=metavar)
    parser.add_argument("--longest", type=int, default=recipes.LONGEST_S, metavar="SECONDS")
    parser.add_argument("--caches", choices=("fresh", "user"), default="fresh")
    return parser


def _activities(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(","))
    if not set(names) <= {"cpu", "cuda"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not cpu, cuda or both with a comma between")
    return tuple(name for name in ("cpu", "cuda") if name in names)


class Run:
    """A run of a workload.

    `profiles_itself` says whether the workload started a profiler of torch, one that is not `of_kanalyze`, and `copied`
    how many traces such profilers exported: these are copied to the files of the session.
    """

    is_recording = profiles_itself = False
    copied = first_step_ns = 0
    thread = (0, 0)  # process and thread that began to record
    recorded: hooks.Watched
    stepping: hooks.Watched | None = None
    leaving_out: hooks.Watched | None = None
    kernels = 0

    def __init__(self, settings: recipes.Settings) -> None:
        """Prepare a run with `settings`."""
        self.settings, self.session = settings, recipes.session(settings)
        self.caches = Caches(settings.out, settings.suffix, fresh=settings.fresh)
        untold = dict.fromkeys(("status", "exception", "duration_ns"))
        self.workload: dict[str, Any] = {"argv": list(settings.workload), "ended": "unknown", **untold}

    def run(self) -> None:
        """Run the script and exit with its status, or with our own if that is 0 and profiling failed."""
        settings, running, status = self.settings, self.session, None
        settings.out.mkdir(parents=True, exist_ok=True)
        if not self._begin():
            sys.exit(recipes.FAILED)
        noted: AbstractContextManager[None] = nullcontext()
        if settings.lines and settings.recipe.makes in (recipes.TRACE, recipes.RANGES):
            noted = lines_noted(settings.lines_file, settings.workload[0])
        try:
            self._call(self._script, noted)
        except SystemExit as error:
            status = error.code
        if running.failures and status in (None, 0):
            sys.stderr.write("".join(f"kanalyze: {failure}\n" for failure in running.failures))
            status = recipes.FAILED
        sys.exit(status)

    def call(self, body: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Profile a call in a process that the workload spawned; it is made where it cannot be profiled, too."""
        self._begin()
        return self._call(body, nullcontext())

    def _begin(self) -> bool:
        """Import torch and start the recipe, and say that it has no end yet; False on failure."""
        _end_on_sigterm()
        if self.settings.recipe.makes == recipes.CODE:
            logs = [name for name in os.environ.get("TORCH_LOGS", "").split(",") if name]
            os.environ["TORCH_LOGS"] = ",".join(dict.fromkeys((*logs, "output_code")))
        try:
            self.caches.begin()
            import_module("torch")
            self._start()
        except (ImportError, recipes.ProfilerBusyError, OSError, RuntimeError, AttributeError) as error:
            self.session.failures.append(f"the workload cannot be profiled: {type(error).__name__}: {error}")
            sys.stderr.write(f"kanalyze: {self.session.failures[-1]} ({sys.executable})\n")
        self._report()
        return self.is_recording

    def _call(self, body: Callable[[], Any], noted: AbstractContextManager[None]) -> Any:  # noqa: ANN401
        """Call the workload and write the results; its exceptions propagate."""
        try:
            with noted, self._ending():
                return body()
        finally:
            self._finish()
            self._report()

    def _start(self) -> None:
        settings, running = self.settings, self.session
        if settings.recipe.cycle:
            self.stepping = hooks.watch(settings.step, lambda: None, running.step)  # it begins where the last one ends
        elif settings.recipe.leaves_out is None and settings.recipe.makes == recipes.TRACE:
            self.recorded = hooks.watch(hooks.AUTO, lambda: None, self._end_if_long)
        if settings.recipe.leaves_out is not None:
            off, on = partial(running.toggle, on=False), partial(running.toggle, on=True)
            self.leaving_out = hooks.watch(settings.left_out, off, on)
        self._watch_profilers()
        follow(settings)
        running.start()
        self.is_recording, self.thread = True, (os.getpid(), threading.get_ident())

    def _end_if_long(self) -> None:
        """End the recording after a step, where it holds enough of them: writing all takes longer than the run."""
        now_ns = time.perf_counter_ns()
        self.first_step_ns = self.first_step_ns or now_ns
        steps, longest_s = self.recorded.seen, self.settings.longest_s
        enough = steps >= _FEWEST_STEPS and now_ns - self.first_step_ns >= longest_s * 1e9 > 0
        # torch ends a profiler only in the thread that started it; a forked process inherits that one's number
        here = (os.getpid(), threading.get_ident()) == self.thread
        if enough and here and self.is_recording and not self.profiles_itself:
            self.is_recording = False
            self.session.stop()
            whole = "--recipe-flag=--longest=0 records all"
            self.session.notes.append(f"the first {steps} steps are recorded, {longest_s} s of them: {whole}")

    def _watch_profilers(self) -> None:
        """Hook into torch.profiler, to see every profiler that starts."""
        kineto: Any = getattr(import_module("torch.profiler.profiler"), "_KinetoProfile", None)
        legacy: Any = import_module("torch.autograd.profiler")
        starts = ((kineto, "prepare_trace"), (legacy.profile, "__enter__"), (legacy.emit_nvtx, "__enter__"))
        for owner, method in starts:
            if hasattr(owner, method):
                hooks.hook(owner, method, self._starting)
        if kineto is not None:
            hooks.hook(kineto, "export_chrome_trace", after=self._exported)

    def _starting(self, profiler: Any, *_: Any) -> None:  # noqa: ANN401
        """Stop our profiler, where the workload starts the first one of its own."""
        if self.profiles_itself or hasattr(profiler, "of_kanalyze"):
            return
        self.profiles_itself = True
        if self.is_recording and self.settings.recipe.makes in (recipes.TRACE, recipes.TENSORBOARD):
            self.session.stop()
            why = "the workload started a torch profiler of its own, and torch can have only one: recording ended there"
            self.session.notes.insert(0, f"{why}; recipe own leaves the profiler to the workload")

    def _exported(self, profiler: Any, path: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
        if not hasattr(profiler, "of_kanalyze") and Path(path).is_file():  # else the export failed
            target = self.session.path(f"torch-own{self.copied + 1}", ".json.gz")
            try:
                torch_script.packed_copy(Path(path), target)
            except OSError as error:
                self.session.failures.append(f"copy of {path}: {error}")
                return
            self.copied += 1
            self.session.files.append(target)
            self.session.traces.append(target)

    def _script(self) -> None:
        """Run the script, with its own functions wrapped that are parts."""
        parts = {one.part.name: one for one in (self.stepping, self.leaving_out) if one is not None}
        own = {name.partition(":")[2]: one for name, one in parts.items() if name.startswith("__main__:")}
        wrappers = {name: partial(hooks.wrap, watched=one) for name, one in own.items()}
        torch_script.run([*self.settings.workload], wrappers)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Note how the workload ends and what it took."""
        began_ns, how, status, text = time.perf_counter_ns(), "return", 0, None
        try:
            yield
        except SystemExit as error:
            code = error.code
            how, status = "exit", 0 if code is None else code & 0xFF if isinstance(code, int) else 1
            raise
        except BaseException as error:  # whatever it is, it is the workload's
            how, status = ("interrupt", 130) if isinstance(error, KeyboardInterrupt) else ("exception", 1)
            text = f"{type(error).__name__}: {error}".rstrip(": ")
            raise
        finally:
            spent_ns = time.perf_counter_ns() - began_ns
            self.workload.update(ended=how, status=status, exception=text, duration_ns=spent_ns)

    def _finish(self) -> None:
        """Stop recording and write the remaining files."""
        ran = self.session
        ran.files += [self.settings.lines_file] if self.settings.lines_file.is_file() else []
        if self.is_recording:
            ran.stop()
        if self.is_recording and self.settings.recipe.makes == recipes.NOTHING and not self.profiles_itself:
            ran.notes.append("the workload started no torch profiler of its own")
        try:
            files, rows = self.caches.finish()
            ran.files += files
            self.kernels = len(rows)
        except OSError as error:
            ran.failures.append(f"compiled kernels: {error}")
        self._explain_parts(ran.notes)

    def _explain_parts(self, notes: list[str]) -> None:
        """Note which steps were found, and which part was left out."""
        stepping, left_out = self.stepping, self.leaving_out
        if stepping is not None and stepping.seen == 0:
            notes[:] = [note for note in notes if note != recipes.NO_STEP]
            notes.append(
                f"{recipes.NO_STEP}: {stepping.part.text} never ended. Name what ends one: --step-range NAME of a "
                "range, --step-on MODULE:FUNCTION (the script is __main__), forward or optimizer"
            )
        elif stepping is not None and stepping.part.kind == "auto" and stepping.found is not None:
            notes.append(f"a step is {stepping.found.text}, of which there were {stepping.seen}")
        if left_out is not None and left_out.seen == 0:
            notes.append(
                f"nothing was left out: {left_out.part.text} never came. Name the part: --leave-out NAME of a range, "
                "or --leave-out-call MODULE:FUNCTION"
            )

    def _report(self) -> None:
        settings, ran = self.settings, self.session
        document = {
            "schema": recipes.SCHEMA,
            **ran.facts(),
            "caches": "fresh" if settings.fresh else "user",
            "python": sys.version.split()[0],
            "executable": sys.executable,
            "triton": getattr(sys.modules.get("triton"), "__version__", None),
            "rank": settings.rank,
            "stepping": _told(self.stepping),
            "left_out": _told(self.leaving_out),
            "kernels_compiled": self.kernels,
            "workload": self.workload,
        }
        ran.attempt("torch-run.json", lambda: torch_script.write_json(ran.path("torch-run", ".json"), document))


def _told(watched: hooks.Watched | None) -> dict[str, Any] | None:
    if watched is None:
        return None
    part = watched.found or watched.part
    return {"by": part.kind, "name": part.name, "seen": watched.seen}


def _end_on_sigterm() -> None:
    """Make SIGTERM exit like sys.exit, unless the program handles it; a forked child dies of it at once."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    ours = os.getpid()

    def terminate(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != ours:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        sys.exit(128 + number)  # as a shell says it

    signal.signal(signal.SIGTERM, terminate)


# Processes started with ``torch.multiprocessing.spawn`` are fresh Pythons that know nothing of the runner. The function
# that one is to call is handed over inside a Child, which unpickles by running torch_runner.py by its path.

_CHILD = "__import__('runpy').run_path(runner)['child'](function, arguments)"


class Child:
    """Picklable wrapper that profiles a function in a spawned process, as a rank."""

    def __init__(self, function: Callable[..., Any], settings: recipes.Settings) -> None:
        """Profile `function`, whose first argument is the process index, by `settings`."""
        self.function, self.settings = function, settings

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, dict[str, Any]]]:
        """Pickles as the function and the command line for these settings."""
        return eval, (_CHILD, {"runner": _RUNNER, "function": self.function, "arguments": self.settings.arguments()})

    def __call__(self, number: int, *args: Any) -> Any:  # noqa: ANN401
        """Profile the call as rank `number`, in the spawned process."""
        return Run(replace(self.settings, rank=number)).call(lambda: self.function(number, *args))


def follow(settings: recipes.Settings) -> None:
    """Profile processes spawned by torch.multiprocessing from now on; forked ones are not profiled."""
    spawn: Any = import_module("torch.multiprocessing.spawn")
    package: Any = import_module("torch.multiprocessing")
    original = spawn.start_processes

    @wraps(original)
    def start_processes(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        # A forked process inherits our profiler's state, which torch cannot use.
        if bound.arguments.get("start_method") != "fork" and settings.rank is None:
            bound.arguments["fn"] = Child(bound.arguments["fn"], settings)
        return original(*bound.args, **bound.kwargs)

    spawn.start_processes = start_processes
    package.start_processes = start_processes
