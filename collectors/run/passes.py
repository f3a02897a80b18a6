"""The passes, one method each: run their steps within a time limit, and record results."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kanalyze import outlets
from kanalyze.collectors import process
from kanalyze.collectors.in_workload import compiled, torch_sessions
from kanalyze.collectors.options import NAMING, NSYS, SAMPLES, TORCH
from kanalyze.collectors.process import Check, Ended, Event, Progress, Starter, Step, checks, end_of
from kanalyze.collectors.run.plan import Plan
from kanalyze.collectors.tools import machine, ncu, nsys
from kanalyze.collectors.tools.ncu import Launch, Selection, first_launch, parse, select, unselected

#: Message of nsys stats for a program without kernels.
NO_KERNELS: Final = "the program launched no kernel"

#: Replacement for possible secrets.
_HIDDEN: Final = "(hidden)"

#: Prefix of the torch runner's messages.
_RUNNER_SAYS: Final = "kanalyze: "

#: The tool whose messages stand in a step's log, by the first word of its name.
_TOOLS: Final = {"nsys": nsys, "samples": nsys, "names": nsys, "ncu": ncu}

#: The variable by which NVTX loads one library; the program or the user may have another one.
_INJECTION: Final = "NVTX_INJECTION64_PATH"


@dataclass
class PassRecord:
    """Record of one pass, as the manifest has it: docs/collect.md describes every key.

    Its duration is that of its steps, without what other programs ran in between.
    """

    name: str
    status: str = "done"
    why: str = ""
    remedy: str = ""
    steps: list[dict[str, object]] = field(default_factory=list)
    before: list[machine.Row] = field(default_factory=list)
    after: list[machine.Row] = field(default_factory=list)
    duration_ns: int = 0
    notes: list[str] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    torch: dict[str, object] = field(default_factory=dict)


@dataclass(eq=False)
class StepFailedError(Exception):
    """A step failed; `of_program`: the workload, not the tool; without `status` it was stopped or never started."""

    why: str
    step: Step
    status: int | None = None
    of_program: bool = False

    def reason(self, name: str) -> str:
        """The reason, for the pass `name`; with the program's last output if that failed."""
        last = self.last_words[-1:] if self.of_program else []
        inside = "" if self.step.name == name else f"{self.step.name}: "
        return f"{inside}{self.why}" + "".join(f": {' '.join(line.split())[:200]}" for line in last)

    @property
    def last_words(self) -> list[str]:
        """The end of the step's output; of the program's output if that failed."""
        return last_words(self.step, of_program=self.of_program)


