"""Recipes for profiling a PyTorch program: what each enables, and what it produces.

Pure data.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

#: Products of a recipe.
TRACE = "trace"
TENSORBOARD = "tensorboard"
TIMES = "times"
RANGES = "ranges"
CODE = "code"
NOTHING = "nothing"

#: Exit status of the runner: the workload succeeded, but profiling or writing failed.
FAILED = 120


@dataclass(frozen=True)
class Cycle:
    """The schedule of steps, as in torch.profiler.schedule: step counts, `repeat` cycles (0: unlimited)."""

    wait: int = 1
    warmup: int = 1
    active: int = 7
    repeat: int = 1
    skip_first: int = 0


@dataclass(frozen=True)
class Switches:
    """Records of torch.profiler beyond the operators."""

    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_modules: bool = False
    with_flops: bool = False


@dataclass(frozen=True)
class Recipe:
    """A recipe: what it answers, in one line, and what it makes (TRACE …).

    It has a cycle of steps, or None where the whole program is recorded at once, and may leave activities ('cpu',
    'cuda') out in a part of each iteration.
    """

    name: str
    answers: str
    makes: str = TRACE
    cycle: Cycle | None = None
    switches: Switches = Switches()
    leaves_out: tuple[str, ...] | None = None

    def with_changes(self, changes: dict[str, bool | int]) -> Recipe:
        """A copy with changed switches and cycle counts; cycle counts only if the recipe has a cycle.

        Raises:
            ValueError: A count that is negative, no active step, or a cycle count for a recipe without steps.
        """
        of_cycle = {key: value for key, value in changes.items() if key in CYCLE_FIELDS}
        of_switches = {key: bool(value) for key, value in changes.items() if key in SWITCH_FIELDS}
        if of_cycle and self.cycle is None:
            raise ValueError(f"recipe {self.name} has no steps, so it takes no {', '.join(of_cycle)}")
        cycle = replace(self.cycle, **of_cycle) if self.cycle else None
        if cycle and (min(cycle.wait, cycle.warmup, cycle.repeat, cycle.skip_first) < 0 or cycle.active < 1):
            raise ValueError("wait, warmup, repeat and skip_first are 0 or more, and active is 1 or more")
        return replace(self, cycle=cycle, switches=replace(self.switches, **of_switches))


CYCLE_FIELDS = tuple(field.name for field in fields(Cycle))
SWITCH_FIELDS = tuple(field.name for field in fields(Switches))

_TOGGLE = "What an iteration costs without one of its parts: the part is left out of {}"

_ALL = (
    Recipe("plain", "Everything from the first line to the last: short programs."),
    Recipe(
        "schedule",
        "A few warm iterations of a long program: skips one, warms up in one, records seven.",
        cycle=Cycle(),
        switches=Switches(record_shapes=True),
    ),
    Recipe("toggle", _TOGGLE.format("the trace (as toggle-both-off)."), leaves_out=("cpu", "cuda")),
    Recipe("toggle-none", _TOGGLE.format("nothing: the control for the other three."), leaves_out=()),
    Recipe("toggle-cpu-off", _TOGGLE.format("the operators; its kernels are kept."), leaves_out=("cpu",)),
    Recipe("toggle-cuda-off", _TOGGLE.format("the GPU's side; its operators are kept."), leaves_out=("cuda",)),
    Recipe("toggle-both-off", _TOGGLE.format("the trace."), leaves_out=("cpu", "cuda")),
    Recipe(
        "events",
        "How long each step takes, by CUDA events after a warm-up, with no profiler on.",
        makes=TIMES,
        cycle=Cycle(wait=0, warmup=5, active=100, repeat=1),
    ),
    Recipe("nvtx", "Every operator as an NVTX range, for a run under nsys.", makes=RANGES),
    Recipe(
        "tensorboard",
        "As schedule, laid out for `tensorboard --logdir`.",
        makes=TENSORBOARD,
        cycle=Cycle(),
        switches=Switches(record_shapes=True),
    ),
    Recipe("output-code", "The code that inductor wrote, by TORCH_LOGS=output_code; no profiler on.", makes=CODE),
    Recipe("own", "The program starts torch.profiler itself; only what is compiled is kept.", makes=NOTHING),
)

#: Recipes by name, in listing order.
RECIPES = {recipe.name: recipe for recipe in _ALL}
