"""Profiling sessions: start, steps, stop, and files in a folder; by torch.profiler, NVTX ranges, or step times.

The recipe chooses among them.
"""

from __future__ import annotations

import gzip
import shutil
import time
import warnings
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import recipes  # relative: the runner loads these files without their package
from .whole_files import whole, write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Schema version of torch-run.json.
SCHEMA = 1

#: Note of a recipe with steps that saw none.
NO_STEP = "no trace, because no step was seen"

#: gzip level: several times faster than the default on traces of gigabytes.
_GZIP_LEVEL = 6


class ProfilerBusyError(Exception):
    """Another torch profiler is on in this process."""


@dataclass(frozen=True)
class Request:
    """What to profile by which recipe, and the folder for the files, which exists.

    Attributes:
        activities: 'cpu', 'cuda', or None for what this torch and machine can.
        suffix: Stands before each file's ending, such as '-rank0'.
        key_averages: Whether torch's table is made too, which takes long for traces of millions of events.
    """

    recipe: recipes.Recipe
    folder: Path
    activities: tuple[str, ...] | None = None
    suffix: str = ""
    key_averages: bool = True


@dataclass
class Outcome:
    """Results of a session: `files` in order of writing, the `traces` among them, and `notes`."""

    activities: tuple[str, ...] = ()
    steps: int = 0
    cycles: int = 0
    files: list[Path] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def attempt(self, what: str, action: Callable[[], object]) -> None:
        """Run `action`; an exception is recorded in `failures` and not raised into the workload."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever torch or the disk does, the workload goes on
            self.failures.append(f"{what}: {type(error).__name__}: {error}".rstrip(": "))


def facts(request: Request, outcome: Outcome) -> dict[str, Any]:
    """The entry of a session in torch-run.json."""
    torch: Any = import_module("torch")
    return {
        "recipe": request.recipe.name,
        "switches": asdict(request.recipe.switches),
        "cycle": asdict(request.recipe.cycle) if request.recipe.cycle else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "activities": list(outcome.activities),
        "steps": outcome.steps,
        "cycles": outcome.cycles,
        "files": [str(path.relative_to(request.folder)) for path in outcome.files],
        "traces": [str(path.relative_to(request.folder)) for path in outcome.traces],
        "notes": outcome.notes,
        "failures": outcome.failures,
    }


class Session:
    """A session that only counts steps; base of the recording sessions.

    `start` and `stop` are called once each, the other methods in between, from any one thread.
    """

    def __init__(self, request: Request) -> None:
        """Prepare a session for `request`."""
        self.request = request
        self.outcome = Outcome()

    def start(self) -> None:
        """Start; raises :class:`ProfilerBusyError` if another profiler is active."""

    def step(self) -> None:
        """Count a step."""
        self.outcome.steps += 1

    def toggle(self, *, on: bool) -> None:
        """End a part that the recipe leaves out, or begin it."""

    def stop(self) -> None:
        """Stop and write the results."""

    def activities(self) -> tuple[str, ...]:
        """The requested activities that this machine supports; notes the others."""
        asked = self.request.activities
        if import_module("torch").cuda.is_available():
            return asked or ("cpu", "cuda")
        if asked != ("cpu",):
            self.outcome.notes.append("torch finds no GPU here: only CPU activities are recorded")
        return ("cpu",)

    def path(self, name: str, ending: str) -> Path:
        """The path of the output file `name` with suffix `ending`."""
        return self.request.folder / f"{name}{self.request.suffix}{ending}"

    def wrote(self, path: Path) -> Path:
        """Register a complete output file."""
        self.outcome.files.append(path)
        return path


def refuse_second() -> None:
    """Raise ProfilerBusyError if a profiler is active: torch would silently move its events to the new one."""
    autograd: Any = import_module("torch.autograd.profiler")
    native: Any = import_module("torch._C._autograd")
    on = getattr(native, "_profiler_enabled", bool)() or getattr(autograd, "_is_profiler_enabled", False)
    if on:
        raise ProfilerBusyError("another torch profiler is on in this process, and torch can have only one")


def session(request: Request) -> Session:
    """Creates the session for a recipe."""
    kinds: dict[str, Callable[[Request], Session]] = {
        recipes.TRACE: TraceSession,
        recipes.TENSORBOARD: TraceSession,
        recipes.TIMES: TimesSession,
        recipes.RANGES: RangesSession,
    }
    return kinds.get(request.recipe.makes, Session)(request)


class TraceSession(Session):
    """Session with torch.profiler: a Chrome trace per cycle, and the key_averages table."""

    def __init__(self, request: Request) -> None:
        """Prepare a session for `request`."""
        super().__init__(request)
        self._torch: Any = import_module("torch.profiler")
        self._profiler: Any = None
        self._left_out: list[Any] = []
        self.last: Any = None

    def start(self) -> None:
        """Start torch.profiler."""
        refuse_second()
        cycle = self.request.recipe.cycle
        self.outcome.activities = self.activities()
        schedule = None
        if cycle:
            counts = {name: getattr(cycle, name) for name in recipes.CYCLE_FIELDS}
            schedule = self._torch.schedule(**counts)
        # torch asks to choose between events per cycle and of all cycles, which the recipe does
        warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
        switches = {name: getattr(self.request.recipe.switches, name) for name in recipes.SWITCH_FIELDS}
        self._left_out = self._activities(
            tuple(name for name in self.request.recipe.leaves_out or () if name in self.outcome.activities)
        )
        self._profiler = self._torch.profile(
            activities=self._activities(self.outcome.activities),
            schedule=schedule,
            on_trace_ready=self._ready,
            **switches,
        )
        self._profiler.of_kanalyze = True  # found by torch_foreign
        self._profiler.start()

    def _activities(self, names: tuple[str, ...]) -> list[Any]:
        return [getattr(self._torch.ProfilerActivity, name.upper()) for name in names]

    def step(self) -> None:
        """Step the profiler, if the recipe has steps."""
        self.outcome.steps += 1
        if self.request.recipe.cycle and self._profiler is not None:
            self.outcome.attempt(f"step {self.outcome.steps}", self._profiler.step)

    def toggle(self, *, on: bool) -> None:
        """Enable what the recipe leaves out again, or disable it."""
        if self._left_out and self._profiler is not None:
            self.outcome.attempt("toggle", lambda: self._profiler.toggle_collection_dynamic(on, self._left_out))

    def stop(self) -> None:
        """Stop the profiler; an incomplete cycle is written as far as recorded."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        before = len(self.outcome.traces)
        action = profiler.current_action
        self.outcome.attempt("stop", profiler.stop)
        cycle = self.request.recipe.cycle
        if cycle and len(self.outcome.traces) > before and action.name == "RECORD":
            self.outcome.notes.append(f"cycle {self.outcome.cycles} ended with the program, before its last step")
        if cycle and not self.outcome.traces and not self.outcome.failures:
            need = cycle.skip_first + cycle.wait + cycle.warmup
            self.outcome.notes.append(
                f"no trace: too few steps ({self.outcome.steps}): the recipe skips the first {need}"
                if self.outcome.steps
                else NO_STEP
            )

    def _ready(self, profiler: Any) -> None:  # noqa: ANN401
        self.outcome.cycles += 1
        self.last = profiler
        cycle = self.request.recipe.cycle
        number = f"-cycle{self.outcome.cycles}" if cycle and cycle.repeat != 1 else ""
        self.outcome.attempt("trace", lambda: self._export(profiler, number))
        if self.request.key_averages:
            self.outcome.attempt("key averages", lambda: self._tabulate(profiler, number))

    def _export(self, profiler: Any, number: str) -> None:  # noqa: ANN401
        path = self.path(f"torch{number}", ".json.gz")
        if self.request.recipe.makes == recipes.TENSORBOARD:
            # TensorBoard takes the text before the first dot as worker, and reads files ending in .pt.trace.json.gz.
            board = self.request.folder / "tensorboard"
            board.mkdir(exist_ok=True)
            path = board / f"torch{self.request.suffix}.{time.time_ns()}.pt.trace.json.gz"
        plain = path.with_name(f".{path.name}.json")
        try:
            profiler.export_chrome_trace(str(plain))
            with whole(path) as part, plain.open("rb") as source, gzip.open(part, "wb", _GZIP_LEVEL) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        finally:
            plain.unlink(missing_ok=True)
        self.outcome.traces.append(self.wrote(path))

    def _tabulate(self, profiler: Any, number: str) -> None:  # noqa: ANN401
        by = "self_cuda_time_total" if "cuda" in self.outcome.activities else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=by, row_limit=-1)
        self.wrote(write_text(self.path(f"torch{number}", ".key_averages.txt"), table))


