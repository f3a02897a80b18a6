"""Recipes for profiling a PyTorch program, and their sessions: start, steps, stop, and files in a folder.

A session is by torch.profiler, NVTX ranges, or step times: the recipe chooses.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from .hooks import AUTO, OPTIMIZER, Part  # relative: the runner loads these files without their package
from .torch_script import packed_copy, write_bytes, write_json

#: Products of a recipe.
TRACE, TENSORBOARD, TIMES, RANGES, CODE, NOTHING = "trace", "tensorboard", "times", "ranges", "code", "nothing"

#: Exit status of the runner: the workload succeeded, but profiling or writing failed.
FAILED = 120

#: The schedule of steps, as in torch.profiler.schedule: step counts, `repeat` cycles (0: unlimited).
CYCLE = {"wait": 1, "warmup": 1, "active": 7, "repeat": 1, "skip_first": 0}

#: Records of torch.profiler beyond the operators.
SWITCHES = dict.fromkeys(("record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops"), False)


#: The longest time of steps (s) in the trace of a whole program, which torch takes longer to write than to record; and
#: the largest trace whose events it sums: of 400 MB that takes minutes, where writing takes seconds.
LONGEST_S = 5
LARGE_BYTES = 64 << 20


class Recipe(NamedTuple):
    """A recipe, and what it makes (TRACE …).

    It has a cycle of steps, or None where the whole program is recorded at once, and may leave activities ('cpu',
    'cuda') out in a part of each iteration.
    """

    name: str
    makes: str = TRACE
    cycle: dict[str, int] | None = None
    switches: dict[str, bool] = SWITCHES
    leaves_out: tuple[str, ...] | None = None

    def with_changes(self, changes: Mapping[str, bool | int]) -> Recipe:
        """A copy with changed switches and cycle counts; cycle counts only if the recipe has a cycle."""
        of_cycle = {key: int(value) for key, value in changes.items() if key in CYCLE}
        of_switches = {key: bool(value) for key, value in changes.items() if key in SWITCHES}
        if of_cycle and self.cycle is None:
            raise ValueError(f"recipe {self.name} has no steps, so it takes no {', '.join(of_cycle)}")
        cycle = self.cycle and {**self.cycle, **of_cycle}
        if cycle and (min(cycle.values()) < 0 or cycle["active"] < 1):
            raise ValueError("wait, warmup, repeat and skip_first are 0 or more, and active is 1 or more")
        return self._replace(cycle=cycle, switches={**self.switches, **of_switches})


_SHAPES = {**SWITCHES, "record_shapes": True}

#: Recipes by name, in listing order; docs/recipes.md says what each is good for.
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("plain", switches=_SHAPES),
        Recipe("schedule", cycle=CYCLE, switches=_SHAPES),
        Recipe("toggle", leaves_out=("cpu", "cuda")),  # as toggle-both-off
        Recipe("toggle-none", leaves_out=()),
        Recipe("toggle-cpu-off", leaves_out=("cpu",)),
        Recipe("toggle-cuda-off", leaves_out=("cuda",)),
        Recipe("toggle-both-off", leaves_out=("cpu", "cuda")),
        Recipe("events", TIMES, cycle={**CYCLE, "wait": 0, "warmup": 5, "active": 100}),
        Recipe("nvtx", RANGES),
        Recipe("tensorboard", TENSORBOARD, cycle=CYCLE, switches=_SHAPES),
        Recipe("output-code", CODE),
        Recipe("own", NOTHING),
    )
}

#: Schema version of torch-run.json.
SCHEMA = 1

#: Note of a recipe with steps that saw none.
NO_STEP = "no trace, because no step was seen"


class ProfilerBusyError(Exception):
    """Another torch profiler is on in this process."""


@dataclass(frozen=True)
class Settings:
    """What to profile by which recipe, and how."""

    out: Path  # the folder for the files
    recipe: Recipe  # with the changes asked for
    workload: tuple[str, ...] = ()  # ``SCRIPT ARGS…`` or ``-m MODULE ARGS…``; empty for a region of a program
    activities: tuple[str, ...] | None = None  # 'cpu', 'cuda', or None for what this torch and machine can
    step: Part = AUTO
    left_out: Part = OPTIMIZER
    fresh: bool = True
    key_averages: bool | None = None  # torch's table too; None: of traces up to `LARGE_BYTES`
    lines: bool = True
    longest_s: int = LONGEST_S  # a trace without a cycle ends with the step so long after the first one; 0: never
    rank: int | None = None  # of this process among those of the program
    given: tuple[str, ...] = field(default=(), compare=False)  # the options that say so on the runner's command line

    def arguments(self) -> list[str]:
        """The command line for these settings in any folder, without the rank."""
        return [*self.given, "--out", str(self.out.absolute()), "--", *self.workload]

    @property
    def lines_file(self) -> Path:
        """The file of the lines, by the name of the recording that they belong to."""
        tool = "nsys" if self.recipe.makes == RANGES else "torch"
        return self.out / f"lines-{tool}{self.suffix}.json.gz"

    @property
    def suffix(self) -> str:
        """Suffix of this process's files, such as -rank0."""
        return "" if self.rank is None else f"-rank{self.rank}"


