"""Runs a collection of one program, or of two in turns, and saves what was finished in one folder, with a manifest."""

import hashlib
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kanalyze.collectors import process
from kanalyze.collectors.in_workload.torch_script import write_bytes
from kanalyze.collectors.options import BARE, NCU, NSYS, PASSES, CompileError, InterruptedCaptureError, Options, checked
from kanalyze.collectors.run.passes import NO_KERNELS, Passes, PassRecord, StepFailedError, masked
from kanalyze.collectors.run.plan import Plan, in_order, numbered, portable_script
from kanalyze.collectors.tools import machine, nvcc
from kanalyze.collectors.tools.found import Tools, find_tools, obstacles, python_of, rates, wants_torch
from kanalyze.collectors.workload import resolve, resolve_other
from kanalyze.errors import CollectError, writable
from kanalyze.tools import SIDES


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
    manifest: dict[str, Any] = field(repr=False)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def reports(self) -> list[Path]:
        """The reports in the capture that kanalyze reads: one per run of the nsys pass."""
        return sorted(self.folder.glob("nsys*.sqlite"), key=lambda path: (len(path.name), path.name))

    @property
    def checks(self) -> list[str]:
        """The program's distinct check lines."""
        return list(dict.fromkeys(str(check["line"]) for check in self.manifest["checks"]))


@dataclass(frozen=True)
class Captures:
    """Finished captures of two programs whose runs were interleaved.

    Attributes:
        folder: The folder that both are in.
        base: The capture of the first program.
        new: The capture of the other one.
    """

    folder: Path
    base: Capture
    new: Capture

    @property
    def problems(self) -> tuple[str, ...]:
        """Failed passes and failed checks of both, each with its side; empty if all succeeded."""
        sides = zip(SIDES, (self.base, self.new), strict=True)
        return tuple(f"{side}: {problem}" for side, capture in sides for problem in capture.problems)


