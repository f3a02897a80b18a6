"""The passes, one function each: run their steps and record results."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base import files
from kanalyze.collectors.base.checks import Check, checks
from kanalyze.collectors.in_workload import compiled
from kanalyze.collectors.run.runner import StepFailedError, read_end
from kanalyze.collectors.tools import ncu, nsys, permissions, torch_pass
from kanalyze.collectors.tools.ncu_launches import Launch, first_launch, parse, select, unselected

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kanalyze.collectors.base.step import Step
    from kanalyze.collectors.run.plan import Plan
    from kanalyze.collectors.run.runner import Runner
    from kanalyze.collectors.tools.ncu_launches import Selection

#: Message of nsys stats for a program without kernels.
NO_KERNELS: Final = "the program launched no kernel"


@dataclass
class Found:
    """Results of earlier passes, for later ones.

    Attributes:
        launches: Kernel launches of the nsys pass; None if it did not run.
        checks: Check lines of the program, by step.
    """

    launches: list[Launch] | None = None
    checks: dict[str, list[Check]] = field(default_factory=dict)


def run_nsys(plan: Plan, runner: Runner, found: Found, number: int) -> None:
    """Record the run for the `number`-th time, and export it."""
    for step in plan.nsys(number):
        _run(step, runner, found)


def list_launches(plan: Plan, runner: Runner, found: Found) -> None:
    """List the kernel launches of the first recording."""
    if plan.makes_ranges and not _take_up(plan, runner, plan.folder):
        runner.note("torch did not come to its end: ranges of operators may be missing")
    listing = plan.launches()
    try:
        runner.run(listing)
    except StepFailedError as error:  # the report is complete nevertheless
        runner.note(f"the kernel launches cannot be listed: {error.why}")
        return
    found.launches = parse(listing.log.with_name("launches.csv").read_text(encoding="utf-8", errors="replace"))
    if not found.launches:
        runner.note(NO_KERNELS)


def run_samples(plan: Plan, runner: Runner, found: Found, number: int = 1) -> None:
    """Sample the program for a while, as far as it is permitted; `number` is always 1."""
    del number
    cpu, counters = permissions.cpu_samples(), permissions.counters()
    if plan.options.samples and not cpu.ok:
        runner.note(f"without CPU samples: {cpu.found}. To get them: {cpu.remedy}")
    if plan.options.metrics and counters.ok is False:
        runner.note(f"without GPU metrics: {counters.found}. To get them: {counters.remedy}")
    what = plan.sampled(nsys.options_of(plan.tools.nsys), cpu=bool(cpu.ok), metrics=counters.ok is not False)
    if what.lacking:
        runner.note(f"nsys {plan.tools.nsys.version} has no {', '.join(what.lacking)}: without what that records")
    sample, export = plan.samples(what)
    try:
        _run(sample, runner, found)
    except StepFailedError:
        if not (what.host and what.metrics and nsys.no_metrics(read_end(sample.log))):
            raise
        runner.note("without GPU metrics: nsys cannot sample them here; `kanalyze doctor` says what it says of that")
        sample.log.rename(sample.log.with_name("samples-metrics.log"))
        sample, export = plan.samples(replace(what, metrics=False))
        _run(sample, runner, found)
    for line in nsys.warnings(read_end(sample.log)):
        runner.note(line)
    runner.run(export)


def run_torch(plan: Plan, runner: Runner, found: Found, number: int) -> None:
    """Run the script under torch.profiler for the `number`-th time."""
    for step in plan.torch(number):
        _run(step, runner, found)
    if not _take_up(plan, runner, plan.torch_folder(number)):
        files.discard({plan.torch_folder(number)} - {plan.folder})
        raise StepFailedError("torch.profiler did not come to its end", plan.torch(number)[-1])


def _take_up(plan: Plan, runner: Runner, out: Path) -> bool:
    """Copy the runner's results in the folder `out` into the record; False if the runner did not finish."""
    told = {path: json.loads(path.read_text(encoding="utf-8")) for path in out.glob("torch-run*.json")}
    runner.record.torch |= {str(path.relative_to(plan.folder).with_suffix("")): run for path, run in told.items()}
    for note in (note for run in told.values() for note in (*run["notes"], *run["failures"])):
        runner.note(note)
    compiled.merge_ranks(out)
    # inductor's workers that exit after the program recreate their folders
    files.discard(set(out.glob(f"{torch_pass.OWN_CACHES}*")))
    return bool(told) and all(run["workload"]["ended"] != "unknown" for run in told.values())


