"""The passes, one method each: run their steps and record results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base import files
from kanalyze.collectors.base.checks import Check, checks
from kanalyze.collectors.in_workload import compiled
from kanalyze.collectors.run.runner import Runner, StepFailedError, read_end
from kanalyze.collectors.tools import ncu, nsys, nvtx_marks, permissions, torch_pass
from kanalyze.collectors.tools.ncu_launches import Launch, first_launch, parse, select, unselected

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.collectors.base.step import Step
    from kanalyze.collectors.run.plan import Plan
    from kanalyze.collectors.tools.ncu_launches import Selection

#: Message of nsys stats for a program without kernels.
NO_KERNELS: Final = "the program launched no kernel"


@dataclass
class Found:
    """Results of earlier passes: kernel launches of nsys (None if it did not run), the check lines of each step."""

    launches: list[Launch] | None = None
    checks: dict[str, list[Check]] = field(default_factory=dict)


@dataclass(kw_only=True)
class Pass(Runner):
    """A pass of a program, by its commands; the method of its name runs it once, for the `number`-th time from 1.

    Attributes:
        plan: The commands.
        found: Results of earlier passes.
    """

    plan: Plan
    found: Found

    def bare(self, number: int) -> None:
        """Run the program without a profiler for the `number`-th time, timed by its NVTX ranges if it is no script."""
        (step,) = self.plan.bare(number)
        if self.plan.workload.kind == "python":
            self._run_program(step)
            return
        with nvtx_marks.environment((self.plan.folder / f"{step.name}.json").absolute()) as added:
            self._run_program(replace(step, env=added))

    def nsys(self, number: int) -> None:
        """Record the run for the `number`-th time, and export it."""
        for step in self.plan.nsys(number):
            self._run_program(step)

    def list_launches(self) -> None:
        """List the kernel launches of the first recording of nsys."""
        if self.plan.makes_ranges and not self._take_up(self.plan.folder):
            self.note("torch did not come to its end: ranges of operators may be missing")
        listing = self.plan.launches()
        try:
            self.run(listing)
        except StepFailedError as error:  # the report is complete nevertheless
            self.note(f"the kernel launches cannot be listed: {error.why}")
            return
        listed = listing.log.with_name("launches.csv").read_text(encoding="utf-8", errors="replace")
        self.found.launches = parse(listed)
        if not self.found.launches:
            self.note(NO_KERNELS)

    def samples(self, _: int) -> None:
        """Sample the program for a while, once, as far as it is permitted."""
        plan, note = self.plan, self.note
        cpu, counters = permissions.cpu_samples(), permissions.counters()
        if plan.options.samples and not cpu.ok:
            note(f"without CPU samples: {cpu.found}. To get them: {cpu.remedy}")
        if plan.options.metrics and counters.ok is False:
            note(f"without GPU metrics: {counters.found}. To get them: {counters.remedy}")
        what = plan.sampled(nsys.options_of(plan.tools.nsys), cpu=bool(cpu.ok), metrics=counters.ok is not False)
        if what.lacking:
            note(f"nsys {plan.tools.nsys.version} has no {', '.join(what.lacking)}: without what that records")
        sample, export = plan.samples(what)
        try:
            self._run_program(sample)
        except StepFailedError:
            if not (what.host and what.metrics and nsys.no_metrics(read_end(sample.log))):
                raise
            note("without GPU metrics: nsys cannot sample them here; `kanalyze doctor` says what it says of that")
            sample.log.rename(sample.log.with_name("samples-metrics.log"))
            sample, export = plan.samples(replace(what, metrics=False))
            self._run_program(sample)
        for line in nsys.warnings(read_end(sample.log)):
            note(line)
        self.run(export)

    def torch(self, number: int) -> None:
        """Run the script under torch.profiler for the `number`-th time."""
        for step in self.plan.torch(number):
            self._run_program(step)
        folder = self.plan.torch_folder(number)
        if not self._take_up(folder):
            files.discard({folder} - {self.plan.folder})
            raise StepFailedError("torch.profiler did not come to its end", self.plan.torch(number)[-1])

    def _take_up(self, out: Path) -> bool:
        """Copy the runner's results in the folder `out` into the record; False if the runner did not finish."""
        told = {path: json.loads(path.read_text(encoding="utf-8")) for path in out.glob("torch-run*.json")}
        runs = {str(path.relative_to(self.plan.folder).with_suffix("")): run for path, run in told.items()}
        self.record.torch |= runs
        for note in (note for run in told.values() for note in (*run["notes"], *run["failures"])):
            self.note(note)
        compiled.merge_ranks(out)
        # inductor's workers that exit after the program recreate their folders
        files.discard(set(out.glob(f"{torch_pass.OWN_CACHES}*")))
        return bool(told) and all(run["workload"]["ended"] != "unknown" for run in told.values())

    def ncu(self, _: int) -> None:
        """Profile the heaviest kernels, once: one program run per group of them, within the time budget."""
        options = self.plan.options
        if self.found.launches is None:
            chosen = [unselected(options)]
            self.note("no nsys pass says which kernels are heavy: these are the program's first launches")
        else:
            chosen = select(self.found.launches, options)
        for number, selection in enumerate(chosen, 1):
            if self.spent_s >= options.ncu_budget_s:
                names = ", ".join(name for rest in chosen[number - 1 :] for name in rest.kernels)
                self.note(f"the time budget ended before: {names}")
                break
            try:
                self._profile_some(number, selection)
            except StepFailedError as error:
                if number == 1:
                    raise
                self.note(f"group {number} of the kernels is missing: {error.why}")
                continue
            self.record.chosen += selection.kernels

    def _profile_some(self, number: int, selection: Selection) -> None:
        """One run of ncu; falls back to the first launches if the selected ones never occurred."""
        try:
            self._profile(number, selection)
        except StepFailedError as error:
            first = first_launch(selection, self.plan.options)
            if error.why != ncu.NONE_PROFILED or first is None:
                raise
            log = self.plan.ncu(number, selection)[0].log
            log.rename(log.with_name(f"{log.stem}-none.log"))
            self._profile(number, first)
            self.note("the launches that were chosen did not come again: profiled the first ones")

    def _profile(self, number: int, selection: Selection) -> None:
        """One run of ncu, and its report's pages; without locked clocks if locking is not permitted."""
        options = self.plan.options
        profile, *pages = self.plan.ncu(number, selection)
        try:
            self._run_program(profile, options.ncu_budget_s - self.spent_s)
        except StepFailedError:
            if options.clock_control == "none" or not ncu.cannot_lock_clocks(read_end(profile.log)):
                raise
            self.note("the clocks cannot be locked here: profiled with --clock-control none")
            profile.log.rename(profile.log.with_name(f"{profile.name}-locked.log"))
            unlocked = replace(self.plan, options=replace(options, clock_control="none"))
            profile, *pages = unlocked.ncu(number, selection)
            self._run_program(profile, options.ncu_budget_s - self.spent_s)
        for line in ncu.warnings(read_end(profile.log), python=self.plan.workload.kind == "python"):
            self.note(line)
        for page in pages:
            self.run(page)

    def _run_program(self, step: Step, limit_s: float | None = None) -> None:
        """Run a step, and collect the program's check lines from its log."""
        self.run(step, limit_s)
        if step.runs_workload:
            self.found.checks[step.name] = checks(step.log)