class Session:
    """A session that only counts steps, and its results; base of the recording sessions.

    `start` and `stop` are called once each, the other methods in between, from any one thread. `files` are in order of
    writing, the `traces` among them; `last` is the last profiler of torch that recorded something.
    """

    last: Any = None

    def __init__(self, settings: Settings) -> None:
        """Prepare a session by `settings`."""
        self.settings = settings
        self.activities: tuple[str, ...] = ()
        self.steps = self.cycles = 0
        self.files: list[Path] = []
        self.traces: list[Path] = []
        self.notes: list[str] = []
        self.failures: list[str] = []

    def attempt(self, what: str, action: Callable[[], object]) -> None:
        """Run `action`; an exception is recorded in `failures` and not raised into the workload."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever torch or the disk does, the workload goes on
            self.failures.append(f"{what}: {type(error).__name__}: {error}".rstrip(": "))

    def facts(self) -> dict[str, Any]:
        """The entry of the session in torch-run.json."""
        torch = sys.modules.get("torch")
        out, recipe = self.settings.out, self.settings.recipe
        return {
            "recipe": recipe.name,
            "switches": recipe.switches,
            "cycle": recipe.cycle,
            "torch": getattr(torch, "__version__", None),
            "cuda": getattr(getattr(torch, "version", None), "cuda", None),
            "activities": list(self.activities),
            "steps": self.steps,
            "cycles": self.cycles,
            "files": [str(path.relative_to(out)) for path in self.files],
            "traces": [str(path.relative_to(out)) for path in self.traces],
            "notes": self.notes,
            "failures": self.failures,
        }

    def start(self) -> None:
        """Start; raises :class:`ProfilerBusyError` if another profiler is active."""

    def step(self) -> None:
        """Count a step."""
        self.steps += 1

    def toggle(self, *, on: bool) -> None:
        """End a part that the recipe leaves out, or begin it."""

    def stop(self) -> None:
        """Stop and write the results."""

    @property
    def cold(self) -> int:
        """The steps before those that are recorded."""
        cycle = self.settings.recipe.cycle or CYCLE
        return cycle["skip_first"] + cycle["wait"] + cycle["warmup"]

    def choose_activities(self) -> None:
        """Take the requested activities that this machine supports; notes the others."""
        activities = self.settings.activities
        has_gpu = import_module("torch").cuda.is_available()
        self.activities = (activities or ("cpu", "cuda")) if has_gpu else ("cpu",)
        if not has_gpu and activities != ("cpu",):
            self.notes.append("torch finds no GPU here: only CPU activities are recorded")

    def path(self, name: str, ending: str) -> Path:
        """The path of the output file `name` with suffix `ending`."""
        return self.settings.out / f"{name}{self.settings.suffix}{ending}"


def refuse_second() -> None:
    """Raise ProfilerBusyError if a profiler is active: torch would silently move its events to the new one."""
    autograd: Any = import_module("torch.autograd.profiler")
    native: Any = import_module("torch._C._autograd")
    if getattr(native, "_profiler_enabled", bool)() or getattr(autograd, "_is_profiler_enabled", False):
        raise ProfilerBusyError("another torch profiler is on in this process, and torch can have only one")


class TraceSession(Session):
    """Session with torch.profiler: a Chrome trace per cycle, and the key_averages table."""

    _profiler: Any = None
    _trace_bytes = 0
    _left_out: tuple[Any, ...] = ()

    def start(self) -> None:
        """Start torch.profiler."""
        refuse_second()
        recipe, torch = self.settings.recipe, import_module("torch.profiler")
        self.choose_activities()
        # torch asks to choose between events per cycle and of all cycles, which the recipe does
        warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
        kinds = {name: getattr(torch.ProfilerActivity, name.upper()) for name in self.activities}
        self._left_out = tuple(kinds[name] for name in recipe.leaves_out or () if name in kinds)
        self._profiler = torch.profile(
            activities=[*kinds.values()],
            schedule=torch.schedule(**recipe.cycle) if recipe.cycle else None,
            on_trace_ready=self._ready,
            **recipe.switches,
        )
        self._profiler.of_kanalyze = True  # told from profilers of the program by it
        self._profiler.start()

    def step(self) -> None:
        """Step the profiler, if the recipe has steps."""
        self.steps += 1
        if self.settings.recipe.cycle and self._profiler is not None:
            self.attempt(f"step {self.steps}", self._profiler.step)

    def toggle(self, *, on: bool) -> None:
        """Enable what the recipe leaves out again, or disable it."""
        if self._left_out and self._profiler is not None:
            self.attempt("toggle", lambda: self._profiler.toggle_collection_dynamic(on, [*self._left_out]))

    def stop(self) -> None:
        """Stop the profiler; an incomplete cycle is written as far as recorded."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        action, before = profiler.current_action, len(self.traces)
        self.attempt("stop", profiler.stop)
        if not self.settings.recipe.cycle:
            return
        if len(self.traces) > before and action.name == "RECORD":
            self.notes.append(f"cycle {self.cycles} ended with the program, before its last step")
        if not self.traces and not self.failures:
            few = f"no trace: too few steps ({self.steps}): the recipe skips the first {self.cold}"
            self.notes.append(few if self.steps else NO_STEP)

    def _ready(self, profiler: Any) -> None:  # noqa: ANN401
        self.cycles += 1
        self.last = profiler
        cycle = self.settings.recipe.cycle
        name = f"torch-cycle{self.cycles}" if cycle and cycle["repeat"] != 1 else "torch"
        self.attempt("trace", lambda: self._export(profiler, name))
        tabulated = self.settings.key_averages
        if tabulated is None and self._trace_bytes > LARGE_BYTES:
            self.notes.append("no table of key averages, for which torch takes minutes: --recipe-flag=--key-averages")
        elif tabulated is not False:
            self.attempt("key averages", lambda: self._tabulate(profiler, name))

    def _export(self, profiler: Any, name: str) -> None:  # noqa: ANN401
        path = self.path(name, ".json.gz")
        if self.settings.recipe.makes == TENSORBOARD:
            # TensorBoard takes the text before the first dot as worker, and reads files ending in .pt.trace.json.gz.
            board = self.settings.out / "tensorboard"
            board.mkdir(exist_ok=True)
            path = board / f"torch{self.settings.suffix}.{time.time_ns()}.pt.trace.json.gz"
        plain = path.with_name(f".{path.name}.json")
        try:
            profiler.export_chrome_trace(str(plain))
            self._trace_bytes = plain.stat().st_size
            packed_copy(plain, path)
        finally:
            plain.unlink(missing_ok=True)
        self.traces.append(path)
        self.files.append(path)

    def _tabulate(self, profiler: Any, name: str) -> None:  # noqa: ANN401
        by = "self_cuda_time_total" if "cuda" in self.activities else "self_cpu_time_total"
        table: str = profiler.key_averages().table(sort_by=by, row_limit=-1)
        self.files.append(write_bytes(self.path(name, ".key_averages.txt"), table.encode()))