def run_ncu(plan: Plan, runner: Runner, found: Found, number: int = 1) -> None:
    """Profile the heaviest kernels, one program run per group, within the time budget; `number` is always 1."""
    del number
    if found.launches is None:
        chosen = [unselected(plan.options)]
        runner.note("no nsys pass says which kernels are heavy: these are the program's first launches")
    else:
        chosen = select(found.launches, plan.options)
    began = time.monotonic()
    for number, selection in enumerate(chosen, 1):
        left_s = plan.options.ncu_budget_s - (time.monotonic() - began)
        if left_s <= 0:
            names = ", ".join(name for rest in chosen[number - 1 :] for name in rest.kernels)
            runner.note(f"the time budget ended before: {names}")
            break
        try:
            _profile_some(plan, runner, found, number, selection, left_s)
        except StepFailedError as error:
            if number == 1:
                raise
            runner.note(f"group {number} of the kernels is missing: {error.why}")
            continue
        runner.record.chosen += selection.kernels


def _profile_some(  # noqa: PLR0913 - as below
    plan: Plan, runner: Runner, found: Found, number: int, selection: Selection, limit_s: float
) -> None:
    """One run of ncu; falls back to the first launches if the selected ones never occurred."""
    began = time.monotonic()
    try:
        _profile(plan, runner, found, number, selection, limit_s)
    except StepFailedError as error:
        first = first_launch(selection, plan.options)
        if error.why != ncu.NONE_PROFILED or first is None:
            raise
        log = plan.ncu(number, selection)[0].log
        log.rename(log.with_name(f"{log.stem}-none.log"))
        _profile(plan, runner, found, number, first, limit_s - (time.monotonic() - began))
        runner.note("the launches that were chosen did not come again: profiled the first ones")


def _profile(  # noqa: PLR0913 - what a pass has, and which run of it
    plan: Plan, runner: Runner, found: Found, number: int, selection: Selection, limit_s: float
) -> None:
    """One run of ncu, and its report's pages; without locked clocks if locking is not permitted."""
    profile, *pages = plan.ncu(number, selection)
    try:
        _run(profile, runner, found, limit_s)
    except StepFailedError:
        if plan.options.clock_control == "none" or not ncu.cannot_lock_clocks(read_end(profile.log)):
            raise
        runner.note("the clocks cannot be locked here: profiled with --clock-control none")
        profile.log.rename(profile.log.with_name(f"{profile.name}-locked.log"))
        unlocked = replace(plan, options=replace(plan.options, clock_control="none"))
        profile, *pages = unlocked.ncu(number, selection)
        _run(profile, runner, found, limit_s)
    for line in ncu.warnings(read_end(profile.log), python=plan.workload.kind == "python"):
        runner.note(line)
    for page in pages:
        runner.run(page)


def _run(step: Step, runner: Runner, found: Found, limit_s: float | None = None) -> None:
    """Run a step, and collect the program's check lines from its log."""
    runner.run(step, limit_s)
    if step.runs_workload:
        found.checks[step.name] = checks(step.log)


#: One run of each pass.
RUNS: Final[dict[str, Callable[[Plan, Runner, Found, int], None]]] = {
    "nsys": run_nsys,
    "samples": run_samples,
    "torch": run_torch,
    "ncu": run_ncu,
}

#: What a pass does after its last run.
ENDS: Final[dict[str, Callable[[Plan, Runner, Found], None]]] = {"nsys": list_launches}
