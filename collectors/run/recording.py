"""Records one program: compiles it, runs the passes turn by turn, and writes what was finished with its manifest."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kanalyze.collectors.base import files, nvcc
from kanalyze.collectors.base.checks import checks
from kanalyze.collectors.base.errors import CompileError
from kanalyze.collectors.base.options import BARE, NCU, NSYS, PASSES, SAMPLES
from kanalyze.collectors.base.step import Event, Step
from kanalyze.collectors.run import build_cache as cache
from kanalyze.collectors.run import compiled_after
from kanalyze.collectors.run.passes import NO_KERNELS, Found, Pass
from kanalyze.collectors.run.plan import numbered
from kanalyze.collectors.run.runner import StepFailedError
from kanalyze.collectors.tools import machine, manifest
from kanalyze.collectors.tools.found import obstacles, wanted_passes
from kanalyze.collectors.tools.manifest import PassRecord
from kanalyze.errors import CollectError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kanalyze.collectors.base.process import Starter
    from kanalyze.collectors.base.step import Progress
    from kanalyze.collectors.run.plan import Plan


@dataclass(frozen=True)
class Capture:
    """A finished capture.

    Attributes:
        folder: The capture folder.
        manifest: The content of manifest.json.
        problems: Failed passes and failed checks; empty if all succeeded.
        notes: Notes on single passes.
    """

    folder: Path
    manifest: dict[str, object] = field(repr=False)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def reports(self) -> list[Path]:
        """The reports in the capture that kanalyze reads: one per run of the nsys pass."""
        return sorted(self.folder.glob("nsys*.sqlite"), key=lambda path: (len(path.name), path.name))

    @property
    def checks(self) -> list[str]:
        """The program's distinct check lines."""
        told: list[dict[str, object]] = self.manifest["checks"]  # type: ignore[assignment] # it is JSON
        return list(dict.fromkeys(str(check["line"]) for check in told))