@dataclass
class Passes:
    """The passes of a program: the method of its name runs a pass for the `number`-th time, from 1, and records it.

    `launches` are the kernel launches that nsys recorded, None if it did not run; `checks` the check lines by step.
    """

    plan: Plan
    progress: Progress
    starter: Starter = subprocess.Popen
    launches: list[Launch] | None = None
    checks: dict[str, list[Check]] = field(default_factory=dict)

    def note(self, record: PassRecord, text: str, *, show: bool = False) -> None:
        """Add a note to a pass, deduplicated, and perhaps show it."""
        if text not in record.notes:
            record.notes.append(text)
        if show:
            self.progress(Event("note", record.name, text))

    # Steps

    def step(self, record: PassRecord, step: Step, limit_s: float | None = None) -> None:
        """Run a step to its end, and collect the program's check lines from its log; what a failed one made is removed.

        It takes no longer than `limit_s` and the rest of the pass's time, in seconds.
        """
        folder, began_ns = step.log.parent.parent, time.monotonic_ns()
        before, left_s = {*folder.iterdir()}, self._left_s(record)
        try:
            self._run(record, step, max(left_s if limit_s is None else min(limit_s, left_s), 0.0))
        except BaseException:
            process.discard({*folder.iterdir()} - before - {step.log.parent})
            raise
        finally:
            record.duration_ns += time.monotonic_ns() - began_ns
        if step.runs_workload:
            self.checks[step.name] = checks(step.log)

    def _left_s(self, record: PassRecord) -> float:
        return self.plan.options.timeout_s - record.duration_ns / 1e9

    def _run(self, record: PassRecord, step: Step, limit_s: float) -> None:
        """Run a step and record it; raises StepFailedError."""

        def tick(elapsed_s: float, line: str) -> None:
            self.progress(Event("tick", step.name, outlets.line(line), elapsed_s))

        self.progress(Event("begin", step.name))
        ended, failed = Ended(None, 0.0), None
        try:
            ended = process.run(step, limit_s, tick, starter=self.starter)
        except OSError as error:
            failed = StepFailedError(f"{step.argv[0]} cannot be started ({error.strerror or error})", step)
        record.steps.append(
            {
                "name": step.name,
                "command": masked(step.argv),
                "environment": dict(step.env),
                "exit_status": ended.status,
                "timed_out": failed is None and ended.status is None,
                "duration_ns": int(ended.seconds * 1e9),
                "log": f"{step.log.parent.name}/{step.log.name}",
            }
        )
        if ended.shortened:
            kept = f"the first and the last {process.KEPT_BYTES >> 20} MiB"
            self.note(record, f"logs/{step.log.name} keeps {kept} of what was printed, and leaves out the rest")
        failed = failed or self._judged(record, step, ended.status, limit_s)
        self.progress(Event("end", step.name, "failed" if failed else "done", ended.seconds))
        if failed:
            raise failed

    def _judged(self, record: PassRecord, step: Step, status: int | None, limit_s: float) -> StepFailedError | None:
        """The error for a step's exit status; None if it succeeded."""
        options = self.plan.options
        if status is None:
            is_rest = limit_s == self._left_s(record) < options.timeout_s
            left = f" that were left of {options.timeout_s:g} s" if is_rest else ""
            return StepFailedError(f"took longer than {limit_s:.4g} s{left}, and was stopped", step)
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        tool_how = f"{Path(step.argv[0]).name} {how}"
        missing = [f"{path.name} {flaw}" for path in step.outputs if (flaw := process.incomplete(path))]
        # where the tool stops the program at the end, its exit status is meaningless
        is_stopped = record.name == SAMPLES or (record.name in (NSYS, NAMING) and options.duration_s is not None)
        of_program, why = False, ""
        if missing:
            why = _meaning(step) or ", and ".join([*([tool_how] if status else []), *missing])
        elif status == 0 or (step.runs_workload and is_stopped):
            pass
        elif status == torch_sessions.FAILED and step.has_runner:  # which says why itself
            lines = [line for line in last_words(step) if line.startswith(_RUNNER_SAYS)]
            why = lines[-1].removeprefix(_RUNNER_SAYS) if lines else "the script could not be profiled"
        elif not step.runs_workload or status < 0:
            why = tool_how
        elif all(check.passed for check in checks(step.log)):  # else it reports a wrong result, but was recorded
            of_program, why = True, f"the program {how}"
        return StepFailedError(why, step, status, of_program=of_program) if why else None

    # Passes

    def bare(self, record: PassRecord, number: int) -> None:
        """Run the program without a profiler, timed by its NVTX ranges if it is no script."""
        (step,) = self.plan.runs(record.name, number)
        file, is_script = self.plan.folder / f"{step.name}.json", self.plan.workload.kind == "python"
        marks: AbstractContextManager[dict[str, str]] = nullcontext({}) if is_script else marking(file.absolute())
        with marks as added:
            self.step(record, replace(step, env=added))

    def profiled(self, record: PassRecord, number: int) -> None:
        """Run the program under nsys, for its times or for names, or under torch; take up what the runner left."""
        plan, name = self.plan, record.name
        steps = plan.runs(name, number)
        for step in steps:
            self.step(record, step)
        if not steps[0].has_runner:
            return
        out = {NAMING: plan.folder / NAMING, TORCH: plan.torch_folder(number)}.get(name, plan.folder)
        is_whole = self._take_up(record, out)
        if name == TORCH and not is_whole:
            process.discard({out} - {plan.folder})
            raise StepFailedError("torch.profiler did not come to its end", steps[0])
        if not is_whole:
            self.note(record, "torch did not come to its end: ranges of operators may be missing")
        if name == NAMING:  # nothing is asked of its times
            for lines in out.glob("lines-nsys*"):
                lines.rename(plan.folder / lines.name.replace(NSYS, NAMING))
            process.discard({out})

    nsys = names = torch = profiled

    def list_launches(self, record: PassRecord) -> None:
        """List the kernel launches of the first recording of nsys."""
        listing = self.plan.launches()
        try:
            self.step(record, listing)
        except StepFailedError as error:  # the report is complete nevertheless
            self.note(record, f"the kernel launches cannot be listed: {error.why}")
            return
        self.launches = parse(listing.outputs[0].read_text(encoding="utf-8", errors="replace"))
        if not self.launches:
            self.note(record, NO_KERNELS)

    def samples(self, record: PassRecord, _: int) -> None:
        """Sample the program for a while, once, as far as it is permitted."""
        plan = self.plan
        cpu, counters = machine.cpu_samples(), machine.counters()
        for what, is_refused, permission in (
            ("CPU samples", plan.options.samples and not cpu.ok, cpu),
            ("GPU metrics", plan.options.metrics and counters.ok is False, counters),
        ):
            if is_refused:
                self.note(record, f"without {what}: {permission.found}. To get them: {permission.remedy}")
        options = nsys.options_of(plan.tools.nsys)
        lacking, (step, export) = plan.samples(options, cpu=bool(cpu.ok), metrics=counters.ok is not False)
        if lacking:
            names = ", ".join(lacking)
            self.note(record, f"nsys {plan.tools.nsys.version} has no {names}: without what that records")
        try:
            self.step(record, step)
        except StepFailedError:
            are_both = plan.options.samples and plan.options.metrics and counters.ok is not False
            if not (are_both and nsys.NO_METRICS.search(end_of(step.log))):
                raise
            refused = "nsys cannot sample them here; `kanalyze doctor` says what it says of that"
            self.note(record, f"without GPU metrics: {refused}")
            step.log.rename(step.log.with_name("samples-metrics.log"))
            step, export = plan.samples(options, cpu=bool(cpu.ok), metrics=False)[1]
            self.step(record, step)
        for line in nsys.warnings(end_of(step.log)):
            self.note(record, line)
        self.step(record, export)

    def _take_up(self, record: PassRecord, out: Path) -> bool:
        """Copy the runner's results in the folder `out` into the record; False if the runner did not finish."""
        runs = {path: json.loads(path.read_text()) for path in out.glob("torch-run*.json")}
        for path, run in runs.items():
            record.torch[str(path.relative_to(self.plan.folder).with_suffix(""))] = run
            for note in (*run["notes"], *run["failures"]):
                self.note(record, note)
        compiled.merge_ranks(out)
        # inductor's workers that exit after the program recreate their folders
        process.discard(set(out.glob(f"{compiled.OWN_CACHES}*")))
        return bool(runs) and all(run["workload"]["ended"] != "unknown" for run in runs.values())

    def ncu(self, record: PassRecord, _: int) -> None:
        """Profile the heaviest kernels, once: one program run per group of them, within the time budget."""
        options = self.plan.options
        if self.launches is None:
            chosen = [unselected(options)]
            self.note(record, "no nsys pass says which kernels are heavy: these are the program's first launches")
        else:
            chosen = select(self.launches, options)
        for number, selection in enumerate(chosen, 1):
            if record.duration_ns / 1e9 >= options.ncu_budget_s:
                names = ", ".join(name for rest in chosen[number - 1 :] for name in rest.kernels)
                self.note(record, f"the time budget ended before: {names}")
                break
            try:
                self._profile(record, number, selection)
            except StepFailedError as error:
                if number == 1:
                    raise
                self.note(record, f"group {number} of the kernels is missing: {error.why}")
                continue
            record.chosen += selection.kernels

    def _profile(self, record: PassRecord, number: int, selection: Selection) -> None:
        """One run of ncu and its pages; again without locked clocks, or at the first launches, where it has to be."""
        plan, options, notes = self.plan, self.plan.options, list[str]()
        while True:
            profile, *pages = plan.ncu(number, selection)
            try:
                self.step(record, profile, options.ncu_budget_s - record.duration_ns / 1e9)
                break
            except StepFailedError as error:
                first = first_launch(selection, options)
                if plan.options.clock_control != "none" and ncu.CANNOT_LOCK.search(end_of(profile.log)):
                    self.note(record, "the clocks cannot be locked here: profiled with --clock-control none")
                    plan, ending = replace(plan, options=replace(options, clock_control="none")), "locked"
                elif error.why == ncu.NONE_PROFILED and first is not None:
                    notes.append("the launches that were chosen did not come again: profiled the first ones")
                    selection, ending = first, "none"
                else:
                    raise
                profile.log.rename(profile.log.with_name(f"{profile.name}-{ending}.log"))
        for line in ncu.warnings(end_of(profile.log), python=plan.workload.kind == "python"):
            self.note(record, line)
        for page in pages:
            self.step(record, page)
        for note in notes:
            self.note(record, note)


