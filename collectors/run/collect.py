"""Runs a collection: checks, compiles, runs all passes, and saves what was finished in one folder."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from kanalyze.collectors.base import files, nvcc, process
from kanalyze.collectors.base.checks import checks
from kanalyze.collectors.base.errors import CompileError, InterruptedCaptureError
from kanalyze.collectors.base.options import PASSES, Options, checked
from kanalyze.collectors.base.progress import Event, Progress, silent
from kanalyze.collectors.base.workload import Workload, resolve
from kanalyze.collectors.run import build_cache as cache
from kanalyze.collectors.run import compiled_after
from kanalyze.collectors.run.passes import NO_KERNELS, RUNS, Found
from kanalyze.collectors.run.plan import Plan, script
from kanalyze.collectors.run.portable import defined, portable
from kanalyze.collectors.run.runner import Runner, StepFailedError
from kanalyze.collectors.tools import machine, manifest
from kanalyze.collectors.tools.found import Tools, find_tools, obstacles, wanted_passes, wants_torch
from kanalyze.collectors.tools.manifest import PassRecord
from kanalyze.errors import CollectError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

    from kanalyze.collectors.base.options import Keywords
    from kanalyze.collectors.base.process import Starter


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


def collect(
    workload: str | PathLike[str],
    args: Sequence[str] = (),
    options: Options | None = None,
    progress: Progress = silent,
    *,
    starter: Starter = subprocess.Popen,
    **changes: Unpack[Keywords],
) -> Capture:
    """Profiles a program with every available tool, into one capture folder.

    Args:
        workload: A .cu file, a Python script, an executable, or the name of a reference workload.
        args: The program's arguments.
        options: How; see :class:`kanalyze.collectors.Options`.
        progress: Receives progress events.
        starter: Starts processes, as :class:`subprocess.Popen` does.
        changes: Single options, overriding `options`.

    Raises:
        WorkloadError: There is no such program.
        BadOptionError: An option is invalid.
        CompileError: The source does not compile, or there is no nvcc.
        OutputError: The folder exists, or cannot be written.
        CollectError: No pass can run here, the program fails, or every pass failed; nothing was saved.
        InterruptedCaptureError: The user interrupted it; finished passes are saved.
    """
    chosen = checked(replace(options or Options(), **changes))
    work = resolve(str(workload), args)
    final = files.target(work.name, chosen.output)
    tools = find_tools(chosen, work, torch=wants_torch(work, chosen))
    made = files.scratch(final)
    try:
        if scarce := files.scarce(made):
            progress(Event("note", "disk", scarce))
        return _Run(work, chosen, tools, made, final, progress, starter).whole()
    except OSError as error:
        raise OutputError.because(final, error.strerror or str(error)) from error
    finally:
        files.discard({made})


def dry_run(
    workload: str | PathLike[str], args: Sequence[str] = (), options: Options | None = None, **changes: Unpack[Keywords]
) -> list[str]:
    """The commands of a run as shell lines for any machine; starts nothing but the tools' ``--version``.

    Raises:
        WorkloadError: There is no such program.
        BadOptionError: An option is invalid.
        OutputError: The folder exists.
    """
    chosen = checked(replace(options or Options(), **changes))
    work = resolve(str(workload), args)
    final = files.target(work.name, chosen.output)
    tools = find_tools(chosen, work, torch=False)
    given, compiled = Plan(work, chosen, tools, final), None
    plan = portable(given, str(workload))
    if work.kind == "cuda" and work.path is not None:
        source, binary = plan.workload.path or work.path, final / "build" / work.path.stem
        plan = replace(plan, binary=binary)
        compiled = nvcc.command(plan.tools.nvcc.command, source, binary, _arch(chosen, tools), chosen.nvcc_flags)
    passes = [name for name in wanted_passes(work, chosen) if name != "torch" or work.kind == "python"]
    return defined(script(plan, passes, compiled), given)


def _arch(options: Options, tools: Tools) -> tuple[str, ...]:
    """Architectures to compile for: as requested, else those of the GPUs present."""
    return options.arch or tools.gpus.compute_capabilities


@dataclass
class _Run:
    """A collection in progress."""

    workload: Workload
    options: Options
    tools: Tools
    made: Path
    final: Path
    progress: Progress
    starter: Starter
    records: list[PassRecord] = field(default_factory=list)
    found: Found = field(default_factory=Found)
    content: dict[str, object] = field(default_factory=dict)
    compiled_before: frozenset[str] | None = None
    last_failure: StepFailedError | None = None
    began_unix_s: float = field(default_factory=time.time)

    def whole(self) -> Capture:
        """Run all stages in order."""
        began = time.monotonic()
        plan = Plan(self.workload, self.options, self.tools, self.made)
        current = "compiling"
        try:
            if self.workload.kind == "cuda":
                plan = replace(plan, binary=self._compiled())
            else:
                self.compiled_before = compiled_after.cached()
            self.content |= manifest.beginning(self.workload, self.options, self.tools, plan.command)
            possible = self._possible()
            if self.options.prepare:
                current = "prepare"
                self._prepare(plan)
            for name in possible:
                current = name
                self._pass(name, plan)
        except KeyboardInterrupt:
            raise self._interrupted(current, time.monotonic() - began) from None
        if not self._done():
            raise CollectError.every_pass_failed(self._reasons("failed"), self._last_words())
        return self._kept("complete" if not self._problems() else "partial", time.monotonic() - began)

    def _compiled(self) -> Path:
        source = self.workload.path or Path()
        if not self.tools.nvcc.usable:
            raise CompileError.without_nvcc(source, self.tools.nvcc.problem)
        log = self.made / "logs" / "compile.log"

        def compile_with(command: Sequence[str]) -> float:
            self.progress(Event("begin", "compile"))
            ended = process.run(
                command,
                log,
                {},
                self.options.timeout_s,
                lambda elapsed_s, line: self.progress(Event("tick", "compile", line, elapsed_s)),
                starter=self.starter,
            )
            self.progress(Event("end", "compile", "done" if ended.status == 0 else "failed", ended.seconds))
            if ended.status != 0:
                said = log.read_text(encoding="utf-8", errors="replace").splitlines()
                late = [f"nvcc took longer than {ended.seconds:.0f} s, and was stopped"] if ended.timed_out else []
                raise CompileError.of(source, late or nvcc.errors(said), said)
            return ended.seconds

        arch, flags = _arch(self.options, self.tools), self.options.nvcc_flags
        build = cache.build(self.tools.nvcc, source, arch, flags, compile_with)
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

    def _possible(self) -> list[str]:
        """The passes that can run; the others are reported and recorded with their reason."""
        why = obstacles(self.workload, self.options, self.tools)
        wanted = wanted_passes(self.workload, self.options)
        if len(why) == len(wanted):
            reasons = {name: obstacle.why for name, obstacle in why.items()}
            raise CollectError.impossible(reasons, dict.fromkeys(obstacle.remedy for obstacle in why.values()))
        for name, obstacle in why.items():
            self._skip(name, obstacle.why, obstacle.remedy)
        return [name for name in wanted if name not in why]

    def _skip(self, name: str, why: str, remedy: str = "") -> None:
        self.records.append(PassRecord(name, "skipped", why, remedy))
        self.progress(Event("note", name, f"skipped: {why}" + (f". To get it: {remedy}" if remedy else "")))

    def _prepare(self, plan: Plan) -> None:
        """Run the program without a profiler first; if it fails there, it fails in every pass."""
        step, record = plan.prepare(), PassRecord("prepare")
        try:
            Runner(record, self.progress, self.options.timeout_s, self.starter).run(step)
        except StepFailedError as error:
            self._say_locks(record, error)
            if error.of_program and error.status is not None:
                raise CollectError.program_failed(self.workload.name, error.status, error.said) from error
            raise CollectError.every_pass_failed([f"without a profiler it {error.why}"], error.said) from error
        self.content["prepare"] = record.steps[0]
        self.found.checks[step.name] = checks(step.log)

    def _pass(self, name: str, plan: Plan) -> None:
        if name == "ncu" and self.found.launches is not None and not self.found.launches:
            self._skip(name, NO_KERNELS)
            return
        record = PassRecord(name, before=machine.state(self.tools.gpus.smi))
        self.records.append(record)
        runner = Runner(record, self.progress, self.options.timeout_s, self.starter)
        runner.stopped = name == "nsys" and self.options.duration_s is not None
        try:
            RUNS[name](plan, runner, self.found)
        except StepFailedError as error:
            self.last_failure = error
            record.status, record.why = "failed", error.reason(name)
            if error.of_program and error.status is not None and not self._done():
                raise CollectError.program_failed(self.workload.name, error.status, error.said) from error
            self.progress(Event("note", name, f"failed: {record.why}"))
            self._say_locks(record, error)
        except KeyboardInterrupt:
            record.status, record.why = "interrupted", "stopped by the user"
            self._say_locks(record)
            raise
        finally:
            record.duration_ns = int((time.monotonic() - runner.began) * 1e9)
            record.after = machine.state(self.tools.gpus.smi)

    def _say_locks(self, record: PassRecord, error: StepFailedError | None = None) -> None:
        """Note lock files of torch extension builds that were stopped with the program."""
        if self.workload.kind == "cuda" or (error is not None and error.status is not None and error.status >= 0):
            return
        for note in compiled_after.notes(self.began_unix_s):
            record.notes.append(note)
            self.progress(Event("note", record.name, note))

    def _done(self) -> list[PassRecord]:
        return [record for record in self.records if record.status == "done"]

    def _reasons(self, status: str) -> list[str]:
        return [f"{record.name} {status}: {record.why}" for record in self.records if record.status == status]

    def _problems(self) -> list[str]:
        wrong = [check.line for found in self.found.checks.values() for check in found if not check.passed]
        return [*self._reasons("failed"), *(f"the program says that its result is wrong: {line}" for line in wrong)]

    def _last_words(self) -> list[str]:
        return self.last_failure.said if self.last_failure else []

    def _kept(self, status: str, seconds: float) -> Capture:
        """Write the manifest and move the folder to its place; signals are deferred meanwhile."""
        with _uninterrupted():
            final = files.vacant(self.final)
            self._keep_compiled()
            self.records.sort(key=lambda record: PASSES.index(record.name))
            self.content |= {
                "status": status,
                "duration_ns": int(seconds * 1e9),
                "checks": [
                    {"step": step, **vars(check)} for step, found in self.found.checks.items() for check in found
                ],
                "passes": [vars(record) for record in self.records],
                "files": files.sizes(self.made),
            }
            manifest.write(self.made, self.content, final.absolute())
            files.settle(self.made, final)
        notes = tuple(f"{record.name}: {note}" for record in self.records for note in record.notes)
        return Capture(final, manifest.read(final), tuple(self._problems()), notes)

    def _keep_compiled(self) -> None:
        """Save Triton's compiled kernels if the torch pass did not."""
        done = self._done()
        if self.compiled_before is None or any(record.torch for record in done):
            return
        launched = {launch.kernel for launch in self.found.launches or ()}
        done[0].notes += compiled_after.keep(self.made, self.compiled_before, launched)

    def _interrupted(self, name: str, seconds: float) -> InterruptedCaptureError:
        """Save the finished passes of an interrupted run, if any."""
        if not self._done():
            return InterruptedCaptureError.during(name, None)
        reached = {record.name for record in self.records}
        for rest in wanted_passes(self.workload, self.options):
            if rest not in reached:
                self.records.append(PassRecord(rest, "interrupted", "stopped by the user before it began"))
        return InterruptedCaptureError.during(name, self._kept("interrupted", seconds).folder)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defers Ctrl-C and other signals until the block is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