def collect(
    workload: str | os.PathLike[str],
    args: Sequence[str] = (),
    options: Options | None = None,
    progress: process.Progress = lambda _: None,
    *,
    starter: process.Starter = subprocess.Popen,
    **changes: Any,  # noqa: ANN401 - of Options
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
    return _recorded(*_planned([workload], args, options, changes), progress, starter)[0]


def collect_against(  # noqa: PLR0913 - as of collect, and the other program
    workload: str | os.PathLike[str],
    other: str | os.PathLike[str],
    args: Sequence[str] = (),
    options: Options | None = None,
    progress: process.Progress = lambda _: None,
    *,
    starter: process.Starter = subprocess.Popen,
    **changes: Any,  # noqa: ANN401 - of Options
) -> Captures:
    """Profiles two programs with the same tools and options, in turns (A B B A …), into one folder.

    What is not said here is as of :func:`collect`, which raises the same errors.

    Args:
        workload: The first program.
        other: The other one: a program with its arguments in one text (``"train.py --fused"``), or only arguments, for
            the first program (``"--fused"``).
        args: Arguments of both programs; the other one's own come behind them.
        options: How, of both.
        progress: Receives progress events, with the side before the step.
        starter: Starts processes.
        changes: Single options.

    Raises:
        CollectError: Of one of the programs nothing could be recorded; nothing was saved.
        InterruptedCaptureError: The user interrupted it; finished runs are saved if there are some of both programs.
    """
    base, new = _recorded(*_planned([workload, other], args, options, changes), progress, starter)
    return Captures(base.folder.parent, base, new)


def dry_run(
    workload: str | os.PathLike[str],
    args: Sequence[str] = (),
    options: Options | None = None,
    *,
    against: str | os.PathLike[str] | None = None,
    **changes: Any,  # noqa: ANN401 - of Options
) -> list[str]:
    """The commands of a run as shell lines for any machine; starts nothing but the tools' ``--version``.

    They are those of :func:`collect`, or with another program `against` it those of :func:`collect_against`. Raises
    WorkloadError, BadOptionError and OutputError as that does.
    """
    programs = [workload] if against is None else [workload, against]
    return portable_script(_planned(programs, args, options, changes, dry=True)[0])


def _planned(
    programs: Sequence[str | os.PathLike[str]],
    args: Sequence[str],
    options: Options | None,
    changes: dict[str, Any],
    *,
    dry: bool = False,
) -> tuple[list[Plan], Path]:
    """Plans of one program, or of two that share a look for tools, and the folder; a `dry` run looks for no torch."""
    chosen = checked(replace(options or Options(), **changes))
    works = [resolve(str(programs[0]), args)]
    works += [resolve_other(str(other), works[0]) for other in programs[1:]]
    final = process.target("-against-".join(work.name for work in works), chosen.output)
    plans, tools = list[Plan](), dict[object, Tools]()
    for side, work in zip(SIDES if len(works) > 1 else ("",), works, strict=True):
        torch = not dry and wants_torch(work, chosen)
        key = work.kind, python_of(work, chosen), torch
        tools[key] = tools.get(key) or find_tools(chosen, work, torch=torch)
        plans.append(Plan(work, chosen, tools[key], final / side, side=side))
    return plans, final


@dataclass
class Recording(Passes):
    """A program that is being recorded.

    `turns` has the place of each finished run among those of both programs, by the name of its report; `content` is the
    manifest so far, `last_words` the end of what the last failure printed.
    """

    records: list[PassRecord] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    content: dict[str, object] = field(default_factory=dict)
    _begun: PassRecord | None = None
    last_words: list[str] = field(default_factory=list)
    _began_unix_s: float = field(default_factory=time.time)

    # Stages, in order

    def compile(self) -> None:
        """Compile a CUDA source; raises CompileError."""
        compiler, record = self.plan.tools.nvcc, PassRecord("compile")
        for step in self.plan.compile():
            source = Path(step.argv[-1])
            if not compiler.usable:
                remedy = f"{compiler.remedy[0].upper()}{compiler.remedy[1:]}."
                raise CompileError(f"{source}: cannot be compiled: nvcc: {compiler.problem}.", remedy)
            step.outputs[0].parent.mkdir()
            try:
                self.step(record, step)
            except StepFailedError as error:
                printed = step.log.read_text(encoding="utf-8", errors="replace").splitlines()
                stopped = [f"nvcc {error.why}"] if error.status is None else []
                raise CompileError.of(source, stopped or nvcc.errors(printed), printed) from error
            self.content["build"] = record.steps[0]

    def begin(self) -> None:
        """Look which passes can run; the others are reported and recorded with their reason; raises CollectError."""
        plan = self.plan
        self.content |= _beginning(plan)
        missing, passes = obstacles(plan.workload, plan.options, plan.tools), plan.wanted
        if {*passes} <= {*missing, BARE}:
            reasons = {plan.with_side(name): why for name, (why, _) in missing.items()}
            raise CollectError.impossible(reasons, [*dict.fromkeys(remedy for _, remedy in missing.values())])
        for name, obstacle in missing.items():
            self._skip(name, *obstacle)

    def roofs(self) -> dict[str, Any]:
        """Time what the GPU reaches; empty where that cannot be."""
        measured, why = rates(self.plan.options, self.plan.workload)
        self.progress(process.Event("note", "roofs", f"not measured: {why}" if why else "measured"))
        return measured

    def begin_pass(self, name: str) -> PassRecord | None:
        """Begin a pass; None if it cannot run, or is not wanted."""
        if name not in self._to_come:
            return None
        if name == NCU and self.launches == []:
            self._skip(name, NO_KERNELS)
            return None
        self._begun = PassRecord(name, before=machine.state(self.plan.tools.gpus.smi))
        self.records.append(self._begun)
        return self._begun

    def run(self, record: PassRecord, number: int, turn: int) -> bool:
        """Run a begun pass for the `number`-th time; `turn` is the place among all runs. False if it failed."""
        try:
            getattr(self, record.name)(record, number)
        except StepFailedError as error:
            self.last_words = error.last_words
            record.status, record.why = "failed", error.reason(record.name)
            # without a profiler it may be the marks that a program does not bear: the other passes tell
            if error.of_program and not self.recorded and record.name != BARE:
                side, name = self.plan.side, self.plan.workload.name
                called = f"{side} ({name})" if side else name
                raise CollectError.program_failed(called, error.status or 0, error.last_words) from error
            self.progress(process.Event("note", record.name, f"failed: {record.why}"))
            self._note_locks(record, error)
            return False
        self.turns[numbered(record.name, number)] = turn
        return True

    def end_pass(self, record: PassRecord) -> None:
        """End a begun pass."""
        if record.name == NSYS and record.status != "interrupted" and NSYS in self.turns and NCU in self._to_come:
            self.list_launches(record)
        record.after = machine.state(self.plan.tools.gpus.smi)
        self._begun = None

    def interrupt(self) -> None:
        """Record that the user stopped the begun pass, and those that did not begin."""
        if record := self._begun:
            record.status, record.why = "interrupted", "stopped by the user"
            self._note_locks(record)
            self.end_pass(record)
        why = "stopped by the user before it began"
        self.records += [PassRecord(name, "interrupted", why) for name in self._to_come]

    def write(self, status: str, seconds: float, final: Path) -> Capture:
        """Write the manifest, with paths as they will be in the folder `final`; the capture that will be there."""
        folder = self.plan.folder
        self.records.sort(key=lambda record: PASSES.index(record.name))
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        self.content |= {
            "status": status,
            "duration_ns": int(seconds * 1e9),
            "checks": [{"step": step, **check._asdict()} for step, checks in self.checks.items() for check in checks],
            "passes": [vars(record) for record in self.records],
            "files": {str(path.relative_to(folder)): path.stat().st_size for path in paths},
        }
        notes = tuple(f"{record.name}: {note}" for record in self.records for note in record.notes)
        content = json.loads(_write_manifest(folder, self.content, final.absolute()))
        return Capture(final, content, tuple(self.problems()), notes)

    # What came of it

    @property
    def recorded(self) -> bool:
        """Whether a pass recorded something."""
        return not self.turns.keys().isdisjoint({*PASSES} - {BARE})

    @property
    def _to_come(self) -> list[str]:
        """The passes that are wanted and have no record, in order."""
        reached = {record.name for record in self.records}
        return [name for name in self.plan.wanted if name not in reached]

    @property
    def failures(self) -> list[str]:
        """Failed passes."""
        return [f"{record.name} failed: {record.why}" for record in self.records if record.status == "failed"]

    def problems(self) -> list[str]:
        """Failed passes and failed checks."""
        wrong = [check.line for checks in self.checks.values() for check in checks if not check.passed]
        return [*self.failures, *(f"the program says that its result is wrong: {line}" for line in wrong)]

    # Parts of the stages

    def _skip(self, name: str, why: str, remedy: str = "") -> None:
        self.records.append(PassRecord(name, "skipped", why, remedy))
        more = f". To get it: {remedy}" if remedy else ""
        self.progress(process.Event("note", name, f"skipped: {why}{more}"))

    def _note_locks(self, record: PassRecord, error: StepFailedError | None = None) -> None:
        """Note lock files of torch extension builds that were stopped with the program."""
        of_program = error is not None and error.status is not None and error.status >= 0
        if self.plan.workload.kind == "cuda" or of_program:
            return
        # one folder per extension, in the default location below one per Python and CUDA version
        patterns = ("lock", "*/lock", "*/*/lock")
        for path in sorted({path for pattern in patterns for path in extensions_folder().glob(pattern)}):
            with suppress(OSError):
                if path.stat().st_mtime >= self._began_unix_s:
                    text = "left of a build that was stopped: remove it, or later runs wait for it for ever"
                else:
                    text = "older than this run, which may have waited for it: remove it, unless something is built"
                self.note(record, f"{path} is {text}", show=True)


def _recorded(
    plans: Sequence[Plan], final: Path, progress: process.Progress, starter: process.Starter
) -> list[Capture]:
    """Record one program, or two in turns, into the folder `final`; raises OutputError."""

    def recording(plan: Plan) -> Recording:
        def with_side(event: process.Event) -> None:
            progress(replace(event, step=f"{plan.side} {event.step}".strip()))

        return Recording(replace(plan, folder=scratch / plan.side), with_side, starter)

    scratch = process.scratch(final, [plan.side for plan in plans])
    try:
        with writable(final):
            if scarce := process.scarce(scratch):
                progress(process.Event("note", "disk", scarce))
            return _Turns([recording(plan) for plan in plans], scratch, final).whole()
    finally:
        process.discard({scratch})


@dataclass
class _Turns:
    """The runs of one program, or of two in turns, so that drift of the machine is the same for both."""

    sides: Sequence[Recording]
    scratch: Path
    final: Path
    current: str = "compiling"
    turns: int = 0

    def whole(self) -> list[Capture]:
        """Run all stages in order, and keep what was recorded."""
        began = time.monotonic()
        try:
            for side in self.sides:
                side.compile()
            for side in self.sides:
                side.begin()
            # what the GPU reaches is timed once for both programs, by the Python of the first that has torch
            measured = [side for side in self.sides if side.plan.options.measure and side.plan.tools.gpus.present]
            roofs = next(filter(None, (side.roofs() for side in measured)), {})
            for side in measured:
                side.content["roofs"] = roofs
            for name in PASSES:
                self._pass(name)
        except KeyboardInterrupt:
            for side in self.sides:
                side.interrupt()
            kept = ""
            if all(side.recorded for side in self.sides):
                self._kept(time.monotonic() - began, "interrupted")
                kept = f"What was finished before is in {self.final}."
            raise InterruptedCaptureError.during(self.current, remedy=kept) from None
        for side in self.sides:
            if not side.recorded:
                raise CollectError.every_pass_failed(map(side.plan.with_side, side.failures), side.last_words)
        return self._kept(time.monotonic() - began)

    def _pass(self, name: str) -> None:
        """Run a pass as often as requested, until a run fails; the other program has its turn then nevertheless."""
        self.current = name
        taking_part = [(side, begun) for side in self.sides if (begun := side.begin_pass(name))]
        count = max((side.plan.repetitions(name) for side, _ in taking_part), default=0)
        for number in range(1, count + 1):
            finished = []
            for turn, (side, begun) in enumerate(in_order(taking_part, number), self.turns + 1):
                self.current = f"{name} of {side.plan.side}" if side.plan.side else name
                if side.run(begun, number, turn):
                    finished.append((side, begun))
            self.turns += len(SIDES)  # also where one takes part, so that a pair of turns is a pair of runs
            if len(finished) < len(taking_part):
                for side, begun in finished if number < count else ():
                    side.note(begun, f"ended after {number} of {count} runs, as the other program's failed", show=True)
                break
        for side, begun in taking_part:
            side.end_pass(begun)

    def _kept(self, seconds: float, status: str = "") -> list[Capture]:
        """Write the manifests and move the folder to its place; signals are deferred meanwhile."""
        collection, signals = uuid.uuid4().hex, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            self.final, captures = process.vacant(self.final), []
            for side in self.sides:
                if name := side.plan.side:
                    side.content["against"] = {"collection": collection, "side": name, "turns": side.turns}
                ended = status or ("partial" if side.problems() else "complete")
                captures.append(side.write(ended, seconds, self.final / name))
            self.scratch.rename(self.final)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return captures


def extensions_folder() -> Path:
    """The folder in which torch builds extensions."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(caches, "torch_extensions"))


# The manifest: the program, its machine and tools, the passes, and what they wrote.


def _beginning(plan: Plan) -> dict[str, object]:
    """What the manifest says before the first pass."""
    workload, tools = plan.workload, plan.tools
    our_version, digest, path = None, None, workload.path
    with suppress(PackageNotFoundError):
        our_version = version("kanalyze")
    if path:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    chosen = {name: value for name, value in asdict(plan.options).items() if value not in (None, ())}
    return {
        "schema": 1,  # docs/collect.md has its history, and describes every key
        "kind": "kanalyze capture",
        "kanalyze": our_version,
        "status": "complete",
        "began": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "duration_ns": 0,
        "workload": {
            "name": workload.name,
            "kind": workload.kind,
            "path": str(path) if path else None,
            "sha256": digest,
            "args": masked(workload.args),
            "command": masked(plan.command),
            "cwd": str(Path.cwd()),
        },
        "options": {name: str(value) if isinstance(value, os.PathLike) else value for name, value in chosen.items()},
        "machine": machine.host(),
        "gpus": [dict(row) for row in tools.gpus.rows],
        "tools": {
            **{
                program.name: {"path": str(program.path) if program.path else None, "version": program.version}
                for program in (tools.nvcc, tools.nsys, tools.ncu)
            },
            "python": {"path": str(tools.python), "version": tools.python_version},
            "torch": {**tools.torch_facts},
        },
        "git": machine.git(path.parent if path else Path.cwd()),
        "environment": machine.environment(),
    }


def _write_manifest(folder: Path, content: dict[str, object], final: Path) -> str:
    """Write the manifest atomically into `folder`, with paths as they will be in `final`; what was written."""
    before, after = (json.dumps(str(path), ensure_ascii=False)[1:-1] for path in (folder, final))
    text = json.dumps(content, indent=1, ensure_ascii=False).replace(before, after) + "\n"
    # undecodable bytes in paths or arguments can only be escaped in JSON
    write_bytes(folder / "manifest.json", data := text.encode(errors="backslashreplace"))
    return data.decode()