class RangesSession(Session):
    """Session in which every operator emits an NVTX range, for a program that runs under nsys."""

    def start(self) -> None:
        """Start emitting NVTX ranges."""
        self._ranges = ExitStack()
        self.choose_activities()
        if "cuda" not in self.activities:
            self.notes.append("no NVTX ranges: this torch has no CUDA, or finds no GPU")
            return
        refuse_second()
        profiler: Any = import_module("torch.autograd.profiler")
        shapes = self.settings.recipe.switches["record_shapes"]
        self._ranges.enter_context(profiler.emit_nvtx(record_shapes=shapes))

    def stop(self) -> None:
        """Stop emitting NVTX ranges."""
        self.attempt("stop", self._ranges.close)


class TimesSession(Session):
    """Times each step after warm-up with CUDA events, or with the host clock if there is no GPU.

    An event is recorded on the current stream at the end of each step; the device is waited for once, at the end.
    Without steps it is the time of the whole program, as the host sees it.
    """

    def start(self) -> None:
        """Record the first time stamp."""
        self._torch: Any = import_module("torch")
        self._marks: list[Any] = []
        self.choose_activities()
        self._began_ns = time.perf_counter_ns()
        self._mark()

    def step(self) -> None:
        """Record a time stamp, until the recipe has enough."""
        self.steps += 1
        if len(self._marks) <= self.cold + (self.settings.recipe.cycle or CYCLE)["active"]:
            self._mark()

    def _mark(self) -> None:
        # A script that forks before it uses the GPU must not find a CUDA context created by us.
        if "cuda" in self.activities and self._torch.cuda.is_initialized():
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter_ns())

    def stop(self) -> None:
        """Synchronise once, and write the times."""
        whole_ns = time.perf_counter_ns() - self._began_ns
        self.attempt("times", lambda: self._write(whole_ns))

    def _write(self, whole_ns: int) -> None:
        has_events = any(not isinstance(mark, int) for mark in self._marks)
        if has_events:
            self._torch.cuda.synchronize()
        times_ns = [
            None  # from the host's clock to an event
            if isinstance(before, int) != isinstance(after, int)
            else int(after - before if isinstance(after, int) else round(before.elapsed_time(after) * 1e6))
            for before, after in zip(self._marks, self._marks[1:])
        ]
        if len(times_ns) <= self.cold:
            self.notes.append(f"no step's time: {len(times_ns)} steps were seen, of which {self.cold} warm up")
        document = {
            "clock": "cuda events" if has_events else "host",
            "warmup_ns": times_ns[: self.cold],
            "times_ns": times_ns[self.cold :],
            "whole_ns": whole_ns,
        }
        self.files.append(write_json(self.path("torch", ".times.json"), document))


def session(settings: Settings) -> Session:
    """Creates the session for a recipe."""
    kinds = {TRACE: TraceSession, TENSORBOARD: TraceSession, TIMES: TimesSession, RANGES: RangesSession}
    return kinds.get(settings.recipe.makes, Session)(settings)