@dataclass
class Recording:
    """A program that is being recorded.

    Attributes:
        runs: How many runs each pass has finished.
        turns: The place of each run among those of both programs, by the name of its report.
        content: The manifest so far.
    """

    plan: Plan
    progress: Progress
    starter: Starter = subprocess.Popen
    records: list[PassRecord] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    content: dict[str, object] = field(default_factory=dict)
    _possible: list[str] = field(default_factory=list)
    _found: Found = field(default_factory=Found)
    _begun: Pass | None = None
    _compiled: frozenset[Path] = frozenset()
    _last_failure: StepFailedError | None = None
    _began_unix_s: float = field(default_factory=time.time)

    # Stages, in order

    def compile(self) -> None:
        """Compile a CUDA source.

        Raises:
            CompileError: It does not compile, or there is no nvcc.
        """
        if self.plan.workload.kind == "cuda":
            self.plan = replace(self.plan, binary=self._built())

    def begin(self) -> None:
        """Look which passes can run; the others are reported and recorded with their reason.

        Raises:
            CollectError: None can.
        """
        workload, options, tools = self.plan.workload, self.plan.options, self.plan.tools
        self.content |= manifest.beginning(workload, options, tools, self.plan.command)
        why, wanted = obstacles(workload, options, tools), wanted_passes(workload, options)
        if {*wanted} <= {*why, BARE}:
            reasons = {self.plan.said(name): obstacle.why for name, obstacle in why.items()}
            raise CollectError.impossible(reasons, dict.fromkeys(obstacle.remedy for obstacle in why.values()))
        for name, obstacle in why.items():
            self._skip(name, obstacle.why, obstacle.remedy)
        self._possible = [name for name in wanted if name not in why]

    def prepare(self) -> None:
        """Run the program without a profiler first; if it fails there, it fails in every pass.

        Raises:
            CollectError: It failed.
        """
        plan, step, record = self.plan, self.plan.prepare(), PassRecord("prepare")
        try:
            with self._compiling():
                self._pass_of(record).run(step)
        except StepFailedError as error:
            self._say_locks(record, error)
            if error.of_program and error.status is not None:
                raise CollectError.program_failed(plan.label, error.status, error.said) from error
            reason = plan.said(f"without a profiler it {error.why}")
            raise CollectError.every_pass_failed([reason], error.said) from error
        self.content["prepare"] = record.steps[0]
        self._found.checks[step.name] = checks(step.log)

    def begin_pass(self, name: str) -> Pass | None:
        """Begin a pass; None if it cannot run."""
        if name not in self._possible:
            return None
        if name == NCU and self._found.launches is not None and not self._found.launches:
            self._skip(name, NO_KERNELS)
            return None
        record = PassRecord(name, before=machine.state(self.plan.tools.gpus.smi))
        self.records.append(record)
        self._begun = self._pass_of(record)
        self._begun.stopped = name == SAMPLES or (name == NSYS and self.plan.options.duration_s is not None)
        return self._begun

    def run(self, begun: Pass, number: int, turn: int) -> bool:
        """Run a begun pass for the `number`-th time; `turn` is the place among all runs. False if it failed.

        Raises:
            CollectError: The program failed before anything was recorded.
        """
        record = begun.record
        try:
            with self._compiling():
                getattr(begun, record.name)(number)
        except StepFailedError as error:
            self._failed(record, error)
            return False
        self.runs[record.name] = number
        self.turns[numbered(record.name, number)] = turn
        return True

    def end_pass(self, begun: Pass, why: str = "") -> None:
        """End a begun pass; with `why` it was interrupted."""
        record = begun.record
        if why:
            record.status, record.why = "interrupted", why
            self._say_locks(record)
        elif record.name == NSYS and self.runs.get(NSYS):
            begun.list_launches()
        record.duration_ns = int(begun.spent_s * 1e9)
        record.after = machine.state(self.plan.tools.gpus.smi)
        self._begun = None

    def interrupt(self) -> None:
        """Record that the user stopped the begun pass, and those that did not begin."""
        if self._begun is not None:
            self.end_pass(self._begun, "stopped by the user")
        reached = {record.name for record in self.records}
        for rest in wanted_passes(self.plan.workload, self.plan.options):
            if rest not in reached:
                self.records.append(PassRecord(rest, "interrupted", "stopped by the user before it began"))

    def write(self, status: str, seconds: float, final: Path) -> None:
        """Write the manifest, with paths as they will be in the folder `final`."""
        self._keep_compiled()
        self.records.sort(key=lambda record: PASSES.index(record.name))
        self.content |= {
            "status": status,
            "duration_ns": int(seconds * 1e9),
            "checks": [{"step": step, **vars(check)} for step, found in self._found.checks.items() for check in found],
            "passes": [vars(record) for record in self.records],
            "files": files.sizes(self.plan.folder),
        }
        manifest.write(self.plan.folder, self.content, final.absolute())

    def capture(self, final: Path) -> Capture:
        """The finished capture, which lies in `final`."""
        notes = tuple(f"{record.name}: {note}" for record in self.records for note in record.notes)
        return Capture(final, manifest.read(final), tuple(self.problems()), notes)

    # What came of it

    @property
    def recorded(self) -> set[str]:
        """The passes that recorded something."""
        return {*self.runs} - {BARE}

    def problems(self) -> list[str]:
        """Failed passes and failed checks."""
        wrong = [check.line for found in self._found.checks.values() for check in found if not check.passed]
        return [*self._reasons(), *(f"the program says that its result is wrong: {line}" for line in wrong)]

    def nothing(self) -> CollectError | None:
        """The error of a program of which nothing was recorded; None if there is a run of any pass."""
        if self.recorded:
            return None
        reasons = [self.plan.said(reason) for reason in self._reasons()]
        return CollectError.every_pass_failed(reasons, self._last_failure.said if self._last_failure else [])

    # Parts of the stages

    def _pass_of(self, record: PassRecord) -> Pass:
        limit_s = self.plan.options.timeout_s
        return Pass(record, self.progress, limit_s, self.starter, plan=self.plan, found=self._found)

    def _failed(self, record: PassRecord, error: StepFailedError) -> None:
        self._last_failure = error
        record.status, record.why = "failed", error.reason(record.name)
        # without a profiler it may be the marks that a program does not bear: the other passes tell
        if error.of_program and error.status is not None and not self.recorded and record.name != BARE:
            raise CollectError.program_failed(self.plan.label, error.status, error.said) from error
        self.progress(Event("note", record.name, f"failed: {record.why}"))
        self._say_locks(record, error)

    def _built(self) -> Path:
        plan = self.plan
        source = plan.workload.path or Path()
        if not plan.tools.nvcc.usable:
            raise CompileError.without_nvcc(source, plan.tools.nvcc.problem)

        def compile_with(command: Sequence[str]) -> float:
            runner = self._pass_of(PassRecord("compile"))
            step = Step("compile", tuple(command), plan.log("compile"))
            try:
                runner.run(step)
            except StepFailedError as error:
                said = step.log.read_text(encoding="utf-8", errors="replace").splitlines()
                stopped = [f"nvcc {error.why}"] if error.status is None else []
                raise CompileError.of(source, stopped or nvcc.errors(said), said) from error
            return runner.spent_s

        build = cache.build(plan.tools.nvcc, source, plan.arch, plan.options.nvcc_flags, compile_with)
        if build.cached:
            self.progress(Event("note", "compile", "compiled before"))
        self.content["build"] = {
            "command": list(build.command),
            "binary": str(build.binary),
            "key": build.key,
            "cached": build.cached,
            "duration_ns": int(build.seconds * 1e9),
        }
        return build.binary

    def _skip(self, name: str, why: str, remedy: str = "") -> None:
        self.records.append(PassRecord(name, "skipped", why, remedy))
        more = f". To get it: {remedy}" if remedy else ""
        self.progress(Event("note", name, f"skipped: {why}{more}"))

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Note what comes new into Triton's caches meanwhile; another program may fill them between two runs."""
        if self.plan.workload.kind == "cuda":
            yield
            return
        before = compiled_after.cached()
        try:
            yield
        finally:
            self._compiled |= compiled_after.cached() - before

    def _keep_compiled(self) -> None:
        """Save Triton's compiled kernels if the torch pass did not."""
        recorded = [record for record in self.records if record.name in self.recorded]
        if self.plan.workload.kind == "cuda" or any(record.torch for record in recorded):
            return
        launched = {launch.kernel for launch in self._found.launches or ()}
        recorded[0].notes += compiled_after.keep(self.plan.folder, compiled_after.cached() - self._compiled, launched)

    def _say_locks(self, record: PassRecord, error: StepFailedError | None = None) -> None:
        """Note lock files of torch extension builds that were stopped with the program."""
        of_program = error is not None and error.status is not None and error.status >= 0
        if self.plan.workload.kind == "cuda" or of_program:
            return
        for note in compiled_after.notes(self._began_unix_s):
            record.notes.append(note)
            self.progress(Event("note", record.name, note))

    def _reasons(self) -> list[str]:
        return [f"{record.name} failed: {record.why}" for record in self.records if record.status == "failed"]
