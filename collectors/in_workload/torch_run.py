"""Runs a workload under a recipe: the implementation of :mod:`torch_runner` after its command line is parsed."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import recipes, torch_script  # relative: the runner loads these files without their package
from .compiled_live import Caches
from .source_lines import Lines
from .torch_children import follow
from .torch_foreign import Foreign
from .torch_parts import Watched, watch, wrap
from .torch_sessions import NO_STEP, SCHEMA, Outcome, ProfilerBusyError, Request, Session, facts, session
from .whole_files import write_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from .torch_arguments import Settings

#: Exit status: the workload succeeded, but profiling or writing failed.
FAILED = 120
#: Exit status of a program terminated by SIGTERM, as in a shell.
_TERMINATED = 128 + 15


class Run:
    """A run of a workload."""

    def __init__(self, settings: Settings) -> None:
        """Prepare a run with `settings`."""
        self.settings = settings
        self.request = Request(
            settings.recipe, settings.out, settings.activities, settings.suffix, settings.key_averages
        )
        self.notes: list[str] = []
        self.files: list[Path] = []
        self.failures: list[str] = []
        self.torch: Any = None
        self.session: Session | None = None
        self.foreign: Foreign | None = None
        self.stepping: Watched | None = None
        self.leaving_out: Watched | None = None
        self.lines: Lines | None = None
        self.caches = Caches(settings.out, settings.suffix, fresh=settings.fresh)
        self.kernels = 0
        self.workload: dict[str, Any] = {
            "argv": list(settings.workload),
            "ended": "unknown",
            "status": None,
            "exception": None,
            "duration_ns": None,
        }

    def run(self) -> None:
        """Run the workload and exit with its status."""
        self.settings.out.mkdir(parents=True, exist_ok=True)
        if not self._prepare():
            self._report()
            sys.exit(FAILED)
        self._report()
        end = self._workload()
        self._finish()
        self._report()
        end()

    def call(self, body: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Profile a call in a process that the workload spawned; exceptions propagate.

        The call is made where it cannot be profiled, too.
        """
        _end_on_sigterm()
        self._prepare()
        began_ns = time.perf_counter_ns()
        try:
            given = body()
        except BaseException as error:  # any exception is the workload's, and propagates
            self.workload["exception"] = f"{type(error).__name__}: {error}".rstrip(": ")
            self._ended("exception", 1, began_ns)
            raise
        else:
            self._ended("return", 0, began_ns)
        finally:
            self._finish()
            self._report()
        return given

    def _prepare(self) -> bool:
        """Import torch and start the recipe; False on failure."""
        if self.settings.recipe.makes == recipes.CODE:
            logs = [name for name in os.environ.get("TORCH_LOGS", "").split(",") if name]
            os.environ["TORCH_LOGS"] = ",".join(dict.fromkeys((*logs, "output_code")))
        try:
            self.caches.begin()
            self.torch = import_module("torch")
            self._start()
        except (ImportError, ProfilerBusyError, OSError, RuntimeError, AttributeError) as error:
            self.failures.append(f"the workload cannot be profiled: {type(error).__name__}: {error}")
            sys.stderr.write(f"kanalyze: {self.failures[-1]} ({sys.executable})\n")
            self.session = None
            return False
        return True

    def _start(self) -> None:
        settings = self.settings
        running = self.session = session(self.request)
        if settings.recipe.cycle:
            self.stepping = watch(settings.step, lambda: None, running.step)  # it begins where the last one ends
        if settings.recipe.leaves_out is not None:
            self.leaving_out = watch(
                settings.left_out, partial(running.toggle, on=False), partial(running.toggle, on=True)
            )
        self.foreign = Foreign(settings.out, settings.suffix, self._give_way)
        self.foreign.watch()
        follow(settings)
        running.start()

    def _give_way(self) -> None:
        """Stop our profiler, since the workload starts its own."""
        if self.session is not None and self.settings.recipe.makes in (recipes.TRACE, recipes.TENSORBOARD):
            self.session.stop()
            self.notes.append(
                "the workload started a torch profiler of its own, and torch can have only one: recording ended there; "
                "recipe own leaves the profiler to the workload"
            )

    def _workload(self) -> Callable[[], None]:
        """Run the workload; returns a function that exits as the workload did."""
        _end_on_sigterm()
        wrappers = {}
        for watched in (self.stepping, self.leaving_out):
            if watched is not None and watched.part.name.startswith("__main__:"):
                wrappers[watched.part.name.partition(":")[2]] = partial(wrap, watched=watched)
        if self.settings.lines and self.settings.recipe.makes in (recipes.TRACE, recipes.RANGES):
            self.lines = Lines(self.settings.lines_file, self.settings.workload[0])
            self.lines.start()
        began_ns = time.perf_counter_ns()
        try:
            torch_script.run(list(self.settings.workload), wrappers)
        except SystemExit as error:
            code = error.code
            self._ended("exit", 0 if code is None else code & 0xFF if isinstance(code, int) else 1, began_ns)
            return lambda: self._exit(code)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the workload's, and is shown as such
            interrupted = isinstance(error, KeyboardInterrupt)
            self.workload["exception"] = f"{type(error).__name__}: {error}".rstrip(": ")
            self._ended("interrupt" if interrupted else "exception", 130 if interrupted else 1, began_ns)
            shown = error.with_traceback(torch_script.own_traceback(error.__traceback__))
            sys.excepthook(type(shown), shown, shown.__traceback__)
            return _interrupt if interrupted else lambda: sys.exit(1)
        self._ended("return", 0, began_ns)
        return lambda: self._exit(None)

    def _ended(self, how: str, status: int, began_ns: int) -> None:
        spent_ns = time.perf_counter_ns() - began_ns
        self.workload.update(ended=how, status=status, duration_ns=spent_ns)

    def _exit(self, code: object) -> None:
        """Exit with the workload's status, or with our own if that is 0 and profiling failed."""
        if self.failures and code in (None, 0):
            sys.stderr.write("".join(f"kanalyze: {failure}\n" for failure in self.failures))
            sys.exit(FAILED)
        sys.exit(code)  # type: ignore[arg-type]

    def _finish(self) -> None:
        """Stop recording and write the remaining files."""
        if self.lines is not None and self.lines.write():
            self.files.append(self.settings.lines_file)
        if self.session is not None:
            self.session.stop()
            outcome = self.session.outcome
            self.failures += outcome.failures
            self.notes += outcome.notes
            self.files += outcome.files
        if self.foreign is not None:
            self.files += self.foreign.files
            self.failures += self.foreign.failures
            if self.settings.recipe.makes == recipes.NOTHING and not self.foreign.started:
                self.notes.append("the workload started no torch profiler of its own")
        try:
            kept, rows = self.caches.finish()
        except OSError as error:
            self.failures.append(f"compiled kernels: {error}")
        else:
            self.files += kept
            self.kernels = len(rows)
        self._explain_parts()

    def _explain_parts(self) -> None:
        """Note which steps were found, and which part was left out."""
        stepping = self.stepping
        if stepping is not None and stepping.seen == 0:
            self.notes = [note for note in self.notes if note != NO_STEP]
            self.notes.append(
                f"{NO_STEP}: {stepping.part.text} never ended. Name what ends one: --step-range NAME of a range, "
                "--step-on MODULE:FUNCTION (the script is __main__), forward or optimizer"
            )
        elif stepping is not None and stepping.part.kind == "auto" and stepping.found is not None:
            self.notes.append(f"a step is {stepping.found.text}, of which there were {stepping.seen}")
        left_out = self.leaving_out
        if left_out is not None and left_out.seen == 0:
            self.notes.append(
                f"nothing was left out: {left_out.part.text} never came. Name the part: --leave-out NAME of a range, "
                "or --leave-out-call MODULE:FUNCTION"
            )

    def _report(self) -> None:
        settings = self.settings
        outcome = self.session.outcome if self.session else Outcome()
        own = self.foreign.files if self.foreign else []
        document = {
            "schema": SCHEMA,
            **(facts(self.request, outcome) if self.torch else {"recipe": settings.recipe.name}),
            "caches": "fresh" if settings.fresh else "user",
            "python": sys.version.split()[0],
            "executable": sys.executable,
            "triton": getattr(sys.modules.get("triton"), "__version__", None),
            "rank": settings.rank,
            "stepping": _part(self.stepping),
            "left_out": _part(self.leaving_out),
            "kernels_compiled": self.kernels,
            "files": [str(path.relative_to(settings.out)) for path in self.files],
            "traces": [str(path.relative_to(settings.out)) for path in (*outcome.traces, *own)],
            "notes": self.notes,
            "failures": self.failures,
            "workload": self.workload,
        }
        try:
            write_json(settings.out / f"torch-run{settings.suffix}.json", document)
        except OSError as error:
            self.failures.append(f"torch-run.json: {error}")


def _part(watched: Watched | None) -> dict[str, Any] | None:
    if watched is None:
        return None
    found = watched.found or watched.part
    return {"by": found.kind, "name": found.name, "seen": watched.seen}


def _end_on_sigterm() -> None:
    """Make SIGTERM exit like sys.exit, unless the program handles the signal.

    A child that was forked dies of the signal at once, as it would without us.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    ours = os.getpid()

    def terminate(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != ours:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        sys.exit(_TERMINATED)

    signal.signal(signal.SIGTERM, terminate)


def _interrupt() -> None:
    """Terminate by SIGINT, as Python does after an uncaught KeyboardInterrupt."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