def masked(words: Sequence[str]) -> list[str]:
    """The words of a command with the values of secret flags masked."""
    kept: list[str] = []
    for word in words:
        flag, equals, _ = word.partition("=")
        if equals and flag.startswith("-") and machine.secret(flag):
            kept.append(f"{flag}={_HIDDEN}")
        elif kept and kept[-1].startswith("-") and not word.startswith("-") and machine.secret(kept[-1]):
            kept.append(_HIDDEN)
        else:
            kept.append(word)
    return kept


def _meaning(step: Step) -> str:
    """What a tool's messages mean where outputs are missing; empty if nothing is known."""
    if shutil.disk_usage(step.log.parent).free < process.NOTHING_BYTES:
        return process.NO_SPACE
    tool, log = _TOOLS.get(step.name.partition("-")[0]), end_of(step.log)
    return next((meant for pattern, meant in tool.MESSAGES if re.search(pattern, log)), "") if tool else ""


def last_words(step: Step, *, of_program: bool = False) -> list[str]:
    """The last lines of a step's log; with `of_program` only the program's own, if there are any.

    The temporary capture folder is removed from paths, since it is renamed at the end.
    """
    lines = process.tail(step.log, 200)  # a tool may print much after the program's end
    tool = _TOOLS.get(step.name.partition("-")[0])
    if of_program and tool is not None:
        lines = [line for line in lines if not tool.OWN_LINE.search(line)] or lines
    inside = f"{step.log.parent.parent}{os.sep}"
    return [line.replace(inside, "") for line in lines[-12:]]


@contextmanager
def marking(file: Path) -> Iterator[dict[str, str]]:
    """Variables for a program that is to write when its NVTX ranges began and ended into `file`.

    None where there is no C compiler, or something else is to be loaded in place of the library.
    """
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None or _INJECTION in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="kanalyze-") as folder:
        library, source = str(Path(folder, "nvtx_marks.so")), str(Path(compiled.__file__).with_name("nvtx_marks.c"))
        command = [compiler, "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o", library, source, "-lpthread"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)  # noqa: S603 - our source
        except (OSError, subprocess.SubprocessError):
            yield {}
        else:
            yield {_INJECTION: library, "KANALYZE_MARKS": str(file)}