class RangesSession(Session):
    """Session in which every operator emits an NVTX range, for a program that runs under nsys."""

    def start(self) -> None:
        """Start emitting NVTX ranges."""
        self.outcome.activities = self.activities()
        if "cuda" not in self.outcome.activities:
            self.outcome.notes.append("no NVTX ranges: this torch has no CUDA, or finds no GPU")
            return
        refuse_second()
        profiler: Any = import_module("torch.autograd.profiler")
        self._ranges = profiler.emit_nvtx(record_shapes=self.request.recipe.switches.record_shapes)
        self._ranges.__enter__()

    def stop(self) -> None:
        """Stop emitting NVTX ranges."""
        ranges = getattr(self, "_ranges", None)
        if ranges is not None:
            self.outcome.attempt("stop", lambda: ranges.__exit__(None, None, None))


class TimesSession(Session):
    """Times each step after warm-up with CUDA events, or with the host clock if there is no GPU.

    An event is recorded on the current stream at the end of each step; the device is waited for once, at the end.
    Without steps it is the time of the whole program, as the host sees it.
    """

    def __init__(self, request: Request) -> None:
        """Prepare a session for `request`."""
        super().__init__(request)
        self._torch: Any = import_module("torch")
        self._marks: list[Any] = []
        self._began_ns = 0

    def start(self) -> None:
        """Record the first time stamp."""
        self.outcome.activities = self.activities()
        self._began_ns = time.perf_counter_ns()
        self._mark()

    def step(self) -> None:
        """Record a time stamp, until the recipe has enough."""
        self.outcome.steps += 1
        cycle = self.request.recipe.cycle or recipes.Cycle()
        if len(self._marks) <= cycle.skip_first + cycle.wait + cycle.warmup + cycle.active:
            self._mark()

    def _mark(self) -> None:
        # A script that forks before it uses the GPU must not find a CUDA context created by us.
        if "cuda" in self.outcome.activities and self._torch.cuda.is_initialized():
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter_ns())

    def stop(self) -> None:
        """Synchronise once, and write the times."""
        whole_ns = time.perf_counter_ns() - self._began_ns
        self.outcome.attempt("times", lambda: self._write(whole_ns))

    def _write(self, whole_ns: int) -> None:
        events = any(not isinstance(mark, int) for mark in self._marks)
        if events:
            self._torch.cuda.synchronize()
        cycle = self.request.recipe.cycle or recipes.Cycle()
        cold = cycle.skip_first + cycle.wait + cycle.warmup
        times_ns = [_between_ns(*pair) for pair in zip(self._marks, self._marks[1:])]
        if len(times_ns) <= cold:
            self.outcome.notes.append(f"no step's time: {len(times_ns)} steps were seen, of which {cold} warm up")
        document = {
            "clock": "cuda events" if events else "host",
            "warmup_ns": times_ns[:cold],
            "times_ns": times_ns[cold:],
            "whole_ns": whole_ns,
        }
        self.wrote(write_json(self.path("torch", ".times.json"), document))


def _between_ns(before: Any, after: Any) -> int | None:  # noqa: ANN401
    """Time between two stamps in ns; None if the first is of the host clock and the second a CUDA event."""
    if isinstance(before, int) != isinstance(after, int):
        return None
    return int(after - before if isinstance(after, int) else round(before.elapsed_time(after) * 1e6))
